"""Class thresholds and count matrices check every row."""

from functools import partial

import numpy as np
import pytest

from fnlkit import kernels
from fnlkit.core.errors import InputError


@pytest.mark.parametrize("classes", [2, 10, 17])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "check", [kernels.class_thresholds, kernels.count_matrix, partial(kernels.count_matrix, rule="largest")]
)
def test_every_row_must_be_a_distribution(check, dtype, classes):
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(classes), 400).astype(dtype), rng.integers(0, classes, 400)
    offsets = np.array([0, 5, 37, 37, 400])
    check(probs, labels)
    check(probs, labels, client_offsets=offsets)
    for row in (0, 1, 4, 5, 36, 250, 383, 384, 398, 399):
        for change, words in (
            (lambda p: p * dtype(1.02), "must sum to 1"),
            (lambda p: np.log(p), "apply softmax to logits first"),
            (lambda p: p + np.array([2, -2] + [0] * (classes - 2), dtype), "must hold probabilities"),
            (lambda p: p * dtype(np.nan), "NaN, found one at row"),
        ):
            wrong = probs.copy()
            wrong[row] = change(wrong[row])
            for more in ({}, {"client_offsets": offsets}):
                with pytest.raises(InputError, match=words):
                    check(wrong, labels, **more)
