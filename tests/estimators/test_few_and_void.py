"""Federations of few sites, and evidence that says nothing: the estimators say so or do better, never nonsense."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.core.errors import InputError
from fnlkit.estimators import ESTIMATORS, estimate, warm_up_of
from fnlkit.estimators.apply import add_judgment
from fnlkit.estimators.compare import compare
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.warmup import settings_of
from fnlkit.simulate import noise, partitioning


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


def federation(digits, clients, model="clients(rho=0.6, tau=0.2)"):
    return noise.inject(partitioning.federation(digits, clients=clients, seed=0), model, seed=0)


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


def test_constant_features_are_no_evidence(digits):
    noisy, said = federation(digits, 5), []
    with pytest.raises(InputError, match="the embedding is the same for every sample"):
        estimate(noisy, digits, "knn", embeddings=np.ones((1438, 4)))
    blank = SimpleNamespace(**{n: getattr(digits, n) for n in ("name", "kind", "y_train", "checksum", "features")})
    blank.x_train = np.zeros_like(digits.x_train)
    with pytest.raises(InputError, match="the embedding is the same for every sample"):
        estimate(noisy, blank, "knn", say=said.append)


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
    with pytest.raises(InputError, match="`probabilities` are the same for every sample"):
        estimate(federation(digits, 5), digits, name, probabilities=np.full((1438, 10), 0.1))


@pytest.mark.parametrize("name", ["knn", "confident", "em"])
def test_uninformative_input_gives_a_void_estimate(name, digits):
    rng, noisy, said = np.random.default_rng(0), federation(digits, 5), []
    rows = {"embeddings": rng.normal(size=(1438, 4))} if name == "knn" else {"probabilities": rng.dirichlet(np.ones(10), 1438)}
    estimate(noisy, digits, name, say=said.append, **rows)
    assert any(text.startswith("void: ") and "by chance" in text for text in said), said


def test_informative_input_gives_no_void_estimate(digits):
    for model in ("none", "symmetric(eta=0.6)"):
        said = []
        estimate(federation(digits, 5, model), digits, "knn", say=said.append)
        assert not any("void" in text for text in said)
    evidence, said = EstimatorInputs(federation(digits, 5, "none"), digits, say=lambda text: said.append(text)), []
    evidence.weigh(np.full(1438, 3), "votes for one class")
    assert said and "void" in said[0]
