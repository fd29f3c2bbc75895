"""Estimate accuracy on true labels from agreement with given labels and a known noise level.

Natarajan, Dhillon, Ravikumar, Tewari. Learning with noisy labels. NeurIPS 2013 (the unbiased estimator); Patrini 2017.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.estimators.intervals import clopper_pearson
from fnlkit.kernels.streams import stream

# The source of truth is the other sites: labels that their models contradict count as wrong.
MEASURES = "agreement with the other sites' labels"
ASSUMES = (
    "most sites are nearly clean: labels that are wrong in the same way at most sites count as right",
    "labels are wrong by class and not by how a sample looks (each site by its own estimated matrix)",
    "within a true class, whether the model errs has nothing to do with whether the label does",
)
DRAWS = 400
# Above this share of wrong labels in a class, the inverse would amplify chance too much.
MOST = 0.8
# A class with fewer estimated samples than this has no separate share.
LEAST = 0.5


def correct_scores(
    counts: np.ndarray,
    T: np.ndarray,
    level: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    seed: int = 0,
    independence: ArrayLike = 1.0,
    together: float = 1.0,
) -> dict[str, Any] | None:
    """Estimate scores of a model's predictions on true labels, over all sites and by site.

    With Q[true, predicted] of a site, the counts of its given labels are N[given, predicted] = T' Q, so Q = T'^-1 N.  The
    interval is a percentile bootstrap of the counts in which the noise is drawn too: the off-diagonal of T is scaled so that
    the level of the site varies over the interval. All sites vary together, because an error in an estimated level affects all.
    If all predictions agree, no draw differs: the intervals of shares therefore contain the exact interval of Clopper and
    Pearson for as many samples, and those of macro_f1 and balanced the mean of the classes' intervals if no draw differs.

    Parameters
    ----------
    counts : int (N, C, C)
        Samples of each site by given and predicted class.
    T : (N, C, C)
        Transitions T[true, given].
    level, low, high : (N,)
        Share of wrong labels, with an interval.
    seed : int
    independence : float or (N,)
        Independent observations per sample of each site (fnlkit.kernels.scores.effective_size); the bootstrap draws as many.
    together : float
        The same of all samples together, for the exact interval.

    Returns
    -------
    dict or None
        share, macro_f1, balanced, each (value, low, high); per_class: list of (value, low, high) or None for a class without
        estimated samples; sites: list of (value, low, high) of the share.  None if a class has too few right labels
        for any estimate.
    """
    counts, T = np.asarray(counts, np.float64), np.asarray(T, np.float64)
    level, low, high = (np.asarray(v, np.float64) for v in (level, low, high))
    sizes, per = counts.sum((1, 2)), np.broadcast_to(independence, len(counts))
    if not sizes.sum() or np.diagonal(T, axis1=1, axis2=2)[sizes > 0].min() < 1 - MOST:
        return None
    rng, N, C = stream(seed, "corrected"), len(counts), counts.shape[1]
    z = rng.normal(size=DRAWS)
    again = np.zeros((DRAWS, N, C, C))
    point = np.zeros((N, C, C))
    for k in np.flatnonzero(sizes):
        point[k] = undone(counts[k], T[k])
        number = max(1, round(sizes[k] * per[k]))
        drawn = rng.multinomial(number, (counts[k] / sizes[k]).ravel(), DRAWS).reshape(DRAWS, C, C) * (sizes[k] / number)
        step = np.where(z < 0, level[k] - low[k], high[k] - level[k]) / 1.96
        again[:, k] = undone(drawn, scale_matrix(T[k], level[k], np.clip(level[k] + z * step, 0, None)))
    value, spread = figures(point.sum(0)), figures(again.sum(1))
    rows = np.maximum(point.sum(0).sum(1), 0) * together
    corrected = {"share": _range(value["share"], spread["share"], sizes.sum() * together)}
    corrected["per_class"] = [_range(*part) for part in zip(value["per_class"], spread["per_class"].T, rows, strict=True)]
    known = [part for part in corrected["per_class"] if part]
    for name in ("macro_f1", "balanced"):
        corrected[name] = _range(value[name], spread[name])
        if known and corrected[name] and corrected[name][1] == corrected[name][2]:
            _, low, high = np.mean(known, 0)
            corrected[name] = corrected[name][0], float(min(low, corrected[name][1])), float(max(high, corrected[name][2]))
    shares = [(figures(point[k])["share"], figures(again[:, k])["share"]) if sizes[k] else None for k in range(N)]
    corrected["sites"] = [part and _range(*part, sizes[k] * per[k]) for k, part in enumerate(shares)]
    return corrected


def undone(counts: np.ndarray, T: np.ndarray) -> np.ndarray:
    """Expected samples Q (..., C, C) by true and predicted class, of counts by given and predicted class."""
    return np.linalg.solve(np.swapaxes(np.broadcast_to(T, counts.shape), -1, -2), counts)


def scale_matrix(T: np.ndarray, level: float, levels: np.ndarray) -> np.ndarray:
    """Scale the pattern of wrong labels of T (C, C) to other levels (r,): matrices (r, C, C).

    If the level is 0, T has no pattern, and wrong labels are spread evenly.
    """
    eye, classes = np.eye(len(T)), len(T)
    if level > 1e-9 and np.abs(T - eye).max() > 1e-9:
        pattern, factor = T - eye, levels / level
    else:
        pattern, factor = (1 - classes * eye) / (classes - 1), levels
    most = MOST / max(1e-9, -np.diagonal(pattern).min())
    return eye + np.minimum(factor, most)[:, None, None] * pattern


def figures(Q: np.ndarray) -> dict[str, Any]:
    """Compute share, macro_f1, balanced (...,), per_class and per_class_f1 (..., C).

    Q (..., C, C) counts samples by true and predicted class.  A class without samples has NaN and is left out of the means.
    Few samples can give entries below 0, which stay negative so that sums are unbiased; only the results are clipped to
    [0, 1].
    """
    Q = np.asarray(Q, np.float64)
    hits = np.diagonal(Q, axis1=-2, axis2=-1)
    share = np.clip(hits.sum(-1) / np.maximum(Q.sum((-1, -2)), 1e-300), 0, 1)
    rows, columns = Q.sum(-1), Q.sum(-2)
    there = rows > LEAST
    recall = np.where(there, np.clip(hits / np.where(there, rows, 1), 0, 1), np.nan)
    f1 = np.where(there, np.clip(2 * hits / np.where(there, rows + np.maximum(columns, 0), 1), 0, 1), np.nan)
    means = {"macro_f1": np.nanmean(f1, -1), "balanced": np.nanmean(recall, -1)}
    return {"share": share, **means, "per_class": recall, "per_class_f1": f1}


def _range(value, draws, samples=None):
    """Read (value, low, high) from draws; of a share of `samples`, at least the exact interval."""
    if np.isnan(value):
        return None
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    ends = (value, value) if samples is None else clopper_pearson(value * samples, samples)
    return float(value), float(min(low, value, ends[0])), float(max(high, value, ends[1]))
