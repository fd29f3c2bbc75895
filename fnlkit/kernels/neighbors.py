"""Exact nearest neighbors, with the fastest algorithm for the size of the input.

Rationale
---------
A client of a few hundred or thousand samples is compared with itself, and a matrix of inner products with itself is
symmetric, so BLAS computes half of it.  One single-threaded product per client, with clients in parallel, uses all cores
without a barrier.  For large sets FAISS reaches most of the peak performance and never stores the whole matrix;
without it, scikit-learn searches.  This is the only file that imports FAISS.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from fnlkit._kernels import voting as compiled
from fnlkit._kernels.threads import even, run
from fnlkit.kernels import checks

T = TypeVar("T")
# Largest client for which a separate matrix of products is faster (measured at 16 to 1,280 dimensions).
LARGEST_PRODUCT = 4096
# Number of neighbors that are in memory at once: a large group needs as many for each sample.
AT_ONCE = 2**25


def origin(points: np.ndarray) -> np.ndarray:
    """Choose a center (d,) of points; relative to it, inner products lose fewer digits of a distance.

    The center is rounded to a power of two below the spread, so that points on a grid stay on the grid and ties stay ties.
    """
    middle = np.empty(points.shape[1], points.dtype)
    compiled.midst(points, middle)
    return middle


def center(points: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Center points (n, d) in `dtype`, scaled by a power of two if squares would overflow."""
    points = np.ldexp(points, -checks.exponent_of_scale(points, dtype))
    points -= origin(points)
    return np.ldexp(points, -checks.exponent_of_scale(points, dtype), out=points).astype(dtype, copy=False)


@functools.cache
def _pools(*loaded):
    # Inspecting all loaded libraries can take longer than the call itself; these have a BLAS of their own.
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


def blas_threads(threads: int | None) -> AbstractContextManager[object]:
    """Limit each call of BLAS and LAPACK to `threads` threads within a context."""
    return _pools("scipy.linalg" in sys.modules, "faiss" in sys.modules).limit(limits=threads, user_api="blas")


def on_one_blas_thread(function: Callable[..., T]) -> Callable[..., T]:
    """Let a function's calls of BLAS use one thread: small products beside a busy process wait for other threads."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> T:
        with blas_threads(1):
            return function(*arguments, **options)

    return call


def _pad(members, width):
    """Round up to whole vectors; rows at multiples of 1,024 bytes would share few lines of the cache."""
    vectors = -(-members // width)
    return (vectors + (vectors % 16 == 0)) * width


def vote_by_products(
    points: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray,
    offsets: np.ndarray,
    classes: int,
    k: int,
    include_self: bool,
    draws: np.ndarray,
    threads: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute votes (n,) int64 and shares (n,) for clients small enough for a matrix of all inner products.

    `groups` (n,) or (0,): samples of the same group are no neighbors.
    """
    votes, shares = labels.copy(), np.zeros(len(labels))
    width = 64 // points.itemsize
    scratch = threading.local()
    lowest, highest = (1e-20, 1e30) if points.dtype == np.float32 else (1e-250, 1e250)

    def one(first: int, last: int) -> None:
        members = last - first
        use = min(k, members - (not include_self))
        if use < 1:
            return
        padded = _pad(members, width)
        # New memory for each client would cost up to a fifth of the product.
        if not hasattr(scratch, "own"):
            largest = _pad(int(np.diff(offsets).max()), width)
            scratch.own = np.empty(largest * points.shape[1], points.dtype)
            scratch.products = np.empty(largest * largest, points.dtype)
        own = scratch.own[: members * points.shape[1]].reshape(members, -1)
        products = scratch.products[: padded * padded].reshape(padded, padded)
        square = products[:members, :members]
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(points[first:last], origin(points[first:last]), out=own)
            # BLAS computes half of the product of a matrix with itself, and numpy copies it.
            np.matmul(own, own.T, out=square)
        largest = products.diagonal()[:members].max()
        if not lowest <= largest <= highest:
            # Searched for only here: checking all points in advance would cost up to a twentieth of the total.
            checks.finite(points, "embeddings")
            own[:] = center(points[first:last], points.dtype)
            np.matmul(own, own.T, out=square)
        squares = np.zeros(padded, points.dtype)
        # Use the same product, so that a sample is at distance 0 from its copies.
        squares[:members] = products.diagonal()[:members]
        block = slice(first, last)
        flat = products[:members].ravel()
        within = groups[block] if len(groups) else groups
        more = classes, use, include_self, draws[block], 0, votes[block], shares[block]
        compiled.vote_products(flat, squares, labels[block], within, *more)

    with blas_threads(1):
        run(one, zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True), threads)
    return votes, shares


