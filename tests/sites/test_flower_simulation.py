"""The steps of estimates as messages of the engine `flower`: the results of sequential, to the last bit."""

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.estimators import run_estimator

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")

SITES, SIZE = 3, 50
WARM_UP = {"rounds": 2, "fraction": 1.0, "model": "mlp(hidden=8)", "standardize": "none", "min_replies": 1.0}


def federation():
    digits, rng = datasets.load("digits"), np.random.default_rng(2)
    order = rng.permutation(len(digits.y_train))[: SITES * SIZE]
    given = digits.y_train[order].copy()
    given[:15] = (given[:15] + 1) % 10
    x = digits.x_train[order]
    about = {"statistics": (digits.mean, digits.std), "observed": True}
    data = datasets.dataset.Dataset("all", "image", given, given[:0], digits.class_names, lambda: (x, x[:0]), **about)
    offsets = np.arange(SITES + 1) * SIZE
    return Federation("all", 10, offsets, np.arange(len(given)), given), data


@pytest.mark.parametrize("estimator", ["em(folds=2)", "lid(k=5)"])
def test_an_estimate_as_messages_of_flower_equals_sequential(estimator):
    found = [
        run_estimator(*federation(), estimator, form="federated", warm_up=WARM_UP, engine=engine)
        for engine in ("flower", "sequential")
    ]
    assert found[0][1] == found[1][1]
    assert all(np.array_equal(values, found[1][0][name]) for name, values in found[0][0].items())
