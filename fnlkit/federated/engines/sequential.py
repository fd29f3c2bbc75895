"""Reference engine: clients run one after another in plain PyTorch.

This engine is short and slow. All other engines must return equal results.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fnlkit.federated.client.client import Client, LocalModel, read_ahead, run_step
from fnlkit.federated.client.failure import Failure, failure
from fnlkit.federated.client.network import Network
from fnlkit.federated.client.training import Fit, plan, train_client
from fnlkit.federated.engines.engine import Engine
from fnlkit.federated.server.clients import Ask
from fnlkit.kernels.threads import one_kernel_thread


class Sequential(Engine):
    """Clients run one by one in this process."""

    twin = None  # a second network, for the teacher of a local training

    def run(self, request: Ask) -> list[dict[str, torch.Tensor] | Failure]:
        """Visit the clients one after another; see `Engine.run`."""
        self._make_twin(request.steps)
        with one_thread():
            cohort = read_ahead(self.members[i] for i in request.ids.tolist())
            return [self._visit(client, request, request.received(j)) for j, client in enumerate(cohort)]

    def _visit(self, client, request, received):
        by = {"seed": self.seed, "round": request.round}
        return reply_of(self.network, self.twin, client, request.weights, request.steps, received, **by)

    def _make_twin(self, steps):
        if self.twin is None and any(isinstance(step, Fit) and step.teacher for step in steps):
            self.twin = self.network.twin()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with a single thread, including the kernels.

    Sums then have the same order on every machine, and clients do not compete for cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_kernel_thread():
            yield
    finally:
        torch.set_num_threads(before)


def reply_of(
    network: Network,
    twin: Network | None,
    client: Client,
    weights: torch.Tensor,
    steps: Sequence[Any],
    received: dict[str, Any],
    *,
    seed: int,
    round: int,
) -> Failure | dict[str, torch.Tensor]:
    """Visit a client: run the steps of a round and return the reply, named arrays, or a Failure.

    The reply of a client that fails is lost, and the server reports this client.

    Parameters
    ----------
    network, twin : fnlkit.federated.client.network.Network
    client : fnlkit.federated.client.client.Client
    weights : Tensor (P + Q,)
    steps : sequence of Fit or client steps
    received : dict
    seed, round : int
    """
    try:
        client.arrive()
        return _replies(network, twin, client, weights, steps, received, seed=seed, round=round)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - no error of a client may stop the other clients
        return failure(error, client.id, round)
    finally:
        client.leave()


def _replies(network, twin, client, weights, steps, received, *, seed, round):
    client.begin_round(seed, round)
    model, reply = LocalModel(network, weights, weights, client.inputs), {}
    for step in steps:
        if isinstance(step, Fit):
            image = tuple(client.samples.shape[1:3]) if client.inputs.image else None
            draws = plan(len(client), step, seed=seed, round=round, client=client.id, image=image)
            teacher = twin if step.teacher else None
            model.weights = train_client(network, client, model.weights, step, draws, received, teacher)
            reply["weights"] = model.weights
        else:
            reply.update(run_step(step, client, model, received))
    return reply
