#!/usr/bin/env bash
# Package: scikit-learn 1.9.1, GaussianMixture with two components, as filters of losses use it.
# Guess: adding a constant to all values moves the means by it and leaves the split alone.
# Behavior: on tied values the point halfway between two centers goes to either component, by the
#   rounding of the shifted values. Scores of few clients and shares of votes are such values.
# Source: the start by k-means (sklearn/mixture/_base.py) meets a point at equal distances.
"$(dirname "$0")/fresh" scikit-learn==1.9.1 numpy==2.4.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from sklearn.mixture import GaussianMixture

values = np.array([0.4, 0.0, 0.4, 0.4, 0.2])
splits = set()
for shift in (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0):
    rows = (values + shift)[:, None]
    mixture = GaussianMixture(2, random_state=0).fit(rows)
    upper = mixture.predict(rows) == mixture.means_.ravel().argmax()
    splits.add("".join("FT"[int(member)] for member in upper))
    print(f"scikit-learn {version('scikit-learn')}: values + {shift}: upper component {[bool(u) for u in upper]}")
expected = {"TFTTF", "TFTTT"}
if splits != expected:
    raise SystemExit(f"the behavior has changed: {splits} instead of {expected}")
PYTHON
