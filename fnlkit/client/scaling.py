"""Features of one scale for all clients: each tells count, sum and squares of its own once, and the server adds them up."""

from typing import NamedTuple

import numpy as np


class Moments(NamedTuple):
    """What leaves a client, once.

    Attributes
    ----------
    count : int
    total : float64 (d,)
        Sum of each feature.
    squares : float64 (d,)
        Sum of squared differences from the client's own mean: the sum of squares itself would lose a small spread
        around a large mean.
    """

    count: int
    total: np.ndarray
    squares: np.ndarray


def moments(x):
    """Return the Moments of one client's vectors (n, d), computed in float64."""
    x = np.asarray(x, np.float64)
    total = x.sum(0)
    return Moments(len(x), total, ((x - total / len(x)) ** 2).sum(0))


def pooled(replies):
    """Return (mean (d,), std (d,)) of all clients' samples together; a feature that never varies gets std 1.

    Parameters
    ----------
    replies : iterable of Moments
        Of at least one client; none is kept.

    Source: Chan, Golub, LeVeque 1983, the sum of squares of two samples from theirs.
    """
    replies = iter(replies)
    count, total, squares = next(replies)
    for more in replies:
        away = more.total / more.count - total / count
        squares = squares + more.squares + away**2 * count * more.count / (count + more.count)
        count, total = count + more.count, total + more.total
    mean, std = total / count, np.sqrt(squares / count)
    return mean, np.where(std > 1e-12 * np.maximum(1, np.abs(mean)), std, 1.0)
