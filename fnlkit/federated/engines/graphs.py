"""GPU steps as CUDA graphs: recorded once per shape, then replayed without Python.

A step of a small network consists of hundreds of short kernels, and launching them takes longer than running them. A
recording fixes addresses and sizes. The first cohort of a shape therefore stays in memory, and later cohorts are copied into
the tensors of the first. Each recording is compared with the plain step before it is used. If it fails or differs, the plain
step is used and a note is recorded.
"""

import gc
from typing import Any

import torch
from torch import nn

from fnlkit.federated.engines.stacked_training import StackedTraining

WARM = 2
WIDE = 1e6  # parameters


class Graphs:
    """Recorded steps of cohorts in `recorded`, by code, constants and shapes.

    Parameters
    ----------
    note : callable
        Receives a note for the user.
    """

    def __init__(self, note):
        self.note = note
        self.recorded = {}
        self.memory = None
        self.broken = False

    def train(self, training: StackedTraining) -> torch.Tensor:
        """Train a cohort locally: weights (K, P + Q)."""
        if self.broken or not self.usable(training.device):
            return training.train()
        key = signature(training)
        if key not in self.recorded:
            while len(self.recorded) >= 4:  # methods change their loss over rounds, so drop old recordings
                self.recorded.pop(next(iter(self.recorded)))
            self.recorded[key] = (training, {})
        stay, recordings = self.recorded[key] = self.recorded.pop(key)  # the most recently used entry is dropped last
        if stay is not training:
            adopt(stay, training)

        def step(*shape: Any) -> None:
            if shape not in recordings:
                recordings[shape] = self._record_step(stay, shape)
            else:
                recordings[shape]()

        try:
            return stay.train(step)
        except BaseException:
            self.recorded.pop(key, None)  # otherwise its memory is not freed before the attempt with fewer clients
            self.memory = None
            raise
        finally:
            if self.broken:
                self.recorded.clear()

    def usable(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def _record_step(self, training, shape):
        """Execute a step and return a function for the next steps of this shape."""

        def plain() -> None:
            training.step(*shape)

        before, reason = contents(training), ""
        for form in ways(training):
            training.forward.form = form
            try:
                replay = self._verify_recording(training, plain, before)
                if reason:
                    self.note(f"stacked: recorded as {form}, not as {ways(training)[0]} ({reason})")
                return replay
            except torch.OutOfMemoryError:
                raise  # fewer clients at once can fit
            except Exception as error:  # noqa: BLE001 - the other form of recording can succeed
                reason = (str(error) or type(error).__name__).splitlines()[0][:160]  # the error would keep `before` alive
                self.memory = None  # a pool is freed with its last recording
                torch.cuda.synchronize()
                restore(training, before)
        plain()  # if the plain step is faulty, it raises here, and the recording is not the cause
        self.broken = True
        self.note(f"stacked: no CUDA graph ({reason}); steps are launched one by one")
        return plain

    def _verify_recording(self, training, plain, before):
        """Execute a step by a new recording and return it if it equals the plain step."""
        graph = self._record(training, plain, before)
        drawn = torch.cuda.get_rng_state(training.device) if training.device.type == "cuda" else None
        plain()
        expected = contents(training)
        restore(training, before)
        if drawn is not None:  # a user's loss that draws random numbers gets the same numbers again
            torch.cuda.set_rng_state(drawn, training.device)
        graph.replay()
        away = max(relative_distance(a, b) for a, b in zip(contents(training), expected, strict=True))
        if not away < 1e-2:
            raise RuntimeError(f"the result of the recorded step differs by {away:.1e} from the plain step")
        return graph.replay

    def _record(self, training, plain, before):
        """Record the current step without changing the training."""

        def warm() -> None:
            for _ in range(WARM):
                plain()
                training.turn.copy_(before[0])  # the next step can have a different shape

        graph = self._capture(warm, plain)
        restore(training, before)
        return graph

    def _capture(self, warm, plain):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            warm()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.collect()
        gc.disable()  # a collected graph of an earlier recording would be destroyed, which CUDA refuses during a capture
        try:
            with torch.cuda.graph(graph, pool=self.memory):
                plain()
        finally:
            if collects:
                gc.enable()
        self.memory = graph.pool()
        return graph


def ways(training: StackedTraining) -> tuple[str, ...]:
    """Forms of recording, best first; see `fnlkit.federated.engines.forward.Forward`.

    In a stack, the convolutions of K clients become a convolution with K groups. For a wide network this is slower than K
    parallel convolutions, and for a small network it is as fast or faster. Under bf16, matrix products are faster than both for
    networks with batch norm, and the grouped convolutions of these networks fail (`python -m benchmarks.gpu`). The choice
    depends only on the network, because a choice by timing would differ from run to run.
    """
    network = training.network
    kinds = {type(part) for part in network.module.modules()}
    if nn.Conv2d not in kinds:
        return ("stack", "branches")
    if network.precision == "bf16":
        return ("products", "branches") if nn.BatchNorm2d in kinds else ("branches", "stack")
    return ("branches", "stack") if network.parameters_count >= WIDE else ("stack", "branches")


def changing(training: StackedTraining) -> list[torch.Tensor]:
    """Tensors that a step writes. The first is the index of the current step."""
    rows = [training.rows.made[name] for name in sorted(training.rows.made)]
    low = [part for part in training.low if part is not None]
    return [training.turn, *training.parameters.values(), *low, *training.buffers.values(), *training.descent.memory, *rows]


def input_tensors(training: StackedTraining) -> dict[str, torch.Tensor]:
    """Other tensors that a step reads, by name, after loading the lazy tensors."""
    names = ("starts", "pool", "offset", "table", "begins", "y", "order", "partner", "shift", "flip", "center", "uniform")
    single = {name: getattr(training, name) for name in names}
    single["rate"] = training.descent.rate
    single |= dict(zip(("share", "rest"), training.share or (None, None), strict=True))
    for group in ("broadcast", "scatter"):
        memory = getattr(training, group)
        single |= {f"{group}/{name}": memory[name] for name in memory}
    single |= {f"state/{name}": training.state[name] for name in training.state.whole()}
    return {name: value for name, value in single.items() if value is not None}


def contents(training: StackedTraining) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in changing(training)]


