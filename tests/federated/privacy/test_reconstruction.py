"""Attacks of the benchmark `reconstruction` on tiny inputs, and the table of docs/privacy.md."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import reconstruction
from benchmarks.reconstruction import closed_form, of_sums, page_table, recovered, span

ROOT = Path(__file__).parents[3]


def samples(n, width=16):
    """Return non-negative samples with zeros, like features after ReLU."""
    return np.maximum(np.random.default_rng(0).normal(size=(n, width)), 0)


def test_the_update_of_a_single_sample_is_the_sample():
    """The gradient of W is g x' and that of b is g, so that a row divided by the entry of b is x."""
    x, g = np.array([0.5, 0.0, 2.0]), np.array([3.0, 0.0, -1.0])
    found = closed_form(np.outer(g, x), g)
    np.testing.assert_allclose(found, [x, x])  # no row of a unit without gradient


def test_sums_of_several_passes_reveal_samples_and_one_mean_of_many_does_not():
    x, rng = samples(8, reconstruction.WIDTH), np.random.default_rng(2)
    passes = [rng.dirichlet(np.ones(10), 8).T @ x for _ in range(2)]
    assert recovered(of_sums(passes, rng), x, x, scaled=True)[0] == 1.0
    mean = samples(40).mean(0, keepdims=True)
    assert recovered(span(mean, rng), samples(40), samples(40), scaled=True)[0] == 0.0


def test_recovered_by_hand():
    """Neighbors are 1 apart: a candidate 0.4 away is near enough, one 0.6 away is not."""
    own = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    found = np.array([[1.0, 0.0], [2.4, 0.0]])
    assert recovered(found, own, own) == pytest.approx((1 / 3, 2 / 3))
    assert recovered(np.array([[1.0, 0.6]]), own[:1], own) == (0.0, 0.0)
    assert recovered(np.zeros((0, 2)), own, own) == recovered(np.full((1, 2), np.nan), own, own) == (0.0, 0.0)


def test_a_run_of_fedavg_reveals_a_single_sample():
    assert reconstruction.attack("fedavg", reconstruction.Data(0), 1, rounds=1)["weights"] == (1.0, 1.0)


def test_the_table_of_the_page_is_that_of_the_stored_output():
    stored = (ROOT / "benchmarks/results/reconstruction.txt").read_text()
    assert "\n".join(page_table(stored)) in (ROOT / "docs/privacy.md").read_text()
