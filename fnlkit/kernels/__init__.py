"""Checked public functions of the compiled kernels: numpy arrays in, numpy arrays out.

Shapes: n samples, C classes, K clients or matrices, d dimensions.  One call can process several clients: their samples are
concatenated, and `client_offsets` (K + 1,) contains the first position of each client.  Transition matrices are
T[true, given] with rows that sum to 1; count matrices are counts[true, given].

Input can be float32 or float64 (other numbers are converted), read-only, or not contiguous; labels can have any integer
type.  Invalid arguments raise `fnlkit.errors.InputError`.
"""

import importlib

# Name -> module, imported at first use: the other modules of this package are used without compiled code.
_HOME = {
    "apply_inverse": "inversion",
    "class_thresholds": "counting",
    "count_matrix": "counting",
    "flip_labels": "flipping",
    "get_threads": "threads",
    "invert_transition": "inversion",
    "knn_vote": "voting",
    "lid": "dimensionality",
    "lid_score": "dimensionality",
    "project_to_simplex": "projection",
    "randomized_response": "flipping",
    "set_threads": "threads",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'fnlkit.kernels' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fnlkit.kernels.{_HOME[name]}"), name)
