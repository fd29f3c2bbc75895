"""Clients with private samples, labels and memory; inputs of client steps and losses."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.stored import Rows, blocks
from fnlkit.core.errors import InputError
from fnlkit.federated.client.network import predict
from fnlkit.kernels.streams import HiddenStream, stream
from fnlkit.kernels.threads import core_count

Received = dict[str, torch.Tensor]  # what the server sent to a step, by name


@dataclass
class Part:
    """A client's positions in an array that all clients share; `gather` reads the rows.

    Attributes
    ----------
    source : array (n, ...)
        A numpy array, or an array of fnlkit.artifacts.stored.
    index : int64 (m,)
    """

    source: Any
    index: np.ndarray

    @property
    def shape(self) -> tuple[Any, ...]:
        return (len(self.index), *self.source.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.source.dtype

    def gather(self) -> "torch.Tensor":
        """Copy rows to a Tensor (m, ...)."""
        return torch.from_numpy(np.ascontiguousarray(self.source[self.index]))


@dataclass
class Client:
    """The private side of one client.

    Attributes
    ----------
    id : int
    samples : Tensor (n, ...) or Part
        Raw samples, or their positions; steps read `x`.
    y : Tensor (n,) int64
        Working labels; corrections change only these.
    given : Tensor (n,) int64
        Given labels; never changed.
    classes : int
    inputs : fnlkit.federated.client.inputs.Inputs
    rows : dict of Tensor (n, ...)
        Memory with one entry per sample; entries named ``input/...`` are part of the data and read-only.
    state : dict
        Any other memory.
    rng : numpy.random.Generator
        Random stream of this client in this round, set by the engine.
    secret : bytes or None
        Secret for random draws that privacy depends on.
    hidden : fnlkit.kernels.streams.HiddenStream
        Like `rng`, but drawn from `secret` instead of the seed; set by the engine.
    reviewed : bool Tensor (n,) or None
        Samples with a label that a reviewer decided.  After each round their working label is reset to that label.
    parts : dict of Part
        Rows ``input/...`` that are in `rows` only during a visit.
    dropped : set of str
        Names of `parts` that a step has deleted permanently.
    largest : float
        Largest input and feature that enters a sum; larger ones are cut.  Infinity where sums are not masked.
    kept : dict
        Values that steps can compute again; neither saved nor restored.
    held_out : (Part, int64 Tensor (m,)) or None
        Samples of a real site that train no model, and their given labels.  In a simulation, the clients do not contain
        held-out samples.
    """

    id: int
    samples: "torch.Tensor | Part"
    y: "torch.Tensor"
    given: "torch.Tensor"
    classes: int
    inputs: Any
    rows: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    rng: Any = None
    secret: bytes | None = field(default=None, repr=False)
    hidden: Any = field(default=None, repr=False)
    reviewed: "torch.Tensor | None" = None
    parts: dict[str, Any] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    held_out: Any = None
    largest: float = math.inf
    kept: dict[str, Any] = field(default_factory=dict, repr=False)
    _x: Any = field(default=None, repr=False)
    _visited: bool = field(default=False, repr=False)

    def __len__(self):
        return len(self.y)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The clients whose samples this object has."""
        return (self.id,)

    @property
    def owner(self) -> np.ndarray:
        """Position in `numbers` of each sample's client (n,)."""
        return np.zeros(len(self), np.int64)

    def keep(self, name: str, values: np.ndarray) -> None:
        """Store an array (n, ...) in `rows`."""
        self.rows[name] = torch.from_numpy(values)

    def begin_round(self, seed: int, round: int) -> None:
        """Create the random streams of a round, `rng` and `hidden`."""
        self.rng = stream(seed, "client", round, self.id)
        self.hidden = HiddenStream(self.secret, "client", seed, round, self.id)

    def keep_reviewed(self) -> None:
        """Reset the working labels of reviewed samples to the reviewer's decision."""
        if self.reviewed is not None:
            self.y[self.reviewed] = self.given[self.reviewed]

    @property
    def x(self) -> "torch.Tensor":
        """Raw samples (n, ...); read on first use during a visit and released at the end of the visit."""
        if isinstance(self.samples, torch.Tensor):
            return self.samples
        self.fetch()
        return self._x

    def fetch(self) -> None:
        """Read the samples if they are not in memory."""
        if self._x is None and isinstance(self.samples, Part):
            self._x = self.samples.gather()

    def arrive(self) -> None:
        """Begin a visit: read the rows of `parts`."""
        self._visited = True
        for name, part in self.parts.items():
            if name not in self.dropped and name not in self.rows:
                self.rows[name] = part.gather()

    def leave(self) -> None:
        """End a visit: release samples and the rows of `parts`.

        Samples can be read without a visit, for example in an evaluation.  In this case only the samples are released.
        """
        if self._visited:
            for name in self.parts:
                if self.rows.pop(name, None) is None:
                    self.dropped.add(name)
        self._visited, self._x = False, None


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
        self.source = source
        self.classes = int(classes)
        self.inputs = inputs
        self.sources = rows or {}
        self.offsets, self.indices = np.asarray(offsets, np.int64), np.asarray(indices, np.int64)
        self.given = torch.from_numpy(np.asarray(given, np.int64)[self.indices])
        self.y = self.given.clone()
        self._made = {}
        self.secret = secret
        self.reviewed = None if reviewed is None else torch.from_numpy(np.asarray(reviewed, bool)[self.indices])

    @classmethod
    def of(cls, clients: "ClientList | Sequence[Client]") -> "ClientList":
        """Make a ClientList of clients 0 to N - 1 with samples in memory; a ClientList is returned unchanged."""
        if isinstance(clients, cls):
            return clients
        sizes = [len(c) for c in clients]
        x = torch.cat([c.x.cpu() for c in clients]).numpy()
        given = torch.cat([c.given.cpu() for c in clients]).numpy()
        first = clients[0]
        return cls(x, np.concatenate([[0], np.cumsum(sizes)]), np.arange(len(x)), given, first.classes, first.inputs,
                   secret=first.secret)  # fmt: skip

    def copy(self) -> "ClientList":
        """Make the same clients with the given labels and without memory."""
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

    def with_memory(self) -> list[Any]:
        """Clients with memory in addition to their labels, in ascending order."""
        return [client for _, client in sorted(self._made.items()) if client.rows or client.state]

    def forget(self) -> None:
        """Release clients that store only positions and labels; called between two rounds."""
        self._made = {k: c for k, c in self._made.items() if c.rows or c.state or c.dropped}


