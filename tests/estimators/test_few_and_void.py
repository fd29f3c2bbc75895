"""Federations of few sites, and evidence that says nothing: the estimators say so or do better, never nonsense."""

import dataclasses
import inspect
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import hypergeom

import fnlkit
from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import InputError
from fnlkit.estimators import ESTIMATORS, EstimateOptions, estimate, warm_up_of
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.intervals import share_range
from fnlkit.estimators.judgment import add_judgment, compare
from fnlkit.estimators.warmup import settings_of
from fnlkit.simulate import noise, partitioning
from tests.commands import refuse_call


def federation(digits, clients, model="clients(rho=0.6, tau=0.2)"):
    return noise.inject(partitioning.federation(digits, clients=clients, seed=0), model, seed=0)


@pytest.mark.parametrize(("factor", "mean"), [(1e-5, 0.0), (0.002, 51.5), (1.0, 20_000.0)])
def test_units_do_not_change_what_fedsums_finds(factor, mean):
    rng = np.random.default_rng(0)
    true, wrong = rng.integers(0, 3, 300), rng.random(300) < 0.3
    x = 2 * np.eye(3)[true] + 0.5 * rng.normal(size=(300, 3))
    plain = Federation("x", 3, np.array([0, 100, 300]), np.arange(300), np.where(wrong, (true + 1) % 3, true))
    found = estimate(plain, None, "fedsums", embeddings=mean + factor * x)["estimate_flagged"]
    assert (found == wrong).mean() > 0.97


@pytest.mark.parametrize(("clients", "fraction"), [(1, 1.0), (5, 1.0), (10, 1.0), (20, 0.5), (100, 0.2), (1000, 0.2)])
def test_a_warm_up_takes_every_client_when_they_are_few(clients, fraction):
    assert warm_up_of(clients)["fraction"] == fraction
    assert warm_up_of(clients, {"fraction": 0.3})["fraction"] == 0.3
    evidence = SimpleNamespace(federation=range(clients), warm_up=None, seed=0, run=None, name="loss")
    assert settings_of(evidence).fraction == fraction


def test_five_sites_are_ranked_by_the_noise_that_they_have(digits):
    noisy = federation(digits, 5)
    few = compare(add_judgment(noisy, estimate(noisy, digits, "loss", warm_up={"fraction": 0.2, "rounds": 25})))
    now = compare(add_judgment(noisy, estimate(noisy, digits, "loss")))
    assert now["client_auc"] == 1 and now["sample_auc"] > 0.9
    assert few["client_auc"] < 0.8 and few["sample_auc"] < 0.7  # what one client a round knows


@pytest.mark.parametrize("name", ESTIMATORS)
def test_constant_samples_are_refused_or_called_void_by_every_estimator(name, digits):
    blank = replace(digits, samples=lambda: (np.zeros_like(digits.x_train), np.zeros_like(digits.x_test)))
    noisy, said = federation(blank, 5), []
    try:
        estimate(noisy, blank, name, say=said.append, warm_up={"rounds": 1}, engine="fused")
    except InputError as error:
        said.append(f"refused: {error}")
    assert any(text.startswith("void: ") or "the same for every sample" in text for text in said), said


@pytest.mark.parametrize("name", ["confident", "loss", "anchor", "em"])
def test_predictions_that_do_not_vary_are_refused(name, digits):
    with pytest.raises(InputError, match="`probabilities` are equal for all samples"):
        estimate(federation(digits, 5), digits, name, probabilities=np.full((1438, 10), 0.1))


@pytest.mark.parametrize("name", ["confident", "anchor", "em"])
def test_few_right_labels_do_not_exclude_wrong_ones(name, digits):
    """Wilson's interval of 0 of 14 wrong labels ends at 0.215; no draw of a bootstrap has a wrong label."""
    found = estimate(federation(digits, 100, "none"), digits, name, probabilities=0.9 * np.eye(10)[digits.y_train] + 0.01)
    assert found["estimate_client_level"].max() < 0.02 and (found["estimate_client_level_high"] > 0.2).all()