@functools.cache
def _faiss():
    """Import faiss, which only this file imports; None if it is not installed."""
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def _nearest_by_sklearn(points, rows, count, threads):
    import threadpoolctl
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(points)
    with threadpoolctl.threadpool_limits(threads):
        return index.kneighbors(points[rows], return_distance=False)


def nearest(
    points: np.ndarray, k: int, *, rows: np.ndarray | None = None, include_self: bool = False, threads: int = 1
) -> np.ndarray:
    """Find the positions (m, k) of the k nearest other points, nearest first, in float32 by FAISS or else scikit-learn.

    Points exactly as far as the k-th are in the order of the library.

    Parameters
    ----------
    points : ndarray (n, d)
    k : int
        At most n - 1, or n with `include_self`.
    rows : int (m,), optional
        Positions whose neighbors are searched for. Default: all.
    include_self : bool
    threads : int
    """
    points = center(points, np.float32)
    rows = np.arange(len(points)) if rows is None else rows
    count = k if include_self else k + 1
    if _faiss() is None:
        positions = _nearest_by_sklearn(points, rows, count, threads)
    else:
        with _faiss_threads(threads) as faiss:
            index = faiss.IndexFlatL2(points.shape[1])
            index.add(points)
            _, positions = index.search(points if len(rows) == len(points) else points[rows], count)
    return positions if include_self else _others(positions, rows)


def _others(neighbors, rows):
    """Remove the row itself from its neighbors (m, k + 1): (m, k)."""
    others = np.empty((len(neighbors), neighbors.shape[1] - 1), np.int64)
    compiled.drop_self(neighbors, rows, others)
    return others


@contextlib.contextmanager
def _faiss_threads(threads):
    """Use `threads` threads in FAISS and BLAS during the body; yields the module faiss."""
    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        with blas_threads(threads):
            yield faiss
    finally:
        faiss.omp_set_num_threads(before)


def nearest_in_lists(points: np.ndarray, k: int, *, threads: int = 1) -> np.ndarray:
    """Find the positions (n, k) of near other points in time n sqrt(n); -1 if fewer were found.

    FAISS's inverted lists: points are clustered, and a point is compared with those of the nearest clusters.  Near copies are
    found, because they are in the same cluster.  Without copies, another point can be nearer: of 11,000 Gaussian points, 25 %
    with 16 columns and 63 % with 64 have a nearer neighbor than the first one returned.  Without FAISS, the neighbors are
    exact, in time n^2.

    Parameters
    ----------
    points : ndarray (n, d)
    k : int
        From 1 to n - 1.
    threads : int
    """
    if _faiss() is None:
        return nearest(points, k, threads=threads)
    points = center(points, np.float32)
    lists = max(1, min(int(4 * np.sqrt(len(points))), len(points) // 40))  # clustering needs 39 points per cluster
    with _faiss_threads(threads) as faiss:
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(points.shape[1]), points.shape[1], lists)
        index.nprobe = max(8, -(-4 * k * lists // len(points)))
        index.train(points[:: max(1, len(points) // (40 * lists))])
        index.add(points)
        _, positions = index.search(points, k + 1)
    return _others(positions, np.arange(len(points)))


def vote_by_index(
    points: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray,
    classes: int,
    k: int,
    include_self: bool,
    draws: np.ndarray,
    threads: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute votes (n,) int64 and shares (n,) for a large set; `groups` as for `vote_by_products`."""
    votes, shares = np.empty(len(labels), np.int64), np.empty(len(labels))
    # All others of the largest group can be nearer than the first neighbor of another group.
    largest = int(np.unique(groups, return_counts=True)[1].max()) - 1 if len(groups) else 0
    wanted = min(k + largest, len(points) - (not include_self))
    for first, last in even(len(labels), -(-len(labels) * wanted // AT_ONCE)):
        neighbors = nearest(points, wanted, rows=np.arange(first, last), include_self=include_self, threads=threads)
        vote = functools.partial(compiled.vote_neighbors, neighbors, first, labels, groups, classes, k, draws)
        run(lambda a, b, vote=vote: vote(a, b, votes, shares), even(last - first, threads, first), threads)
    return votes, shares
