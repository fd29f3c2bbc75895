"""Sums in secret: Flower's SecAgg+ around the visits of a round, so that the server learns one mean and no single update.

Bell, Bonawitz, Gascón, Lepoint, Raykova. Secure single-server aggregation with (poly)logarithmic overhead. CCS 2020.

Flower's mod (at a site) and workflow (at the server) speak four messages: keys, shares of keys, masked updates, shares of the
masks.  Its masks come from a generator with a seed of 32 bits, which can be guessed; they are replaced on both sides.
"""

import hashlib
import math
import sys
from types import SimpleNamespace

import numpy as np
import torch

from fnlkit.client.failure import CODES, Failure
from fnlkit.engines.flower import wire
from fnlkit.streams import stream

STEPS, MODULUS = 2**22, 2**32  # of a quantised entry; of sums
FEWEST, MOST = 3, MODULUS // STEPS - 1  # clients of a round: the sum of two tells each of them the other's
_CONFIGS = "secaggplus_configs"


class Refused(Exception):
    """A site does not do what it was asked; the reason names no value of its samples."""


class AboveClip(Refused):
    """An update has an entry above `clip`, or none that is a number."""


class Failed(Exception):
    """A visit has no reply; its arguments are the code and the name of a class that say why."""


def masks(seed, num_range, dimensions_list):
    """Return integers below `num_range`, a power of 2, of each shape: AES-256 in counter mode, keyed by all of the seed."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    source = Cipher(algorithms.AES(hashlib.sha256(seed).digest()), modes.CTR(bytes(16))).encryptor()
    words = [np.frombuffer(source.update(bytes(4 * math.prod(shape))), "<u4") for shape in dimensions_list]
    pairs = zip(words, dimensions_list, strict=True)
    return [(found.astype(np.int64) & (num_range - 1)).reshape(shape) for found, shape in pairs]


def _strengthened(name):
    """Return a module of Flower's whose masks are ours."""
    import importlib

    importlib.import_module(name)
    module = sys.modules[name]  # a package may hold a function of that name
    module.pseudo_rand_gen = masks
    return module


# ---- at a site
def answered(message, context, update, samples):
    """Return the Message of a site's part in one step of the protocol.

    Parameters
    ----------
    message, context : Flower's
        What the site remembers between the steps is in the context, on the site.
    update : callable () -> (float64 array (P + Q,), weight, clip, seed)
        Visits the client; called in the third step alone.
    samples : int
        Of the site: the largest weight that it goes by.

    Raises
    ------
    Refused
        Where a step would show more than the protocol does.
    """
    from flwr.app import Message
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common import recorddict_compat

    mod = _strengthened("flwr.client.mod.secure_aggregation.secaggplus_mod").secaggplus_mod
    if _CONFIGS not in message.content.config_records:
        raise Refused("it asks for an update that is not masked")
    _check(dict(message.content.config_records[_CONFIGS]))

    def masked(message, context):
        values, weight, clip, seed = update()
        if weight not in (1, samples):
            raise Refused("its weight is another's")
        if not np.abs(values).max(initial=0) <= clip:
            raise AboveClip("its update has an entry above `clip`")
        np.random.seed(seed)  # noqa: NPY002 - by which Flower rounds: one seed, one result
        said = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([values]), weight, {})
        return Message(recorddict_compat.fitres_to_recorddict(said, False), reply_to=message)

    return mod(message, context, masked)


def _check(told):
    """Refuse what Flower's mod would answer, and what takes the secret out of the sum."""
    stage = told.get("stage")
    if stage == "setup":
        shares, threshold = told["share_num"], told["threshold"]
        if not (FEWEST <= shares <= MOST and told["sample_num"] >= FEWEST and 2 * threshold > shares):
            raise Refused("too few clients would hide each other")
        if (told["target_range"], told["mod_range"]) != (STEPS, MODULUS):
            raise Refused("masks would not cover its numbers")
    if stage == "share_keys" and len(told) - 1 < FEWEST:
        raise Refused("too few clients would hide each other")
    if stage == "unmask" and (len(set(told["active_nids"])) < FEWEST or set(told["active_nids"]) & set(told["dead_nids"])):
        raise Refused("it asks for a sum of too few, or for both masks of one client")


def rounding(seed, round, client):
    """Return the seed by which a client's update is rounded."""
    return int(stream(seed, "secagg", round, client).integers(2**32))


