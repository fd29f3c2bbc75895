"""Small networks on the CPU: compiled local training.

With the cross entropy, the local training of a client is a single compiled call, and each core runs one thread.  Every other
loss is a function of PyTorch between compiled passes of the whole cohort (`fnlkit.federated.engines.lockstep`).
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import declaration
from fnlkit.core.errors import InputError
from fnlkit.federated.client.failure import Failure
from fnlkit.federated.client.network import predict
from fnlkit.federated.client.training import Fit, seeded
from fnlkit.federated.engines.lockstep import Lockstep, descent_of
from fnlkit.federated.engines.sequential import one_thread
from fnlkit.federated.engines.stacked import Stacked
from fnlkit.federated.engines.visit import Visit, begin_visits
from fnlkit.federated.server.clients import Ask
from fnlkit.kernels.fused import FusedAugment, fused_fit, fused_forward, fused_parameters
from fnlkit.kernels.threads import core_count
from fnlkit.models.parts import fused_form


class Fused(Stacked):
    """Clients train and predict with compiled networks.

    Parameters
    ----------
    workers : int
        Number of threads. 0 means a thread for each core that this process can use.
    """

    numerics = "fused"

    def __init__(self, *args, workers=0, **settings):
        super().__init__(*args, **settings)
        self.net = fused_form(self.network.module, self.members[0].samples.shape, self.members[0].inputs.image)
        if self.net is None or self.network.device.type != "cpu":
            frozen = " with frozen parameters" if self.network.frozen else ""
            network = f"{type(self.network.module).__name__}{frozen} on {self.network.device}"
            raise InputError(f"fused knows lenet5 and mlp on the CPU, not {network}; write `engine='auto'`", parameter="engine")
        if self.network.precision == "bf16":
            raise InputError("fused has no bf16; write `engine='auto'` or another `precision`", parameter="engine")
        self.count = workers or core_count()
        # Weights of a head follow those of the network.
        self._whole = fused_parameters(self.net) == self.network.parameters_count
        self._threads, self._module = None, threading.Lock()

    @property
    def threads(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="fnlkit-client")
        return self._threads

    def run(self, request: Ask) -> list[dict[str, torch.Tensor] | Failure]:
        """Run a request; see `Engine.run`."""
        if not all(self._in_thread(step) for step in request.steps):
            return super().run(request)
        with one_thread():
            visits = begin_visits(self, request, self._score)
            self._in_threads(partial(self._visit_alone, request.steps), sorted(visits, key=lambda v: -len(v.client)))
        return [v.outcome for v in visits]

    def _in_thread(self, step):
        """Whether a step of a visit needs neither the other clients nor the network's module."""
        if isinstance(step, Fit):
            return self._whole and self.net[0] != "pair" and find_targets(step) is not None and drift_terms(step) is not None
        return getattr(step, "func", step).__module__.startswith("fnlkit.")

    def _in_threads(self, work: Callable[[Visit], object], visits: Sequence[Visit]) -> None:
        """Do work for all visits; an exception of a thread, Ctrl-C or SIGTERM is raised when all threads have stopped."""
        done = [self.threads.submit(work, visit) for visit in visits]
        try:
            for future in done:
                future.result()
        except BaseException:  # no thread must change a client's memory after the rollback
            for future in done:
                future.cancel()
            wait(done)
            raise

    def _visit_alone(self, steps, visit):
        try:
            visit.guard(visit.client.arrive)
            for step in steps:
                if visit.error is None:
                    self._do(step, visit)
        finally:
            visit.client.leave()

    def _do(self, step, visit):
        if isinstance(step, Fit):
            visit.guard(partial(self._train_alone, visit, step))
        elif compiled := declaration(step).compiled:
            visit.do(partial(compiled, **getattr(step, "keywords", {})))
        else:
            visit.do(step)

    def _fit(self, alive, fit, scattered):
        if self._in_thread(fit):
            self._do_all(sorted(alive, key=lambda v: -len(v.client)), fit)
        else:
            super()._fit(alive, fit, scattered)

    def _do_all(self, alive, step):
        if self._in_thread(step):
            self._in_threads(partial(self._do, step), alive)
        else:  # a user's step, which can use the network
            super()._do_all(alive, step)

    def _train_alone(self, visit, fit):
        visit.plan(fit, self.seed, visit.round)
        client, draws = visit.client, visit.draws
        weights, x = visit.model.weights.numpy(), client.inputs.stored(client.x)
        names = ("shift", "flip", "center", "partner", "share")
        drawn = {name: value if (value := getattr(draws, name)) is None else value[None] for name in names}
        fitted = fused_fit(
            self.net,
            weights,
            x,
            client.y.numpy(),
            draws.order,
            descent_of(fit, [draws], stack_drift(fit, [visit])),
            targets=find_targets(fit)(visit),
            augment=FusedAugment(pad=fit.augment.pad, side=fit.augment.cutout, **drawn),
            **client.inputs.normal,
        )
        client.rng.integers(2**62)  # the same draw as the plain loop makes for dropout
        visit.trained(torch.from_numpy(fitted))

    def _train_stack(self, part, fit, scattered):
        key = [int(visit.client.rng.integers(2**62)) for visit in part][0]
        drift = stack_drift(fit, part)
        if self.net[0] == "pair" and "proximal_norm" in (drift or ()):
            drift = None  # kernels compute the distance of each network, not that of the whole vector
        training = Lockstep(self.net, self.network, part, fit, scattered, drift, self.threads, self.count)
        with seeded(key):
            return training.train()

    def _score(self, network, weights, x, inputs, *, batch_size=512, features=False):
        if weights is None or (features and not self._whole):
            with self._module:
                return predict(network, weights, x, inputs, batch_size=batch_size, features=features)
        network_weights = weights.numpy()[: fused_parameters(self.net)]
        return torch.from_numpy(fused_forward(self.net, network_weights, inputs.stored(x), features=features, **inputs.normal))

    def _predict(self, weights, x):
        """Predict logits (n, C) of raw samples, in parallel."""

        def score(part: torch.Tensor) -> torch.Tensor:
            return self._score(self.network, weights, part, self.inputs)

        return torch.cat(list(self.threads.map(score, x.split(max(64, -(-len(x) // (4 * self.count)))))))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None


def find_targets(fit: Fit) -> Callable[[Visit], dict[str, Any]] | None:
    """Find the function of a visit that makes the keywords of `FusedCohort.train`; None if the loss is not compiled."""
    loss: Any = fit.loss
    if fit.clip or fit.penalty is not None or bool(getattr(loss, "args", None)):
        return None
    targets = LOSSES.get(declaration(loss).fused_kernel)
    return targets and partial(targets, **getattr(loss, "keywords", {}))


def drift_terms(fit: Fit) -> list[Callable[[Visit], dict[str, Any]]] | None:
    """Find the compiled forms of the corrections; None if one of them has none, or the gradient is clipped."""
    terms: list[Callable[[Visit], dict[str, Any]]] = []
    correction: Any
    for correction in fit.corrections:
        compiled = CORRECTIONS.get(declaration(correction).fused_kernel)
        if compiled is None or bool(getattr(correction, "args", None)):
            return None
        terms.append(partial(compiled, **getattr(correction, "keywords", {})))
    return None if fit.clip else terms


def stack_drift(fit: Fit, visits: Sequence[Visit]) -> dict[str, Any] | None:
    """Stack the drift terms of all visits as keywords of FusedSteps; None without drift."""
    terms = drift_terms(fit)
    drift: dict[str, Any] = {}
    if terms is None:
        return None
    for compiled in terms:
        each = [compiled(visit) for visit in visits]
        for name in each[0]:
            drift[name] = drift.get(name, 0) + np.stack([values[name] for values in each])
    return drift


# ---- losses: (visit, *, keywords) -> keywords of FusedCohort.train
def _kept(visit):
    return {"keep": visit.client.rows["keep"].numpy()}


def _soft(visit, *, kept=False):
    return {"soft": visit.client.rows["inferred"].numpy(), **(_kept(visit) if kept else {})}


LOSSES: dict[str, Callable[..., dict[str, Any]]] = {
    "cross_entropy": lambda visit: {},
    "smoothed": lambda visit, *, rate=0.1: {"smoothing": rate},
    "kept": _kept,
    "soft": _soft,
}


# ---- corrections: (visit, *, keywords) -> drift terms of FusedSteps
def _towards_global(visit, *, strength):
    anchor = visit.client.state["global"]
    return {"proximal": strength, "linear": strength * (visit.model.weights[: len(anchor)] - anchor).numpy()}


CORRECTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "proximal": lambda visit, *, mu: {"proximal": mu},
    "dynamic": lambda visit, *, alpha: {"proximal": alpha, "linear": -visit.client.state["dual"].numpy()},
    "control_variate": lambda visit: {"linear": (visit.received["control"] - visit.client.state["control"]).numpy()},
    "towards_global": _towards_global,
    "adaptive": lambda visit: {"proximal": 2 * float(visit.received["proximal"])},
    "adaptive_norm": lambda visit: {"proximal_norm": float(visit.received["proximal"])},
}
