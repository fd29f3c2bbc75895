"""Client side of a message: visit the named clients on their node and return the replies."""

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from fnlkit.core.errors import InputError
from fnlkit.federated.client.client import Client
from fnlkit.federated.client.failure import CODES, Failure, failure
from fnlkit.federated.client.network import Network, nothing
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines.flower.notebook import NEVER, Lost, Memory, Notebook
from fnlkit.federated.engines.sequential import one_thread, reply_of
from fnlkit.federated.engines.travel import unpack
from fnlkit.federated.server.admission import MAX_NAME


@dataclass
class NodeObjects:
    """Objects of a node that are never part of a message.

    Attributes
    ----------
    network : fnlkit.federated.client.network.Network
    clients : sequence of fnlkit.federated.client.client.Client
        Clients by number. Only the clients of this node can be visited.
    notebook : callable (number) -> fnlkit.federated.engines.flower.notebook.Notebook
    accept : callable (number, {name: Tensor}) -> {name: Tensor}
        Returns the reply to send, before the memory of the visit is written. If it raises, the visit leaves no memory.
    keep : callable (client) or None
        Called with the client after each visit with a reply.
    resolve : callable (packed step) -> step
    """

    network: Network
    clients: Any
    notebook: Callable[[int], Notebook] | None
    accept: Callable[[int, dict[str, torch.Tensor]], dict[str, torch.Tensor]] = lambda number, reply: reply
    keep: Callable[[Client], object] | None = None
    resolve: Callable[[Any], Any] = unpack
    _empty: Network = field(default_factory=lambda: nothing().network)

    def network_for(self, weights: torch.Tensor) -> Network:
        """Build the network of a message; a message without weights has a network without weights."""
        return self.network if weights.numel() else self._empty

    @cached_property
    def twin(self) -> Network:
        return self.network.twin()


def request(
    *,
    run: str,
    round: int,
    seed: int,
    weights: torch.Tensor,
    steps: Iterable[Any],
    broadcast: Mapping[str, Any],
    visits: Iterable[Sequence[Any]],
) -> dict[str, Any]:
    """Make the value of a message to a node.

    Parameters
    ----------
    run : str
        Run to which the memory belongs, because a node can store the memory of several runs.
    round, seed : int
    weights : Tensor (P + Q,)
    steps : list
        Steps packed by fnlkit.federated.engines.travel.
    broadcast : dict
    visits : list of (client, base, settled, scattered)
        `base` and `settled` are round numbers as in `notebook`: the round with which the visit starts, and the round to which
        the server could return.
    """
    return {
        "run": run,
        "round": round,
        "seed": seed,
        "weights": weights,
        "steps": list(steps),
        "broadcast": broadcast,
        "visits": [list(visit) for visit in visits],
    }


def check_request(asked: object, *, clients: Collection[int], network: Network) -> dict[str, Any]:
    """Check the type and range of each field of a request to a site.

    The types and ranges are those that `request` writes.

    Parameters
    ----------
    asked : object
        Value read from a message.
    clients : sequence of int
        Numbers under which the request can visit the site.
    network : fnlkit.federated.client.network.Network

    Raises
    ------
    InputError
        If a field is invalid. The message names the field but contains no value.
    """
    if not isinstance(asked, dict) or set(asked) != set(_FIELDS):
        raise InputError(f"the server's request has other fields than {', '.join(_FIELDS)}")
    (visit,) = asked["visits"] if isinstance(asked["visits"], list) and len(asked["visits"]) == 1 else (None,)
    visit = visit if isinstance(visit, list) and len(visit) == 4 else [None] * 4
    weights, tensors = asked["weights"], {"broadcast": asked["broadcast"], "scattered": visit[3]}
    right = {
        "run": isinstance(asked["run"], str) and _RUN.fullmatch(asked["run"]) is not None,
        "round": _whole(asked["round"], 0, _MOST_ROUNDS),
        "seed": _whole(asked["seed"], 0, 2**64),
        "weights": isinstance(weights, torch.Tensor)
        and (weights.shape, weights.dtype) in (((network.size,), network.dtype), ((0,), torch.float32)),
        "steps": isinstance(asked["steps"], list) and len(asked["steps"]) <= _MOST_STEPS,
        "client": type(visit[0]) is int and visit[0] in clients,
        "base": _whole(visit[1], NEVER, _MOST_ROUNDS),
        "settled": _whole(visit[2], NEVER, _MOST_ROUNDS),
    }
    right |= {
        name: isinstance(values, dict) and all(isinstance(n, str) and isinstance(v, torch.Tensor) for n, v in values.items())
        for name, values in tensors.items()
    }
    if wrong := [name for name, fine in right.items() if not fine]:
        raise InputError(f"the server's request has a wrong type or range in: {', '.join(wrong)}")
    return asked


