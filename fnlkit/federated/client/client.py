"""Client with private samples, labels and memory; inputs of client steps and losses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fnlkit.core.errors import InputError
from fnlkit.federated.client.network import predict
from fnlkit.kernels.streams import HiddenStream, stream


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
        """Return a copy of the rows as a Tensor (m, ...)."""
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


def run_step(step: Callable[..., Any], client: Client, model: "LocalModel", received: dict[str, Any]) -> dict[str, Any]:
    """Return the reply of a client step, a dict of arrays.

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
        """Return logits (n, C) of raw samples (n, ...), in evaluation mode."""
        return self.score(self.network, self.weights, x, self.inputs)

    def features(self, x: "torch.Tensor") -> "torch.Tensor":
        """Return the penultimate representation (n, width) of raw samples, in evaluation mode."""
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
