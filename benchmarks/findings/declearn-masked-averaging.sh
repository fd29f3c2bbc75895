#!/usr/bin/env bash
# Package: declearn 2.9.1, GradientMaskedAveraging.
# Guess: with threshold 0 every coordinate passes the mask, so that the result is the plain average;
#   the documentation calls FedAvg "the 0 edge case".
# Behavior: a coordinate on which the clients are evenly split is set to 0, because the mask compares
#   with ">" where the documented formula has ">=". The same holds for any threshold that the
#   agreement meets exactly, as three clients against one at threshold 0.5.
# Source: declearn/aggregator/_gma.py, docstring of the class and finalize_updates.
"$(dirname "$0")/fresh" declearn==2.9.1 scikit-learn==1.9.1 numpy==2.2.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from declearn.aggregator import AveragingAggregator, GradientMaskedAveraging
from declearn.model.sklearn import NumpyVector


def combine(aggregator, updates):
    shared = [aggregator.prepare_for_sharing(NumpyVector({"w": np.array([u])}), 1) for u in updates]
    total = shared[0]
    for other in shared[1:]:
        total = total.aggregate(other)
    return round(float(aggregator.finalize_updates(total).coefs["w"][0]), 6)


cases = [(0.0, [1.0, -0.2]), (0.5, [1.0, 1.0, 1.0, -0.6]), (0.49, [1.0, 1.0, 1.0, -0.6])]
seen = []
for threshold, updates in cases:
    masked = combine(GradientMaskedAveraging(threshold=threshold), updates)
    plain = combine(AveragingAggregator(), updates)
    seen.append((masked, plain))
    print(f"declearn {version('declearn')}: threshold {threshold}, updates {updates}: {masked}, average {plain}")
expected = [(0.0, 0.4), (0.3, 0.6), (0.6, 0.6)]
if seen != expected:
    raise SystemExit(f"the behavior has changed: {seen} instead of {expected}")
PYTHON
