#!/usr/bin/env bash
# Package: scikit-dimension 0.5.0, estimator KNN with its defaults.
# Guess: units and the order of rows change no estimate by more than noise. A cube of 3 dimensions,
#   400 rows in 8 columns, gave 8, and 2 with its rows reversed and the same seed.
# Behavior: over seeds the estimate ranges from 1 to 8, the number of columns. The defaults draw one
#   sample each of 3, 4, 5 and 6 rows and use nothing else of the data, however many rows there are.
# Source: skdim/id/_KNN.py, ps and M in fit and _knnDimEst.
"$(dirname "$0")/fresh" scikit-dimension==0.5.0 scikit-learn==1.9.1 numpy==2.2.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from skdim.id import KNN, MLE

generator = np.random.default_rng(0)
cube = np.hstack([generator.uniform(size=(400, 3)), np.zeros((400, 5))])
rows = cube @ np.linalg.qr(generator.normal(size=(8, 8)))[0]
estimates = [int(KNN(random_state=seed).fit(rows).dimension_) for seed in range(40)]
likelihood = float(MLE().fit(rows).dimension_)
print(f"scikit-dimension {version('scikit-dimension')}: KNN over 40 seeds {estimates}, MLE {likelihood:.2f}")
extremes = (min(estimates), max(estimates))
expected = (1, 8)
if extremes != expected:
    raise SystemExit(f"the behavior has changed: {extremes} instead of {expected}")
PYTHON
