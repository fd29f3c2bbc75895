#!/usr/bin/env bash
# Package: pyDVL 0.10.0, DataOOBValuation with its default score, with scikit-learn 1.9.1.
# Guess: the values do not depend on how the two classes are named; samples with a wrong label have the lowest values.
# Behavior: with labels 0 and 1 the values find the wrong labels (AUC 0.99), with 1 and 2 they rate them best (AUC 0.34), and with -1
#   and 1 hardly find them (0.64), for a random forest as for bagging, without a message. The trees of scikit-learn's ensembles
#   predict the position of a class; the score compares it with the label itself, so that the class -1 is never right.
# Source: pydvl/valuation/methods/data_oob.py, fit (est.predict) and point_wise_accuracy.
"$(dirname "$0")/fresh" pyDVL==0.10.0 scikit-learn==1.9.1 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from pydvl.valuation import Dataset
from pydvl.valuation.methods import DataOOBValuation
from sklearn.datasets import make_classification
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.tree import DecisionTreeClassifier

x, true = make_classification(400, 10, n_informative=5, class_sep=2, flip_y=0, random_state=0)
wrong = np.isin(np.arange(400), np.random.default_rng(0).choice(400, 40, replace=False))
given = np.where(wrong, 1 - true, true)
seen = {}
for names in ((0, 1), (1, 2), (-1, 1)):
    labels = np.array(names)[given]
    forest = RandomForestClassifier(100, random_state=0)
    bagging = BaggingClassifier(DecisionTreeClassifier(), n_estimators=100, random_state=0)
    for model in (forest, bagging):
        result = DataOOBValuation(model.fit(x, labels)).fit(Dataset(x, labels)).result
        values = np.zeros(400)
        values[result.indices] = result.values
        area = seen[names, type(model).__name__] = float(roc_auc_score(wrong, -values))
        print(f"pyDVL {version('pyDVL')}: labels {names}, {type(model).__name__}: mean value of right labels "
              f"{values[~wrong].mean():.2f}, of wrong ones {values[wrong].mean():.2f}; AUC of low values {area:.2f}")
limits = {(0, 1): (0.95, 1.0), (1, 2): (0.25, 0.45), (-1, 1): (0.55, 0.75)}
if not all(limits[names][0] <= area <= limits[names][1] for (names, _), area in seen.items()):
    raise SystemExit(f"the behavior has changed: {seen}")
PYTHON