def sizes_of(clients: tuple[Any, ...] | list[Client] | ClientList) -> np.ndarray:
    """Numbers of samples (N,) of a ClientList or a list of clients."""
    return clients.sizes if isinstance(clients, ClientList) else np.array([len(c) for c in clients], np.int64)


def in_blocks(function: Callable[..., Any], x: "np.ndarray | torch.Tensor | Rows") -> "torch.Tensor":
    """Apply a function to a Tensor, or to the blocks of an array of rows, and return the joined results.

    Parameters
    ----------
    function : Tensor (m, ...) -> Tensor (m, ...)
    x : Tensor or array (n, ...)
    """
    if isinstance(x, torch.Tensor):
        return function(x)
    parts = [function(tensor(x[a:b])) for a, b in blocks(x, multiple=512)]
    return torch.cat(parts) if parts else function(tensor(x[:]))


def tensor(array: np.ndarray) -> "torch.Tensor":
    """Convert an array to a Tensor, without a copy if the array is writable."""
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


def run_step(step: Callable[..., Any], client: Client, model: "LocalModel", received: dict[str, Any]) -> dict[str, Any]:
    """Run a client step and check its reply, a dict of arrays.

    Raises
    ------
    InputError
        If the step left a row in `client.rows` that does not have one entry per sample.
    """
    reply = step(client, model, received) or {}
    for name, row in client.rows.items():
        if not isinstance(row, torch.Tensor) or row.dim() == 0 or len(row) != len(client):
            raise InputError(
                f"a step left client.rows[{name!r}] without one entry per sample of the client; write a Tensor (n, ...) or use "
                "client.state for other memory"
            )
    return reply


@dataclass
class LocalModel:
    """The model in a client step: `weights` are the current weights, `start` the received weights.

    A call returns the logits of raw samples, computed by `score`: `network.predict`, or an engine's replacement.
    """

    network: Any
    weights: "torch.Tensor"
    start: "torch.Tensor"
    inputs: Any
    score: Callable[..., Any] = predict

    def __call__(self, x):
        """Predict logits (n, C) of raw samples (n, ...), in evaluation mode."""
        return self.score(self.network, self.weights, x, self.inputs)

    def features(self, x: "torch.Tensor") -> "torch.Tensor":
        """Compute the penultimate representation (n, width) of raw samples, in evaluation mode."""
        return self.score(self.network, self.weights, x, self.inputs, features=True)


@dataclass
class Batch:
    """Input of a loss or a correction in one step; a stacking engine adds a leading axis K to everything.

    Attributes
    ----------
    y : Tensor (..., B) int64
    rows : dict of Tensor (..., B, ...)
        The samples' rows of the client's memory.
    state, received : dict
        The client's memory, and the values that the server sent.  Scattered values also have the leading axis K; broadcast
        values do not.
    teacher : Tensor (..., B, C) or None
        Logits of the received model on the same input, if Fit.teacher requests them.  With mixup and Fit.unmixed, the input is
        the samples before mixup.
    unmixed : Tensor (..., B, C) or None
        Logits of the current local model on the samples before mixup, in evaluation mode and without gradient, if Fit.unmixed
        requests them and mixup is on.
    unmixed_features : Tensor (..., B, width) or None
        The corresponding features, if Fit.features requests them too.
    share : Tensor (...) or None
        Mixup's lambda, the weight of the sample itself; only with `unmixed`.
    partner : Tensor (..., B) int64 or None
        Position in the batch of the sample that is mixed in; only with `unmixed`.
    features : Tensor (..., B, width) or None
        The network's penultimate representation, if Fit.features requests it.
    uniform : Tensor (..., B) or None
        A random number in [0, 1) for each sample and step, if Fit.uniform requests it.
    first : Tensor (...) bool
        True in the first step of an epoch.
    """

    y: "torch.Tensor"
    rows: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    received: Mapping[str, Any] = field(default_factory=dict)
    teacher: Any = None
    unmixed: Any = None
    unmixed_features: Any = None
    share: Any = None
    partner: Any = None
    features: Any = None
    uniform: Any = None
    first: Any = None
