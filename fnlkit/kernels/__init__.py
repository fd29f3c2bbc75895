"""Checked public functions of the compiled kernels: numpy arrays in, numpy arrays out.

Shapes: n samples, C classes, K clients or matrices, d dimensions.  One call can process several clients: their samples are
concatenated, and `client_offsets` (K + 1,) contains the first position of each client.  Transition matrices are
T[true, given] with rows that sum to 1; count matrices are counts[true, given].

Input can be float32 or float64 (other numbers are converted), read-only, or not contiguous; labels can have any integer
type.  Invalid arguments raise `fnlkit.errors.InputError`.
"""

from fnlkit.kernels.counting import class_thresholds, count_matrix
from fnlkit.kernels.dimensionality import lid, lid_score
from fnlkit.kernels.flipping import flip_labels, randomized_response
from fnlkit.kernels.inversion import apply_inverse, invert_transition
from fnlkit.kernels.projection import project_to_simplex
from fnlkit.kernels.threads import get_threads, set_threads
from fnlkit.kernels.voting import knn_vote

__all__ = [
    "apply_inverse",
    "class_thresholds",
    "count_matrix",
    "flip_labels",
    "get_threads",
    "invert_transition",
    "knn_vote",
    "lid",
    "lid_score",
    "project_to_simplex",
    "randomized_response",
    "set_threads",
]
