"""Noise from files: a transition matrix or labels of the user; and no noise."""

import numpy as np

from fnlkit.artifacts import files, transitions
from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Text, passes_on
from fnlkit.simulate.noise.ground import Corruption, Ground, draw_labels

LARGEST = 2**28  # limit in bytes, stored and decompressed: one label for each of tens of millions of samples


def none(ground: Ground) -> Corruption:
    """Keep the labels unchanged."""
    return Corruption(ground.labels, np.eye(ground.classes), simulated=False)


@passes_on(transitions.matrix)
def matrix(ground: Ground, **parameters) -> Corruption:
    """Apply a transition matrix T[true, given] from an npy, npz, csv or pt file."""
    return draw_labels(ground, transitions.matrix(ground.classes, **parameters))


def labels(ground: Ground, *, path: Text, key: str = "") -> Corruption:
    """Read the labels of the whole training set from an npy, npz, csv or pt file, for example of CIFAR-N.

    Parameters
    ----------
    path : str
        The file.
    key : str
        Name of the array, if the file contains several; for CIFAR-N for example ``worse_label``.
    """
    arrays = files.read_arrays(path, max_bytes=LARGEST)
    values = files.pick(arrays, key, path)
    if values.ndim != 1 or values.dtype.kind not in "iu" or len(values) != len(ground.labels):
        raise InputError(
            f"{display_path(path)}: found {values.dtype} of shape {values.shape}; expected a whole number for each of "
            f"{len(ground.labels):,} training samples"
        )
    if values.min() < 0 or values.max() >= ground.classes:
        raise InputError(
            f"{display_path(path)}: labels run from {values.min()} to {values.max()}, not 0 to {ground.classes - 1}"
        )
    clean = arrays.get("clean_label")
    if clean is not None and clean.shape == values.shape and (same := (clean == ground.labels).mean()) < 1:
        raise InputError(
            f"{display_path(path)}: its clean_label equals only {same:.1%} of this data set's labels; "
            "its samples are in another order, or of another data set"
        )
    return Corruption(values.astype(np.int64), simulated=False)
