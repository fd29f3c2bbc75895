#!/usr/bin/env bash
# Package: declearn 2.9.1, metrics RSquared and MeanSquaredError.
# Guess: for a model with two outputs R2 is an average over the outputs, far below zero when both are
#   wrong by 5 standard deviations, as scikit-learn has it.
# Behavior: R2 is 1, perfect. The errors of the outputs are summed before they are squared, so that +5
#   and -5 cancel; the mean squared error of the same library on the same rows is 50. Its
#   documentation says that arrays are "reduced to 1-d".
# Source: declearn/metrics/_rsquared.py, update and _sum_to_1d.
"$(dirname "$0")/fresh" declearn==2.9.1 scikit-learn==1.9.1 numpy==2.2.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from declearn.metrics import MeanSquaredError, RSquared
from sklearn.metrics import r2_score

labels = np.random.default_rng(0).normal(size=(100, 2))
predictions = labels + np.array([5.0, -5.0])
values = {}
for metric in (RSquared(), MeanSquaredError()):
    metric.update(labels, predictions)
    values.update({name: round(float(value), 6) for name, value in metric.get_result().items()})
reference = r2_score(labels, predictions)
print(f"declearn {version('declearn')}: r2 {values['r2']}, mse {values['mse']}; scikit-learn r2 {reference:.1f}")
expected = {"r2": 1.0, "mse": 50.0}
if values != expected or reference > -20:
    raise SystemExit(f"the behavior has changed: {values} instead of {expected}")
PYTHON
