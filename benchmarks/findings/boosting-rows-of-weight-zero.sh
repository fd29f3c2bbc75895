#!/usr/bin/env bash
# Package: scikit-learn 1.9.1, HistGradientBoostingClassifier, and lightgbm 4.7.0, with sample weights; xgboost 3.2.0 for comparison.
# Guess: a row of weight 0 is as good as dropped, so that suspect labels can be left out by weight 0 without another copy of the table.
# Behavior: that is so for xgboost. In the two others rows of weight 0 count toward the smallest size of a leaf, so that leaves of one or
#   two rows with a weight appear. If 300 of 3,000 rows have weight 1, the log loss on new data is 0.70 to 1.14, and 0.43 to 0.44 if
#   the others are dropped; single probabilities differ by 0.9. No message.
# Source: sklearn/ensemble/_hist_gradient_boosting, binning.py and splitting.pyx: min_samples_leaf counts rows; lightgbm,
#   min_data_in_leaf.
"$(dirname "$0")/fresh" scikit-learn==1.9.1 lightgbm==4.7.0 xgboost-cpu==3.2.0 numpy==2.4.6 pandas==3.1.1 <<'PYTHON'
import warnings
from importlib.metadata import version

import numpy as np
from lightgbm import LGBMClassifier
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss
from xgboost import XGBClassifier

warnings.simplefilter("ignore")
ROWS = 3_000
x, y = make_classification(2 * ROWS, 20, n_informative=8, flip_y=0.1, random_state=0)
x, y, new_x, new_y = x[:ROWS], y[:ROWS], x[ROWS:], y[ROWS:]
models = {
    "scikit-learn": lambda: HistGradientBoostingClassifier(random_state=0),
    "lightgbm": lambda: LGBMClassifier(verbose=-1, n_jobs=1),
    "xgboost-cpu": lambda: XGBClassifier(n_jobs=1),
}
losses = {name: [] for name in models}
for seed in (0, 2):
    kept = np.random.default_rng(seed).random(ROWS) < 0.1
    for name, make in models.items():
        weighted = make().fit(x, y, sample_weight=kept.astype(float)).predict_proba(new_x)
        dropped = make().fit(x[kept], y[kept]).predict_proba(new_x)
        losses[name].append((log_loss(new_y, weighted), log_loss(new_y, dropped)))
        print(f"{name} {version(name)}, {kept.sum()} of {ROWS} rows with weight 1: log loss {losses[name][-1][0]:.3f} with weights, "
              f"{losses[name][-1][1]:.3f} with dropped rows; largest difference of a probability {np.abs(weighted - dropped).max():.3f}")
ratios = {name: min(weighted / dropped for weighted, dropped in pairs) for name, pairs in losses.items()}
if abs(ratios["xgboost-cpu"] - 1) > 0.01 or min(ratios["scikit-learn"], ratios["lightgbm"]) < 1.3:
    raise SystemExit(f"the behavior has changed: {ratios}")
PYTHON
