#!/usr/bin/env bash
# Package: mapie 1.6.0, expected_calibration_error with split_strategy="array split".
# Guess: "array split" makes bins with equal numbers of samples, so that the error is close to that of "quantile", and the order of
#   rows has no effect on it.
# Behavior: for scores that are 0.2 too low below 0.75 and 0.2 too high above, "uniform" and "quantile" give 0.18; "array split" gives
#   0.20 if the rows are sorted by score, and 0.00 if they are shuffled. The rows are split in the order in which they come, and
#   the greatest score of each part is the edge of a bin: with shuffled rows all edges are next to the greatest score, and
#   one bin, in which the errors cancel, has nearly all samples.
# Source: mapie/metrics/calibration.py, _get_binning_groups.
"$(dirname "$0")/fresh" mapie==1.6.0 scikit-learn==1.9.1 numpy==2.4.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from mapie.metrics.calibration import expected_calibration_error

rng, rows = np.random.default_rng(0), 20_000
scores = rng.uniform(0.5, 1.0, rows)
right = (rng.random(rows) < np.where(scores < 0.75, scores + 0.2, scores - 0.2)).astype(int)
order = np.argsort(scores)
seen = {}
for strategy in ("uniform", "quantile", "array split"):
    for name, rows in (("shuffled", slice(None)), ("sorted", order)):
        error = expected_calibration_error(right[rows], scores[rows], num_bins=10, split_strategy=strategy)
        seen[strategy, name] = round(error, 3)
        print(f"mapie {version('mapie')}: {strategy}, {name} rows: expected calibration error {error:.3f}")
low = seen.pop(("array split", "shuffled"))
if low > 0.03 or not all(0.15 < error < 0.22 for error in seen.values()):
    raise SystemExit(f"the behavior has changed: {seen}, array split of shuffled rows {low}")
PYTHON