def restore(training: StackedTraining, before: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(changing(training), before, strict=True):
            tensor.copy_(value)


def relative_distance(values: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative distance of two tensors, NaN if only one contains NaN."""
    if not values.is_floating_point():
        return float((values != expected).any())
    values, expected = values.double(), expected.double()
    if bool((values.isnan() == expected.isnan()).all()):
        values, expected = values.nan_to_num(), expected.nan_to_num()
    return float((values - expected).norm() / expected.norm().clamp_min(1e-12))


def signature(training: StackedTraining) -> str:
    """Make the key of a recording: code, constants and shapes."""
    for name in training.rows:  # all of them, because the names that the loss reads are available only after it has run
        training.rows[name]
    fit = training.fit.changed(lr=0.0)
    functions = [_constants(f) for f in (fit.loss, *fit.corrections, fit.penalty)]
    shapes: list[Any] = [(name, value.shape, value.dtype) for name, value in input_tensors(training).items()]
    shapes += [(value.shape, value.dtype) for value in changing(training)]
    plain = fit.changed(loss=None, corrections=(), penalty=None)
    return repr((functions, plain, shapes, sorted(training.rows), sorted(training.state), training.shared_start))


def _constants(function):
    """List a function and its bound arguments, with arrays identified by id.

    Different arrays can print alike, and a recording reads the memory of a specific array.
    """
    bound = {**dict(enumerate(getattr(function, "args", ()))), **getattr(function, "keywords", {})}
    return getattr(function, "func", function), {n: id(v) if hasattr(v, "shape") else v for n, v in bound.items()}


def adopt(stay: StackedTraining, training: StackedTraining) -> None:
    """Copy a training into the tensors of another training with the same signature."""
    stay.state.memories = training.state.memories  # an earlier client can have dropped a part of its memory since then
    with torch.no_grad():
        for tensor, value in zip(changing(stay), changing(training), strict=True):
            tensor.copy_(value)
        old, new = input_tensors(stay), input_tensors(training)
        for name, value in new.items():
            old[name].copy_(value)
    stay.clients = stay.rows.clients = training.clients  # keep the names of written rows, because a replay does not record them
    stay.groups = training.groups  # keep the Fit, because a recording reads the arrays bound to it
