"""Rank methods over regimes: the best method of each, mean ranks, and the critical difference."""

import math
from statistics import mean
from typing import Any


def ranking(rows: list[dict[str, Any]], *, by: str = "late_mean") -> dict[str, Any]:
    """Return ranks of methods over the regimes of a recipe in which all of them ran.

    The best method has rank 1; methods that tie share the mean of their ranks.

    Parameters
    ----------
    rows : list of dict
        From `fnlkit.recipes.reproduce.rows`. A regime is left out of the ranks if a method did not run in it.
    by : str
        The number to rank by; larger is better.

    Returns
    -------
    dict
        ``regimes``, the ranked regimes; ``best``, the best method of each regime that any method ran in; ``mean_rank`` of each
        method, the smallest first, and ``ranks``, {method: {regime: rank}} of ranked regimes; ``apart``, the critical
        difference of Nemenyi's test at 5 %, None for fewer than two methods
        or regimes; ``published``, Spearman's correlation of our order with the published order in each regime with three or
        more published numbers.

    Notes
    -----
    Demsar (2006), "Statistical comparisons of classifiers over multiple data sets", section 3.2.2: two methods differ if
    their mean ranks differ by at least q sqrt(k (k + 1) / (6 N)), for k methods over N data sets, here regimes.
    """
    table: dict[str, dict[str, Any]] = {}
    for row in rows:
        table.setdefault(row["regime"], {})[row["method"]] = row
    methods = list(dict.fromkeys(row["method"] for row in rows))
    whole = [regime for regime, found in table.items() if len(found) == len(methods)]
    ranks: dict[str, list[float]] = {method: [] for method in methods}
    for regime in whole:
        for method, rank in zip(methods, _ranks([table[regime][method][by] for method in methods]), strict=True):
            ranks[method].append(rank)
    return {
        "regimes": whole,
        "best": {regime: max(found, key=lambda method: found[method][by]) for regime, found in table.items()},
        "ranks": {method: dict(zip(whole, found, strict=True)) for method, found in ranks.items()},
        "mean_rank": dict(sorted(((m, mean(r)) for m, r in ranks.items() if r), key=lambda pair: pair[1])),
        "apart": _critical_difference(len(methods), len(whole)),
        "published": {regime: rho for regime, found in table.items() if (rho := _spearman(found, by)) is not None},
    }


def _ranks(values):
    from scipy.stats import rankdata

    return [float(rank) for rank in rankdata([-value for value in values])]


def _critical_difference(methods, regimes):
    if methods < 2 or regimes < 2:
        return None
    from scipy.stats import studentized_range

    return (
        float(studentized_range.ppf(0.95, methods, math.inf))
        / math.sqrt(2)
        * math.sqrt(methods * (methods + 1) / (6 * regimes))
    )


def _spearman(found, by):
    both = [(row[by], row["published"][0]) for row in found.values() if row["published"]]
    # An order of equal scores has no correlation; scipy would return NaN with a warning.
    if len(both) < 3 or any(len(set(scores)) == 1 for scores in zip(*both, strict=True)):
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(*zip(*both, strict=True)).statistic)
