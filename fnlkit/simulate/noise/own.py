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
    given = files.pick(arrays, key, path)
    if given.ndim != 1 or given.dtype.kind not in "iu" or len(given) != len(ground.labels):
        raise InputError(
            f"{display_path(path)}: found {given.dtype} of shape {given.shape}; expected a whole number for each of "
            f"{len(ground.labels):,} training samples"
        )
    if given.min() < 0 or given.max() >= ground.classes:
        raise InputError(f"{display_path(path)}: labels run from {given.min()} to {given.max()}, not 0 to {ground.classes - 1}")
    clean = arrays.get("clean_label")
    if clean is not None and clean.shape == given.shape and (same := (clean == ground.labels).mean()) < 1:
        raise InputError(
            f"{display_path(path)}: its clean_label equals only {same:.1%} of this data set's labels; "
            "its samples are in another order, or of another data set"
        )
    return Corruption(given.astype(np.int64), simulated=False)
