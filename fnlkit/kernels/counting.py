"""Confident learning: class thresholds and count matrices of many clients in one call."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit._kernels import counting as compiled
from fnlkit._kernels.threads import even, run
from fnlkit.core.errors import InputError
from fnlkit.kernels import checks

# Smallest number of probabilities per thread: starting a thread costs 0.1 ms, in which one thread reads that many.
_ENTRIES = 2_000_000
# Tolerance of the public code: a probability that equals its threshold up to rounding is confident.
SLACK = 1e-6
# cleanlab's smallest threshold: a class that is never predicted must not accept samples with probability 0.
_LEAST = 2e-6
# cleanlab's threshold of a class without labels; no probability reaches it.
_ABSENT = 2.0


def _row_pieces(offsets, classes, threads):
    """Divide rows among `threads` threads: any rows of a single client, or whole clients."""
    n = int(offsets[-1])
    pieces = even(n, min(threads, max(1, n * classes // _ENTRIES)))
    if len(offsets) > 2 and len(pieces) > 1:
        # Move each boundary to the beginning of the next client.
        bounds = [0, *(int(offsets[np.searchsorted(offsets, stop)]) for _, stop in pieces)]
        pieces = [(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True) if a < b]
    return pieces


def _label_sums(probs, labels, offsets, pieces, threads):
    """Sums and numbers (K, C) of the probabilities of the given labels."""
    classes, clients = probs.shape[1], len(offsets) - 1
    copies = len(pieces) if clients == 1 else 1
    sums, members = np.zeros((copies, clients, classes)), np.zeros((copies, clients, classes), np.int64)
    flat = probs.reshape(-1)

    def work(piece: int, start: int, stop: int) -> object:
        copy = piece % copies
        return compiled.label_sums(flat, labels, classes, offsets, start, stop, sums[copy], members[copy])

    for wrong in run(work, [(i, *piece) for i, piece in enumerate(pieces)], threads):
        if wrong >= 0:
            raise InputError(f"must lie in 0..{classes - 1}, found {labels[wrong]} at position {wrong}", parameter="labels")
    return sums.sum(0), members.sum(0)


def thresholds_of(sums: np.ndarray, members: np.ndarray, absent: float = _ABSENT) -> np.ndarray:
    """Compute class thresholds (..., C) from sums and numbers (..., C) of the probabilities of the given labels."""
    return np.where(members > 0, np.maximum(sums / np.maximum(members, 1), _LEAST), absent)


def confident_class(probabilities: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Class (m,) that each sample is confident in, -1 for none; limits are (C,) or (m, C)."""
    reaches = probabilities >= limits - SLACK
    several = reaches.sum(1)
    return np.where(several == 0, -1, np.where(several == 1, reaches.argmax(1), probabilities.argmax(1)))


def _probabilities(probs, labels, client_offsets):
    probs = checks.real(probs, "probs", 2, "(n, C)")
    if probs.shape[1] < 1:
        raise InputError(f"`probs` must have at least one class, found shape {probs.shape}")
    return probs, checks.integers(labels, "labels", len(probs), "row of `probs`"), checks.offsets(client_offsets, len(probs))


def _must_be_probabilities(probs):
    """Raise InputError for the first row with NaN, or for rows that are no probabilities."""
    if np.isnan(probs).any():
        at = np.argwhere(np.isnan(probs))[0]
        raise InputError(f"`probs` must not hold NaN, found one at row {at[0]}, class {at[1]}; did training diverge?")
    checks.distributions(probs, "probs", compiled.SUM_SLACK, "apply softmax to logits first")


def class_thresholds(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    client_offsets: ArrayLike | None = None,
    threads: int | None = None,
) -> NDArray[np.float64]:
    """Mean probability of each class over the samples labeled with that class.

    Parameters
    ----------
    probs : array (n, C)
        Predicted probabilities, one row per sample. Rows must sum to 1 within 0.01.
    labels : array (n,) of int
        Given labels, 0..C-1.
    client_offsets : array (K + 1,) of int, optional
        Client k has the samples client_offsets[k]:client_offsets[k + 1].
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (C,) float64, or (K, C) with `client_offsets`
        2 for a class without labeled samples (no probability reaches it), otherwise at least 2e-6; both as in cleanlab.

    Raises
    ------
    InputError
        Wrong shapes, labels out of range, NaN, rows that are no probabilities (logits).

    Notes
    -----
    Northcutt et al. 2021, eq. 2; FedEFC, eq. 6.  Sums are float64 for every input type.

    Examples
    --------
    >>> class_thresholds([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], [0, 0, 1])
    array([0.75, 0.8 ])
    """
    probs, labels, offsets = _probabilities(probs, labels, client_offsets)
    threads = checks.thread_count(threads)
    pieces, flat = _row_pieces(offsets, probs.shape[1], threads), probs.reshape(-1)
    sums, members = _label_sums(probs, labels, offsets, pieces, threads)
    if not all(run(lambda start, stop: compiled.are_probabilities(flat, probs.shape[1], start, stop), pieces, threads)):
        _must_be_probabilities(probs)
    result = thresholds_of(sums, members)
    return result[0] if client_offsets is None else result


