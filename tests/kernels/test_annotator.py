"""Expectation maximization of one annotator, compared with a reference in numpy."""

import numpy as np
import pytest

from fnlkit.core.errors import InputError
from fnlkit.kernels.annotator import fit_annotator


def reference(p, labels, common, *, strength, steps, counts):
    counts, hot = counts.copy(), np.eye(len(common))[labels]
    for _ in range(steps + 1):
        before = counts
        matrix = before + strength * common
        matrix = matrix / np.maximum(matrix.sum(1, keepdims=True), 1e-300)
        q = p * matrix[:, labels].T
        q = q / np.maximum(q.sum(1, keepdims=True), 1e-300)
        counts = q.T @ hot
    return q, matrix, before, counts


@pytest.mark.parametrize(("n", "classes", "steps"), [(0, 3, 2), (1, 2, 0), (40, 4, 5), (300, 11, 3)])
def test_equals_the_reference(n, classes, steps):
    rng = np.random.default_rng(n)
    p, labels = rng.dirichlet(np.full(classes, 0.5), n), rng.integers(0, classes, n)
    common, counts = rng.dirichlet(np.ones(classes), classes), rng.random((classes, classes))
    settings = {"strength": 2.5, "steps": steps, "counts": counts.copy()}
    found = fit_annotator(p, labels, common, **settings)
    for ours, wanted in zip(found, reference(p, labels, common, **settings), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-12, atol=1e-15)
    assert np.array_equal(counts, settings["counts"])


def test_impossible_labels_give_no_nan():
    found = fit_annotator(np.array([[1.0, 0.0]]), [1], np.eye(2), strength=1.0, steps=2)
    assert np.isfinite(found.inferred).all() and found.counts.sum() == 0


@pytest.mark.parametrize("change", [{"labels": [0, 2]}, {"labels": [0]}, {"common": np.eye(3)}, {"counts": np.eye(3)},
                                    {"probabilities": np.ones(2)}])  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(change):
    given = {"probabilities": np.eye(2), "labels": [0, 1], "common": np.eye(2)} | change
    with pytest.raises(InputError, match="must"):
        fit_annotator(**given, strength=1.0, steps=1)
