"""What a client remembers, as files on its own node: a round is a transaction.

A visit begins with what an earlier round left, its base, and writes down what it leaves under its own round, as its last
act before the reply.  The server names the base, the last round of this client that counted: so a visit that was refused,
lost or undone is as if it had never been, a repeated message gives the same reply, and a run that is continued needs no
talk.
"""

import os
import re
import shutil
from typing import NamedTuple

import numpy as np
import torch

from fnlkit.artefacts import files
from fnlkit.errors import InputError

KIND = "fnlkit.state/1"
NEVER = -1  # the base of a client that no round has counted of
_STATE = re.compile(r"state-(-1|\d{1,9})\.npz")


class Lost(InputError):
    """A client's memory of a round is not on its node."""


class Memory(NamedTuple):
    """What a client remembers.

    Attributes
    ----------
    y : int64 Tensor (n,)
    rows, state : dict of Tensor
    dropped : set of str
    """

    y: torch.Tensor
    rows: dict
    state: dict
    dropped: set

    @classmethod
    def of(cls, client):
        rows = {name: value for name, value in client.rows.items() if name not in client.parts}
        return cls(client.y, rows, client.state, client.dropped)

    def put(self, client):
        """Make a client remember this and nothing else."""
        client.y.copy_(self.y)
        client.rows, client.state, client.dropped = dict(self.rows), dict(self.state), set(self.dropped)


class Notebook:
    """The memory of one client in one run.

    Parameters
    ----------
    folder : str
        Of this client alone; made when first written to.
    """

    def __init__(self, folder):
        self.folder = os.fspath(folder)

    def path(self, round):
        return os.path.join(self.folder, f"state-{round}.npz")

    def has(self, round):
        return os.path.exists(self.path(round))

    def write(self, round, memory):
        """Write down what a round left; when this returns it is on the disk, whole."""
        os.makedirs(self.folder, exist_ok=True)
        arrays = {"y": memory.y.numpy()}
        for group in ("rows", "state"):
            arrays |= {f"{group}/{k}": torch.as_tensor(v).numpy() for k, v in getattr(memory, group).items()}
        files.write(files.Artefact(KIND, arrays, {"dropped": sorted(memory.dropped)}), self.path(round))

    def read(self, base):
        """Return the Memory that a round left, or None of a client that no round has counted of.

        Raises
        ------
        Lost
        """
        if not self.has(base):
            if base == NEVER:
                return None
            raise Lost(f"what round {base} left is not on this node")
        found = files.read(self.path(base), kinds="fnlkit.state")
        tensors = {name: torch.from_numpy(np.array(values)) for name, values in found.arrays.items()}
        groups = {
            group: {name.partition("/")[2]: v for name, v in tensors.items() if name.startswith(f"{group}/")}
            for group in ("rows", "state")
        }
        return Memory(tensors["y"], **groups, dropped=set(found.meta["dropped"]))

    def forget(self, but):
        """Remove what other rounds than these left."""
        for name in os.listdir(self.folder):
            match = _STATE.fullmatch(name)
            if match and int(match[1]) not in but:
                os.unlink(os.path.join(self.folder, name))

    def clear(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def counted(log, rejected, ids, before):
    """Return for each client the last round below `before` whose visit counted, NEVER where none did.

    Parameters
    ----------
    log : list of Exchange
        One a round.
    rejected : list of dict
        Visits that were refused, also after the round.
    ids : sequence of int
    before : int
    """
    refused = {(entry["round"], entry["client"]) for entry in rejected}
    out, open_ones = dict.fromkeys(ids, NEVER), set(ids)
    for round in range(min(before, len(log)) - 1, -1, -1):
        if not open_ones:
            break
        for i in open_ones.intersection(log[round].kept.tolist()):
            if (round, i) not in refused:
                out[i] = round
                open_ones.discard(i)
    return out
