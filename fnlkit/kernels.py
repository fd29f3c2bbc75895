"""The kernels that fnlkit's methods stand on, for everybody: checked arguments, numpy in, numpy out.

Words: n samples, C classes, K clients or matrices, d dimensions.  Several clients are one call: their samples lie one
client after the other, and `client_offsets` (K + 1,) says where each begins.  Transition matrices are T[true, given]
with rows summing to 1, count matrices counts[true, given].

Input may be float32 or float64 (other numbers are converted), read-only, or not contiguous; labels any integer type.
Mistakes raise `fnlkit.errors.InputError`.
"""

import contextlib
import os

import numpy as np

from fnlkit._kernels import augment, counts, sampling, simplex, transition
from fnlkit._kernels import lid as _lid
from fnlkit._kernels.threads import even, run
from fnlkit.errors import InputError

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

_threads = None


def set_threads(threads):
    """Set how many threads the kernels of this process use; None gives the choice back to the environment.

    Parameters
    ----------
    threads : int or None
        At least 1.  Engines set 1 in their worker processes.

    Examples
    --------
    >>> set_threads(1)
    >>> get_threads()
    1
    """
    global _threads
    if threads is not None and not (isinstance(threads, int | np.integer) and threads >= 1):
        raise InputError(f"`threads` must be an integer of at least 1, found {threads!r}")
    _threads = threads


def get_threads():
    """Return the number of threads: what `set_threads` said, else FNLKIT_THREADS, else the processors we may use.

    Examples
    --------
    >>> get_threads() >= 1
    True
    """
    if _threads is not None:
        return int(_threads)
    said = os.environ.get("FNLKIT_THREADS", "")
    if said:
        if not said.isdecimal() or int(said) < 1:
            raise InputError(f"the variable `FNLKIT_THREADS` must be an integer of at least 1, found {said!r}")
        return int(said)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- Checks
# --------------------------------------------------------------------------------------------------------------


def _real(value, name, dimensions, shape):
    """Return a contiguous float32 or float64 array of the given number of dimensions."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise InputError(f"`{name}` must hold real numbers, found {array.dtype}; convert it to float32 or float64")
    if array.ndim != dimensions:
        raise InputError(f"`{name}` must have shape {shape}, found {array.shape}")
    kind = np.float32 if array.dtype in (np.float16, np.float32) else np.float64
    return np.ascontiguousarray(array, kind)


def _finite(array, name):
    """Raise where an array has NaN or infinity."""
    # The sum of finite numbers is nearly always finite, and one pass is cheaper than an array of booleans.
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(array.sum()) and not np.isfinite(array).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise InputError(f"`{name}` must be finite, found {array[where]} at {where}; drop such samples first")


def _integers(value, name, n, what):
    """Return a contiguous int64 array (n,)."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu" and array.size:
        raise InputError(f"`{name}` must hold integers, found {array.dtype}; use astype(int) if its values are whole")
    if array.ndim != 1 or len(array) != n:
        raise InputError(f"`{name}` must have shape ({n:,},), one a {what}; found {array.shape}")
    return np.ascontiguousarray(array, np.int64)


def _within(array, name, below):
    """Raise where an integer array leaves 0..below-1."""
    if len(array) and not (array.min() >= 0 and array.max() < below):
        where = int(np.argmax((array < 0) | (array >= below)))
        raise InputError(f"`{name}` must lie in 0..{below - 1}, found {array[where]} at position {where}")


def _offsets(value, n):
    """Return client offsets (K + 1,) int64; one client when none are given."""
    if value is None:
        return np.array([0, n])
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.ndim != 1 or len(array) < 2:
        raise InputError(
            f"`client_offsets` must be integers of shape (K + 1,), found {array.dtype} of shape {array.shape}"
        )
    array = np.ascontiguousarray(array, np.int64)
    if array[0] != 0 or array[-1] != n or (np.diff(array) < 0).any():
        raise InputError(
            f"`client_offsets` must rise from 0 to {n:,}, the number of samples; found {array[0]} to {array[-1]:,}"
            f"{'' if (np.diff(array) >= 0).all() else ' with a step down'}"
        )
    return array


def _positive(value, name):
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise InputError(f"`{name}` must be an integer of at least 1, found {value!r}")
    return int(value)


def _uniforms(value, name, shape):
    array = np.asarray(value)
    if array.dtype.kind != "f" or array.shape != shape:
        raise InputError(f"`{name}` must be floats of shape {shape}, found {array.dtype} of shape {array.shape}")
    array = np.ascontiguousarray(array, np.float64)
    if array.size and not (array.min() >= 0 and array.max() < 1):
        raise InputError(f"`{name}` must lie in [0, 1), found {array.min()} to {array.max()}; use Generator.random")
    return array


def _thread_count(threads):
    return get_threads() if threads is None else _positive(threads, "threads")


# --- Counting
# ------------------------------------------------------------------------------------------------------------

