"""The compiled mixture of two Gaussians equals that of scikit-learn."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from fnlkit.kernels.mixture import gaussians, higher_group, lower_probability, two_components
from fnlkit.kernels.neighbors import nearest, nearest_in_lists

SETTINGS = {"default": {}, "dividemix": {"steps": 10, "tolerance": 1e-2, "ridge": 5e-4}, "one step": {"steps": 1}}


def reference(points, seed, steps=100, tolerance=1e-3, ridge=1e-6):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture = GaussianMixture(2, max_iter=steps, tol=tolerance, reg_covar=ridge, random_state=seed).fit(points)
    return mixture.predict_proba(points), mixture.means_, mixture.covariances_, mixture.weights_


def cloud(kind, n, dims, rng):
    if kind == "two groups":
        return rng.normal(size=(n, dims)) + 4 * (rng.random((n, 1)) < 0.4)
    if kind == "repeated":  # values at irrational distances: no draw and no assignment is a tie
        return np.sqrt([2.0, 3.0, 11.0])[rng.integers(0, 3, n)][:, None] * np.sqrt(np.arange(1.0, dims + 1))
    if kind == "far away":
        return 1e6 + rng.exponential(size=(n, dims))
    return rng.exponential(size=(n, dims))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("kind", ["one group", "two groups", "repeated", "far away"])
@pytest.mark.parametrize(("n", "dims"), [(2, 1), (50, 1), (40, 2), (30, 10)])
def test_gaussians_equal_scikit_learn(n, dims, kind, settings):
    for seed in range(2):
        points = cloud(kind, n, dims, np.random.default_rng(seed))
        if len(np.unique(points[:, 0])) < 2:
            continue
        tolerance = 1e-4 if kind == "far away" else 1e-7
        for found, expected in zip(gaussians(points, seed=seed, **settings), reference(points, seed, **settings), strict=True):
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("high", "scale", "sets"), [(11, 0.1, 100), (3, 1.0, 60)])
def test_tied_values_are_split_as_by_scikit_learn(high, scale, sets):
    """Shares and counts of few clients: a value can lie in the middle of two centers."""
    assert two_components([0.4, 0, 0.4, 0.4, 0.2]).upper.tolist() == [True, False, True, True, False]
    for seed in range(sets):
        rng = np.random.default_rng(seed)
        values = rng.integers(0, high, rng.integers(3, 12)) * scale
        if np.ptp(values):
            share, means, *_ = reference(values[:, None], 0)
            assert np.array_equal(two_components(values).upper, share.argmax(1) == means[:, 0].argmax()), values


def test_groups_of_values_and_rows():
    rng = np.random.default_rng(0)
    values, right = np.concatenate([rng.normal(1, 0.1, 60), rng.normal(3, 0.3, 40)]), np.arange(100) < 60
    found = two_components(values[::-1])
    assert np.array_equal(found.upper[::-1], ~right) and found.means[0] < found.means[1]
    np.testing.assert_allclose(found.shares, [0.6, 0.4], atol=1e-3)
    assert ((lower_probability(values, steps=100) > 0.5) == right).all()
    assert np.array_equal(higher_group(np.c_[values, values[::-1] * 0 + 1, values**2]), ~right)
    assert not two_components(np.full(4, 2.5)).upper.any() and not two_components([]).upper.any()


# ---- the search in inverted lists finds near copies; how often it misses the nearest of other rows
def test_near_copies_are_found_and_other_nearest_rows_often_missed():
    rng = np.random.default_rng(16)
    rows = rng.normal(size=(11_000, 16)).astype(np.float32)
    exact = nearest(rows, 1)[:, 0]
    assert abs((nearest_in_lists(rows, 1)[:, 0] != exact).mean() - 0.25) < 0.03
    rows[5_500:] = rows[:5_500] + 0.01 * rng.normal(size=(5_500, 16)).astype(np.float32)
    assert np.array_equal(nearest_in_lists(rows, 1)[:, 0], (np.arange(11_000) + 5_500) % 11_000)
