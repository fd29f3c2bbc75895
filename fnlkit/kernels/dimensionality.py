"""Local intrinsic dimensionality of points and clients."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit._kernels import dimensionality as compiled
from fnlkit._kernels.threads import even, run
from fnlkit.core.errors import InputError
from fnlkit.kernels import checks


def lid(
    points: ArrayLike,
    *,
    k: int = 20,
    client_offsets: ArrayLike | None = None,
    variant: Literal["paper", "fedcorr"] = "paper",
    threads: int | None = None,
) -> NDArray[np.float64]:
    """Local intrinsic dimensionality of each point among the points of its client.

    Parameters
    ----------
    points : array (n, d)
        FedCorr uses the softmax outputs of a client's local model.
    k : int
        Number of nearest other points; a client of m points uses min(k, m - 1).
    client_offsets : array (K + 1,) of int, optional
        Client k has the points client_offsets[k]:client_offsets[k + 1]; all clients are estimated in one call.
    variant : {"paper", "fedcorr"}
        "fedcorr" is the formula of the authors' code: 1e-6 is added to the largest distance and to the sum, and the
        numerator is k even if there are fewer points. Computed in float64.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (n,) float64
        At least 0 and at most 1e6 (all k points equally far, as copies of one point are). 0 if one of the k nearest points is
        at distance 0 (the limit of the formula), or for fewer than two neighbors (also if k is 1); `lid_score` counts
        copies once.
        Points of magnitude 1 whose differences are below 2e-23 (float32) or 1e-162 (float64), as softmax outputs of a very
        confident network, count as copies, because the squares are 0: pass float64.
        "fedcorr": finite, and 0 without a neighbor. If all distances are nearly equal and about 1 or larger, the two terms of
        1e-6 exceed the sum, and the estimate is huge or negative, as in the authors' code.

    Raises
    ------
    InputError
        Wrong shapes, NaN or infinity, k < 1; magnitudes beyond 1e-140 ... 1e140 with "fedcorr".

    Notes
    -----
    -1 / mean_j log(r_j / r_k), j = 1..k, with Euclidean distances r_1 <= ... <= r_k: Amsaleg et al. 2015, eq. 5;
    FedCorr, eq. 2.  Distances are sums of squared differences in the precision of the input, which avoids cancellation.
    Points whose squares exceed the range of the type are computed in float64, scaled by a power of two.

    Examples
    --------
    >>> lid([[0.0], [1.0], [3.0], [7.0]], k=2).round(6)
    array([1.820478, 2.88539 , 4.932607, 4.932607])
    """
    points = checks.real(points, "points", 2, "(n, d)")
    k = checks.positive(k, "k")
    checks.one_of(variant, "variant", ("paper", "fedcorr"))
    if points.shape[1] < 1:
        raise InputError(f"`points` must have at least one dimension, found shape {points.shape}")
    offsets = checks.offsets(client_offsets, len(points))
    threads = checks.thread_count(threads)
    checks.finite(points, "points")
    dimensions = np.empty(len(points))
    if variant == "fedcorr" or checks.exponent_of_scale(points):
        points = points.astype(np.float64)
    if exponent := checks.exponent_of_scale(points):
        if variant == "fedcorr":
            raise InputError(
                f"`points` reach {abs(points).max():.3g}, whose square is no number; scale them (variant "
                '"paper" does so by itself, since its result does not depend on the scale)'
            )
        points = np.ldexp(points, -exponent)

    def work(start: int, stop: int) -> None:
        scratch = compiled.scratch_for(points, int(np.diff(offsets).max(initial=0)), k)
        compiled.lid_rows(points, offsets, k, variant == "fedcorr", start, stop, dimensions, scratch)

    run(work, even(len(points), 4 * threads if threads > 1 else 1), threads)
    return dimensions


@dataclass(frozen=True)
class LidScores:
    """Mean local intrinsic dimensionality of clients.

    Attributes
    ----------
    score : (K,) float64
        At least 0; 0 for a client without points, or without a point that counts.
    copies, equidistant : (K,) int64
        Points that do not count: copies of another point, and points at the same distance from all k neighbors, whose
        dimension is infinite.  0 with ``copies="each"``.
    """

    score: NDArray[np.float64]
    copies: NDArray[np.int64]
    equidistant: NDArray[np.int64]


def lid_scores(
    points: ArrayLike,
    *,
    k: int = 20,
    client_offsets: ArrayLike | None = None,
    variant: Literal["paper", "fedcorr"] = "paper",
    copies: Literal["once", "each"] = "once",
    threads: int | None = None,
) -> LidScores:
    """FedCorr's LID score of clients, in which equal points of a client count once.

    In the formula, a point with a copy among its neighbors has dimension 0, and a point whose k nearest points are copies of
    each other has dimension 1e6; a few copies decide the mean.

    Parameters
    ----------
    points, k, client_offsets, variant, threads
        As in `lid`.
    copies : {"once", "each"}
        "each" is the paper's mean over all points.

    Raises
    ------
    InputError
        As `lid`.
    """
    checks.one_of(copies, "copies", ("once", "each"))
    points = checks.real(points, "points", 2, "(n, d)")
    offsets = checks.offsets(client_offsets, len(points))
    per_sample = lid(points, k=k, client_offsets=offsets, variant=variant, threads=threads)
    sizes = np.diff(offsets)
    client = np.repeat(np.arange(len(sizes)), sizes)
    score = np.bincount(client, per_sample, len(sizes)) / np.maximum(sizes, 1)
    left_out = np.zeros((2, len(sizes)), np.int64)
    # Without a value at a limit, there are no copies among the neighbors.
    limited = (per_sample <= 0) | (per_sample >= compiled.LARGEST)
    for one in np.unique(client[limited]).tolist() if copies == "once" else []:
        client_points = points[offsets[one] : offsets[one + 1]]
        distinct = np.unique(client_points, axis=0)
        scores = lid(distinct, k=k, variant=variant, threads=threads)
        counts = scores[scores < compiled.LARGEST]
        left_out[:, one] = len(client_points) - len(distinct), len(scores) - len(counts)
        score[one] = counts.mean() if len(counts) else 0.0
    return LidScores(score, left_out[0], left_out[1])


def lid_score(
    points: ArrayLike,
    *,
    k: int = 20,
    client_offsets: ArrayLike | None = None,
    variant: Literal["paper", "fedcorr"] = "paper",
    copies: Literal["once", "each"] = "once",
    threads: int | None = None,
) -> NDArray[np.float64]:
    """Mean local intrinsic dimensionality of each client, the score of `lid_scores`.

    Parameters and errors as in `lid_scores`.

    Returns
    -------
    ndarray (K,) float64
        A single entry without `client_offsets`; 0 for a client without samples.

    Examples
    --------
    >>> lid_score([[0.0], [1.0], [3.0], [7.0], [5.0]], k=2, client_offsets=[0, 4, 5]).round(4)
    array([3.6428, 0.    ])
    >>> lid_score([[0.0], [1.0], [3.0], [7.0], [7.0]], k=2).round(4)
    array([3.6428])
    """
    options: dict[str, Any] = {
        "k": k,
        "client_offsets": client_offsets,
        "variant": variant,
        "copies": copies,
        "threads": threads,
    }
    return lid_scores(points, **options).score
