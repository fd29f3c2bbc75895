"""Inverses of transition matrices and their condition numbers."""

import contextlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit._kernels import inversion as compiled
from fnlkit._kernels.threads import even, run
from fnlkit.core.errors import InputError
from fnlkit.kernels import checks
from fnlkit.kernels.neighbors import blas_threads

_COUNT_FIRST = "a class without counts needs a row of its own, such as the identity's"
# Matrices up to this size use one vector lane each; larger matrices use LAPACK.
_LANES_SIZE = 32


def invert_transition(
    T: ArrayLike, *, ridge: float | None = None, threads: int | None = None
) -> tuple[NDArray[np.floating[Any]], NDArray[np.float64] | np.float64]:
    """Invert transition matrices, and compute their condition numbers.

    Parameters
    ----------
    T : array (..., C, C)
        A matrix or a stack; rows are probabilities that sum to 1 within 0.001.
    ridge : float, optional
        Return (T'T + ridge 1)^-1 T' instead, which exists for every matrix and approaches the inverse.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    inverse : ndarray (..., C, C)
        float32 for float32 input, otherwise float64.
    condition : ndarray (...) float64
        ||T|| ||T^-1|| in the maximum row sum norm.  For a transition matrix this is the largest row sum of |T^-1|, the
        factor by which an error of the given-label distribution can grow.

    Raises
    ------
    InputError
        Wrong shapes, NaN, rows that are no probabilities; a matrix that is singular to working precision, unless `ridge` is
        given and large enough for this precision.

    Notes
    -----
    Matrices with equal off-diagonal values (symmetric noise, label privacy) have a closed form, Sherman and Morrison 1950.
    Other matrices of up to 32 classes are eliminated in parallel, one per vector lane, and checked.  Matrices that fail
    the check and all larger matrices are inverted by LAPACK.

    Examples
    --------
    >>> inverse, condition = invert_transition([[0.8, 0.2], [0.4, 0.6]])
    >>> inverse.round(3), round(float(condition), 3)
    (array([[ 1.5, -0.5],
           [-1. ,  2. ]]), 3.0)
    """
    T = checks.array(T, "T")
    if T.ndim < 2 or T.shape[-1] != T.shape[-2] or T.shape[-1] < 1:
        raise InputError(f"`T` must have shape (..., C, C), found {T.shape}")
    shape, size = T.shape, T.shape[-1]
    stack = checks.real(T.reshape(-1, size, size), "T", 3, "(..., C, C)")
    if ridge is not None:
        if not (isinstance(ridge, int | float | np.integer | np.floating) and ridge is not True and 0 < ridge < np.inf):
            raise InputError(f"`ridge` must be a positive number, found {checks.brief(ridge)}")
        _must_be_stochastic(stack)
        checks.finite(stack, "T", _COUNT_FIRST)
        inverses, conditions = _ridge_inverse(stack, ridge)
    else:
        inverses, conditions = _inverse(stack, checks.thread_count(threads))
        singular = np.flatnonzero(~(conditions < 1 / np.finfo(stack.dtype).eps))
        if len(singular):
            first = int(singular[0])
            checks.finite(stack[first], "T", _COUNT_FIRST)
            which = tuple(int(i) for i in np.unravel_index(first, shape[:-2]))
            name = f"matrix {which[0] if len(which) == 1 else which} of `T`" if which else "`T`"
            raise InputError(
                f"{name} is singular (condition {conditions[first]:.3g}; {len(singular):,} of {len(stack):,} are); "
                "pass `ridge`, or blend with the identity"
            )
    return inverses.reshape(shape), conditions.reshape(shape[:-2])[()]


def _must_be_stochastic(stack):
    checks.distributions(stack, "T", compiled.SLACK, "divide counts[true, given] by the sums of their rows")


