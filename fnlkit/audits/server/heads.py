"""Message to the sites: for each one, a classifier from the sums of the others.

It is linear discriminant analysis with a shrunken covariance.
"""

from typing import Any

import numpy as np

from fnlkit.audits.messages import LEAST_COLUMNS, SIZES, classes_to_describe, rotation, widen
from fnlkit.audits.records import ColumnDifference
from fnlkit.audits.server import column_differences, input_differences, statistics
from fnlkit.evidence.gaussian import discriminant
from fnlkit.kernels.neighbors import on_one_blas_thread

# The number of features of a head is the largest one that sites with this share of the samples have sent.
SHARE = 0.8
# The inputs of two sites are compared by at most this many features of the sums.
COMPARED = 16
# Added to the variance of a column, in the units of the agreed scale.
LEAST_VARIANCE = 0.01


def within_classes(first: dict[str, np.ndarray]) -> np.ndarray:
    """Compute the covariance (m, m) within the classes."""
    n = np.maximum(first["counts"], 1)[:, None]
    return (first["moments"] - first["sums"].T @ (first["sums"] / n)) / max(1, int(first["counts"].sum()))


def compare_features(firsts: list[dict[str, np.ndarray]]) -> np.ndarray:
    """AUC (N,) with which a linear classifier recognizes each site by the features of the sums."""
    counts = np.stack([first["counts"] for first in firsts])
    sizes = np.array([first["sums"].shape[1] for first in firsts])
    if not sizes.any():
        return np.full(len(firsts), 0.5)
    width = min(COMPARED, *sizes[sizes > 0])
    counts = np.where(sizes[:, None] > 0, counts, 0)
    means, within = np.zeros((len(firsts), 1, counts.shape[1], width)), np.zeros((len(firsts), 1, width, width))
    for k in np.flatnonzero(sizes):
        means[k, 0] = firsts[k]["sums"][:, :width] / np.maximum(counts[k], 1)[:, None]
        within[k, 0] = within_classes(firsts[k])[:width, :width]
    return input_differences.compare_inputs({"class_means": means, "covariances": within}, counts, [[0]] * len(firsts))[:, 0]


def different(firsts: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Find sites (N,) whose features differ from those of most sites, by the sums; none if most differ."""
    mask = compare_features(firsts) >= input_differences.DIFFERENT
    return mask if mask.sum() <= (len(mask) - 1) / 2 else np.zeros(len(mask), bool)


def compare_columns(firsts: list[dict[str, np.ndarray]]) -> tuple[np.ndarray, list[list[ColumnDifference]], np.ndarray]:
    """Compare (columns (N, 5, d), findings and fits of fnlkit.audits.server.column_differences.differing_columns)."""
    counts = np.stack([first["counts"] for first in firsts])
    columns = input_differences.fill_missing(np.stack([first["columns"] for first in firsts]), counts, LEAST_COLUMNS)
    return columns, *column_differences.differing_columns(
        columns, np.stack([first["class_columns"] for first in firsts]), counts
    )


@on_one_blas_thread
def make_heads(firsts: list[dict[str, Any]], scale: tuple[np.ndarray, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Make the message to the sites: for each one a classifier from the sums of the others.

    Sites with other inputs than most sites enter no classifier but are judged.

    Parameters
    ----------
    firsts : list of dict
        From `fnlkit.audits.site.summaries.summarize`, in the order of the sites.
    scale : (mean (d,), std (d,)), optional
        As for `summarize`.

    Returns
    -------
    dict of arrays
        coefficients (N, C, M), sizes (N,), offsets (N, C), known (N, C), shares (N, C), differ (N,), center (2, d),
        suspects, tone (2,), fits (N, 2, d), compared, mean (d,), std (d,).
    """
    counts = np.stack([first["counts"] for first in firsts])
    sites, sizes = len(firsts), np.array([first["sums"].shape[1] for first in firsts])
    widths = np.array([int(first["width"]) for first in firsts])
    apart, (columns, differences, fits) = different(firsts), compare_columns(firsts)
    apart |= np.array([bool(rows) for rows in differences]) if sum(map(bool, differences)) <= (sites - 1) / 2 else apart
    parts = []
    for k in range(sites):
        others = (np.arange(sites) != k) & (sizes > 0)
        if (others & ~apart).sum() >= 2:
            others &= ~apart
        enough = max(1, SHARE * counts[others].sum())
        size = int(max((size for size in sizes if counts[others & (sizes >= size)].sum() >= enough), default=0))
        ids = np.flatnonzero(others & (sizes >= size))
        if not size:  # no other site has enough samples for a classifier
            parts.append((0, counts[others].sum(0), np.zeros((counts.shape[1], 0)), np.zeros(counts.shape[1])))
            continue
        total = counts[ids].sum(0)
        by_class = sum(firsts[j]["sums"][:, :size] for j in ids)
        moments = sum(firsts[j]["moments"][:size, :size] for j in ids)
        if scale and size < (width := firsts[k]["class_columns"].shape[-1]) <= SIZES[-1] and widths[k] >= width:
            parts.append((width, total, *classify_columns([firsts[j] for j in np.flatnonzero(others)], scale)))
        else:
            parts.append((size, total, *discriminant(total, by_class, moments)))
    widest = max(1, *(part[0] for part in parts))
    coefficients = np.stack([np.pad(part[2], ((0, 0), (0, widest - part[0]))) for part in parts])
    shares = np.stack([part[1] / max(1, part[1].sum()) for part in parts])
    mean, std = scale or (np.zeros(0), np.ones(0))
    center = column_differences.reference(columns)
    if len(mean) == center.shape[1]:
        center = widen(center, (mean, std))
    return {
        "coefficients": coefficients,
        "sizes": np.array([part[0] for part in parts]),
        "offsets": np.stack([part[3] for part in parts]),
        "known": statistics.seen_elsewhere(counts) & (shares > 0),
        "shares": shares,
        "differ": statistics.shares_differ(counts),
        "center": center,
        "suspects": column_differences.suspects(differences),
        "tone": np.median(columns[:, :2, 0], 0),
        "fits": fits,
        "compared": np.array(max(4, int(np.median(counts.sum(1))) // 5)),
        "mean": np.asarray(mean, np.float64),
        "std": np.asarray(std, np.float64),
    }


def classify_columns(firsts: list[dict[str, Any]], scale: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (C, d) and offsets (C,) of discriminant analysis with independent columns, for rotated columns.

    Small sites send second moments of fewer features than a table has columns, but means and deviations of all columns by
    class.

    Parameters
    ----------
    firsts : list of dict
        From `fnlkit.audits.site.summaries.summarize`.
    scale : (mean (d,), std (d,))
    """
    counts = np.stack([first["counts"] for first in firsts])
    counts = np.where(classes_to_describe(counts), counts, 0).astype(np.float64)
    mean, deviation = np.stack([first["class_columns"] for first in firsts], 1)
    mean, deviation = (mean - scale[0]) / scale[1], deviation / scale[1]
    total, n = counts.sum(0), np.maximum(counts.sum(0), 1)
    center = np.einsum("kc,kcd->cd", counts, mean) / n[:, None]
    squares = np.einsum("kc,kcd->cd", counts, deviation**2 + (mean - center) ** 2)
    coefficients = center / (squares.sum(0) / max(1.0, total.sum()) + LEAST_VARIANCE)
    offsets = np.log(n / max(1.0, total.sum())) - 0.5 * (coefficients * center).sum(1)
    known = total > 0
    return np.where(known[:, None], coefficients, 0) @ rotation(len(scale[0])), np.where(known, offsets, -1e3)
