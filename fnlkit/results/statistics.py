"""Means, spreads and intervals of few runs, for every table of fnlkit."""

from collections.abc import Collection, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np

LEVEL = 0.95
# A smaller corrected p-value is significant; 1 - 0.95 would be larger than 0.05 by rounding.
ALPHA = 0.05
# The note on intervals below a table.
METHOD = (
    "95 % intervals of single differences: Student's t of the paired differences of runs with the same seed, pairs - 1 degrees "
    "of freedom; * and p are corrected for all comparisons of the table, so that an interval without 0 can have no star"
)


def spread(values: Collection[float]) -> float | None:
    """Sample standard deviation, None for fewer than two values."""
    values = list(values)
    return stdev(values) if len(values) > 1 else None


def compare_pairs(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> dict[str, Any] | None:
    """Compare ours and theirs by the mean difference over common seeds; None without common seeds.

    The seed also determines noise and partition, so that two runs with the same seed differ only in other settings.

    Parameters
    ----------
    ours, theirs : dict of seed to float

    Returns
    -------
    dict or None
        mean; spread (sample standard deviation), None for one pair; half (of the 95 % interval, Student's t) and p, the
        p-value of the paired t-test, None for one pair and for equal differences, which have no t; pairs.

    Examples
    --------
    >>> compare_pairs({0: 0.5, 1: 0.75, 2: 1.0}, {0: 0.25, 1: 0.5, 3: 0.0})
    {'mean': 0.25, 'spread': 0.0, 'half': None, 'pairs': 2, 'p': None}
    """
    differences = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    if not differences:
        return None
    ahead, deviation = mean(differences), spread(differences)
    if deviation is not None and deviation < 1e-9 * max(map(abs, [*ours.values(), *theirs.values()])):
        deviation = 0.0  # equal but for rounding, as 0.7 - 0.6 and 0.8 - 0.7
    comparison = {"mean": ahead, "spread": deviation, "half": None, "pairs": len(differences), "p": None}
    if deviation:
        # The distribution of scipy.stats.ttest_rel, which takes milliseconds; tables have thousands of pairs of groups.
        from scipy.special import stdtr, stdtrit

        freedom, error = len(differences) - 1, deviation / len(differences) ** 0.5
        comparison["half"] = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
        comparison["p"] = 2 * float(stdtr(freedom, -abs(ahead) / error))
    return comparison


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for multiple tests by Holm's step-down procedure.

    Holm. A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6, 1979.

    Parameters
    ----------
    values : sequence of (float or None)
        None is no test and stays None.

    Examples
    --------
    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    p = np.array([value for value in values if value is not None])
    order = np.argsort(p)
    p[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    corrected = iter(p.tolist())
    return [None if value is None else next(corrected) for value in values]


def significant(corrected: float | None) -> bool:
    """Whether a corrected p-value is below 0.05; None is no test and not significant."""
    return corrected is not None and corrected < ALPHA


def worst_tenth(values: Sequence[float]) -> float:
    """Mean of the lowest tenth of values, at least one value.

    Examples
    --------
    >>> worst_tenth([0.5, 0.25, 1.0])
    0.25
    """
    ordered = sorted(values)
    return mean(ordered[: max(1, len(ordered) // 10)])


def verdict(measured: float | None, published: float | None, spread: float | None = None) -> str | None:
    """Compare a measured mean with published ± spread: "within", "above" or "below"; None if one is missing.

    The published interval is the mean and one standard deviation to either side, because the papers print these.

    Examples
    --------
    >>> verdict(68.19, 67.48, 0.54)
    'above'
    """
    if measured is None or published is None or spread is None:
        return None
    if measured > published + spread:
        return "above"
    return "below" if measured < published - spread else "within"
