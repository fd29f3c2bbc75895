"""Flip labels with given draws: by a transition matrix and by randomized response."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit._kernels import flipping as compiled
from fnlkit._kernels.threads import even, run
from fnlkit.core.errors import InputError
from fnlkit.kernels import checks


def flip_labels(
    labels: ArrayLike, T: ArrayLike, uniforms: ArrayLike, *, threads: int | None = None
) -> NDArray[np.integer[Any]]:
    """Draw labels from the rows of a transition matrix: class c for label y with probability T[y, c].

    Parameters
    ----------
    labels : array (n,) of int
        True labels, 0..C-1.
    T : array (C, C)
        T[true, given], rows sum to 1 (within 1e-6).
    uniforms : array (n,) of float
        One draw in [0, 1) per label; equal draws give equal labels.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (n,), of the integer type of `labels`, or int64 if that type cannot represent every class

    Raises
    ------
    InputError
        Wrong shapes, labels out of range, draws outside of [0, 1), rows that are not distributions.

    Notes
    -----
    The result is the smallest c with u < T[y, 0] + ... + T[y, c]; a class of probability 0 is never drawn.

    Examples
    --------
    >>> flip_labels([0, 0, 1], [[0.5, 0.5], [0.0, 1.0]], [0.2, 0.7, 0.1])
    array([0, 1, 1])
    """
    given = checks.array(labels, "labels")
    labels = checks.integers(given, "labels", given.size, "sample")
    T = checks.array(T, "T")
    if T.ndim != 2 or T.shape[0] != T.shape[1] or not len(T):
        raise InputError(f"`T` must have shape (C, C), found {T.shape}")
    T = checks.real(T, "T", 2, "(C, C)").astype(np.float64)
    checks.check_range(labels, "labels", len(T))
    uniforms = checks.uniforms(uniforms, "uniforms", (len(labels),))
    sums = np.empty_like(T)
    wrong = compiled.cumulate(T, sums)
    if wrong >= 0:
        raise InputError(
            f"`T` must have rows of numbers >= 0 that sum to 1, found a sum of {T[wrong].sum():.6g} in row {wrong}; "
            "is it transposed?"
        )
    flipped = np.empty_like(labels)
    threads = checks.thread_count(threads)
    pieces = even(len(labels), min(threads, 1 + len(labels) // 65536))
    run(lambda start, stop: compiled.flip(labels, sums, uniforms, start, stop, flipped), pieces, threads)
    return flipped.astype(checks.holding(given.dtype, len(T) - 1), copy=False)


def randomized_response(
    labels: ArrayLike,
    keep: ArrayLike,
    uniforms: ArrayLike,
    classes: int,
    *,
    threads: int | None = None,
) -> NDArray[np.integer[Any]]:
    """Keep labels with probability `keep`, otherwise replace them by another class, all equally likely.

    Parameters
    ----------
    labels : array (n,) of int
        0..classes-1.
    keep : float or array (n,)
        Probability in [0, 1].  Label privacy of epsilon: exp(epsilon) / (exp(epsilon) + classes - 1).
    uniforms : array (n, 2) of float
        Two draws in [0, 1) per label: one decides whether the label is kept, the other selects the new class.
    classes : int
        At least 2.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (n,), of the integer type of `labels`, or int64 if that type cannot represent every class

    Raises
    ------
    InputError
        Wrong shapes, labels or probabilities out of range, draws outside of [0, 1).

    Notes
    -----
    Warner 1965; with more than two classes Kairouz et al. 2016, eq. 9.

    Examples
    --------
    >>> randomized_response([0, 1, 2], 0.5, [[0.1, 0.0], [0.9, 0.0], [0.9, 0.9]], 3)
    array([0, 0, 1])
    """
    given = checks.array(labels, "labels")
    labels = checks.integers(given, "labels", given.size, "sample")
    if checks.positive(classes, "classes") < 2:
        raise InputError("`classes` must be at least 2: with one class there is no other label")
    checks.check_range(labels, "labels", classes)
    uniforms = checks.uniforms(uniforms, "uniforms", (len(labels), 2))
    keep = checks.array(keep, "keep", np.float64)
    if keep.ndim and keep.shape != labels.shape:
        raise InputError(f"`keep` must be a number or have shape {labels.shape}, found {keep.shape}")
    if not ((keep >= 0) & (keep <= 1)).all():
        raise InputError(f"`keep` must be probabilities in [0, 1], found {keep.min()} to {keep.max()}")
    keep = checks.contiguous(np.broadcast_to(keep, labels.shape), np.float64)
    responses = np.empty_like(labels)
    threads = checks.thread_count(threads)
    pieces = even(len(labels), min(threads, 1 + len(labels) // 65536))
    run(lambda a, b: compiled.respond(labels, keep, uniforms, classes, a, b, responses), pieces, threads)
    return responses.astype(checks.holding(given.dtype, classes - 1), copy=False)
