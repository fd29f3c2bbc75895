"""Class-dependent noise with one transition matrix for all clients."""

import numpy as np

from fnlkit.components.declarations import declare
from fnlkit.components.parameters import Share, checked
from fnlkit.noise import matrices
from fnlkit.noise.ground import drawn


@checked
def symmetric(ground, *, eta: Share = 0.4, include_true=False):
    """Change each label with probability eta to a random other class.

    Parameters
    ----------
    eta : float in [0, 1]
        Probability that a label changes.
    include_true : bool
        Draw the new label from all classes including the true one, so that fewer labels end up wrong.
    """
    return drawn(ground, matrices.symmetric(ground.classes, eta, include_true))


@declare(cite="Han 2018")
@checked
def pairflip(ground, *, eta: Share = 0.4):
    """Change each label to the next class with probability eta; the last class becomes the first (Han 2018).

    Parameters
    ----------
    eta : float in [0, 1]
        Probability that a label changes.
    """
    return drawn(ground, matrices.mapped(target_of(ground, "pairflip", ""), eta))


@declare(cite="Patrini 2017")
@checked
def asymmetric(ground, *, eta: Share = 0.4, map=""):
    """Change labels of easily confused classes with probability eta, by the published map of the data set.

    Parameters
    ----------
    eta : float in [0, 1]
        Probability that a label of these classes changes.
    map : str
        ``cifar10``, ``cifar100``, ``mnist`` or ``fashion-mnist``. Default: the name of the data set.
    """
    return drawn(ground, matrices.mapped(target_of(ground, "asymmetric", map), eta))


@declare(cite="Di 2024")
@checked
def random(ground, *, eta: Share = 0.4):
    """Change labels with a random rate and random target classes for each class (FedDPCont, Di 2024).

    The rate of a class is drawn from eta - 0.05 to eta + 0.05.

    Parameters
    ----------
    eta : float in [0, 1]
        Mean rate of wrong labels over the classes.
    """
    return drawn(ground, matrices.random(ground.classes, eta, ground.rng(0)), ground.rng(1))


def target_of(ground, kind, name):
    """Return the target class of each class (C,) int64, or None if all other classes are possible."""
    if kind == "symmetric":
        return None
    if kind == "pairflip":
        return (np.arange(ground.classes) + 1) % ground.classes
    return matrices.class_map(name or ground.dataset, ground.classes)
