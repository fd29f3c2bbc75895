"""Flip labels with given draws: by transition matrices and by randomized response."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit._kernels import sampling
from fnlkit._kernels.threads import even, run
from fnlkit.errors import InputError
from fnlkit.kernels import checks


def _owners(client_of, client_offsets, n, matrices):
    """Return CSR offsets or the matrix number of each label; the other value is None."""
    if client_of is not None and client_offsets is not None:
        raise InputError("give `client_of` or `client_offsets`, not both")
    if client_of is not None:
        client_of = checks.integers(client_of, "client_of", n, "label")
        checks.within(client_of, "client_of", matrices)
        return client_of, None
    offsets = checks.offsets(client_offsets, n)
    if len(offsets) - 1 != matrices:
        raise InputError(
            f"`T` holds {matrices} matrices for {len(offsets) - 1} clients; "
            "pass `client_of` or `client_offsets` that name as many"
        )
    return None, offsets


def flip_labels(
    labels: ArrayLike,
    T: ArrayLike,
    uniforms: ArrayLike,
    *,
    client_of: ArrayLike | None = None,
    client_offsets: ArrayLike | None = None,
    threads: int | None = None,
) -> NDArray[np.integer[Any]]:
    """Return labels drawn from the rows of transition matrices: class c for label y with probability T[y, c].

    Parameters
    ----------
    labels : array (n,) of int
        True labels, 0..C-1.
    T : array (C, C) or (N, C, C)
        T[true, given], rows sum to 1 (within 1e-6).
    uniforms : array (n,) of float
        One draw in [0, 1) per label; equal draws give equal labels.
    client_of : array (n,) of int, optional
        Number of the matrix of each label.
    client_offsets : array (N + 1,) of int, optional
        The same for labels that are sorted by client.
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
    if T.ndim not in (2, 3) or T.shape[-1] != T.shape[-2] or 0 in T.shape:
        raise InputError(f"`T` must have shape (C, C) or (N, C, C), found {T.shape}")
    single = T.ndim == 2
    matrices = checks.real(T[None] if single else T, "T", 3, "(C, C) or (N, C, C)").astype(np.float64)
    checks.within(labels, "labels", T.shape[-1])
    uniforms = checks.uniforms(uniforms, "uniforms", (len(labels),))
    if single:
        client_of, offsets = None, checks.offsets(None, len(labels))
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

    threads = checks.thread_count(threads)
    run(work, even(len(labels), min(threads, 1 + len(labels) // 65536)), threads)
    return out.astype(checks.holding(given.dtype, T.shape[-1] - 1), copy=False)


def randomized_response(
    labels: ArrayLike,
    keep: ArrayLike,
    uniforms: ArrayLike,
    classes: int,
    *,
    threads: int | None = None,
) -> NDArray[np.integer[Any]]:
    """Return labels kept with probability `keep`, otherwise replaced by another class, all equally likely.

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
    checks.within(labels, "labels", classes)
    uniforms = checks.uniforms(uniforms, "uniforms", (len(labels), 2))
    keep = checks.array(keep, "keep", np.float64)
    if keep.ndim and keep.shape != labels.shape:
        raise InputError(f"`keep` must be a number or have shape {labels.shape}, found {keep.shape}")
    if not ((keep >= 0) & (keep <= 1)).all():
        raise InputError(f"`keep` must be probabilities in [0, 1], found {keep.min()} to {keep.max()}")
    keep = np.ascontiguousarray(np.broadcast_to(keep, labels.shape))
    out = np.empty_like(labels)
    threads = checks.thread_count(threads)
    pieces = even(len(labels), min(threads, 1 + len(labels) // 65536))
    run(lambda a, b: sampling.respond(labels, keep, uniforms, classes, a, b, out), pieces, threads)
    return out.astype(checks.holding(given.dtype, classes - 1), copy=False)
