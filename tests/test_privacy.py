"""Randomised response keeps its promise, what it costs adds up, and an audit tells a wrong mechanism."""

import math
import types

import numpy as np
import pytest

from fnlkit import privacy
from fnlkit.errors import InputError


def test_the_published_epsilons_keep_about_a_fifth():
    for epsilon, classes, keep in ((0.81, 10, 0.2), (3.21, 100, 0.2), (1.17, 14, 0.2)):
        assert privacy.keep_probability(epsilon, classes) == pytest.approx(keep, abs=2e-3)
    # ln(0.2 (K - 1) / 0.8), by hand
    for classes, exact in ((10, 0.81093), (100, 3.20883), (14, 1.17865)):
        assert privacy.epsilon_of(0.2, classes) == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 1.0, 8.0, 20.0])
def test_epsilon_and_keep_probability_are_each_others_inverse(epsilon):
    assert privacy.epsilon_of(privacy.keep_probability(epsilon, 7), 7) == pytest.approx(epsilon, rel=1e-6)


def test_impossible_settings_are_refused():
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="epsilon"):
            privacy.keep_probability(wrong, 10)
    with pytest.raises(InputError, match="between 0.1 and 1"):
        privacy.epsilon_of(0.1, 10)
    with pytest.raises(InputError, match="at least 2"):
        privacy.keep_probability(1.0, 1)


def test_debiasing_solves_the_linear_system():
    """(T_DP^T) q = p with T_DP the k-ary mechanism's matrix; the closed form is its solution."""
    rng = np.random.default_rng(0)
    for classes, epsilon in ((2, 0.3), (10, 0.81), (14, 1.17)):
        keep = privacy.keep_probability(epsilon, classes)
        matrix = np.full((classes, classes), (1 - keep) / (classes - 1))
        np.fill_diagonal(matrix, keep)
        counts = rng.integers(0, 100, classes)
        expected = np.linalg.solve(matrix.T, counts / counts.sum())
        assert privacy.debias(counts, epsilon) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    # The inverse's entries at K = 10, eps = 0.81: 8.21207 on the diagonal, -0.80134 off it, by hand.
    one = privacy.debias(np.eye(10)[0], 0.81)
    assert one[0] == pytest.approx(8.21207, abs=1e-4) and one[1] == pytest.approx(-0.80134, abs=1e-4)
    # At an epsilon that keeps all labels there is nothing to undo.
    assert privacy.debias([3, 1, 0], 1e4).tolist() == [0.75, 0.25, 0]


def test_debiasing_is_unbiased():
    rng = np.random.default_rng(1)
    labels = rng.choice(4, 2000, p=[0.1, 0.2, 0.3, 0.4])
    guesses = [
        privacy.debias(np.bincount(privacy.randomised_response(labels, 4, 1.0, rng), minlength=4), 1.0) for _ in range(300)
    ]
    truth = np.bincount(labels) / 2000
    assert np.abs(np.mean(guesses, 0) - truth).max() < 4 * np.std(guesses, 0).max() / math.sqrt(300)


@pytest.mark.parametrize("how", ["project", "clip"])
def test_the_simplex_is_reached(how):
    rng = np.random.default_rng(2)
    for _ in range(50):
        v = rng.normal(0.2, 0.3, 5)
        v += (1 - v.sum()) / 5
        q = privacy.to_simplex(v, how=how)
        assert q.min() >= 0 and q.sum() == pytest.approx(1)
        if how == "project":  # optimality: v - q is constant where q > 0 and no larger elsewhere
            gap = v - q
            assert np.ptp(gap[q > 0]) < 1e-12 and gap[q == 0].max(initial=-1) <= gap[q > 0].max() + 1e-12
        if (v >= 0).all():
            assert q == pytest.approx(v)
    assert privacy.to_simplex([0.7, 0.5, -0.2]) == pytest.approx([0.6, 0.4, 0])
    assert privacy.to_simplex([0.7, 0.5, -0.2], how="clip") == pytest.approx([7 / 12, 5 / 12, 0])


def test_many_labels_need_no_projection_and_few_do():
    """How often the estimate leaves the simplex, balanced K = 10 at eps 0.81: never at 50,000, nearly always at 500."""
    rng = np.random.default_rng(3)

    def leaves(n):
        told = privacy.randomised_response(np.arange(n) % 10, 10, 0.81, rng)
        return (privacy.debias(np.bincount(told, minlength=10), 0.81) < 0).any()

    def share(n):
        return np.mean([leaves(n) for _ in range(60)])

    assert share(50_000) == 0 and share(500) > 0.85