def count_matrix(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    rule: Literal["cleanlab", "largest"] = "cleanlab",
    thresholds: ArrayLike | None = None,
    client_offsets: ArrayLike | None = None,
    calibrate: bool = False,
    class_weights: ArrayLike | None = None,
    least_diagonal: int = 1,
    threads: int | None = None,
) -> NDArray[np.int64] | NDArray[np.float64]:
    """Count the samples confidently predicted as each class under each given label: counts[true, given].

    Rule `cleanlab`: a sample counts for the class whose threshold is reached by the probability of this class.  If several
    classes reach their thresholds, the sample counts for the most probable class; if none does, for no class.  Rule `largest`:
    a sample counts for the most probable class if this class reaches the threshold, otherwise for no class.

    Parameters
    ----------
    probs : array (n, C)
        Predicted probabilities, one row per sample. Rows must sum to 1 within 0.01.
    labels : array (n,) of int
        Given labels, 0..C-1.
    rule : "cleanlab" or "largest"
        The rules differ if the most probable class does not reach its threshold.  ``largest`` then counts no class.
        ``cleanlab`` counts the only class that reaches its threshold, or, if several classes reach their thresholds, the most
        probable class.  FedEFC's eqs. 3 and 4 are `largest`.
    thresholds : array (C,) or (K, C), optional
        Default: `class_thresholds` of each client.
    client_offsets : array (K + 1,) of int, optional
        Client k has the samples client_offsets[k]:client_offsets[k + 1]; all clients are counted in one call.
    calibrate : bool
        Scale the counts of each given label to the number of samples with that label, rounded so that the sums stay exact.
    class_weights : "labels" or array (C,) or (K, C), optional
        Multiply the counts of each given label by a weight; "labels" uses the share of the label among the client's samples,
        which is FedEFC's weighting for strong imbalance.
    least_diagonal : int
        Lower limit of the diagonal, applied before calibration: 1 as in cleanlab and FedEFC's code, so that every class has a
        count; 0 for the plain counts of the papers. All counts of a client without samples are 0.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (C, C), or (K, C, C) with `client_offsets`
        int64; float64 with `class_weights`.

    Raises
    ------
    InputError
        Wrong shapes, labels out of range, NaN, rows that are no probabilities (logits).

    Notes
    -----
    The confident joint of Northcutt et al. 2021, eq. 1, transposed (cleanlab has given labels in rows); FedEFC, eqs. 3-7.
    A probability p reaches a threshold if p >= threshold - 1e-6, as in both public codes.  FedEFC's code weights the
    normalized matrix and normalizes again; this gives the same transition matrix as weighting the counts, as in the paper,
    and normalizing once.

    Examples
    --------
    >>> probs = [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.1, 0.9]]
    >>> count_matrix(probs, [0, 0, 0, 1])
    array([[2, 0],
           [0, 1]])
    """
    checks.one_of(rule, "rule", ("cleanlab", "largest"))
    calibrate = checks.flag(calibrate, "calibrate")
    least_diagonal = checks.positive(least_diagonal, "least_diagonal", 0)
    probs, labels, offsets = _probabilities(probs, labels, client_offsets)
    threads = checks.thread_count(threads)
    classes, clients = probs.shape[1], len(offsets) - 1
    sums, members = _label_sums(probs, labels, offsets, _row_pieces(offsets, classes, threads), threads)
    if thresholds is None:
        thresholds = thresholds_of(sums, members, np.inf)
    else:
        thresholds = _by_client(thresholds, "thresholds", clients, classes, client_offsets is not None)
    cells = count_confident(probs, labels, offsets, thresholds, largest=rule == "largest", threads=threads)
    least = least_diagonal * np.eye(classes, dtype=np.int64)
    cells = np.maximum(cells, least * members.any(1)[:, None, None])
    if calibrate:
        cells = calibrate_counts(cells, members)
    if class_weights is not None:
        if isinstance(class_weights, str):
            if class_weights != "labels":
                found = checks.brief(class_weights)
                raise InputError(f'`class_weights` must be "labels" or an array of numbers, found {found}')
            weights = members / np.maximum(members.sum(1, keepdims=True), 1)
        else:
            weights = _by_client(class_weights, "class_weights", clients, classes, client_offsets is not None)
            checks.finite(weights, "class_weights", "use 0 for a class that does not count")
        cells = cells * weights[:, None, :]
    return cells[0] if client_offsets is None else cells


