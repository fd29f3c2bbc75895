#!/usr/bin/env bash
# Package: nvflare 2.9.0, federated statistics with the default precision of 4 digits.
# Guess: the standard deviation over all sites does not depend on how the same rows are divided among sites, up to the last of
#   the four digits.
# Behavior: 5,000 rows with deviation 0.06 have 0.06 on 1 to 10 sites, 0.07 on 50 and 0.02 on 100; with deviation 0.02 they
#   have 0 from 10 sites on, the value of a constant column. Each site's part of the variance is rounded to four digits before
#   the parts are added and the root is taken. Count and mean stay right.
# Source: nvflare/app_common/statistics/numeric_stats.py, accumulate_metrics and get_global_stats.
"$(dirname "$0")/fresh" nvflare==2.9.0 numpy==2.4.6 pandas==2.3.3 <<'PYTHON'
from importlib.metadata import version

import numpy as np
import pandas as pd
from nvflare.app_common.app_constant import StatisticsConstants as Names
from nvflare.app_common.statistics.numeric_stats import get_global_stats
from nvflare.app_opt.statistics.df.df_core_statistics import DFStatisticsCore


class Site(DFStatisticsCore):
    def __init__(self, values):
        super().__init__()
        self.data = {"train": pd.DataFrame({"x": values})}

    def load_data(self):
        return self.data


def combine(values, count):
    """Return mean and standard deviation over the sites, in the two rounds of nvflare's controller."""
    sites = [Site(part) for part in np.array_split(values, count)]

    def ask(statistic, *more):
        return {f"site-{j}": {"train": {"x": getattr(s, statistic)("train", "x", *more)}} for j, s in enumerate(sites)}

    first = {Names.STATS_COUNT: ask("count"), Names.STATS_SUM: ask("sum"), Names.STATS_MEAN: ask("mean")}
    found = get_global_stats({}, first, Names.STATS_1st_STATISTICS, {})
    mean, rows = (found[name]["train"]["x"] for name in (Names.STATS_MEAN, Names.STATS_COUNT))
    second = {Names.STATS_VAR: ask("variance_with_mean", mean, rows), Names.STATS_STDDEV: ask("stddev")}
    found = get_global_stats(found, second, Names.STATS_2nd_STATISTICS, {})
    return float(mean), float(found[Names.STATS_STDDEV]["train"]["x"])


seen = {}
for deviation in (0.06, 0.02):
    values = np.random.default_rng(0).normal(size=5000)
    values = 0.5 + deviation * (values - values.mean()) / values.std(ddof=1)
    results = {count: combine(values, count) for count in (1, 2, 10, 50, 100)}
    seen[deviation] = {count: result[1] for count, result in results.items()}
    means = sorted({result[0] for result in results.values()})
    print(f"nvflare {version('nvflare')}: deviation {deviation}: by number of sites {seen[deviation]}, means {means}")
    if means != [0.5]:
        raise SystemExit(f"the means have changed: {means}")
expected = {
    0.06: {1: 0.06, 2: 0.06, 10: 0.06, 50: 0.07, 100: 0.02},
    0.02: {1: 0.02, 2: 0.02, 10: 0.0, 50: 0.0, 100: 0.0},
}
if seen != expected:
    raise SystemExit(f"the behavior has changed: {seen} instead of {expected}")
PYTHON