# ---- the ledger
def run_of(counts, epsilon=0.81, given=(0, 1, 2), clients=2):
    """Return what `releases` reads of a Run."""
    told = {"private_counts": list(counts), "epsilon": [np.float64(epsilon)] * len(counts)}
    entry = types.SimpleNamespace(values=told)
    other = types.SimpleNamespace(values={"lid": [np.float64(1)]})
    return types.SimpleNamespace(
        log=[other, entry],
        labels={"given": np.array(given)},
        client_offsets=np.linspace(0, len(given), clients + 1).astype(int),
        client_indices=np.arange(len(given)),
    )


def test_a_second_run_on_the_same_labels_adds_up_and_a_repeated_one_does_not():
    first, second = run_of([[1, 0, 0], [0, 1, 1]]), run_of([[0, 1, 0], [0, 1, 1]])
    alone = privacy.statement(first)
    assert (alone["label_releases"], alone["label_epsilon"]) == (1, 0.81)
    assert "once" in alone["label_statement"] and "(0.81, 0)-label-DP" in alone["label_statement"]
    both = privacy.statement([first, second])
    assert both["label_releases"] == 2 and both["label_epsilon"] == pytest.approx(1.62)
    assert "2 times" in both["label_statement"]
    assert privacy.statement([first, run_of([[1, 0, 0], [0, 1, 1]])])["label_releases"] == 1
    assert privacy.statement(types.SimpleNamespace(**{**vars(first), "log": first.log[:1]})) == {}
    with pytest.raises(InputError, match="different given labels"):
        privacy.statement([first, run_of([[0, 1, 0], [0, 1, 1]], given=(2, 1, 2))])


def test_the_tight_ledger_is_never_above_the_sum():
    pytest.importorskip("dp_accounting", reason="extra `privacy`")
    for classes, epsilon, times in ((10, 0.81, 1), (10, 0.81, 20), (4, 2.0, 5)):
        tight = privacy.epsilon_at(1e-5, [epsilon] * times, classes)
        assert 0 < tight <= times * epsilon + 1e-6
        if times > 10:
            assert tight < 0.7 * times * epsilon
    # One release at delta 0 costs its epsilon.
    assert privacy.epsilon_at(0, [0.81], 10) == 0.81
    assert privacy.epsilon_at(1e-12, [0.81], 10) == pytest.approx(0.81, abs=1e-3)


def test_randomised_response_has_the_exact_epsilon_of_opendp():
    dp = pytest.importorskip("opendp.prelude", reason="opendp is not installed")
    dp.enable_features("contrib")
    mechanism = dp.m.make_randomized_response(list(range(10)), privacy.keep_probability(1.0, 10))
    assert mechanism.map(1) == pytest.approx(1.0, abs=1e-9)


# ---- the audit
def right(labels, rng, classes=10, epsilon=1.0):
    return privacy.randomised_response(labels, classes, epsilon, rng)


def over_all(labels, rng, classes=10, epsilon=1.0):
    """The common mistake: a label that is not kept is drawn from ALL classes, its own among them."""
    flip = rng.random(len(labels)) >= privacy.keep_probability(epsilon, classes)
    return np.where(flip, rng.integers(0, classes, len(labels)), labels)


def test_a_right_mechanism_passes_and_the_common_mistake_is_flagged():
    good, bad = privacy.audit(right, 10, 1.0), privacy.audit(over_all, 10, 1.0)
    assert good.verdict == "consistent" and 0.93 < good.low < 1.0 < good.high < 1.13
    # keep' = keep + (1 - keep) / 10 = 0.3088, other' = 0.0768: ln 4.02 = 1.391
    assert bad.verdict == "violated" and 1.31 < bad.low < 1.391 < bad.high < 1.52
    assert privacy.audit(right, 10, 2.0).verdict == "wasteful"


def test_a_mechanism_that_never_says_a_class_is_flagged():
    assert privacy.audit(lambda y, rng: y, 4, 5.0, samples=20_000).verdict == "violated"


@pytest.mark.slow
def test_no_false_alarm_in_sixty_seeds():
    found = [privacy.audit(right, 10, 1.0, seed=seed) for seed in range(60)]
    assert all(a.verdict == "consistent" for a in found)
    assert all(privacy.audit(over_all, 10, 1.0, seed=seed).verdict == "violated" for seed in range(60))
