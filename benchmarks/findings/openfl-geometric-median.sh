#!/usr/bin/env bash
# Package: openfl 1.9, GeometricMedian.
# Guess: the result is nearly the point with the smallest weighted sum of distances to the clients' tensors; of numbers it is the
#   median, and an iteration never makes the sum larger.
# Behavior: of 0, 1, 2, 3 and 10 it is 3. Of four clients at (0, 0), (5, 0), (0, 5) and (2, 2) with weights 0.4, 0.2, 0.2 and 0.2 it is
#   (1.96, 1.96), with a larger sum than the mean, at which the iteration starts; the median is (1.06, 1.06). Each iteration
#   divides the weights of the last one by the distances, instead of the clients' weights, so that they are divided by the
#   product of all distances, and the client next to the mean soon has all of the weight.
# Source: openfl/interface/aggregation_functions/geometric_median.py, geometric_median; arXiv 1912.13445, Algorithm 2.
"$(dirname "$0")/fresh" openfl==1.9 numpy==2.4.6 scipy==1.17.1 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from openfl.interface.aggregation_functions import GeometricMedian
from openfl.utilities import LocalTensor
from scipy.optimize import minimize

CASES = {
    "numbers": ([[0], [1], [2], [3], [10]], [0.2] * 5),
    "points": ([[0, 0], [5, 0], [0, 5], [2, 2]], [0.4, 0.2, 0.2, 0.2]),
}
seen = {}
for name, (places, weights) in CASES.items():
    places, weights = np.array(places, dtype=float), np.array(weights)

    def total(point):
        return float(weights @ np.linalg.norm(places - point, axis=1))

    tensors = [LocalTensor(f"client {j}", place, weight) for j, (place, weight) in enumerate(zip(places, weights))]
    found = GeometricMedian().call(tensors, None, "bias", 0, ())
    mean = weights @ places
    best = minimize(total, mean, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    seen[name] = [round(float(point[0]), 2) for point in (found, best, mean)] + [total(found) > total(mean)]
    print(f"openfl {version('openfl')}, {name}: found {np.round(found, 2)}, sum of distances {total(found):.3f}; "
          f"geometric median {np.round(best, 2)}, {total(best):.3f}; mean {np.round(mean, 2)}, {total(mean):.3f}")
if seen != {"numbers": [3.0, 2.0, 3.2, False], "points": [1.96, 1.06, 1.4, True]}:
    raise SystemExit(f"the behavior has changed: {seen}")
PYTHON