@pytest.mark.parametrize("name", ["knn", "aum", "fedsums", "confident", "em"])
def test_uninformative_input_gives_a_void_estimate(name, digits):
    rng, noisy, said = np.random.default_rng(0), federation(digits, 5), []
    embedded = name in ("knn", "aum", "fedsums")
    rows = {"embeddings": rng.normal(size=(1438, 4))} if embedded else {"probabilities": rng.dirichlet(np.ones(10), 1438)}
    estimate(noisy, digits, name, say=said.append, **rows)
    assert any(text.startswith("void: ") and "by chance" in text for text in said), said


def test_informative_input_gives_no_void_estimate(digits):
    for model in ("none", "symmetric(eta=0.6)"):
        said = []
        for name in ("knn", "aum", "fedsums"):
            estimate(federation(digits, 5, model), digits, name, say=said.append)
        assert not any("void" in text for text in said)
    evidence, said = EstimatorInputs(federation(digits, 5, "none"), digits, say=lambda text: said.append(text)), []
    evidence.weigh(np.full(1438, 3), "votes for one class")
    assert said and "void" in said[0]


def test_few_samples_are_no_proof_of_void_evidence(digits):
    few = np.random.default_rng(1).permutation(1438)[:300]
    small = replace(digits, y_train=digits.y_train[few], samples=lambda: (digits.x_train[few], digits.x_test))
    said, noisy = [], federation(small, 5, "symmetric(eta=0.4)")
    found = estimate(noisy, small, "aum", say=said.append)
    wrong = noisy.given != small.y_train
    assert found["estimate_issue_score"][wrong].mean() > found["estimate_issue_score"][~wrong].mean()
    assert not any("void" in text for text in said) and any("samples are too few" in text for text in said), said


@pytest.mark.parametrize(("counts", "start"), [
    (1 + 5 * np.eye(10, dtype=int), None), (1 + np.eye(10, dtype=int), "unchecked: pred"),
    (np.full((10, 10), 5), "void: "), (np.zeros((10, 10), int), "unchecked: no sample"),
    ([[277, 9], [6, 8]], "unchecked: pred"),  # 95 %, and 90 % by chance
    ([[2770, 90], [60, 80]], None), ([[9000, 500], [470, 30]], "void: "),  # the latter as by chance
    ([[0, 1], [0, 0]], "unchecked: pred"), ([[0, 2, 1], [0] * 3, [0] * 3], "unchecked: pred"),
    ([[20, 0], [0, 0]], "unchecked: pred"),
])  # fmt: skip
def test_agreement_is_weighed_by_the_number_of_samples(counts, start):
    said = []
    fed = Federation("toy", len(counts), np.array([0, 2, 4]), np.arange(4), np.array([0, 1, 0, 1]))
    EstimatorInputs(fed, None, say=said.append).weigh_counts(np.array(counts), "predictions")
    assert said[0].startswith(start) if start else not said, said


def test_a_single_group_is_not_called_void_by_fedsums(digits):
    said, noisy = [], federation(digits, 5, "none")
    estimate(noisy, digits, "fedsums", groups=np.zeros(len(digits.y_train), int), say=said.append)
    assert any("no sample or group could be left out" in text for text in said) and "void" not in str(said), said


# ---- ranges contain the share with at least the stated probability, computed from all outcomes of small draws
def coverage(wrong, drawn, sizes, confidence):
    """Return the exact probability that the range contains the share."""
    total, out = sum(wrong) / sum(sizes), 0.0
    outcomes = [(x,) for x in range(drawn[0] + 1)]
    if len(sizes) == 2:
        outcomes = [(x, y) for (x,) in outcomes for y in range(drawn[1] + 1)]
    for hits in outcomes:
        chance = np.prod([hypergeom.pmf(x, size, w, n) for x, w, n, size in zip(hits, wrong, drawn, sizes, strict=True)])
        if chance > 0:
            found = share_range(hits, drawn, sizes, confidence=confidence)
            out += chance * (found.low - 1e-12 <= total <= found.high + 1e-12)
    return out


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_coverage_of_one_and_two_strata(confidence):
    for wrong in range(0, 13, 3):
        assert coverage([wrong], [5], [12], confidence) >= confidence - 1e-9
    for first in range(0, 6, 2):
        for second in range(0, 9, 3):
            assert coverage([first, second], [3, 3], [5, 8], confidence) >= confidence - 1e-9