def _by_client(value, name, clients, classes, batched):
    """Check numbers (K, C), given as (C,) or, for several clients, as (K, C)."""
    array = checks.array(value, name, np.float64)
    if array.shape != (classes,) and not (batched and array.shape == (clients, classes)):
        shape = f"({classes},)" + (f" or ({clients}, {classes})" if batched else "")
        raise InputError(f"`{name}` must have shape {shape}, found {array.shape}")
    if np.isnan(array).any():
        raise InputError(f"`{name}` must not hold NaN")
    return np.broadcast_to(array, (clients, classes))


def count_confident(
    probs: np.ndarray,
    labels: np.ndarray,
    offsets: np.ndarray,
    thresholds: np.ndarray,
    *,
    largest: bool = False,
    threads: int | None = None,
) -> NDArray[np.int64]:
    """Count confident samples (K, C, C) by thresholds (K, C), of checked arguments; see `count_matrix`."""
    classes, clients = probs.shape[1], len(offsets) - 1
    threads = checks.thread_count(threads)
    pieces = _row_pieces(offsets, classes, threads)
    limits = exact_limits(thresholds, probs.dtype)
    copies = len(pieces) if clients == 1 else 1
    cells = np.zeros((copies, clients, (classes + 1) * classes), np.int64)
    flat = probs.reshape(-1)

    def work(piece: int, start: int, stop: int) -> object:
        return compiled.count_confident(flat, labels, classes, offsets, limits, largest, cells[piece % copies], start, stop)

    if not all(run(work, [(i, *piece) for i, piece in enumerate(pieces)], threads)):
        _must_be_probabilities(probs)
    cells = cells.sum(0) if copies > 1 else cells[0]
    return cells.reshape(clients, classes + 1, classes)[:, :classes]


def exact_limits(thresholds: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Subtract the tolerance from thresholds (K, C), in `dtype` and padded with infinity to whole vectors."""
    exact, width = thresholds - SLACK, 64 // dtype.itemsize
    limits = np.full((len(exact), -(-exact.shape[1] // width) * width), np.inf, dtype)
    with np.errstate(over="ignore"):  # a threshold beyond float32 is infinite: no probability reaches it
        near = exact.astype(dtype)
    # A comparison in float32 with the next larger number equals the comparison in float64.
    limits[:, : exact.shape[1]] = np.where(near < exact, np.nextafter(near, dtype.type(np.inf)), near)
    return limits


def calibrate_counts(found: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Scale counts (K, C, C) so that columns (given labels) sum to the numbers of samples (K, C), by largest remainders."""
    # The order of the operations is cleanlab's, so that equal rounding errors break ties between remainders.
    given = found.swapaxes(1, 2)
    scaled = (given.swapaxes(1, 2) / np.maximum(given.sum(2), 1e-100)[:, None] * members[:, None]).swapaxes(1, 2)
    scaled = scaled / np.maximum(scaled.sum((1, 2), keepdims=True), 1e-100) * members.sum(1)[:, None, None]
    return round_rows(scaled).swapaxes(1, 2)


def round_rows(numbers: np.ndarray) -> np.ndarray:
    """Round numbers (..., m) to int64 whose sums over the last axis are the rounded sums, by largest remainders."""
    whole = np.rint(numbers)
    missing = np.rint(numbers.sum(-1, keepdims=True)) - whole.sum(-1, keepdims=True)
    # If too few, increase the entries that were rounded down most, the last of equal entries first; if too many, the reverse.
    rank = np.argsort(np.argsort(numbers - whole, axis=-1, kind="stable"), axis=-1)
    whole += rank >= numbers.shape[-1] - np.maximum(missing, 0)
    whole -= rank < np.maximum(-missing, 0)
    return whole.astype(np.int64)
