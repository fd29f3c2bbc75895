"""The kernels that fnlkit's methods stand on, for everybody: checked arguments, numpy in, numpy out.

Words: n samples, C classes, K clients or matrices, d dimensions.  Several clients are one call: their samples lie one
client after the other, and `client_offsets` (K + 1,) says where each begins.  Transition matrices are T[true, given]
with rows summing to 1, count matrices counts[true, given].

Input may be float32 or float64 (other numbers are converted), read-only, or not contiguous; labels any integer type.
Mistakes raise `fnlkit.errors.InputError`.
"""

from fnlkit.kernels.augmentation import augment_batch
from fnlkit.kernels.counting import class_thresholds, count_matrix
from fnlkit.kernels.dimensionality import lid, lid_score
from fnlkit.kernels.flipping import flip_labels, randomised_response
from fnlkit.kernels.inversion import apply_inverse, invert_transition
from fnlkit.kernels.projection import project_to_simplex
from fnlkit.kernels.threads import get_threads, set_threads
from fnlkit.kernels.voting import knn_vote

__all__ = [
    "apply_inverse",
    "augment_batch",
    "class_thresholds",
    "count_matrix",
    "flip_labels",
    "get_threads",
    "invert_transition",
    "knn_vote",
    "lid",
    "lid_score",
    "project_to_simplex",
    "randomised_response",
    "set_threads",
]
