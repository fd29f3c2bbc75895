"""What a noise model sees and what it returns."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fnlkit.errors import InputError
from fnlkit.noise import matrices


@dataclass(frozen=True)
class Ground:
    """What a noise model sees.

    Attributes
    ----------
    labels : (n,) int64
        The labels to corrupt; not to be changed in place.
    classes : int
    clients : list of (n_k,) int64
        Positions of each client's samples; empty before `partition`.
    rng : callable
        ``rng(client=0)`` is the stream of a client, or of the whole training set.
    x : callable
        Returns the training samples; only instance-dependent noise asks.
    dataset : str
    """

    labels: np.ndarray
    classes: int
    clients: list
    rng: Any
    x: Any
    dataset: str


@dataclass
class Corruption:
    """What a noise model returns: the labels, and what it asked for as far as it knows.

    Attributes
    ----------
    labels : (n,) int64
    transition : (C, C) or (N, C, C) float64, or None
        T[true, given]; rows sum to 1.
    noisy : (N,) bool or None
        Which clients the model chose; None: those that got a wrong label.
    simulated : bool
        Whether the model made labels wrong, so that those before it are the truth where nobody declared another.
    """

    labels: np.ndarray
    transition: np.ndarray = None
    noisy: np.ndarray = None
    simulated: bool = True


def drawn(ground, T, rng=None):
    """Return the Corruption of labels drawn independently from the rows of T."""
    return Corruption(matrices.draw(ground.labels, T, rng or ground.rng()), T)


def need_clients(ground, what):
    """Raise InputError where a federation has no clients yet."""
    if not ground.clients:
        raise InputError(f"{what} chooses clients and this federation has none; run `fnlkit partition` first")
