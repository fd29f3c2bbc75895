"""Convert the state of clients and server between rounds to named tensors of a run and back."""

import functools
import pickle
from collections.abc import Sequence
from typing import Any

import torch

from fnlkit.federated.types import Client, FedOpt

# Server parts of an optimizer that a resumed run does not repeat; only the server's memory is restored for these parts.
_SERVER_PARTS = ("aggregate", "rescale", "server", "prepare")


def pack(clients: Sequence[Client], server: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Convert the state to {name: tensor}: rows joined over their clients, states stacked, server memory unchanged."""
    tensors = {f"server/{name}": torch.as_tensor(value) for name, value in server.items()}
    for group in ("rows", "state"):
        names = sorted({name for c in clients for name in getattr(c, group) if not name.startswith("input/")})
        for name in names:
            owners = [c for c in clients if name in getattr(c, group)]
            values = [torch.as_tensor(getattr(c, group)[name]) for c in owners]
            tensors[f"{group}/{name}"] = torch.cat(values) if group == "rows" else torch.stack(values)
            tensors[f"{group}/{name}/clients"] = torch.tensor([c.id for c in owners])
    return tensors


def unpack(memory: dict[str, Any], clients: Sequence[Client], server: dict[str, Any], device: str) -> None:
    """Restore a run's memory: rows and states of clients; the server's dict is replaced."""
    server.clear()
    for name, value in memory.items():
        group, _, rest = name.partition("/")
        if group == "server":
            server[rest] = value.to(device)
        elif not rest.endswith("/clients"):
            owners = [clients[i] for i in memory[f"{name}/clients"].tolist()]
            parts = value.split([len(c) for c in owners]) if group == "rows" else value.unbind(0)
            for client, part in zip(owners, parts, strict=True):
                getattr(client, group)[rest] = part.clone()


def expected_bytes(clients: Sequence[Client], visits: int) -> int | float:
    """Extrapolate the bytes of all clients' state after `visits` clients were visited.

    The estimate extrapolates from the clients visited so far.

    Parameters
    ----------
    clients : list of Client
        Clients with state.
    visits : int
    """
    if not clients:
        return 0
    parts = [(name, value) for c in clients for part in (c.rows, c.state) for name, value in part.items()]
    tensors = [torch.as_tensor(value) for name, value in parts if not name.startswith("input/")]
    return visits * sum(t.numel() * t.element_size() for t in tensors) / len(clients)


def server_state(opt: FedOpt) -> dict[str, Any]:
    """Pickle attributes, bound arguments and closures of an optimizer's server parts: {part: bytes}.

    Parameters
    ----------
    opt : fnlkit.federated.server.optimizers.FedOpt
    """
    return {name: _state_of(getattr(opt, name)) for name in _SERVER_PARTS}


def _state_of(part):
    if isinstance(part, functools.partial):
        return _state_of(part.func) + _bytes((part.args, part.keywords))
    owner = getattr(part, "__self__", part)
    cells = getattr(owner, "__closure__", None) or ()
    return _bytes((getattr(owner, "__dict__", {}), [cell.cell_contents for cell in cells]))


def _bytes(values):
    try:
        return pickle.dumps(values)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError):  # functions within functions, open files
        return b""
