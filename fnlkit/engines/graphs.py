"""A GPU's steps as CUDA graphs: recorded once for each shape, then replayed without the interpreter.

A small network's step is hundreds of short kernels, and launching them one by one takes longer than they run.  A recording
fixes addresses and sizes, so the first cohort of a shape stays and later ones move into its place.  What is recorded is
compared with the plain step before it is trusted; whatever fails or differs is done plainly, and said.
"""

import statistics

import torch

WARM, TIMED = 2, 3


class Graphs:
    """Recordings of the steps of cohorts, by what their shapes and code depend on.

    Parameters
    ----------
    note : callable
        Takes a text for the user.
    """

    def __init__(self, note):
        self.note, self.held, self.choice, self.memory, self.broken = note, {}, {}, None, False

    def train(self, training):
        """Return the weights (K, P + Q) after a cohort's local training."""
        if self.broken or not self.usable(training.device):
            return training.train()
        key = signature(training)
        if key not in self.held:
            while len(self.held) >= 4:  # methods change their loss over rounds: let old recordings go
                self.held.pop(next(iter(self.held)))
            self.held[key] = (training, {})
        stay, recordings = self.held[key]
        if stay is not training:
            adopt(stay, training)

        def step(*shape):
            if shape not in recordings:
                recordings[shape] = self._recorded(stay, shape)
            else:
                recordings[shape]()

        return stay.train(step)

    def usable(self, device):
        return device.type == "cuda"

    def _recorded(self, training, shape):
        """Do one step and return a function that does the next of this shape."""

        def plain():
            training.step(*shape)

        before = contents(training)
        try:
            ways, failed = {}, None
            for training.forward.branched in (self.choice[shape],) if shape in self.choice else (False, True):
                try:
                    ways[training.forward.branched] = self._record(training, plain, before)
                except Exception as error:  # noqa: BLE001 - the other way may do
                    failed = error
                    torch.cuda.synchronize()
                    restore(training, before)
            if not ways:
                raise failed
            training.forward.branched = self.choice[shape] = min(ways, key=lambda way: ways[way][1])
            graph = ways[training.forward.branched][0]
            if len(ways) == 2 and shape[0] == len(training.clients) > 1:
                stack, branches = (ways[way][1] for way in (False, True))
                self.note(
                    f"stacked: {shape[0]} clients a step take {stack:.2f} ms as one stack, {branches:.2f} ms as branches "
                    f"of one graph; {'branches' if training.forward.branched else 'the stack'} it is"
                )
            plain()
            expected = contents(training)
            restore(training, before)
            graph.replay()
            away = max(apart(a, b) for a, b in zip(contents(training), expected, strict=True))
            if not away < 1e-2:
                raise RuntimeError(f"the recorded step is {away:.1e} away from the plain one")
            return graph.replay
        except Exception as error:  # noqa: BLE001 - the plain step is right, only slower
            self.broken = True
            reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
            self.note(f"stacked: no CUDA graph ({reason}); steps are launched one by one")
            torch.cuda.synchronize()
            training.forward.branched = False
            restore(training, before)
            plain()
            return plain

    def _record(self, training, plain, before):
        """Return (graph, ms a replay); the training is left as it was before."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                plain()
                training.turn.copy_(before[0])  # the step after this one may have another shape
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.memory):
            plain()
        self.memory = graph.pool()
        times = []
        for _ in range(TIMED):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            training.turn.copy_(before[0])
            times.append(start.elapsed_time(end))
        restore(training, before)
        return graph, statistics.median(times)


def changing(training):
    """Return the tensors that a step writes; the first says which step is due."""
    rows = [training.rows.made[name] for name in sorted(training.rows.made)]
    return [training.turn, *training.parameters.values(), *training.buffers.values(), *training.descent.memory, *rows]


def given(training):
    """Return the other tensors that a step reads, by name; fetching what is fetched when asked for."""
    names = ("starts", "pool", "offset", "table", "begins", "y", "order", "partner", "shift", "flip", "centre", "uniform")
    single = {name: getattr(training, name) for name in names}
    single["rate"] = training.descent.rate
    single |= dict(zip(("share", "rest"), training.share or (None, None), strict=True))
    for group in ("broadcast", "scatter"):
        memory = getattr(training, group)
        single |= {f"{group}/{name}": memory[name] for name in memory}
    single |= {f"state/{name}": training.state[name] for name in training.state.whole()}
    return {name: value for name, value in single.items() if value is not None}


def contents(training):
    return [tensor.clone() for tensor in changing(training)]


def restore(training, before):
    with torch.no_grad():
        for tensor, value in zip(changing(training), before, strict=True):
            tensor.copy_(value)


def apart(found, expected):
    """Return the relative distance of two tensors; NaN where one has it and the other not."""
    if not found.is_floating_point():
        return float((found != expected).any())
    found, expected = found.double(), expected.double()
    if bool((found.isnan() == expected.isnan()).all()):
        found, expected = found.nan_to_num(), expected.nan_to_num()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-12))


def signature(training):
    """Return what a recording depends on: code, constants and shapes."""
    for name in training.rows:  # all of them, since which the loss reads is only known when it has
        training.rows[name]
    fit = training.fit.changed(lr=0.0)
    functions = [(getattr(f, "func", f), getattr(f, "keywords", {})) for f in (fit.loss, *fit.corrections)]
    shapes = [(name, value.shape, value.dtype) for name, value in given(training).items()]
    shapes += [(value.shape, value.dtype) for value in changing(training)]
    plain = fit.changed(loss=None, corrections=())
    return repr((functions, plain, shapes, sorted(training.rows), sorted(training.state), training.shared_start))


def adopt(stay, training):
    """Move a training into the place of another of the same signature."""
    with torch.no_grad():
        for tensor, value in zip(changing(stay), changing(training), strict=True):
            tensor.copy_(value)
        kept, new = given(stay), given(training)
        for name, value in new.items():
            kept[name].copy_(value)
    stay.clients = stay.rows.clients = training.clients  # the names of written rows stay: a replay does not tell them
    stay.groups, stay.fit = training.groups, training.fit
