"""Memory of a client as files on its node, with each round as a transaction.

A visit starts from the memory of an earlier round, the base. Before it replies, it writes the new memory under the current
round. The server sends the base, which is the last counted round of this client. A refused, lost or undone visit therefore
has no effect, a repeated message gives the same reply, and a run can be resumed without extra messages.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fnlkit.artifacts import files
from fnlkit.artifacts.exchange import Exchange
from fnlkit.core.errors import InputError
from fnlkit.federated.client.client import Client

KIND = "fnlkit.state/1"
NEVER = -1  # the base of a client without a counted round
_STATE = re.compile(r"state-(-1|\d{1,9})\.npz")


class Lost(InputError):
    """Error: the memory of a round is missing on the client's node."""


class Memory(NamedTuple):
    """Memory of a client.

    Attributes
    ----------
    y : int64 Tensor (n,)
    rows, state : dict of Tensor
    dropped : set of str
    """

    y: torch.Tensor
    rows: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]
    dropped: set[str]

    @classmethod
    def of(cls, client: Client) -> "Memory":
        rows = {name: value for name, value in client.rows.items() if name not in client.parts}
        return cls(client.y, rows, client.state, client.dropped)

    def put(self, client: Client) -> None:
        """Replace the memory of a client."""
        client.y.copy_(self.y)
        client.rows, client.state, client.dropped = dict(self.rows), dict(self.state), set(self.dropped)


class Notebook:
    """Files with the memory of a client in a run.

    Parameters
    ----------
    folder : str
        Folder of this client only. It is created by the first write.
    """

    def __init__(self, folder):
        self.folder = os.fspath(folder)

    def path(self, round: int) -> str:
        return os.path.join(self.folder, f"state-{round}.npz")

    def has(self, round: int) -> bool:
        return os.path.exists(self.path(round))

    def write(self, round: int, memory: Memory) -> None:
        """Write the memory after a round atomically and flush it to the disk."""
        os.makedirs(self.folder, exist_ok=True)
        arrays = {"y": memory.y.numpy()}
        for group in ("rows", "state"):
            arrays |= {f"{group}/{k}": torch.as_tensor(v).numpy() for k, v in getattr(memory, group).items()}
        files.write(files.Artifact(KIND, arrays, {"dropped": sorted(memory.dropped)}), self.path(round))

    def read(self, base: int) -> Memory | None:
        """Read the Memory after a round; None for a client without a counted round.

        Raises
        ------
        Lost
        """
        if not self.has(base):
            if base == NEVER:
                return None
            raise Lost(f"the memory of round {base} is missing on this node")
        artifact = files.read(self.path(base), kinds="fnlkit.state")
        tensors = {name: torch.from_numpy(np.array(values)) for name, values in artifact.arrays.items()}
        groups = {
            group: {name.partition("/")[2]: v for name, v in tensors.items() if name.startswith(f"{group}/")}
            for group in ("rows", "state")
        }
        return Memory(tensors["y"], **groups, dropped=set(artifact.meta["dropped"]))

    def digest(self, base: int) -> str:
        """Identify the Memory after a round by its SHA-256; "" if there is none."""
        memory = self.read(base) if self.has(base) else None
        if memory is None:
            return ""
        total = hashlib.sha256(repr(sorted(memory.dropped)).encode())
        groups = {"y": memory.y} | {f"{group}/{k}": v for group in ("rows", "state") for k, v in getattr(memory, group).items()}
        for name, values in sorted(groups.items()):
            total.update(repr((name, str(values.dtype), tuple(values.shape))).encode())
            total.update(values.contiguous().numpy().tobytes())
        return total.hexdigest()

    def forget(self, but: Collection[int]) -> None:
        """Remove the memory of all rounds except the given rounds."""
        for name in os.listdir(self.folder):
            match = _STATE.fullmatch(name)
            if match and int(match[1]) not in but:
                os.unlink(os.path.join(self.folder, name))

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def last_counted_rounds(
    log: Sequence[Exchange], rejected: Iterable[dict[str, Any]], ids: Sequence[int], before: int
) -> dict[int, int]:
    """Find the last counted round below `before` of each client, NEVER if there is none.

    Parameters
    ----------
    log : list of Exchange
        An entry per round.
    rejected : list of dict
        Visits that were rejected, including rejections after the round.
    ids : sequence of int
    before : int
    """
    refused = {(entry["round"], entry["client"]) for entry in rejected}
    last_rounds, open_ones = dict.fromkeys(ids, NEVER), set(ids)
    for round in range(min(before, len(log)) - 1, -1, -1):
        if not open_ones:
            break
        for i in open_ones.intersection(log[round].kept.tolist()):
            if (round, i) not in refused:
                last_rounds[i] = round
                open_ones.discard(i)
    return last_rounds
