"""Projection onto the probability simplex."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit._kernels import projection as compiled
from fnlkit._kernels.threads import even, run
from fnlkit.core.errors import InputError
from fnlkit.kernels import checks


def project_to_simplex(v: ArrayLike, *, threads: int | None = None) -> NDArray[np.floating[Any]]:
    """Find the nearest probability vector, in Euclidean distance, of each vector on the last axis.

    Parameters
    ----------
    v : array (..., C)
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (..., C)
        Entries >= 0, sums 1; float32 for float32 input, otherwise float64.

    Raises
    ------
    InputError
        No class, NaN or infinity.

    Notes
    -----
    Michelot 1986; Duchi et al. 2008 compute the same point by sorting.

    Examples
    --------
    >>> project_to_simplex([0.7, 0.5, -0.2]).round(3)
    array([0.6, 0.4, 0. ])
    """
    v = checks.array(v, "v")
    if v.ndim < 1 or v.shape[-1] < 1:
        raise InputError(f"`v` must have shape (..., C) with C of at least 1, found {v.shape}")
    flat = checks.real(v.reshape(-1, v.shape[-1]), "v", 2, "(..., C)")
    checks.finite(flat, "v")
    projected = np.empty_like(flat)
    threads = checks.thread_count(threads)
    pieces = even(len(flat), min(threads, 1 + flat.size // 65536))
    run(lambda a, b: compiled.project_rows(flat, a, b, projected), pieces, threads)
    return projected.reshape(v.shape)
