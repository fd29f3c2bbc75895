"""Secure aggregation: Flower's SecAgg+ around the visits of a round.

The server receives only the mean of the updates and no single update.

Bell, Bonawitz, Gascón, Lepoint, Raykova. Secure single-server aggregation with (poly)logarithmic overhead. CCS 2020.

Flower's mod (at a site) and workflow (at the server) exchange four messages: keys, shares of keys, masked updates, shares of
the masks. Flower draws the masks from a generator with a seed of 32 bits, which can be guessed. Both sides therefore use
different masks here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from fnlkit.artifacts.message import Unreadable, decode, encode
from fnlkit.federated.client.failure import CODES, Failure
from fnlkit.federated.engines.flower import messages
from fnlkit.kernels.streams import stream

STEPS, MODULUS = 2**22, 2**32  # levels of a quantized entry; modulus of the sums
FEWEST, MOST = 3, MODULUS // STEPS - 1  # clients of a round: the sum of two reveals each update to the other client
_CONFIGS = "secaggplus_configs"


class Refused(Exception):
    """Error: a site refuses a request. The reason contains no value of the samples."""


class AboveClip(Refused):
    """Error: an update has an entry above `clip` or a NaN entry."""


class Failed(Exception):
    """Error: a visit has no reply. The arguments are the failure code and a class name."""


class Terms(NamedTuple):
    """Terms of secure aggregation that a site agreed to.

    The site refuses other values from the server.

    Attributes
    ----------
    clip : float > 0
        Largest entry of an update.
    weight : int
        Weight of the site in the mean: the number of samples, or 1.
    largest : float
        Largest weight that any site can have.
    """

    clip: float
    weight: int
    largest: float


def masks(seed: bytes, num_range: int, dimensions_list: Sequence[tuple[int, ...]], *, request: bytes = b"") -> list[np.ndarray]:
    """Return random integers below `num_range` of each shape.

    The generator is AES-256 in counter mode. The key depends on the whole seed and on the request.

    Parameters
    ----------
    seed : bytes
    num_range : int
        A power of 2.
    dimensions_list : list of tuple
    request : bytes
        `common` of the request that a site answers. The masks of sites with different requests do not cancel. A server
        therefore cannot isolate a site by sending the other sites requests with known or zero updates.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    source = Cipher(algorithms.AES(hashlib.sha256(seed + request).digest()), modes.CTR(bytes(16))).encryptor()
    words = [np.frombuffer(source.update(bytes(4 * math.prod(shape))), "<u4") for shape in dimensions_list]
    pairs = zip(words, dimensions_list, strict=True)
    return [(values.astype(np.int64) & (num_range - 1)).reshape(shape) for values, shape in pairs]


def _strengthen(module, request):
    """Return a module of Flower with the masks of this module, bound to a request."""
    module.pseudo_rand_gen = partial(masks, request=request)
    return module


def common(request: Mapping[str, Any]) -> bytes:
    """Return the SHA-256 of the part of a request that all sites share.

    It covers the values that the visits scatter, but not the client numbers and the rounds with which a visit starts, which
    differ between the sites.
    """
    shared = {name: value for name, value in request.items() if name != "visits"}
    return hashlib.sha256(encode(shared | {"scattered": [visit[3] for visit in request["visits"]]})).digest()


def is_step(message: Any) -> bool:
    """Return whether a Flower Message is a step of the protocol."""
    return _CONFIGS in message.content.config_records


# ---- at a site
def answer(message: Any, context: Any, update: Callable[[], tuple[np.ndarray, int]], terms: Terms | None) -> Any:
    """Return the Message with which a site answers a step of the protocol.

    Parameters
    ----------
    message, context : Flower's
        The context contains the site's memory between the steps and stays on the site.
    update : callable () -> (float64 array (P + Q,), seed)
        Visits the client. Called only in the third step.
    terms : Terms

    Raises
    ------
    Refused
        If a step would reveal more than the protocol permits.
    """
    from fnlkit.federated.engines.flower import api

    if terms is None:
        raise Refused("this project masks no updates")
    config = dict(message.content.config_records[_CONFIGS])
    _check(config, terms)
    request = common(decode(messages.bytes_of(message))) if config.get("stage") == "collect_masked_vectors" else b""
    mod = _strengthen(api.secagg_mod(), request).secaggplus_mod

    def mask(message: Any, context: Any) -> Any:
        values, seed = update()
        must_be_within(values, terms)
        np.random.seed(seed)  # noqa: NPY002 - the generator with which Flower rounds
        result = api.FitRes(api.Status(api.Code.OK, ""), api.ndarrays_to_parameters([values]), terms.weight, {})
        return api.Message(api.fitres_to_recorddict(result, False), reply_to=message)

    return mod(message, context, mask)


