"""Transition matrices T[true, given] that a spec names: noise with one matrix for all clients, or a file.

A function takes the number of classes and the name of the data set, and returns T (C, C) float64 with rows that sum to 1.
"""

import numpy as np

from fnlkit.artifacts import files
from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Share, Text
from fnlkit.kernels import matrices

TRANSITIONS = {
    name: f"fnlkit.artifacts.transitions:{name}" for name in ("none", "symmetric", "pairflip", "asymmetric", "matrix")
}
LARGEST = 2**28  # limit of a file in bytes, stored and decompressed


def none(classes: int, dataset: str = "") -> np.ndarray:
    """The identity: no label changes."""
    return np.eye(classes)


def symmetric(classes: int, dataset: str = "", *, eta: Share = 0.4, include_true: bool = False) -> np.ndarray:
    """T of uniform noise.

    Parameters
    ----------
    eta : float in [0, 1]
        Probability that a label changes.
    include_true : bool
        Draw the new label from all classes including the true one, so that fewer labels end up wrong.
    """
    return matrices.symmetric(classes, eta, include_true)


def pairflip(classes: int, dataset: str = "", *, eta: Share = 0.4) -> np.ndarray:
    """T in which each class becomes the next class, and the last class the first (Han 2018).

    Parameters
    ----------
    eta : float in [0, 1]
        Probability that a label changes.
    """
    return matrices.map_classes((np.arange(classes) + 1) % classes, eta)


def asymmetric(classes: int, dataset: str = "", *, eta: Share = 0.4, map: str = "") -> np.ndarray:
    """T in which easily confused classes change, by the published map of the data set.

    Parameters
    ----------
    eta : float in [0, 1]
        Probability that a label of these classes changes.
    map : str
        ``cifar10``, ``cifar100``, ``mnist`` or ``fashion-mnist``. Default: the name of the data set.
    """
    return matrices.map_classes(matrices.class_map(map or dataset, classes), eta)


def matrix(classes: int, dataset: str = "", *, path: Text, key: str = "", transpose: bool = False) -> np.ndarray:
    """The matrix T[true, given] of an npy, npz, csv or pt file.

    Parameters
    ----------
    path : str
        The file.
    key : str
        Name of the array, if the file contains several.
    transpose : bool
        True for files with given classes in rows and true classes in columns.

    Raises
    ------
    InputError
        If the file cannot be read, or for a matrix of another size or with rows that are not probabilities.
    """
    T = files.pick(files.read_arrays(path, max_bytes=LARGEST), key, path)
    if T.dtype.kind not in "iuf":
        raise InputError(f"{display_path(path)}: found {T.dtype} of shape {T.shape}; expected probabilities")
    T = T.astype(np.float64)
    if T.shape != (classes,) * 2:
        raise InputError(f"{display_path(path)}: a matrix of {T.shape}; expected {classes} x {classes}")
    T = T.T if transpose else T
    if not np.isfinite(T).all() or (T < 0).any() or (np.abs(T.sum(1) - 1) > 1e-3).any():
        hint = "; its columns do: add transpose=true" if np.isfinite(T).all() and np.allclose(T.sum(0), 1, atol=1e-3) else ""
        raise InputError(f"{display_path(path)}: rows must be probabilities that sum to 1{hint}")
    return T / T.sum(1, keepdims=True)
