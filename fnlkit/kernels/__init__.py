"""Checked public functions of the compiled kernels: numpy arrays in, numpy arrays out.

Shapes: n samples, C classes, K clients or matrices, d dimensions.  One call can process several clients: their samples are
concatenated, and `client_offsets` (K + 1,) contains the first position of each client.  Transition matrices are
T[true, given] with rows that sum to 1; count matrices are counts[true, given].

Input can be float32 or float64 (other numbers are converted), read-only, or not contiguous; labels can have any integer
type.  Invalid arguments raise `fnlkit.core.errors.InputError`.
"""

from fnlkit.core.lazy import attach

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

# The same names for type checkers, which do not run `__getattr__`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fnlkit.kernels.counting import class_thresholds as class_thresholds
    from fnlkit.kernels.counting import count_matrix as count_matrix
    from fnlkit.kernels.dimensionality import lid as lid
    from fnlkit.kernels.dimensionality import lid_score as lid_score
    from fnlkit.kernels.flipping import flip_labels as flip_labels
    from fnlkit.kernels.flipping import randomized_response as randomized_response
    from fnlkit.kernels.inversion import apply_inverse as apply_inverse
    from fnlkit.kernels.inversion import invert_transition as invert_transition
    from fnlkit.kernels.projection import project_to_simplex as project_to_simplex
    from fnlkit.kernels.threads import get_threads as get_threads
    from fnlkit.kernels.threads import set_threads as set_threads
    from fnlkit.kernels.voting import knn_vote as knn_vote

__getattr__ = attach(__name__, {name: f"{__name__}.{module}" for name, module in _HOME.items()})


def __dir__():
    return __all__
