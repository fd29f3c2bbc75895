"""Means, spreads and intervals of few runs, for every table of fnlkit."""

import math
from statistics import mean, stdev

LEVEL = 0.95
# The note on intervals below a table.
METHOD = "95 % intervals: Student's t of the paired differences of runs with the same seed, pairs - 1 degrees of freedom"


def spread(values):
    """Return the sample standard deviation, None for fewer than two values."""
    values = list(values)
    return stdev(values) if len(values) > 1 else None


def half_width(values, level=LEVEL):
    """Return half the width of Student's confidence interval for the mean of values, None for fewer than two.

    Parameters
    ----------
    values : sequence of float
    level : float in (0, 1)

    Examples
    --------
    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.484
    """
    values = list(values)
    if len(values) < 2:
        return None
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values)))


def paired(ours, theirs):
    """Return the mean difference of ours and theirs over common seeds; None without common seeds.

    The seed also determines noise and partition, so that two runs with the same seed differ only in other settings.

    Parameters
    ----------
    ours, theirs : dict of seed to float

    Returns
    -------
    dict or None
        mean; spread (sample standard deviation) and half (of the 95 % interval, Student's t), None for one pair; pairs;
        clear, whether the interval excludes zero.

    Examples
    --------
    >>> paired({0: 0.5, 1: 0.75, 2: 1.0}, {0: 0.25, 1: 0.5, 3: 0.0})
    {'mean': 0.25, 'spread': 0.0, 'half': 0.0, 'pairs': 2, 'clear': True}
    """
    differences = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    if not differences:
        return None
    half, ahead = half_width(differences), mean(differences)
    return {
        "mean": ahead,
        "spread": spread(differences),
        "half": half,
        "pairs": len(differences),
        "clear": half is not None and abs(ahead) > half,
    }


def worst_tenth(values):
    """Return the mean of the lowest tenth of values, at least one value.

    Examples
    --------
    >>> worst_tenth([0.5, 0.25, 1.0])
    0.25
    """
    ordered = sorted(values)
    return mean(ordered[: max(1, len(ordered) // 10)])


def verdict(measured, published, spread=None):
    """Return "within", "above" or "below": a measured mean against published ± spread; None without a spread.

    The published interval is the mean and one standard deviation to either side, because the papers print these.

    Examples
    --------
    >>> verdict(68.19, 67.48, 0.54)
    'above'
    """
    if measured is None or spread is None:
        return None
    if measured > published + spread:
        return "above"
    return "below" if measured < published - spread else "within"
