"""Small networks on the CPU: the local training of a client is a single compiled call.

Each core runs one thread. A loss declares its terms (`fnlkit.kernels.terms`), which a single compiled function computes, and a
correction the name of its compiled form (`fused_kernel`). Without these, training uses plain PyTorch and a note is printed
once. The cohort of an MLP is then stacked, because launching a step of a single client costs more than computing it. LeNet-5
is trained client by client.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from fnlkit.client.network import predict
from fnlkit.client.training import Fit, Plan, train_client
from fnlkit.components.declarations import declaration
from fnlkit.engines.sequential import one_thread
from fnlkit.engines.stacked import Stacked
from fnlkit.engines.visit import Visit, begin_visits
from fnlkit.errors import InputError, WorkStopped
from fnlkit.kernels.fused import FusedAugment, FusedSteps, fused_fit, fused_forward, fused_parameters
from fnlkit.kernels.threads import core_count
from fnlkit.models.parts import fused_form

if TYPE_CHECKING:
    from fnlkit.client.failure import Failure
    from fnlkit.server.clients import CohortRequest


Value = TypeVar("Value")


class Unknown(Exception):
    """Error: a part of local training has no compiled form."""


class Calls:
    """Queue of calls from the threads of a round to the thread that runs the round.

    All clients share a torch module, and only the thread that runs the round uses it. There are no locks, so calls can nest,
    and signals reach this thread even if a user's function never returns.
    """

    def __init__(self):
        self._owner, self._queue, self._open = threading.get_ident(), queue.SimpleQueue(), set()

    def run(self, call: Callable[[], Value]) -> Value:
        """Return ``call()``, executed by the thread that runs the round."""
        if threading.get_ident() == self._owner:
            return call()
        answer: Future[Value] = Future()
        self._open.add(answer)
        self._queue.put((call, answer))
        try:
            return answer.result()
        finally:
            self._open.discard(answer)

    def serve(self, visits: Collection[Future[Any]]) -> None:
        """Execute calls until all futures in `visits` are done.

        After Ctrl-C or SIGTERM, the exception is raised once all visits have ended.
        """
        # Only the last visit wakes this thread, because each change of the running thread costs as much as a short visit.
        ended = itertools.count(1)  # its next() is atomic

        def end(_: object) -> None:
            if next(ended) == len(visits):
                self._queue.put(None)

        for visit in visits:
            visit.add_done_callback(end)
        try:
            while visits and (entry := self._queue.get()) is not None:
                call, answer = entry
                try:
                    answer.set_result(call())
                except (Exception, SystemExit) as error:  # noqa: BLE001 - the client's thread reports it
                    answer.set_exception(error)
        except BaseException:  # no thread must change a client's memory after the rollback
            for visit in visits:
                visit.cancel()
            while wait(visits, timeout=0.05).not_done:
                for answer in list(self._open):
                    if not answer.done():
                        answer.set_exception(WorkStopped("the round was interrupted"))
            raise


class Fused(Stacked):
    """Clients run in parallel threads with compiled local training and predictions.

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
            raise InputError(f"`engine` fused knows lenet5 and mlp on the CPU, not {network}; write `engine='auto'`")
        if self.network.precision == "bf16":
            raise InputError(
                "`engine` fused computes in fp32 or fp64, not in bf16; write `engine='auto'` or another `precision`"
            )
        # Stacked MLPs are faster than a client at a time.
        self._small = "mlp" in (self.net[0], self.net[1][0] if self.net[0] == "pair" else "")
        self.count = workers or core_count()
        # A network with a head has further features, and a perceptron without hidden layers has no last hidden layer.
        deep = self.net[0] != "mlp" or len(self.net[1]) > 2
        self._has_features = deep and fused_parameters(self.net) == self.network.parameters_count
        self._threads, self._calls = None, None

    @property
    def threads(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="fnlkit-client")
        return self._threads

    def run(self, request: CohortRequest) -> list[dict[str, torch.Tensor] | Failure]:
        """Return the replies of a request; see `Engine.run`."""
        if self._small and len(request.ids) > 1 and not self._has_kernel(request.steps):
            return super().run(request)
        self._make_twin(request.steps)
        with one_thread():
            visits = begin_visits(self, request, self._score)
            longest_first = sorted(visits, key=lambda v: -len(v.client))
            self._calls = Calls()
            try:
                done = [self.threads.submit(self._all, visit, request.steps) for visit in longest_first]
                self._calls.serve(done)
                for future in done:
                    future.result()
            finally:
                self._calls = None
        return [v.outcome for v in visits]

    def _has_kernel(self, steps):
        """Return whether a kernel exists for the local training in these steps.

        If there is no kernel, a note is recorded.
        """
        try:
            for step in steps:
                if isinstance(step, Fit):
                    find_terms(step)
        except Unknown as reason:
            self.note(f"fused: {reason}; such clients are stacked in plain PyTorch, two to four times slower")
            return False
        return True

    def _all(self, visit, steps):
        try:
            visit.guard(visit.client.arrive)
            self._steps(visit, steps)
        finally:
            visit.client.leave()

    def _steps(self, visit, steps):
        for step in steps:
            if visit.error is not None:
                return
            if isinstance(step, Fit):
                visit.guard(partial(self._train_compiled, visit, step))
            elif compiled := declaration(step).compiled:
                visit.do(partial(compiled, **getattr(step, "keywords", {})))
            elif getattr(step, "func", step).__module__.startswith("fnlkit."):
                visit.do(step)
            else:  # a user's step, which can use the network
                self._calls.run(partial(visit.do, step))

    def _train_compiled(self, visit, fit):
        visit.plan(fit, self.seed, visit.round)
        client, draws = visit.client, visit.draws
        weights, x = visit.model.weights.numpy(), client.inputs.stored(client.x)
        try:
            steps, terms = fused_terms(fit, visit, draws)
            fitted = fused_fit(self.net, weights, x, client.y.numpy(), draws.order, steps, **client.inputs.normal, **terms)
        except (Unknown, InputError) as reason:
            self.note(f"fused: {reason}; such clients are trained by the plain loop, several times slower")
            twin = self.twin if fit.teacher else None
            arguments = self.network, client, visit.model.weights, fit, draws, visit.received, twin
            return visit.trained(self._calls.run(partial(train_client, *arguments)))
        client.rng.integers(2**62)  # the same draw as the plain loop makes for dropout
        visit.trained(torch.from_numpy(np.ascontiguousarray(fitted.theta)))

    def _score(self, network, weights, x, inputs, *, batch_size=512, features=False):
        if weights is None or (features and not self._has_features):
            call = partial(predict, network, weights, x, inputs, batch_size=batch_size, features=features)
            return call() if self._calls is None else self._calls.run(call)
        network_weights = weights.numpy()[: fused_parameters(self.net)]
        return torch.from_numpy(fused_forward(self.net, network_weights, inputs.stored(x), features=features, **inputs.normal))

    def _predict(self, weights, x):
        """Return logits (n, C) of raw samples, in parallel."""

        def score(part: torch.Tensor) -> torch.Tensor:
            return self._score(self.network, weights, part, self.inputs)

        return torch.cat(list(self.threads.map(score, x.split(max(64, -(-len(x) // (4 * self.count)))))))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None


def fused_terms(fit: Fit, visit: Visit, draws: Plan) -> tuple[FusedSteps, dict[str, Any]]:
    """Return the steps and the keywords of fused_fit for a client.

    Raises
    ------
    Unknown
        If a part has no compiled form.
    """
    terms_of, corrections = find_terms(fit)
    loss = terms_of(visit)
    if fit.views != loss.views:
        raise Unknown("it takes each sample once in a batch, not in several views")
    if draws.share is not None and loss.depends_on_labels:
        raise Unknown(f"under mixup it has no kernel for the loss {_name(fit.loss)!r}")
    drift: dict[str, Any] = {}
    for correction in corrections:
        for name, value in correction(visit).items():
            drift[name] = drift.get(name, 0) + value
    steps = FusedSteps(
        fit.lr,
        momentum=fit.momentum,
        weight_decay=fit.weight_decay,
        optimizer=fit.optimizer,
        epoch_steps=max(1, len(draws) // max(fit.epochs, 1)),
        **drift,
    )
    return steps, {
        "loss": loss,
        "augment": FusedAugment(draws.shift, fit.augment.pad, draws.flip, draws.center, fit.augment.cutout),
        "mixup": None if draws.share is None else (draws.partner, draws.share),
    }


def find_terms(fit: Fit) -> tuple[Callable[..., Any], list[Callable[..., Any]]]:
    """Return the functions of a visit that return the terms of a Fit's loss and of its corrections.

    Raises
    ------
    Unknown
    """
    if fit.clip:
        raise Unknown("it has no kernel for gradient clipping")
    if fit.penalty is not None:
        raise Unknown(f"it has no kernel for the penalty {_name(fit.penalty)!r}")
    loss = _bound(declaration(fit.loss).terms, fit.loss, "loss")
    return loss, [_bound(CORRECTIONS.get(declaration(c).fused_kernel), c, "correction") for c in fit.corrections]


def _bound(terms, function, what):
    """Return a function of terms with the keywords of a loss or correction bound."""
    if terms is None or getattr(function, "args", ()):
        raise Unknown(f"it has no kernel for the {what} {_name(function)!r}")
    return partial(terms, **getattr(function, "keywords", {}))


def _name(function):
    return getattr(function, "func", function).__name__


# ---- corrections: (visit, *, keywords) -> drift terms of FusedSteps
def _proximal(visit, *, mu):
    return {"proximal": mu}


def _dynamic(visit, *, alpha):
    return {"proximal": alpha, "linear": -visit.client.state["dual"].numpy()}


def _control(visit):
    return {"linear": (visit.received["control"] - visit.client.state["control"]).numpy()}


def _towards_global(visit, *, strength):
    anchor = visit.client.state["global"]
    return {"proximal": strength, "linear": strength * (visit.model.weights[: len(anchor)] - anchor).numpy()}


def _adaptive(visit):
    return {"proximal": 2 * float(visit.received["proximal"])}


def _adaptive_norm(visit):
    return {"proximal_norm": float(visit.received["proximal"])}


CORRECTIONS = {
    "proximal": _proximal,
    "dynamic": _dynamic,
    "control_variate": _control,
    "towards_global": _towards_global,
    "adaptive": _adaptive,
    "adaptive_norm": _adaptive_norm,
}