def summary(records):
    """Return what the ledger of a site says of its part in a step: which one, how many bytes, their SHA-256."""
    parts = [value for record in records.values() for value in _bytes(record)]
    kinds = sorted(name for name in records[_CONFIGS])
    return {"masked": kinds, "bytes": sum(map(len, parts)), "sha256": hashlib.sha256(b"".join(parts)).hexdigest()}


def _bytes(record):
    """Yield the byte strings of a record."""
    for value in record.values():
        yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, bytes))


# ---- at the server
class _Round:
    """What Flower's workflow takes for a context, a strategy and its clients."""

    def __init__(self, nodes, round):
        from flwr.app import ArrayRecord, ConfigRecord, RecordDict

        about = {"config": ConfigRecord({"current_round": round}), "parameters": ArrayRecord()}
        self.nodes, self.state, self.mean, self.counted = nodes, RecordDict(about), None, []
        self.strategy = self.client_manager = self

    def configure_fit(self, server_round, parameters, client_manager):
        from flwr.common import FitIns

        return [(SimpleNamespace(node_id=node), FitIns(parameters, {})) for node in self.nodes]

    def num_available(self):
        return len(self.nodes)

    def aggregate_fit(self, server_round, results, failures):
        from flwr.common import parameters_to_ndarrays

        self.counted = [proxy.node_id for proxy, _ in results]
        self.mean = parameters_to_ndarrays(results[0][1].parameters)[0]
        return None, {}


class _Heard:
    """A grid that counts the bytes of replies and keeps what nodes say of their failures."""

    def __init__(self, grid):
        self.grid, self.bytes, self.failures = grid, 0, {}

    def send_and_receive(self, messages, *, timeout=None):
        return [self._heard(reply) for reply in self.grid.send_and_receive(messages, timeout=timeout)]

    def _heard(self, reply):
        """Return a reply; where a site could do nothing at all, an error in its place."""
        if not reply.has_error() and _CONFIGS in reply.content.config_records:
            self.bytes += sum(len(each) for record in reply.content.values() for each in _bytes(record))
            return reply
        code, name = _told(reply)
        self.failures[reply.metadata.src_node_id] = Failure(code if code in CODES else "failed", name[:60])
        return SimpleNamespace(has_error=lambda: True, error=code, metadata=reply.metadata)


def _told(reply):
    """Return the code and the name of a class that a site's failure says; empty where it says none."""
    if reply.has_error():
        code, _, name = str(reply.error.reason).partition(" ")
        return code, name
    try:
        match wire.read(reply.content):
            case {"replies": [[_, ("failure", str(code), str(name), _)]]}:
                return code, name
    except wire.Unreadable:
        pass
    return "", ""


def gathered(grid, contents, *, largest, clip, limit, round):
    """Return (mean update float64 (P + Q,) or None, nodes that are in it, {node: Failure}, bytes of all replies).

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    contents : dict of node to RecordDict
        The visits' messages.
    largest : float
        The largest weight of the cohort.
    clip : float
        What no entry of an update may exceed.
    limit : float or None
        Seconds of each of the four steps.
    round : int
    """
    flower = _strengthened("flwr.server.workflow.secure_aggregation.secaggplus_workflow")
    shares = len(contents)
    workflow = flower.SecAggPlusWorkflow(1.0, shares // 2 + 1, max_weight=float(largest), clipping_range=float(clip),
                                         quantization_range=STEPS, modulus_range=MODULUS, timeout=limit)  # fmt: skip
    heard, about, state = _Heard(grid), _Round(list(contents), round), flower.WorkflowState()
    try:
        if workflow.setup_stage(heard, about, state):
            state.nid_to_fitins = contents
            steps = workflow.share_keys_stage, workflow.collect_masked_vectors_stage, workflow.unmask_stage
            all(step(heard, about, state) for step in steps)
    except (KeyError, IndexError, TypeError, ValueError) as error:  # a site said what is not of the protocol
        return None, [], {node: Failure("failed", type(error).__name__) for node in contents} | heard.failures, heard.bytes
    mean = None if about.mean is None else torch.from_numpy(np.array(about.mean))
    return mean, about.counted, heard.failures, heard.bytes


def request(asked, weight, clip):
    """Return the RecordDict of a visit whose update is to be masked."""
    return wire.write(asked | {"secret": {"weight": int(weight), "clip": float(clip)}})
