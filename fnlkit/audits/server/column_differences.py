"""Find columns of a table whose units, offset or content differ at a site.

A column is compared only if it is a measurement: a mark of a missing value or a category has two values, and no unit.
"""

from typing import Any

import numpy as np

from fnlkit.audits.messages import MOST_SUSPECTS, classes_to_describe
from fnlkit.audits.records import ColumnDifference

# Columns differ if the ratio of their spreads exceeds FACTOR, or if they are shifted by more than OFFSET standard deviations.
FACTOR, OFFSET = 1.5, 1.0
# A column is constant if most values are equal and its standard deviation is at most this share of the spread elsewhere.
CONSTANT = 0.1
# Of a column with two values, the variance is the product of the distances of the mean to them, up to this share.
TWO_VALUES = 1e-6


def reference(columns: np.ndarray) -> np.ndarray:
    """Median over sites of (center, spread) of each column (2, d), from the replies `columns` (N, 5, d)."""
    center = np.median(columns[:, 3], 0)
    spread = np.median(_spread(columns), 0)
    return np.stack([center, np.where(spread > 0, spread, 1.0)])


def _spread(columns):
    """Spreads (N, d): the range of 80 % of the values, or the standard deviation if most values are equal."""
    ranges = (columns[:, 4] - columns[:, 2]) / 2.563
    return np.where(ranges > 0, ranges, columns[:, 1])


def find_measurements(columns: np.ndarray) -> np.ndarray:
    """Find the columns (d,) that are measurements at most sites.

    There, the 10 % and 90 % quantiles differ, and the column has more than two values: a variable on [a, b] with mean m has
    the variance (m - a)(b - m) only if its values are a and b (Bhatia and Davis 2000).

    Parameters
    ----------
    columns : (N, 5, d)
        Mean, standard deviation, and the 10, 50 and 90 % quantiles.
    """
    mean, deviation, low, _, high = np.moveaxis(columns, 1, 0)
    two = np.abs(deviation**2 - (mean - low) * (high - mean)) <= TWO_VALUES * (high - low) ** 2
    return ((high > low) & ~two).mean(0) > 0.5


def differing_columns(columns: np.ndarray, class_columns: np.ndarray, counts: np.ndarray) -> tuple[list[list[Any]], np.ndarray]:
    """Find (the columns that differ at each site, fits (N, 2, d)).

    The fits are factors and offsets that make the columns like those of the other sites; (1, 0) if a column does not differ.
    A column differs if it differs overall, which wrong labels cannot cause, and within the given labels, which different
    class shares cannot cause.

    Parameters
    ----------
    columns : (N, 5, d)
    class_columns : (N, 2, C, d)
    counts : (N, C)
    """
    sites, _, width = columns.shape
    fits = np.stack([np.ones((sites, width)), np.zeros((sites, width))], 1)
    differences: list[list[ColumnDifference]] = [[] for _ in range(sites)]
    if class_columns.shape[-1] != width or sites < 3:
        return differences, fits
    known, compared = classes_to_describe(counts), find_measurements(columns)
    mean, deviation = (np.where(known[:, :, None], class_columns[:, i], np.nan) for i in (0, 1))
    spread = _spread(columns)
    for k in range(sites):
        others = np.arange(sites) != k
        shared = known[k] & (known[others].sum(0) >= min(2, sites - 1))
        if not shared.any():
            continue
        middle, scale = np.median(columns[others, 3], 0), np.median(spread[others], 0)
        own_deviation, reference_mean = deviation[k, shared], np.nanmedian(mean[others][:, shared], 0)
        reference_deviation = np.nanmedian(deviation[others][:, shared], 0)
        # Missing cells of a constant column get the mean of all sites, so that it is not quite constant.
        ranges = columns[:, 4] - columns[:, 2]
        single = ranges[k] <= 1e-6 * scale
        constant = single & (columns[k, 1] <= CONSTANT * scale) & (np.median(ranges[others], 0) > 0)
        tiny = 1e-12 * np.maximum(1, np.abs(middle))
        varies = reference_deviation > 0  # a class without spread at the other sites has no scale
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = spread[k] / scale
            logs = np.log(factor), np.log(np.median(np.where(varies, own_deviation / reference_deviation, 1.0), 0))
            distance = (mean[k, shared] - reference_mean) / reference_deviation
            moved = (columns[k, 3] - middle) / scale, np.median(np.where(varies, distance, 0.0), 0)
            units = (logs[0] * logs[1] > 0) & (np.minimum(*np.abs(logs)) > np.log(FACTOR))
            offset = (moved[0] * moved[1] > 0) & (np.minimum(*np.abs(moved)) > OFFSET)
        units &= ~single  # most values are equal at the site, for example many zeros: no unit explains it
        for j in np.flatnonzero(compared & (scale > tiny)):
            if constant[j]:
                differences[k].append(ColumnDifference(int(j), "missing", None))
                fits[k, :, j] = 0, middle[j]
            elif units[j] or offset[j]:
                differences[k].append(ColumnDifference(int(j), "units" if units[j] else "offset", float(factor[j])))
                ratio = 1 / factor[j] if units[j] else 1.0
                fits[k, :, j] = ratio, middle[j] - ratio * columns[k, 3, j]
    return differences, fits


def suspects(differences: list[list[ColumnDifference]]) -> np.ndarray:
    """Choose columns (MOST_SUSPECTS,) to describe one by one, of all sites in turn; -1 for an unused place."""
    longest = max(map(len, differences), default=0)
    order = [rows[i].column for i in range(longest) for rows in differences if i < len(rows)]
    chosen = list(dict.fromkeys(order))[:MOST_SUSPECTS]
    return np.array(chosen + [-1] * (MOST_SUSPECTS - len(chosen)))


def seen(differences: list[list[ColumnDifference]], auc: np.ndarray) -> list[list[ColumnDifference]]:
    """Remove from `differences` the columns of sites that the linear classifier does not recognize.

    Parameters
    ----------
    differences : list of list of ColumnDifference
    auc : (N,)
        Of the unchanged inputs; 0.5 without a significant difference.
    """
    return [rows if value > 0.5 else [] for rows, value in zip(differences, auc, strict=True)]