def _inverse(stack, threads):
    """Compute inverses (N, C, C) and condition numbers (N,); infinity or NaN for singular matrices."""
    inverses, conditions = np.empty_like(stack), np.empty(len(stack))
    size = stack.shape[1]
    pieces = even(len(stack), min(threads, 1 + stack.size // 65536))
    run(lambda a, b: compiled.invert_two_valued(stack, a, b, inverses, conditions), pieces, threads)
    left = np.flatnonzero(conditions == compiled.LEFT)
    if len(left):
        run(lambda a, b: compiled.invert_constant(stack, a, b, inverses, conditions), pieces, threads)
        left = np.flatnonzero(conditions == compiled.LEFT)
    if len(left) and size <= _LANES_SIZE:
        pieces = even(len(left), min(threads, 1 + len(left) * size**3 // 500_000))
        run(lambda a, b: compiled.invert_lanes(stack, left, a, b, inverses, conditions), pieces, threads)
        left = np.flatnonzero(conditions == compiled.LEFT)
    # The kernels compare rows with probabilities while they read them; numpy would need as long as the inversion.
    improper = np.flatnonzero(conditions == compiled.IMPROPER)
    _must_be_stochastic(stack[np.union1d(left, improper)])
    if len(left) == len(stack):
        return _lapack_inverse(stack, threads)
    if len(left):
        inverses[left], conditions[left] = _lapack_inverse(stack[left], threads)
    return inverses, conditions


def _norms(stack):
    norms = np.empty(len(stack))
    compiled.row_norms(stack, 0, len(stack), norms)
    return norms


def _lapack_inverse(stack, threads):
    """Compute the same with LAPACK in one call; numpy keeps the GIL in that call, so only threads of BLAS can help."""
    with np.errstate(invalid="ignore"), contextlib.nullcontext() if len(stack) == 1 else blas_threads(threads):
        try:
            inverses = np.linalg.inv(stack)
        except np.linalg.LinAlgError:
            # A singular matrix raises for the whole stack.
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
    try:
        inverses = np.linalg.solve(transposed @ stack + stack.dtype.type(ridge) * identity, transposed)
    except np.linalg.LinAlgError as error:
        least = np.finfo(stack.dtype).eps
        raise InputError(f"`ridge` {ridge:g} vanishes beside `T` in {stack.dtype}; use at least {least:.1g}") from error
    return inverses, _norms(stack) * _norms(inverses)


def apply_inverse(
    T: ArrayLike, vectors: ArrayLike, *, ridge: float | None = None, threads: int | None = None
) -> NDArray[np.floating[Any]]:
    """Compute ``vectors @ inverse(T)``: distributions over true labels from distributions over given labels.

    A row vector of true-label probabilities becomes row @ T over given labels; this function inverts that.  Entries can be
    negative: see `project_to_simplex`.

    Parameters
    ----------
    T : array (C, C) or (N, C, C)
    vectors : array
        With a single matrix: (..., C).  With N matrices: (N, C), one vector per matrix, or (N, m, C).
    ridge, threads
        As in `invert_transition`.

    Returns
    -------
    ndarray like `vectors`, float

    Raises
    ------
    InputError
        As `invert_transition`; shapes that do not match.

    Examples
    --------
    >>> apply_inverse([[0.8, 0.2], [0.4, 0.6]], [0.6, 0.4]).round(3)
    array([0.5, 0.5])
    """
    T, vectors = checks.array(T, "T"), checks.array(vectors, "vectors")
    if T.ndim not in (2, 3) or not T.shape[-1]:
        raise InputError(f"`T` must have shape (C, C) or (N, C, C), found {T.shape}")
    lead = T.shape[:-2]
    if vectors.ndim < 1 or vectors.shape[-1] != T.shape[-1]:
        raise InputError(f"`vectors` must have {T.shape[-1]} entries on its last axis, found shape {vectors.shape}")
    if lead and (vectors.ndim not in (2, 3) or vectors.shape[0] != lead[0]):
        shape = f"({lead[0]}, C) or ({lead[0]}, m, C)"
        raise InputError(f"`vectors` must have shape {shape} for {lead[0]} matrices, found {vectors.shape}")
    flat = checks.real(vectors.reshape(-1, vectors.shape[-1]), "vectors", 2, "(..., C)")
    checks.finite(flat, "vectors")
    inverse, _ = invert_transition(T, ridge=ridge, threads=threads)
    if not lead:
        return (flat @ inverse).reshape(vectors.shape)
    each = 1 if vectors.ndim == 2 else vectors.shape[1]
    return (flat.reshape(lead[0], each, vectors.shape[-1]) @ inverse).reshape(vectors.shape)
