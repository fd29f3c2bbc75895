#!/usr/bin/env bash
# Package: pyod 3.6.7, detector PCA with its defaults.
# Guess: a column that is equal in all rows carries no information and changes no score.
# Behavior: every score is infinite and no row is labeled an outlier, without a warning of pyod: distances are divided by
#   the share of variance of each component, which is 0. The digits of scikit-learn have three such columns; without them, the
#   detector labels 180 of 1,797 rows.
# Source: pyod/models/pca.py, fit, selected_w_components_.
"$(dirname "$0")/fresh" pyod==3.6.7 scikit-learn==1.9.1 numpy==2.2.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from pyod.models.pca import PCA
from sklearn.datasets import load_digits

rows = load_digits().data
constant = rows.std(0) == 0
seen = {}
for name, part in (("all columns", rows), ("columns that vary", rows[:, ~constant])):
    detector = PCA().fit(part)
    seen[name] = (int(np.isfinite(detector.decision_scores_).sum()), int(detector.labels_.sum()))
    print(f"pyod {version('pyod')}: {part.shape[1]} {name}: {seen[name][0]} finite scores, {seen[name][1]} outliers")
expected = {"all columns": (0, 0), "columns that vary": (1797, 180)}
if seen != expected:
    raise SystemExit(f"the behavior has changed: {seen} instead of {expected}")
PYTHON
