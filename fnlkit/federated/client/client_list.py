"""Clients of a federation: each stores positions in the data set and reads samples only during a visit."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.stored import Rows, blocks
from fnlkit.federated.client.client import Client, Part
from fnlkit.kernels.threads import core_count

FEW = 2**26  # arrays up to this size in bytes are kept in memory


class ClientList(Sequence[Any]):
    """Clients 0 to N - 1 of a federation, created on access; the labels of all clients are in one tensor.

    Parameters
    ----------
    source : array (n, ...)
        All samples: a numpy array, or an array of fnlkit.artifacts.stored.
    offsets, indices : int64 (N + 1,), (m,)
        Client k has the samples ``indices[offsets[k]:offsets[k + 1]]``.
    given : int64 (n,)
    classes : int
    inputs : fnlkit.federated.client.inputs.Inputs
    rows : dict of arrays (n, ...)
        Additional data of each sample. During a visit, the client's part is in `Client.rows`.
    reviewed : bool (n,) or None
        Samples whose given label a reviewer decided.
    secret : bytes or None
        Secret for random draws that privacy depends on.

    Attributes
    ----------
    y, given : int64 Tensor (m,)
        Working and given labels of all clients' samples, in client order.
    """

    def __init__(self, source, offsets, indices, given, classes, inputs, rows=None, reviewed=None, secret=None):
        self.source, self.classes, self.inputs, self.sources = source, int(classes), inputs, rows or {}
        self.offsets, self.indices = np.asarray(offsets, np.int64), np.asarray(indices, np.int64)
        self.given = torch.from_numpy(np.asarray(given, np.int64)[self.indices])
        self.y, self._made, self.secret = self.given.clone(), {}, secret
        self.reviewed = None if reviewed is None else torch.from_numpy(np.asarray(reviewed, bool)[self.indices])

    @classmethod
    def of(cls, clients: "ClientList | Sequence[Client]") -> "ClientList":
        """Return a ClientList for a list of clients 0 to N - 1 with samples in memory; a ClientList is returned unchanged."""
        if isinstance(clients, cls):
            return clients
        sizes = [len(c) for c in clients]
        x = torch.cat([c.x.cpu() for c in clients]).numpy()
        given = torch.cat([c.given.cpu() for c in clients]).numpy()
        first = clients[0]
        return cls(x, np.concatenate([[0], np.cumsum(sizes)]), np.arange(len(x)), given, first.classes, first.inputs,
                   secret=first.secret)  # fmt: skip

    def copy(self) -> "ClientList":
        """Return the same clients with the given labels and without memory."""
        other = copy(self)
        other.y, other._made = self.given.clone(), {}
        return other

    @property
    def sizes(self) -> np.ndarray:
        """Numbers of samples (N,)."""
        return np.diff(self.offsets)

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, k):
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        k = range(len(self))[k]
        if k not in self._made:
            a, b = int(self.offsets[k]), int(self.offsets[k + 1])
            index = self.indices[a:b]
            self._made[k] = Client(
                k,
                Part(self.source, index),
                self.y[a:b],
                self.given[a:b],
                self.classes,
                self.inputs,
                secret=self.secret,
                parts={name: Part(source, index) for name, source in self.sources.items()},
                reviewed=None if self.reviewed is None else self.reviewed[a:b],
            )
        return self._made[k]

    def made(self) -> list[Any]:
        """Return the clients that are in memory."""
        return list(self._made.values())

    def with_memory(self) -> list[Any]:
        """Return the clients with memory in addition to their labels, in ascending order."""
        return [client for _, client in sorted(self._made.items()) if client.rows or client.state]

    def forget(self) -> None:
        """Release clients that store only positions and labels; called between two rounds."""
        self._made = {k: c for k, c in self._made.items() if c.rows or c.state or c.dropped}


def sizes_of(clients: tuple[Any, ...] | list[Client] | ClientList) -> np.ndarray:
    """Return the numbers of samples (N,) of ClientList or a list of clients."""
    return clients.sizes if isinstance(clients, ClientList) else np.array([len(c) for c in clients], np.int64)


def load_small(rows: Any) -> Any:
    """Read an array into memory if it is small; return a larger array unchanged."""
    return rows[:] if not isinstance(rows, np.ndarray) and rows.nbytes <= FEW else rows


def in_blocks(function: Callable[..., Any], x: "np.ndarray | torch.Tensor | Rows") -> "torch.Tensor":
    """Apply a function to a Tensor, or to the blocks of an array of rows, and return the joined results.

    Parameters
    ----------
    function : Tensor (m, ...) -> Tensor (m, ...)
    x : Tensor or array (n, ...)
    """
    if isinstance(x, torch.Tensor):
        return function(x)
    parts = [function(tensor(x[a:b])) for a, b in blocks(x, FEW, 512)]
    return torch.cat(parts) if parts else function(tensor(x[:]))


def tensor(array: np.ndarray) -> "torch.Tensor":
    """Return an array as a Tensor; without a copy if the array is writable."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def read_ahead(clients: Iterable[Client]) -> Iterator[Client]:
    """Yield clients. If reading is slow (image decoding), threads read the samples of the next clients in advance."""
    clients = list(clients)
    if len(clients) < 2 or not any(getattr(getattr(c.samples, "source", None), "slow", False) for c in clients):
        yield from clients
        return
    count = core_count()
    with ThreadPoolExecutor(count, thread_name_prefix="fnlkit-fetch") as threads:
        coming = deque(threads.submit(c.fetch) for c in clients[:count])
        try:
            for i, client in enumerate(clients):
                coming.popleft().exception()  # an unreadable sample raises again in the visit of its client
                if i + count < len(clients):
                    coming.append(threads.submit(clients[i + count].fetch))
                yield client
        finally:
            for future in coming:
                future.cancel()
