#!/usr/bin/env bash
# Package: scikit-dimension 0.5.0, estimator TLE.
# Guess: the dimension of data does not depend on its unit, as for MLE and TwoNN; all are built on ratios of distances.
# Behavior: a cube of 5 dimensions has dimension 4.5 if its side is 1, and 0 if its side is 0.0001 (the same rows in another
#   unit), without a warning: distances below an absolute 0.0001 are dropped. Softmax outputs of a confident network have such
#   distances.
# Source: skdim/id/_TLE.py, epsilon.
"$(dirname "$0")/fresh" scikit-dimension==0.5.0 scikit-learn==1.9.1 numpy==2.2.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from skdim.id import MLE, TLE, TwoNN

generator = np.random.default_rng(0)
cube = np.hstack([generator.uniform(size=(200, 5)), np.zeros((200, 3))])
rows = cube @ np.linalg.qr(generator.normal(size=(8, 8)))[0]
seen = {}
for side in (1000.0, 1.0, 1e-4):
    estimates = {one.__name__: round(float(one().fit(rows * side).dimension_), 1) for one in (TLE, MLE, TwoNN)}
    print(f"scikit-dimension {version('scikit-dimension')}: side {side}: {estimates}")
    seen[side] = estimates["TLE"]
    others = estimates["MLE"], estimates["TwoNN"]
    if others != (4.1, 4.1):
        raise SystemExit(f"the estimates of MLE and TwoNN have changed: {others}")
expected = {1000.0: 4.5, 1.0: 4.5, 1e-4: 0.0}
if seen != expected:
    raise SystemExit(f"the behavior has changed: {seen} instead of {expected}")
PYTHON