def must_be_within(values: np.ndarray, terms: Terms) -> None:
    """Raise AboveClip if an update (P + Q,) has an entry above the agreed `clip`, or NaN."""
    if not np.abs(values).max(initial=0) <= terms.clip:
        raise AboveClip("the update has an entry above the agreed clip")


def _check(config, terms):
    """Refuse requests that Flower's mod would answer but that would reveal single updates."""
    stage = config.get("stage")
    if stage == "setup":
        shares, threshold = config["share_num"], config["threshold"]
        if not (FEWEST <= shares <= MOST and config["sample_num"] >= FEWEST and 2 * threshold > shares):
            raise Refused("too few clients would hide each other")
        if (config["target_range"], config["mod_range"]) != (STEPS, MODULUS):
            raise Refused("the masks would not cover the numbers of an update")
        limits = config.get("clipping_range"), config.get("max_weight")
        if limits != (terms.clip, terms.largest):
            raise Refused(f"clip and largest weight are {limits}; this site agreed to {(terms.clip, terms.largest)}")
    if stage == "share_keys" and len(config) - 1 < FEWEST:
        raise Refused("too few clients would hide each other")
    if stage == "unmask":
        active, dead = set(config["active_nids"]), set(config["dead_nids"])
        if len(active) < FEWEST or active & dead:
            raise Refused("the server requests a sum of too few clients, or both masks of one client")


def rounding(seed: int, round: int, client: int) -> int:
    """Return the seed for the rounding of a client's update."""
    return int(stream(seed, "secagg", round, client).integers(2**32))


def summarize_records(records: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ledger entry of a protocol step: its name, number of bytes and SHA-256."""
    parts = [value for record in records.values() for value in _bytes(record)]
    kinds = sorted(name for name in records[_CONFIGS])
    return {"masked": kinds, "bytes": sum(map(len, parts)), "sha256": hashlib.sha256(b"".join(parts)).hexdigest()}


def _bytes(record):
    """Yield the byte strings of a record."""
    for value in record.values():
        yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, bytes))


# ---- at the server
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
        """Return a reply, or an error if the site failed."""
        if not reply.has_error() and _CONFIGS in reply.content.config_records:
            self.bytes += sum(len(each) for record in reply.content.values() for each in _bytes(record))
            return reply
        code, name = _failure_of(reply)
        self.failures[reply.metadata.src_node_id] = Failure(code if code in CODES else "failed", name[:60])
        return SimpleNamespace(has_error=lambda: True, error=code, metadata=reply.metadata)


def _failure_of(reply):
    """Return the code and the class name of a site's failure, empty if there is none."""
    if reply.has_error():
        code, _, name = str(reply.error.reason).partition(" ")
        return code, name
    try:
        match decode(messages.bytes_of(reply)):
            case {"replies": [[_, ("failure", str(code), str(name), _)]]}:
                return code, name
    except Unreadable:
        pass
    return "", ""


def gather_sum(
    grid: Any,
    requests: Mapping[int, dict[str, Any]],
    *,
    about: Mapping[str, Any],
    most: int,
    weighted: bool,
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
    request = common(next(iter(requests.values())))
    flower = _strengthen(api.secagg_workflow(), request)
    shares = len(requests)
    workflow = flower.SecAggPlusWorkflow(1.0, shares // 2 + 1, max_weight=float(largest), clipping_range=float(clip),
                                         quantization_range=STEPS, modulus_range=MODULUS, timeout=limit)  # fmt: skip
    replies, found, state = _CountedReplies(grid), _Round(list(requests), round), flower.WorkflowState()
    try:
        if workflow.setup_stage(replies, found, state):
            state.nid_to_fitins = {node: messages.record(encode(visit, about)) for node, visit in requests.items()}
            steps = workflow.share_keys_stage, workflow.collect_masked_vectors_stage, workflow.unmask_stage
            all(step(replies, found, state) for step in steps)
    except Exception as error:  # noqa: BLE001 - Flower's parsers raise any error on a reply that violates the protocol
        return None, [], {node: Failure("failed", type(error).__name__) for node in requests} | replies.failures, replies.bytes
    mean = None if found.mean is None else torch.from_numpy(np.array(found.mean))
    return mean, found.counted, replies.failures, replies.bytes
