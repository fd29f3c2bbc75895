"""Nearest neighbours among given points, exactly: the way to them that is fastest for the size at hand.

Rationale
---------
A client of a few hundred or thousand samples is compared with itself, and a matrix of inner products with itself is
symmetric: BLAS computes half of it.  One single-threaded product a client, clients beside each other, keeps all cores
busy without a barrier.  For large sets FAISS runs at most of what the machine can multiply, never holds the whole
matrix, and there is nothing to add.  This is the only file that imports FAISS.
"""

import ctypes
import functools
import sys
import threading

import numpy as np

from fnlkit._kernels import vote
from fnlkit._kernels.threads import even, run
from fnlkit.kernels import checks

# Members of a client up to which its own matrix of products is the faster way (measured at 16 to 1,280 dimensions).
LARGEST_PRODUCT = 4096


def origin(points):
    """Return a place (d,) in the midst of points; seen from there, inner products lose fewer digits of a distance.

    It is rounded to a power of two below the spread, so that points on a grid stay on it and ties stay ties.
    """
    out = np.empty(points.shape[1], points.dtype)
    vote.midst(points, out)
    return out


def centred(points, dtype):
    """Return the points (n, d) in `dtype` seen from their midst, scaled by a power of two where it cannot square them."""
    points = np.ldexp(points, -checks.exponent_of_scale(points, dtype))
    points -= origin(points)
    return np.ldexp(points, -checks.exponent_of_scale(points, dtype), out=points).astype(dtype, copy=False)


@functools.cache
def _pools(loaded):
    # Looking through all loaded libraries takes longer than many a call that it is done for; scipy brings its own BLAS.
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


def blas_threads(threads):
    """Return a context in which BLAS and LAPACK use `threads` threads a call."""
    return _pools("scipy.linalg" in sys.modules).limit(limits=threads, user_api="blas")


@functools.cache
def _half_product(dtype):
    """Return a function that writes the lower triangle of ``own @ own.T`` to the corner of its second argument.

    BLAS's syrk by its address: scipy's own wrapper keeps the GIL, and numpy's product of a matrix with itself loses at
    copying what it saves at multiplying.
    """
    from scipy.linalg import cython_blas

    single = dtype == np.float32
    number = ctypes.c_float if single else ctypes.c_double
    capsule = cython_blas.__pyx_capi__["ssyrk" if single else "dsyrk"]
    name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))(capsule)
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
    syrk = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)(pointer(capsule, name))

    def multiply(own, products):
        members, dimensions = (ctypes.c_int(size) for size in own.shape)
        width = ctypes.c_int(products.shape[1])
        one, zero = number(1), number(0)
        # BLAS counts columns first: what it calls the upper triangle is our lower one.
        syrk(
            ctypes.addressof(_UPPER), ctypes.addressof(_TURNED), ctypes.addressof(members), ctypes.addressof(dimensions),
            ctypes.addressof(one), own.ctypes.data, ctypes.addressof(dimensions),
            ctypes.addressof(zero), products.ctypes.data, ctypes.addressof(width),
        )  # fmt: skip

    return multiply


_UPPER, _TURNED = ctypes.c_char(b"U"), ctypes.c_char(b"T")


def vote_by_products(points, labels, offsets, classes, k, include_self, draws, threads):
    """Votes (n,) int64 and shares (n,) of clients small enough for a matrix of all their inner products."""
    multiply = _half_product(points.dtype)
    votes, shares = labels.copy(), np.zeros(len(labels))
    width = 64 // points.itemsize
    scratch = threading.local()
    lowest, highest = (1e-20, 1e30) if points.dtype == np.float32 else (1e-250, 1e250)

    def one(first, last):
        members = last - first
        use = min(k, members - (not include_self))
        if use < 1:
            return
        padded = -(-members // width) * width
        # Fresh memory for each client would cost as much as a fifth of the product.
        if not hasattr(scratch, "own"):
            largest = -(-int(np.diff(offsets).max()) // width) * width
            scratch.own = np.empty(largest * points.shape[1], points.dtype)
            scratch.products = np.empty(largest * largest, points.dtype)
        own = scratch.own[: members * points.shape[1]].reshape(members, -1)
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(points[first:last], origin(points[first:last]), out=own)
        products = scratch.products[: padded * padded].reshape(padded, padded)
        multiply(own, products)
        largest = products.diagonal()[:members].max()
        if not lowest <= largest <= highest:
            # Searched for only now: looking at all points beforehand would cost as much as a twentieth of the whole.
            checks.finite(points, "embeddings")
            own[:] = centred(points[first:last], points.dtype)
            multiply(own, products)
        vote.mirror(products, members)
        squares = np.zeros(padded, points.dtype)
        # From the same product, so that a sample is at distance 0 of its copies.
        squares[:members] = products.diagonal()[:members]
        here = slice(first, last)
        flat = products[:members].ravel()
        vote.vote_products(flat, squares, labels[here], classes, use, include_self, draws[here], 0, votes[here], shares[here])

    with blas_threads(1):
        run(one, zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True), threads)
    return votes, shares


def nearest(points, k, *, include_self=False, threads=1):
    """Return the numbers (n, k) of the k nearest other points of each, nearest first, by FAISS in float32.

    Points exactly as far as the k-th come in FAISS's order.

    Parameters
    ----------
    points : ndarray (n, d)
    k : int
        At most n - 1, or n with `include_self`.
    include_self : bool
    threads : int
    """
    import faiss

    points = centred(points, np.float32)
    index = faiss.IndexFlatL2(points.shape[1])
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        with blas_threads(threads):
            index.add(points)
            _, found = index.search(points, k if include_self else k + 1)
    finally:
        faiss.omp_set_num_threads(before)
    if include_self:
        return found
    out = np.empty((len(points), k), np.int64)
    vote.drop_self(found, 0, out)
    return out


def vote_by_index(points, labels, classes, k, include_self, draws, threads):
    """Votes (n,) int64 and shares (n,) of one large set."""
    votes, shares = np.empty(len(labels), np.int64), np.empty(len(labels))
    found = nearest(points, min(k, len(points) - (not include_self)), include_self=include_self, threads=threads)
    pieces = even(len(labels), threads)
    run(lambda a, b: vote.vote_neighbours(found, labels, classes, draws, a, b, votes, shares), pieces, threads)
    return votes, shares
