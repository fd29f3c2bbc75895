"""Secure aggregation at the server (fnlkit.sites.secret): the mean of masked updates."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.message import Unreadable, encode
from fnlkit.federated.client.failure import CODES, Failure
from fnlkit.federated.engines.flower import messages
from fnlkit.sites.message_files import failure_in
from fnlkit.sites.secret import CONFIGS, FEWEST, MODULUS, MOST, STEPS, byte_strings, common, strengthen


class _Round:
    """Context, strategy and client manager for Flower's workflow."""

    def __init__(self, nodes, round):
        from fnlkit.federated.engines.flower.api import ArrayRecord, ConfigRecord, RecordDict

        about = {"config": ConfigRecord({"current_round": round}), "parameters": ArrayRecord()}
        self.nodes, self.state, self.mean, self.counted = nodes, RecordDict(about), None, []
        self.strategy = self.client_manager = self

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[tuple[Any, Any]]:
        from fnlkit.federated.engines.flower.api import FitIns

        return [(SimpleNamespace(node_id=node), FitIns(parameters, {})) for node in self.nodes]

    def num_available(self) -> int:
        return len(self.nodes)

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        from fnlkit.federated.engines.flower.api import parameters_to_ndarrays

        self.counted = [proxy.node_id for proxy, _ in results]
        self.mean = parameters_to_ndarrays(results[0][1].parameters)[0]
        return None, {}


class _CountedReplies:
    """Grid that counts the bytes of replies and stores the failures of nodes."""

    def __init__(self, grid):
        self.grid, self.bytes, self.failures = grid, 0, {}

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        return [self._counted(reply) for reply in self.grid.send_and_receive(messages, timeout=timeout)]

    def _counted(self, reply):
        """Check a reply; an error if the site failed."""
        if not reply.has_error() and CONFIGS in reply.content.config_records:
            self.bytes += sum(len(each) for record in reply.content.values() for each in byte_strings(record))
            return reply
        code, name = _failure_of(reply)
        self.failures[reply.metadata.src_node_id] = Failure(code if code in CODES else "failed", name[:60])
        return SimpleNamespace(has_error=lambda: True, error=code, metadata=reply.metadata)


def _failure_of(reply):
    """Read the code and the class name of a site's failure, empty if there is none."""
    if reply.has_error():
        code, _, name = str(reply.error.reason).partition(" ")
        return code, name
    try:
        return failure_in(messages.bytes_of(reply)) or ("", "")
    except Unreadable:
        return "", ""


def gather_sum(
    grid: Any,
    requests: Mapping[int, dict[str, Any]],
    *,
    about: Mapping[str, Any],
    most: int,
    weighted: bool,
    history: str | None,
    clip: float,
    limit: float | None,
    round: int,
) -> tuple[torch.Tensor | None, list[int], dict[int, Failure], int] | str:
    """Run secure aggregation for a round.

    Returns (mean update float64 (P + Q,) or None, nodes in the mean, {node: Failure}, bytes of all replies), or why the
    protocol cannot run, as a text.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    requests : dict of node to request
        Requests as returned by fnlkit.federated.engines.flower.visits.request. They differ only in the visits.
    about : dict
        Facts that every request states.
    most : int
        Largest number of samples of a site.
    weighted : bool
        Whether sites are weighted by their numbers of samples.
    history : str or None
        As for fnlkit.sites.secret.common. Sums are those of all sites, or there is no mean.
    clip : float
        Largest allowed entry of an update.
    limit : float or None
        Time limit of each of the four steps in seconds.
    round : int
    """
    from fnlkit.federated.engines.flower import api

    if not FEWEST <= len(requests) <= MOST:
        return f"{len(requests)} sites are connected; `protect='secagg'` requires {FEWEST} to {MOST}"
    largest = float(most) if weighted else 1.0
    request = common(next(iter(requests.values())), about, history)
    flower = strengthen(api.secagg_workflow(), request)
    shares = len(requests)
    workflow = flower.SecAggPlusWorkflow(1.0, shares // 2 + 1, max_weight=float(largest), clipping_range=float(clip),
                                         quantization_range=STEPS, modulus_range=MODULUS, timeout=limit)  # fmt: skip
    replies, outcome, state = _CountedReplies(grid), _Round(list(requests), round), flower.WorkflowState()
    try:
        if workflow.setup_stage(replies, outcome, state):
            state.nid_to_fitins = {node: messages.record(encode(visit, about)) for node, visit in requests.items()}
            going = workflow.share_keys_stage(replies, outcome, state)
            # No mask of a site that was lost until here is in the sum, and no site has a share of it.
            there = state.sampled_node_ids = set(state.active_node_ids)
            state.nid_to_neighbours = {node: near & there for node, near in state.nid_to_neighbours.items()}
            for stage in (workflow.collect_masked_vectors_stage, workflow.unmask_stage):
                complete = history is None or len(state.active_node_ids) == len(requests)
                going = going and complete and stage(replies, outcome, state)
    except Exception as error:  # noqa: BLE001 - Flower's parsers raise any error on a reply that violates the protocol
        return None, [], {node: Failure("failed", type(error).__name__) for node in requests} | replies.failures, replies.bytes
    mean = None if outcome.mean is None else torch.from_numpy(np.array(outcome.mean))
    return mean, outcome.counted, replies.failures, replies.bytes
