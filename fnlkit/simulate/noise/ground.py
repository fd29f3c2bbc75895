"""The input and the output of a noise model."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fnlkit.core.errors import InputError
from fnlkit.kernels import matrices


@dataclass(frozen=True)
class Ground:
    """Input of a noise model.

    Attributes
    ----------
    labels : (n,) int64
        The labels to corrupt: a copy.
    classes : int
    clients : list of (n_k,) int64
        Positions of each client's samples; empty before `partition`.
    rng : callable
        ``rng(client=0)`` returns the random stream of a client, or of the whole training set.
    x : callable
        Returns the training samples. Only instance-dependent noise calls it.
    dataset : str
    training : list of (n_k,) int64
        As `clients`, without held-out samples.
    """

    labels: np.ndarray
    classes: int
    clients: list[Any]
    rng: Any
    x: Any
    dataset: str
    training: list[Any] = field(default_factory=list)


@dataclass
class Corruption:
    """Output of a noise model: the labels and, if known, the requested noise.

    Attributes
    ----------
    labels : (n,) int64
    transition : (C, C) or (N, C, C) float64, or None
        T[true, given]; rows sum to 1.
    noisy : (N,) bool or None
        The clients that the model chose. None: all clients with a wrong label count as noisy.
    simulated : bool
        True if the model created the wrong labels, so that the previous labels count as true unless the data set declares
        true labels.
    """

    labels: np.ndarray
    transition: np.ndarray | None = None
    noisy: np.ndarray | None = None
    simulated: bool = True


def draw_labels(ground: Ground, T: np.ndarray, rng: np.random.Generator | None = None) -> Corruption:
    """Draw labels independently from the rows of T."""
    return Corruption(matrices.draw(ground.labels, T, rng or ground.rng()), T)


def need_clients(ground: Ground, what: str) -> None:
    """Raise InputError if the federation has no clients yet."""
    if not ground.clients:
        raise InputError(f"{what} chooses clients and this federation has none; run `fnlkit partition` first")
