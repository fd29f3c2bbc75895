"""Class-dependent noise with one transition matrix for all clients."""

import numpy as np

from fnlkit.artifacts import transitions
from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Share, check_arguments, passes_on
from fnlkit.kernels import matrices
from fnlkit.simulate.noise.ground import Corruption, Ground, draw_labels


@check_arguments
@passes_on(transitions.symmetric)
def symmetric(ground: Ground, **parameters) -> Corruption:
    """Change each label with probability eta to a random other class."""
    return draw_labels(ground, transitions.symmetric(ground.classes, **parameters))


@declare(cite="Han 2018")
@check_arguments
@passes_on(transitions.pairflip)
def pairflip(ground: Ground, **parameters) -> Corruption:
    """Change each label to the next class with probability eta; the last class becomes the first (Han 2018)."""
    return draw_labels(ground, transitions.pairflip(ground.classes, **parameters))


@declare(cite="Patrini 2017")
@check_arguments
@passes_on(transitions.asymmetric)
def asymmetric(ground: Ground, **parameters) -> Corruption:
    """Change labels of easily confused classes with probability eta, by the published map of the data set."""
    return draw_labels(ground, transitions.asymmetric(ground.classes, ground.dataset, **parameters))


@declare(cite="Di 2024")
@check_arguments
def random(ground: Ground, *, eta: Share = 0.4) -> Corruption:
    """Change labels with a random rate and random target classes for each class (FedDPCont, Di 2024).

    The rate of a class is drawn from eta - 0.05 to eta + 0.05, nearer to eta if eta is below 0.05 or above 0.95.

    Parameters
    ----------
    eta : float in [0, 1]
        Mean rate of wrong labels over the classes.
    """
    return draw_labels(ground, matrices.random(ground.classes, eta, ground.rng(0)), ground.rng(1))


def target_of(ground: Ground, kind: str, name: str) -> np.ndarray | None:
    """Find the target class of each class (C,) int64; None if all other classes are possible."""
    if kind == "symmetric":
        return None
    if kind == "pairflip":
        return (np.arange(ground.classes) + 1) % ground.classes
    return matrices.class_map(name or ground.dataset, ground.classes)
