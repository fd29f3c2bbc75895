"""Classifiers from sums that benchmarks.classifiers compares: equal to those from the samples."""

import numpy as np
import pytest

from benchmarks import classifiers
from fnlkit.audits import summaries


@pytest.mark.parametrize("penalty", [0.01, 1.0])
def test_ridge_regression_from_sums_equals_that_of_scikit_learn(penalty):
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    x = rng.normal(size=(3, 5))[y] + rng.normal(size=(300, 5)) @ rng.normal(size=(5, 5))
    coefficients, offsets = classifiers.regress(*summaries.sums(x, y, 4), penalty=penalty)
    theirs = Ridge(alpha=penalty * x.var(0).mean() * len(x)).fit(x, np.eye(3)[y]).predict(x)
    ours = (x @ coefficients.T + offsets) / classifiers.STEEP
    np.testing.assert_allclose(ours[:, :3], theirs, atol=1e-6)
    assert (ours[:, 3] < -50).all()


def test_the_sums_of_true_labels_give_the_classifier_of_clean_sites():
    made, data = classifiers.table("wine", 0)
    found = classifiers.compare(made, data)
    clean = made.given.copy()
    made.given[:] = data.y_train
    again = classifiers.compare(made, data)
    assert (clean != made.given).any()
    name = "discriminant analysis, shrinkage 0.1"
    assert found["sums of true labels"][0] == again["sums of true labels"][0] == again[name][0]
