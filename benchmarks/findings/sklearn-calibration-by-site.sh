#!/usr/bin/env bash
# Package: scikit-learn 1.9.1, CalibratedClassifierCV with folds by site (GroupKFold), where one class occurs at one site only.
# Guess: four of the five classifiers are trained with that class, so that it is predicted, perhaps less often.
# Behavior: `sigmoid` and `isotonic` never predict it, without a warning: where a classifier knows the class, its calibration
#   samples have none, and the calibrator answers "never". The same classifier without calibration finds nine of ten of these samples.
#   `temperature` (since 1.8) fits, and then `predict_proba` raises ValueError, because one classifier has a column less.
#   `sigmoid` with `ensemble=False` has the same result, with a warning about the number of classes.
# Source: one calibrator per class on the samples of the left-out fold (sklearn/calibration.py).
"$(dirname "$0")/fresh" scikit-learn==1.9.1 numpy==2.4.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

x, y = load_digits(return_X_y=True)
x = x / 16
site = np.random.default_rng(0).integers(0, 5, len(y))
site[y == 9] = 4
train, test = np.arange(len(y)) % 2 == 0, np.arange(len(y)) % 2 == 1
folds = list(GroupKFold(5).split(x[train], y[train], site[train]))
nines, results = y[test] == 9, {}
plain = LogisticRegression(max_iter=500).fit(x[train], y[train])
results["not calibrated"] = round(float((plain.predict(x[test])[nines] == 9).mean()), 1)
for method, ensemble in (("sigmoid", True), ("isotonic", True), ("sigmoid", False), ("temperature", True)):
    calibrated = CalibratedClassifierCV(LogisticRegression(max_iter=500), method=method, cv=folds, ensemble=ensemble)
    calibrated.fit(x[train], y[train])
    name = f"{method}, ensemble={ensemble}"
    try:
        results[name] = float((calibrated.predict(x[test])[nines] == 9).mean())
    except ValueError as error:
        results[name] = type(error).__name__
for name, result in results.items():
    print(f"scikit-learn {version('scikit-learn')}: {name}: share of the class of one site that is found: {result}")
wanted = [0.9, 0.0, 0.0, 0.0, "ValueError"]
if list(results.values()) != wanted:
    raise SystemExit(f"the behavior has changed: {results}")
PYTHON