# Probabilities that a thread must get before starting it pays: a hand-over costs 0.1 ms, in which one thread reads these.
_ENTRIES = 2_000_000
# Slack of the public code, so that a probability equal to its threshold but for rounding is confident.
_SLACK = 1e-6
# cleanlab's least threshold: a class that is never predicted takes nobody at probability 0.
_LEAST = 2e-6
# cleanlab's threshold of a class without labels, which no probability reaches.
_ABSENT = 2.0


def _row_pieces(offsets, classes, threads):
    """Row ranges for `threads` threads: any rows of one client, whole clients of several."""
    n = int(offsets[-1])
    pieces = even(n, min(threads, max(1, n * classes // _ENTRIES)))
    if len(offsets) > 2 and len(pieces) > 1:
        # Each boundary moves to the next client's beginning.
        bounds = [0, *(int(offsets[np.searchsorted(offsets, stop)]) for _, stop in pieces)]
        pieces = [(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True) if a < b]
    return pieces


def _label_sums(probs, labels, offsets, threads):
    """Sums and numbers (K, C) of the probabilities of the given labels."""
    classes, clients = probs.shape[1], len(offsets) - 1
    pieces = _row_pieces(offsets, classes, threads)
    copies = len(pieces) if clients == 1 else 1
    sums, members = np.zeros((copies, clients, classes)), np.zeros((copies, clients, classes), np.int64)
    flat = probs.reshape(-1)

    def work(piece, start, stop):
        copy = piece % copies
        return counts.label_sums(flat, labels, classes, offsets, start, stop, sums[copy], members[copy])

    for wrong in run(work, [(i, *piece) for i, piece in enumerate(pieces)], threads):
        if wrong >= 0:
            raise InputError(f"`labels` must lie in 0..{classes - 1}, found {labels[wrong]} at position {wrong}")
    return sums.sum(0), members.sum(0)


def _thresholds(sums, members, absent):
    with np.errstate(invalid="ignore"):
        means = np.maximum(sums / members, _LEAST)
    return np.where(members > 0, means, absent)


def _probabilities(probs, labels, client_offsets):
    probs = _real(probs, "probs", 2, "(n, C)")
    if probs.shape[1] < 1:
        raise InputError(f"`probs` must have at least one class, found shape {probs.shape}")
    return probs, _integers(labels, "labels", len(probs), "row of `probs`"), _offsets(client_offsets, len(probs))


def _no_nan(probs):
    where = np.argwhere(np.isnan(probs))[0]
    raise InputError(f"`probs` must not hold NaN, found one at row {where[0]}, class {where[1]}; did training diverge?")


def class_thresholds(probs, labels, *, client_offsets=None, threads=None):
    """Return the mean probability of each class over the samples labelled with it.

    Parameters
    ----------
    probs : array (n, C)
        Predicted probabilities, a row a sample.
    labels : array (n,) of int
        Observed labels, 0..C-1.
    client_offsets : array (K + 1,) of int, optional
        Samples client_offsets[k]:client_offsets[k + 1] are client k's.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (C,) float64, or (K, C) with `client_offsets`
        2 for a class that no sample is labelled with (no probability reaches it), else at least 2e-6; both as in
        cleanlab.

    Raises
    ------
    InputError
        Wrong shapes, labels out of range, NaN.

    Notes
    -----
    Northcutt et al. 2021, eq. 2; FedEFC, eq. 6.  Sums are float64 whatever the input.

    Examples
    --------
    >>> class_thresholds([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [0, 0, 1])
    array([0.75, 0.8 ])
    """
    probs, labels, offsets = _probabilities(probs, labels, client_offsets)
    sums, members = _label_sums(probs, labels, offsets, _thread_count(threads))
    if np.isnan(probs.sum()) and np.isnan(probs).any():
        _no_nan(probs)
    result = _thresholds(sums, members, _ABSENT)
    return result[0] if client_offsets is None else result


def count_matrix(
    probs,
    labels,
    *,
    thresholds=None,
    client_offsets=None,
    calibrate=False,
    class_weights=None,
    least_diagonal=1,
    threads=None,
):
    """Return how often each class is confidently predicted under each observed label: counts[true, given].

    A sample counts for the class whose threshold its probability reaches; for its most probable class if it reaches
    several; not at all if none.

    Parameters
    ----------
    probs : array (n, C)
        Predicted probabilities, a row a sample.
    labels : array (n,) of int
        Observed labels, 0..C-1.
    thresholds : array (C,) or (K, C), optional
        Default: `class_thresholds` of each client.
    client_offsets : array (K + 1,) of int, optional
        Samples client_offsets[k]:client_offsets[k + 1] are client k's; all clients are counted in one call.
    calibrate : bool
        Scale each given label's counts to its number of samples, rounded so that the sums stay exact.
    class_weights : "labels" or array (C,) or (K, C), optional
        Multiply the counts of each given label by a weight; "labels" takes its share of the client's samples, which is
        FedEFC's weighting for strong imbalance.
    least_diagonal : int
        Lower limit of the diagonal, applied before calibration: 1 as in cleanlab and FedEFC's code, so that no class is
        without a count; 0 for the plain counts of the papers.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (C, C), or (K, C, C) with `client_offsets`
        int64; float64 with `class_weights`.

    Raises
    ------
    InputError
        Wrong shapes, labels out of range, NaN.

    Notes
    -----
    The confident joint of Northcutt et al. 2021, eq. 1, transposed (cleanlab's rows are the given labels); FedEFC, eqs.
    3-7. "Reaches" is p >= threshold - 1e-6, as in both public codes.  FedEFC's code weights the normalised matrix and
    normalises again; that gives the same transition matrix as weighting the counts, as the paper says, and normalising
    once.

    Examples
    --------
    >>> probs = [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.1, 0.9]]
    >>> count_matrix(probs, [0, 0, 0, 1])
    array([[2, 0],
           [0, 1]])
    """
    probs, labels, offsets = _probabilities(probs, labels, client_offsets)
    threads = _thread_count(threads)
    classes, clients = probs.shape[1], len(offsets) - 1
    sums, members = _label_sums(probs, labels, offsets, threads)
    if thresholds is None:
        thresholds = _thresholds(sums, members, np.inf)
    else:
        thresholds = _by_client(thresholds, "thresholds", clients, classes, client_offsets is not None)
    found = _confident(probs, labels, offsets, thresholds, threads)
    diagonal = np.arange(classes)
    found[:, diagonal, diagonal] = np.maximum(found[:, diagonal, diagonal], least_diagonal)
    if calibrate:
        found = _calibrated(found, members)
    if class_weights is not None:
        if isinstance(class_weights, str):
            if class_weights != "labels":
                raise InputError(f'`class_weights` must be "labels" or an array, found {class_weights!r}')
            weights = members / np.maximum(members.sum(1, keepdims=True), 1)
        else:
            weights = _by_client(class_weights, "class_weights", clients, classes, client_offsets is not None)
        found = found * weights[:, None, :]
    return found[0] if client_offsets is None else found


def _by_client(value, name, clients, classes, batched):
    """Numbers (K, C) from (C,) or, for several clients, (K, C)."""
    array = np.asarray(value, np.float64)
    if array.shape != (classes,) and not (batched and array.shape == (clients, classes)):
        shape = f"({classes},)" + (f" or ({clients}, {classes})" if batched else "")
        raise InputError(f"`{name}` must have shape {shape}, found {array.shape}")
    if np.isnan(array).any():
        raise InputError(f"`{name}` must not hold NaN")
    return np.broadcast_to(array, (clients, classes))


def _confident(probs, labels, offsets, thresholds, threads):
    """Counts (K, C, C) of confident samples."""
    classes, clients = probs.shape[1], len(offsets) - 1
    exact = thresholds - _SLACK
    width = 64 // probs.itemsize
    limits = np.full((clients, -(-classes // width) * width), np.inf, probs.dtype)
    limits[:, :classes] = exact
    if probs.dtype == np.float32:
        # Comparing in float32 with the next number up is comparing in float64.
        low = limits[:, :classes] < exact
        limits[:, :classes][low] = np.nextafter(limits[:, :classes][low], np.float32(np.inf))
    pieces = _row_pieces(offsets, classes, threads)
    copies = len(pieces) if clients == 1 else 1
    found = np.zeros((copies, clients, (classes + 1) * classes), np.int64)
    flat = probs.reshape(-1)

    def work(piece, start, stop):
        return counts.count_confident(flat, labels, classes, offsets, limits, found[piece % copies], start, stop)

    if any(run(work, [(i, *piece) for i, piece in enumerate(pieces)], threads)):
        _no_nan(probs)
    found = found.sum(0) if copies > 1 else found[0]
    return found.reshape(clients, classes + 1, classes)[:, :classes]


def _calibrated(found, members):
    """Counts whose columns (given) sum to the numbers of samples, by largest remainders."""
    # The operations come in cleanlab's order, so that ties between remainders are broken by the same rounding errors.
    given = found.swapaxes(1, 2)
    scaled = (given.swapaxes(1, 2) / np.maximum(given.sum(2), 1e-100)[:, None] * members[:, None]).swapaxes(1, 2)
    scaled = scaled / np.maximum(scaled.sum((1, 2), keepdims=True), 1e-100) * members.sum(1)[:, None, None]
    whole = np.rint(scaled)
    missing = np.rint(scaled.sum(2, keepdims=True)) - whole.sum(2, keepdims=True)
    # Too few: those rounded down most go up, of equal ones the last; too many: the reverse.
    rank = np.argsort(np.argsort(scaled - whole, axis=2, kind="stable"), axis=2)
    whole += rank >= scaled.shape[2] - np.maximum(missing, 0)
    whole -= rank < np.maximum(-missing, 0)
    return whole.astype(np.int64).swapaxes(1, 2)


# --- Local intrinsic dimensionality
# --------------------------------------------------------------------------------------


def lid(points, *, k=20, client_offsets=None, variant="paper", threads=None):
    """Return the local intrinsic dimensionality of each point among the points of its client.

    Parameters
    ----------
    points : array (n, d)
        FedCorr takes the softmax outputs of a client's local model.
    k : int
        Nearest other points; a client of m points uses min(k, m - 1).
    client_offsets : array (K + 1,) of int, optional
        Points client_offsets[k]:client_offsets[k + 1] are client k's; all clients are estimated in one call.
    variant : {"paper", "fedcorr"}
        "fedcorr" is the formula of the authors' code, with a millionth added to the largest distance and to the sum,
        and k itself as the numerator even where there are fewer points; computed in float64.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (n,) float64
        At least 0 and finite.  0 where one of the k nearest is at distance 0, the limit of the formula; 1e6 at most,
        which is reached where all k are equally far; 0 where there are fewer than two neighbours, which say nothing.
        "fedcorr": 0 without any neighbour; finite, but with nearly equal distances of about 1 and more the two
        millionths outweigh the sum, and the estimate is huge or negative, as the authors' is.

    Raises
    ------
    InputError
        Wrong shapes, NaN or infinity, k < 1.

    Notes
    -----
    -1 / mean_j log(r_j / r_k), j = 1..k, with Euclidean distances r_1 <= ... <= r_k: Amsaleg et al. 2015, eq. 5;
    FedCorr, eq. 2.  Distances are sums of squared differences in the precision of the input, so nothing cancels.

    Examples
    --------
    >>> lid([[0.0], [1.0], [3.0], [7.0]], k=2).round(6)
    array([1.820478, 2.88539 , 4.932607, 4.932607])
    """
    points = _real(points, "points", 2, "(n, d)")
    k = _positive(k, "k")
    if variant not in ("paper", "fedcorr"):
        raise InputError(f'`variant` must be "paper" or "fedcorr", found {variant!r}')
    if points.shape[1] < 1:
        raise InputError(f"`points` must have at least one dimension, found shape {points.shape}")
    offsets = _offsets(client_offsets, len(points))
    threads = _thread_count(threads)
    _finite(points, "points")
    out = np.empty(len(points))
    if variant == "fedcorr":
        points = points.astype(np.float64)

    def work(start, stop):
        _lid.lid_rows(points, offsets, k, variant == "fedcorr", start, stop, out)

    run(work, even(len(points), 4 * threads if threads > 1 else 1), threads)
    return out


def lid_score(points, *, k=20, client_offsets=None, variant="paper", threads=None):
    """Return the mean local intrinsic dimensionality of each client: FedCorr's LID score.

    Parameters and errors are those of `lid`.

    Returns
    -------
    ndarray (K,) float64
        One entry without `client_offsets`; 0 for a client without samples.

    Examples
    --------
    >>> lid_score([[0.0], [1.0], [3.0], [7.0], [5.0]], k=2, client_offsets=[0, 4, 5]).round(4)
    array([3.6428, 0.    ])
    """
    each = lid(points, k=k, client_offsets=client_offsets, variant=variant, threads=threads)
    offsets = _offsets(client_offsets, len(each))
    sizes = np.diff(offsets)
    client = np.repeat(np.arange(len(sizes)), sizes)
    return np.bincount(client, each, len(sizes)) / np.maximum(sizes, 1)


# --- Transition matrices
# -------------------------------------------------------------------------------------------------

# Matrices up to this size go one to a vector lane, larger ones to LAPACK.
_LANES_SIZE = 32


def invert_transition(T, *, ridge=None, threads=None):
    """Return the inverses of transition matrices and their condition numbers.

    Parameters
    ----------
    T : array (..., C, C)
        One matrix or a stack; rows need not sum to 1.
    ridge : float, optional
        Return (T'T + ridge 1)^-1 T' instead, which exists for every matrix and tends to the inverse.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    inverse : ndarray (..., C, C)
        float32 for float32 input, else float64.
    condition : ndarray (...) float64
        ||T|| ||T^-1|| in the maximum row sum norm, which for a transition matrix is the largest row sum of |T^-1|: how
        many times an error of the given-label distribution can grow.

    Raises
    ------
    InputError
        Wrong shapes, NaN; a matrix that is singular to working precision, unless `ridge` is given.

    Notes
    -----
    Matrices with one value off the diagonal (symmetric noise, label privacy) have a closed form, Sherman and Morrison
    1950; others of up to 32 classes are eliminated one a vector lane and checked; what fails the check, and all larger
    ones, go to LAPACK.

    Examples
    --------
    >>> inverse, condition = invert_transition([[0.8, 0.2], [0.4, 0.6]])
    >>> inverse.round(3), condition.round(3)
    (array([[ 1.5, -0.5],
           [-1. ,  2. ]]), np.float64(3.0))
    """
    T = np.asarray(T)
    if T.ndim < 2 or T.shape[-1] != T.shape[-2] or T.shape[-1] < 1:
        raise InputError(f"`T` must have shape (..., C, C), found {T.shape}")
    shape, size = T.shape, T.shape[-1]
    stack = _real(T.reshape(-1, size, size), "T", 3, "(..., C, C)")
    if ridge is not None:
        if not (np.isscalar(ridge) and 0 < ridge < np.inf):
            raise InputError(f"`ridge` must be a positive number, found {ridge!r}")
        _finite(stack, "T")
        inverses, conditions = _ridge_inverse(stack, ridge)
    else:
        inverses, conditions = _inverse(stack, _thread_count(threads))
        singular = np.flatnonzero(~(conditions < 1 / np.finfo(stack.dtype).eps))
        if len(singular):
            first = int(singular[0])
            _finite(stack[first], "T")
            which = tuple(int(i) for i in np.unravel_index(first, shape[:-2]))
            name = f"matrix {which[0] if len(which) == 1 else which} of `T`" if which else "`T`"
            raise InputError(
                f"{name} is singular (condition {conditions[first]:.3g}; {len(singular):,} of {len(stack):,} are); "
                "pass `ridge`, or blend with the identity"
            )
    return inverses.reshape(shape), conditions.reshape(shape[:-2])[()]


def _inverse(stack, threads):
    """Inverses (N, C, C) and condition numbers (N,); infinity or NaN for what has no inverse."""
    inverses, conditions = np.empty_like(stack), np.empty(len(stack))
    size = stack.shape[1]
    pieces = even(len(stack), min(threads, 1 + stack.size // 65536))
    run(lambda a, b: transition.invert_constant(stack, a, b, inverses, conditions), pieces, threads)
    rest = np.flatnonzero(conditions == -1)
    if len(rest) and size <= _LANES_SIZE:
        pieces = even(len(rest), min(threads, 1 + len(rest) * size**3 // 500_000))
        run(lambda a, b: transition.invert_lanes(stack, rest, a, b, inverses, conditions), pieces, threads)
        rest = np.flatnonzero(conditions == -1)
    if len(rest) == len(stack):
        return _lapack_inverse(stack, threads)
    if len(rest):
        inverses[rest], conditions[rest] = _lapack_inverse(stack[rest], threads)
    return inverses, conditions


def _norms(stack):
    norms = np.empty(len(stack))
    transition.row_norms(stack, 0, len(stack), norms)
    return norms


def _lapack_inverse(stack, threads):
    """The same by LAPACK, in one call: numpy keeps the GIL in it, so only BLAS's own threads can help."""
    from fnlkit.neighbours import blas_threads

    with np.errstate(invalid="ignore"), contextlib.nullcontext() if len(stack) == 1 else blas_threads(threads):
        try:
            inverses = np.linalg.inv(stack)
        except np.linalg.LinAlgError:
            # One singular matrix spoils the call.
            inverses = np.stack([_lapack_single(matrix) for matrix in stack])
        return inverses, _norms(stack) * _norms(inverses)


def _lapack_single(matrix):
    try:
        return np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.inf)


def _ridge_inverse(stack, ridge):
    transposed = stack.swapaxes(1, 2)
    identity = np.eye(stack.shape[1], dtype=stack.dtype)
    inverses = np.linalg.solve(transposed @ stack + stack.dtype.type(ridge) * identity, transposed)
    return inverses, _norms(stack) * _norms(inverses)


def apply_inverse(T, vectors, *, ridge=None, threads=None):
    """Return ``vectors @ inverse(T)``: distributions over given labels turned into distributions over true labels.

    A distribution over true labels, as a row, becomes row @ T over given labels; this undoes it.  Entries can come out
    negative: see `project_to_simplex`.

    Parameters
    ----------
    T : array (C, C) or (N, C, C)
    vectors : array
        With one matrix: (..., C).  With N: (N, C), one vector a matrix, or (N, m, C).
    ridge, threads
        As in `invert_transition`.

    Returns
    -------
    ndarray like `vectors`, float

    Raises
    ------
    InputError
        As `invert_transition`; shapes that do not go together.

    Examples
    --------
    >>> apply_inverse([[0.8, 0.2], [0.4, 0.6]], [0.6, 0.4]).round(3)
    array([0.5, 0.5])
    """
    T, vectors = np.asarray(T), np.asarray(vectors)
    if T.ndim not in (2, 3):
        raise InputError(f"`T` must have shape (C, C) or (N, C, C), found {T.shape}")
    lead = T.shape[:-2]
    if vectors.ndim < 1 or vectors.shape[-1] != T.shape[-1]:
        raise InputError(f"`vectors` must have {T.shape[-1]} entries on its last axis, found shape {vectors.shape}")
    if lead and (vectors.ndim not in (2, 3) or vectors.shape[0] != lead[0]):
        shape = f"({lead[0]}, C) or ({lead[0]}, m, C)"
        raise InputError(f"`vectors` must have shape {shape} for {lead[0]} matrices, found {vectors.shape}")
    flat = _real(vectors.reshape(-1, vectors.shape[-1]), "vectors", 2, "(..., C)")
    _finite(flat, "vectors")
    inverse, _ = invert_transition(T, ridge=ridge, threads=threads)
    if not lead:
        return (flat @ inverse).reshape(vectors.shape)
    each = 1 if vectors.ndim == 2 else vectors.shape[1]
    return (flat.reshape(lead[0], each, vectors.shape[-1]) @ inverse).reshape(vectors.shape)


def project_to_simplex(v, *, threads=None):
    """Return the nearest probability vector, in Euclidean distance, of each vector on the last axis.

    Parameters
    ----------
    v : array (..., C)
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (..., C)
        Entries >= 0, sums 1; float32 for float32 input, else float64.

    Raises
    ------
    InputError
        No class at all, NaN or infinity.

    Notes
    -----
    Michelot 1986; Duchi et al. 2008 reach the same point by sorting.

    Examples
    --------
    >>> project_to_simplex([0.7, 0.5, -0.2]).round(3)
    array([0.6, 0.4, 0. ])
    """
    v = np.asarray(v)
    if v.ndim < 1 or v.shape[-1] < 1:
        raise InputError(f"`v` must have shape (..., C) with C of at least 1, found {v.shape}")
    flat = _real(v.reshape(-1, v.shape[-1]), "v", 2, "(..., C)")
    _finite(flat, "v")
    out = np.empty_like(flat)
    threads = _thread_count(threads)
    pieces = even(len(flat), min(threads, 1 + flat.size // 65536))
    run(lambda a, b: simplex.project_rows(flat, a, b, out), pieces, threads)
    return out.reshape(v.shape)


# --- Neighbours
# ----------------------------------------------------------------------------------------------------------


def knn_vote(
    embeddings,
    labels,
    *,
    k=100,
    client_offsets=None,
    classes=None,
    seed=0,
    include_self=False,
    ties="random",
    threads=None,
):
    """Return the majority label of each sample's k nearest neighbours, and the share that disagrees with its label.

    Parameters
    ----------
    embeddings : array (n, d)
        Distances are Euclidean; normalise the rows for cosine similarity.
    labels : array (n,) of int
        Observed labels, 0..classes-1.
    k : int
        A client of m samples uses min(k, m - 1) neighbours, with `include_self` min(k, m).
    client_offsets : array (K + 1,) of int, optional
        Neighbours are sought within each client; without offsets, in the whole set.
    classes : int, optional
        Default: the largest label + 1.
    seed : int
        Of the draws that break ties between equally frequent labels; the result depends on nothing else.
    include_self : bool
        Count a sample among its own neighbours, as FedLN's public code does.
    ties : {"random", "lowest"}
        "lowest" takes the smallest of equally frequent labels, as FedLN's public code does.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    votes : ndarray (n,) int64
    share : ndarray (n,) float64
        In [0, 1].  A sample without any neighbour votes for its own label, with share 0.

    Raises
    ------
    InputError
        Wrong shapes, labels out of range, NaN or infinity.

    Notes
    -----
    FedLN (Tsouvalas et al. 2024), section 4.1: NNC.  Distances come from inner products in the precision of the input,
    like those of FAISS and scikit-learn; of samples exactly as far as the k-th, the first in order are taken.  Sets of
    more than 4,096 samples go to FAISS, in float32.

    Examples
    --------
    >>> votes, share = knn_vote([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 0], k=3)
    >>> votes, share.round(2)
    (array([0, 0, 0, 0]), array([0.33, 0.33, 1.  , 0.33]))
    """
    from fnlkit import neighbours

    embeddings = _real(embeddings, "embeddings", 2, "(n, d)")
    if embeddings.shape[1] < 1:
        raise InputError(f"`embeddings` must have at least one dimension, found shape {embeddings.shape}")
    labels = _integers(labels, "labels", len(embeddings), "row of `embeddings`")
    offsets = _offsets(client_offsets, len(embeddings))
    k = _positive(k, "k")
    if ties not in ("random", "lowest"):
        raise InputError(f'`ties` must be "random" or "lowest", found {ties!r}')
    classes = int(labels.max(initial=0)) + 1 if classes is None else _positive(classes, "classes")
    _within(labels, "labels", classes)
    _finite(embeddings, "embeddings")
    threads = _thread_count(threads)
    draws = np.random.default_rng(seed).random(len(labels)) if ties == "random" else np.full(len(labels), -1.0)
    if np.diff(offsets).max() <= neighbours.LARGEST_PRODUCT:
        return neighbours.vote_by_products(embeddings, labels, offsets, classes, k, include_self, draws, threads)
    votes, shares = np.empty(len(labels), np.int64), np.empty(len(labels))
    for first, last in zip(offsets[:-1], offsets[1:], strict=True):
        here = slice(int(first), int(last))
        own = embeddings[here], labels[here]
        if last - first <= neighbours.LARGEST_PRODUCT:
            one = np.array([0, last - first])
            found = neighbours.vote_by_products(*own, one, classes, k, include_self, draws[here], threads)
        else:
            found = neighbours.vote_by_index(*own, classes, k, include_self, draws[here], threads)
        votes[here], shares[here] = found
    return votes, shares


# --- Label noise
# ---------------------------------------------------------------------------------------------------------


def _owners(client_of, client_offsets, n, matrices):
    """Either CSR offsets or the matrix number of each label; the other is None."""
    if client_of is not None and client_offsets is not None:
        raise InputError("give `client_of` or `client_offsets`, not both")
    if client_of is not None:
        client_of = _integers(client_of, "client_of", n, "label")
        _within(client_of, "client_of", matrices)
        return client_of, None
    offsets = _offsets(client_offsets, n)
    if len(offsets) - 1 != matrices:
        raise InputError(
            f"`T` holds {matrices} matrices for {len(offsets) - 1} clients; "
            "pass `client_of` or `client_offsets` that name as many"
        )
    return None, offsets


def flip_labels(labels, T, uniforms, *, client_of=None, client_offsets=None, threads=None):
    """Return labels drawn from the rows of transition matrices: class c of label y with probability T[y, c].

    Parameters
    ----------
    labels : array (n,) of int
        True labels, 0..C-1.
    T : array (C, C) or (N, C, C)
        T[true, given], rows summing to 1 (within 1e-6).
    uniforms : array (n,) of float
        One draw in [0, 1) a label; the same draws give the same labels.
    client_of : array (n,) of int, optional
        Which of N matrices is each label's.
    client_offsets : array (N + 1,) of int, optional
        The same for labels that lie client by client.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (n,), of the integer type of `labels`

    Raises
    ------
    InputError
        Wrong shapes, labels out of range, draws outside of [0, 1), rows that are no distribution.

    Notes
    -----
    The smallest c with u < T[y, 0] + ... + T[y, c]; a class of probability 0 is never drawn.

    Examples
    --------
    >>> flip_labels([0, 0, 1], [[0.5, 0.5], [0.0, 1.0]], [0.2, 0.7, 0.1])
    array([0, 1, 1])
    """
    given = np.asarray(labels)
    labels = _integers(given, "labels", given.size, "sample")
    T = np.asarray(T)
    if T.ndim not in (2, 3) or T.shape[-1] != T.shape[-2] or 0 in T.shape:
        raise InputError(f"`T` must have shape (C, C) or (N, C, C), found {T.shape}")
    single = T.ndim == 2
    matrices = _real(T[None] if single else T, "T", 3, "(C, C) or (N, C, C)").astype(np.float64)
    _within(labels, "labels", T.shape[-1])
    uniforms = _uniforms(uniforms, "uniforms", (len(labels),))
    if single:
        client_of, offsets = None, _offsets(None, len(labels))
    else:
        client_of, offsets = _owners(client_of, client_offsets, len(labels), len(matrices))
    sums = np.empty_like(matrices)
    wrong = sampling.cumulate(matrices, sums)
    if wrong >= 0:
        name = "`T`" if single else f"matrix {wrong} of `T`"
        raise InputError(
            f"{name} must have rows of numbers >= 0 that sum to 1, found sums {np.round(matrices[wrong].sum(1), 6)}; "
            "is it transposed?"
        )
    out = np.empty_like(labels)

    def work(start, stop):
        if client_of is None:
            sampling.flip(labels, sums, offsets, uniforms, start, stop, out)
        else:
            sampling.flip_of(labels, sums, client_of, uniforms, start, stop, out)

    threads = _thread_count(threads)
    run(work, even(len(labels), min(threads, 1 + len(labels) // 65536)), threads)
    return out.astype(given.dtype if given.dtype.kind in "iu" else np.int64, copy=False)


def randomised_response(labels, keep, uniforms, classes, *, threads=None):
    """Return labels kept with probability `keep`, else replaced by one of the others, all equally likely.

    Parameters
    ----------
    labels : array (n,) of int
        0..classes-1.
    keep : float or array (n,)
        Probability in [0, 1].  Label privacy of epsilon: exp(epsilon) / (exp(epsilon) + classes - 1).
    uniforms : array (n, 2) of float
        Two draws in [0, 1) a label: whether it is kept, and which other one is taken.
    classes : int
        At least 2.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (n,), of the integer type of `labels`

    Raises
    ------
    InputError
        Wrong shapes, labels or probabilities out of range, draws outside of [0, 1).

    Notes
    -----
    Warner 1965; with more than two classes Kairouz et al. 2016, eq. 9.

    Examples
    --------
    >>> randomised_response([0, 1, 2], 0.5, [[0.1, 0.0], [0.9, 0.0], [0.9, 0.9]], 3)
    array([0, 0, 1])
    """
    given = np.asarray(labels)
    labels = _integers(given, "labels", given.size, "sample")
    if _positive(classes, "classes") < 2:
        raise InputError("`classes` must be at least 2: with one class there is no other label")
    _within(labels, "labels", classes)
    uniforms = _uniforms(uniforms, "uniforms", (len(labels), 2))
    keep = np.asarray(keep, np.float64)
    if keep.ndim and keep.shape != labels.shape:
        raise InputError(f"`keep` must be a number or have shape {labels.shape}, found {keep.shape}")
    if not ((keep >= 0) & (keep <= 1)).all():
        raise InputError(f"`keep` must be probabilities in [0, 1], found {keep.min()} to {keep.max()}")
    keep = np.ascontiguousarray(np.broadcast_to(keep, labels.shape))
    out = np.empty_like(labels)
    threads = _thread_count(threads)
    pieces = even(len(labels), min(threads, 1 + len(labels) // 65536))
    run(lambda a, b: sampling.respond(labels, keep, uniforms, classes, a, b, out), pieces, threads)
    return out.astype(given.dtype if given.dtype.kind in "iu" else np.int64, copy=False)


# --- Augmentation
# --------------------------------------------------------------------------------------------------------


def augment_batch(
    images,
    index,
    *,
    shift=None,
    flip=None,
    centre=None,
    size=0,
    pad=0,
    mean=None,
    std=None,
    out=None,
    threads=None,
):
    """Return a batch of network input: images cropped, flipped, scaled to [0, 1], normalised, and cut out.

    Parameters
    ----------
    images : array (n, H, W, C) of uint8
        Stored images; rows are only read.
    index : array (B,) of int
        The images of the batch, 0..n-1.
    shift : array (B, 2) of int, optional
        Row and column at which an H x W crop begins in the image padded by `pad` zeros on each side, 0..2 pad.
    flip : array (B,) of bool, optional
        Mirror the cropped image left to right.
    centre : array (B, 2) of int, optional
        Row and column of the middle of a square of `size` pixels that is set to 0 after normalisation; the square
        covers centre - size // 2 to centre - size // 2 + size - 1, as far as it lies inside.
    size, pad : int
    mean, std : sequence of C floats, optional
        Of images scaled to [0, 1]; without them values stay in [0, 1].
    out : ndarray (B, C, H, W) of float32, optional
        C-contiguous memory for the result, to save its allocation.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (B, C, H, W) float32

    Raises
    ------
    InputError
        Wrong shapes or types, numbers out of range.

    Notes
    -----
    Bit-equal to torchvision's RandomCrop(padding), RandomHorizontalFlip, ToTensor, Normalize with the same draws;
    cutout is DeVries and Taylor 2017.

    Examples
    --------
    >>> images = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1) * 85
    >>> (augment_batch(images, [0, 0], flip=[False, True]) * 255).astype(int).tolist()
    [[[[0, 85], [170, 255]]], [[[85, 0], [255, 170]]]]
    """
    images = np.asarray(images)
    if images.ndim != 4 or images.dtype != np.uint8:
        raise InputError(f"`images` must be uint8 of shape (n, H, W, C), found {images.dtype} of shape {images.shape}")
    images = np.ascontiguousarray(images)
    n, height, width, channels = images.shape
    index = np.asarray(index)
    index = _integers(index, "index", index.size, "image of the batch")
    _within(index, "index", n)
    batch = len(index)
    if pad < 0 or size < 0:
        raise InputError(f"`pad` and `size` must be at least 0, found {pad} and {size}")
    shift = _pairs(shift, "shift", batch, (2 * pad + 1, 2 * pad + 1), pad)
    if centre is not None and size < 1:
        raise InputError("`centre` is given but `size` is 0; say how many pixels to cut out")
    size = size if centre is not None else 0
    centre = _pairs(centre, "centre", batch, (height, width), 0)
    flip = np.zeros(batch, np.bool_) if flip is None else np.asarray(flip)
    if flip.shape != (batch,) or flip.dtype.kind not in "biu":
        raise InputError(f"`flip` must be booleans of shape ({batch},), found {flip.dtype} of shape {flip.shape}")
    flip = np.ascontiguousarray(flip, np.bool_)
    table = _byte_table(mean, std, channels)
    if out is None:
        out = np.empty((batch, channels, height, width), np.float32)
    elif (
        not isinstance(out, np.ndarray)
        or out.dtype != np.float32
        or out.shape != (batch, channels, height, width)
        or not (out.flags.c_contiguous and out.flags.writeable)
    ):
        raise InputError(
            f"`out` must be a writeable contiguous float32 array of shape {(batch, channels, height, width)}, found "
            f"{getattr(out, 'dtype', type(out).__name__)} of shape {getattr(out, 'shape', ())}"
        )
    threads = _thread_count(threads)
    pieces = even(batch, min(threads, 1 + out.size // 65536))

    def work(start, stop):
        augment.augment_images(images, index, shift, flip, centre, pad, size, table, start, stop, out)

    run(work, pieces, threads)
    return out


def _pairs(value, name, batch, below, default):
    """Integer pairs (B, 2) in range; `default` everywhere when none are given."""
    if value is None:
        return np.full((batch, 2), default, np.int64)
    array = np.asarray(value)
    if array.shape != (batch, 2) or array.dtype.kind not in "iu":
        raise InputError(f"`{name}` must be integers of shape ({batch}, 2), found {array.dtype} of shape {array.shape}")
    array = np.ascontiguousarray(array, np.int64)
    if batch and ((array < 0) | (array >= below)).any():
        raise InputError(
            f"`{name}` must lie in 0..{below[0] - 1} and 0..{below[1] - 1}, found {array.min(0)} to {array.max(0)}"
        )
    return array


def _byte_table(mean, std, channels):
    """Normalised value of each byte (C, 256), by the operations of ToTensor and Normalize in float32."""
    values = np.tile(np.arange(256, dtype=np.float32) / np.float32(255), (channels, 1))
    for name, given in (("mean", mean), ("std", std)):
        if given is None:
            continue
        given = np.asarray(given, np.float32)
        if given.shape != (channels,) or not np.isfinite(given).all():
            raise InputError(f"`{name}` must be {channels} finite numbers, one a channel; found shape {given.shape}")
        if name == "std" and not (given > 0).all():
            raise InputError(f"`std` must be positive, found {given}")
        values = values - given[:, None] if name == "mean" else values / given[:, None]
    return values
