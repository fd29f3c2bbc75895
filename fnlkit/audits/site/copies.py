"""Search a site for copies, near copies and outliers; the results stay at the site.

Near copies are near in every compared space: in the embedding, if there is one, and in the values of the samples. Two
samples that only the backbone cannot distinguish are therefore not copies.
"""

from dataclasses import dataclass

import numpy as np

from fnlkit.audits.site.samples import Samples
from fnlkit.datasets.copies import digests
from fnlkit.kernels.nearby import exact, far_out, near_and_typical, nearest, sample_positions

# Smallest correlation between the values of two near copies that were found by an embedding.
CORRELATION = 0.97
# Images with longer sides (in pixels) are averaged to this size before the comparison.
SIDE = 64
# A search of more samples takes minutes: larger sites count exact copies only.
MOST_SEARCHED = 50_000


@dataclass(frozen=True)
class Found:
    """Copies and outliers of a site with n samples.

    Attributes
    ----------
    copy_of : int (n,)
        Index of the earlier sample of which a sample is an exact or near copy; -1 for all others.
    near : bool (n,)
        Near copies, which are not equal byte by byte.
    far : bool (n,)
        Samples far from all others.
    neighbors : int (n, k) or None
        Indices of the nearest other samples; None if there are exact copies, or too few or too many samples.
    """

    copy_of: np.ndarray
    near: np.ndarray
    far: np.ndarray
    neighbors: np.ndarray | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of copies, near copies and far samples."""
        copies = (self.copy_of >= 0) & ~self.near
        return {"copies": int(copies.sum()), "near_copies": int(self.near.sum()), "far": int(self.far.sum())}


def spaces_of(samples: Samples, scale: tuple[np.ndarray, np.ndarray] | None = None) -> list[np.ndarray]:
    """List the compared spaces, float32 (n, D): the embedding if there is one, then the values.

    Columns of a table are scaled.  Values that verify an embedding are centered and scaled to length 1 for each image or
    spectrogram, so that the squared distance of two samples is 2 (1 - their correlation); a constant sample is a row of zeros.
    """
    x = samples.x
    if samples.image:
        values = _small(x)
    else:
        values = x.reshape(len(x), -1).astype(np.float32)
        if x.ndim == 2:
            mean, std = (x.mean(0), x.std(0)) if scale is None or len(scale[0]) != x.shape[1] else scale
            values = ((x - mean) / np.where(std > 1e-12, std, 1.0)).astype(np.float32)
    if samples.embedding is None:
        return [values]
    if x.ndim > 2:
        values = values - values.mean(1, keepdims=True)
        values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-6)
    return [samples.embedding, values]


def _small(images):
    """Average images (n, H, W, C) over squares of pixels to rows of at most `SIDE` pixels a side."""
    factor = -(-max(images.shape[1:3]) // SIDE)
    if factor > 1:
        high, wide = (max(1, side // factor) for side in images.shape[1:3])
        squares = [factor if side > factor else side for side in images.shape[1:3]]
        parts = []
        for start in range(0, len(images), SIDE):
            part = images[start : start + SIDE, : high * squares[0], : wide * squares[1]].astype(np.float32)
            parts.append(part.reshape(len(part), high, squares[0], wide, squares[1], -1).mean((2, 4)))
        images = np.concatenate(parts)
    return images.reshape(len(images), -1).astype(np.float32)


def find_copies(
    samples: Samples, scale: tuple[np.ndarray, np.ndarray] | None = None, *, neighbors: int = 5, wanted: int = 5
) -> Found:
    """Find the copies, near copies and far samples of a site.

    A copy equals an earlier sample of the site byte by byte.  A near copy is closer to its nearest earlier sample than the
    distance of near copies in each space (`near_and_typical`).  A sample is far if the distance to its k-th neighbor exceeds
    the third quartile by three interquartile ranges (Tukey's far out); copies count once.  Of more than MOST_SEARCHED distinct
    samples, only exact copies are searched for.

    Parameters
    ----------
    samples : Samples
    scale : (mean (d,), std (d,)), optional
        Of the columns of a table. Default: that of the samples.
    neighbors : int >= 1
        Rank of the neighbor whose distance determines whether a sample is far.
    wanted : int
        Number of neighbors to return for other searches.
    """
    prints = digests(samples.x)
    _, first, inverse = np.unique(np.array(prints, "V16"), return_index=True, return_inverse=True)
    distinct = np.sort(first)
    copy, near, far = first[inverse] != np.arange(len(prints)), np.zeros(len(prints), bool), np.zeros(len(prints), bool)
    copy_of = np.where(copy, first[inverse], -1)
    k, most = min(neighbors, len(distinct) - 1), min(max(neighbors, wanted), len(distinct) - 1)
    if k < 1 or len(distinct) > MOST_SEARCHED:
        return Found(copy_of, near, far)
    spaces = spaces_of(samples, scale)
    points = spaces[0][distinct]
    away, near_rows, rows = nearest(points, most)
    far[distinct] = far_out(points, away[:, :k], rows, k)
    far = far[first[inverse]]
    limit = near_and_typical(away[rows, 0], len(points))[0]
    close = (away[:, 0] < limit) & (near_rows[:, 0] < np.arange(len(points)))
    if len(spaces) > 1:
        values = spaces[1][distinct]
        pairs = values[close], values[near_rows[close, 0]]
        blank = (samples.x.ndim > 2) & ~pairs[0].any(1)  # constant samples have no correlation
        close[close] = (np.linalg.norm(pairs[0] - pairs[1], axis=1) < _verifying_distance(samples, values)) & ~blank
    near[distinct] = close
    copy_of[distinct[close]] = distinct[near_rows[close, 0]]
    return Found(copy_of, near, far, near_rows if len(distinct) == len(prints) else None)


def _verifying_distance(samples, values):
    """Distance of values that confirms near copies."""
    away = exact(values, sample_positions(values), 1)[0][:, 0]
    limit = near_and_typical(away, len(values))[0]
    if samples.x.ndim == 2:
        return limit
    most = np.sqrt(2 * (1 - CORRELATION))
    return min(limit or most, most)