def test_one_stratum_matches_the_binomial_interval_if_it_is_large():
    """Clopper-Pearson for 13 of 100: 7.1 to 21.2 %."""
    found = share_range([13], [100], [10**6])
    assert (round(found.low, 3), round(found.high, 3), found.share) == (0.071, 0.212, 0.13)


def test_good_scores_make_the_range_narrower():
    plain, split = share_range([13], [100], [2000]), share_range([27, 0], [30, 70], [260, 1740])
    assert split.high - split.low < 0.65 * (plain.high - plain.low) and split.low < split.share < split.high


def test_certain_numbers_and_empty_strata():
    assert share_range([3], [10], [10]) == share_range([3, 0], [10, 0], [10, 0]) and share_range([3], [10], [10]).low == 0.3
    unknown = share_range([2, 0], [4, 0], [4, 6])
    assert (unknown.share, unknown.low, unknown.high) == (None, 0.2, 0.8)
    certain = share_range([5, 0], [5, 20], [5, 95])  # five reviewed samples, and 20 drawn from 95
    assert certain.low == 0.05 and 0.1 < certain.high < 0.22
    assert share_range([0], [0], [0]).high == 1.0


def test_a_coarse_grid_stays_valid(monkeypatch):
    from fnlkit.estimators import intervals

    fine = share_range([10, 2], [30, 70], [260, 1740])
    monkeypatch.setattr(intervals, "GRID", 12)
    coarse = share_range([10, 2], [30, 70], [260, 1740])
    assert coarse.low <= fine.low and fine.high <= coarse.high <= fine.high + 0.05


def test_contradictions_are_refused():
    for hits, drawn, sizes in (([3], [2], [9]), ([1], [5], [4]), ([1, 1, 1], [2, 2, 2], [3, 3, 3]), ([1], [2, 2], [3, 3])):
        refuse_call("strata|stratum", share_range, hits, drawn, sizes)


# ---- options of an estimate are declared once
DEFAULTS = {field.name: field.default for field in dataclasses.fields(EstimateOptions)}


def small_federation():
    return Federation("toy", 2, np.array([0, 2, 4]), np.arange(4), np.array([0, 1, 0, 1]))


@pytest.mark.parametrize("function", [estimate, fnlkit.estimate_noise])
def test_the_signature_lists_every_option_with_the_declared_default(function):
    shown = inspect.signature(function).parameters
    assert DEFAULTS.keys() <= shown.keys()
    assert all(shown[name].default == default for name, default in DEFAULTS.items() if name != "say")


@pytest.mark.parametrize("call", [lambda **options: EstimatorInputs(small_federation(), None, **options), EstimateOptions])
def test_unknown_options_and_forms_are_refused(call):
    refuse_call("epoch", call, epoch=3, error=TypeError)
    refuse_call("`form`", call, form="central")


def test_keywords_that_are_no_options_are_settings_of_the_warm_up():
    """The provenance names the settings of the training; `seed` is an option and no such setting."""
    fed = fnlkit.inject_noise(fnlkit.partition("digits", clients=4), "symmetric(eta=0.4)")
    judged = fnlkit.estimate_noise(fed, "loss", say=None, seed=3, rounds=2, warm_up={"lr": 0.5})
    parameters = judged.meta["provenance"][-1]["parameters"]
    assert (parameters["rounds"], parameters["lr"]) == (2, 0.5) and judged.meta["provenance"][-1]["seed"] == 3
    for name in ("knn(k=10)", "confident"):  # no network is trained
        assert "rounds" not in fnlkit.estimate_noise(fed, name, say=None).meta["provenance"][-1]["parameters"]
    refuse_call("`epoch`", fnlkit.estimate_noise, fed, "knn(k=10)", say=None, epoch=3)
