"""Class-dependent noise: one transition matrix for everybody."""

import numpy as np

from fnlkit.noise import matrices
from fnlkit.noise.ground import drawn
from fnlkit.parameters import Share, checked


@checked
def symmetric(ground, *, eta: Share = 0.4, include_true=False):
    """Each label changes with probability eta to any other class; with include_true it is drawn from all classes.

    Parameters
    ----------
    eta : float in [0, 1]
        Chance of a label to change.
    include_true : bool
        Draw the new label from all classes, the true one among them, so that fewer labels end up wrong.
    """
    return drawn(ground, matrices.symmetric(ground.classes, eta, include_true))


@checked
def pairflip(ground, *, eta: Share = 0.4):
    """Each label becomes the next class with probability eta, the last class the first (Han 2018).

    Parameters
    ----------
    eta : float in [0, 1]
        Chance of a label to change.
    """
    return drawn(ground, matrices.mapped(target_of(ground, "pairflip", ""), eta))


@checked
def asymmetric(ground, *, eta: Share = 0.4, map=""):
    """Labels of easily confused classes change with probability eta, by the published map of the data set.

    Parameters
    ----------
    eta : float in [0, 1]
        Chance of a label of these classes to change.
    map : str
        ``cifar10``, ``cifar100``, ``mnist`` or ``fashion-mnist``; the data set's name without it.
    """
    return drawn(ground, matrices.mapped(target_of(ground, "asymmetric", map), eta))


@checked
def random(ground, *, eta: Share = 0.4):
    """FedDPCont's random noise (Di 2024): every class has its own rate, eta +- 0.05, and its own random row.

    Parameters
    ----------
    eta : float in [0, 1]
        Middle of the classes' rates of wrong labels.
    """
    return drawn(ground, matrices.random(ground.classes, eta, ground.rng(0)), ground.rng(1))


def target_of(ground, kind, name):
    """Return the class each class goes to, (C,) int64, or None for any."""
    if kind == "symmetric":
        return None
    if kind == "pairflip":
        return (np.arange(ground.classes) + 1) % ground.classes
    return matrices.class_map(name or ground.dataset, ground.classes)