_FIELDS = ("run", "round", "seed", "weights", "steps", "broadcast", "visits")
_RUN = re.compile(r"[0-9a-f]{16}")
_MOST_ROUNDS, _MOST_STEPS = 10**9 - 1, 64  # range of round numbers that fit into the name of a notebook's file


def _whole(value, low, high):
    return type(value) is int and low <= value <= high


def answer(node: NodeObjects, asked: dict[str, Any]) -> dict[str, list[list[Any]]]:
    """Visit each client of a request in turn and return the replies.

    The result is {"replies": [[client, {name: Tensor} or a failure]]}.
    """
    with one_thread():
        steps = [node.resolve(step) for step in asked["steps"]]
        twin = node.twin if any(isinstance(s, Fit) and s.teacher for s in steps) else None
        return {"replies": [[visit[0], _visit(node, twin, asked, steps, *visit)] for visit in asked["visits"]]}


def _visit(node, twin, asked, steps, i, base, settled, scattered):
    client = node.clients[i]
    notes = node.notebook(i)
    round = asked["round"]
    try:
        memory = notes.read(base)
        (memory or Memory(client.given, {}, {}, set())).put(client)
    except Lost:
        return _pack_failure(Failure("lost", ""))
    except Exception as error:  # noqa: BLE001 - no fault of a node's files may stop the other clients
        return _pack_failure(failure(error, i, round))
    received = {**asked["broadcast"], **scattered}
    network = node.network_for(asked["weights"])
    reply = _plain(reply_of(network, twin, client, asked["weights"], steps, received, seed=asked["seed"], round=round))
    client.keep_reviewed()
    if not isinstance(reply, OrderedDict):
        return reply
    reply = node.accept(i, dict(reply))
    try:
        notes.write(round, Memory.of(client))
        notes.forget(but=(base, settled, round))
        if node.keep is not None:
            node.keep(client)
    except Exception as error:  # noqa: BLE001 - without its memory a visit does not count
        return _pack_failure(failure(error, i, round))
    return reply


def _plain(reply):
    """Convert a value to the server's form: an OrderedDict of Tensors, or a failure as a plain value."""
    if isinstance(reply, Failure):
        return _pack_failure(reply)
    if not isinstance(reply, dict):
        return _pack_failure(Failure("reply", type(reply).__name__))
    tensors = OrderedDict()
    for name, value in reply.items():
        try:
            tensors[name] = torch.as_tensor(value).detach().cpu()
        except (TypeError, ValueError, RuntimeError):
            return _pack_failure(Failure("entry", type(value).__name__))
    return tensors


def _pack_failure(reason):
    return ("failure", reason.code, reason.name, reason.sentence)


def replies_to(answered: object, asked: Mapping[int, int]) -> dict[int, dict[str, torch.Tensor] | Failure]:
    """Read {place: dict of Tensors, or Failure} from an answer.

    Replies of clients that were not requested are ignored.

    Parameters
    ----------
    answered : object
        Value read from a message.
    asked : dict of place to client
        Requested clients in the order of the visits.
    """
    arrays: dict[int, dict[str, torch.Tensor] | Failure] = {}
    replies = answered.get("replies") if isinstance(answered, dict) else None
    if not isinstance(replies, list) or len(replies) != len(asked):
        return arrays
    for (place, client), reply in zip(asked.items(), replies, strict=True):
        match reply:
            case [int(number), dict(values)] if number == client:
                arrays[place] = values
            case [_, ("failure", str(code), str(name), str(sentence))] if code in CODES:
                arrays[place] = Failure(code, name[:MAX_NAME], sentence)
    return arrays
