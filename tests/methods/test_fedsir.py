"""FedSIR and MaskedOptim: subspaces by hand, classes without vectors, single clients, labels and models that they change."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fnlkit.core.errors import InputError
from fnlkit.kernels.subspaces import class_similarity, class_subspaces, classify_by_subspaces, lower_group, merge_subspaces
from fnlkit.methods import fedsir
from fnlkit.methods.fedsir import stages
from fnlkit.methods.maskedoptim import blend_with_received
from tests.toy import train


def blobs(wrong, seed=0, classes=4, d=24, n=80):
    """Return (features, labels, true labels) with a share of labels drawn anew."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), n)
    features = np.eye(d)[y] * 6 + np.abs(rng.normal(size=(len(y), d)))
    return features, np.where(rng.random(len(y)) < wrong, rng.integers(0, classes, len(y)), y), y


def test_the_vector_of_a_single_sample_is_the_sample_up_to_length_and_sign():
    sample = np.array([3.0, 0.0, 4.0])
    directions, _, _ = class_subspaces(np.stack([sample, [1, 1, 0], [1, 0, 0]]), [0, 1, 1], 2)
    assert np.abs(directions[0]) == pytest.approx(sample / 5)


def test_too_small_classes_are_compared_only_if_nothing_else_is_left():
    v = np.array([[1, 0], [0.6, 0.8], [0, 1]])
    assert class_similarity(v, [20, 20, 19]) == pytest.approx((0.6, 0.36))
    assert class_similarity(v, [20, 19, 19]) == pytest.approx((1.4 / 3, 1 / 3))
    assert class_similarity(v[:1], [50]) == (0.0, 0.0) and class_similarity(np.zeros((2, 2)), [0, 0]) == (0.0, 0.0)


def test_a_consensus_without_agreement_is_the_largest_client():
    """Two clients of equal weight with orthogonal vectors: both eigenvalues are 1/2."""
    directions, residuals = np.array([[[1.0, 0]], [[0, 1]]]), np.array([[[[0.0, 1]]], [[[1, 0]]]])
    spectra = np.array([[[200, 0.5, 0.5]], [[100, 1, 0.5]]])
    merged, rest = merge_subspaces(directions, residuals, spectra)
    assert merged.tolist() == [[1, 0]] and rest.tolist() == [[[0, 1]]]
    spectra[1, 0, 0] = 99  # below the limit: no weight
    merged, rest = merge_subspaces(directions, residuals, spectra)
    assert np.abs(merged) == pytest.approx(np.array([[1, 0]])) and np.abs(rest[0]) == pytest.approx(np.array([[0, 1]]))
    spectra[:, 0, 0] = 30, 40  # nobody has the samples: the client with most
    assert merge_subspaces(directions, residuals, spectra)[0].tolist() == [[0, 1]]
    assert not merge_subspaces(0 * directions, 0 * residuals, 0 * spectra)[0].any()


def test_subspaces_correct_labels_of_separated_classes():
    features, labels, true = blobs(0.0)
    directions, residuals, _ = class_subspaces(features, labels, 4)
    features, labels, true = blobs(0.4, seed=1)
    along, away = classify_by_subspaces(features, directions, residuals)
    relabeled = np.where(along == away, along, labels)
    assert (labels == true).mean() < 0.75 < 0.8 < (relabeled == true).mean()
    directions[2] = residuals[2] = 0  # a class that no clean client has
    along, away = classify_by_subspaces(features, directions, residuals)
    assert 2 not in along and 2 not in away
    assert [set(each.tolist()) for each in classify_by_subspaces(features, 0 * directions, 0 * residuals)] == [{-1}, {-1}]


def test_the_group_with_less_similarity_is_clean():
    points = np.r_[np.full((3, 2), 0.2), np.full((2, 2), 0.6)] + np.random.default_rng(0).normal(0, 0.01, (5, 2))
    assert lower_group(points).tolist() == [True, True, True, False, False]
    assert lower_group(np.ones((3, 2))).all() and lower_group(np.ones((1, 2))).all()


def test_published_stages():
    assert stages(100, -1, -1, -1) == (20, 2, 49) and stages(3, -1, -1, -1)[0] == 1 and stages(9, 4, 0, 5) == (4, 0, 5)


def test_clean_clients_keep_their_labels_and_noisy_ones_repeat_the_relabeling():
    fed, _, steps = train(method="fedsir(least_similar=3, least_reference=4)", rounds=12, fraction=0.5)
    noisy = steps[0].report["noisy_clients"]
    assert noisy.any() and not noisy.all() and [step.stage for step in steps].count("noise-aware") == 10
    changed = np.array([not torch.equal(client.y, client.given) for client in fed.members])
    assert not changed[~noisy].any() and changed[noisy].any()
    for i in np.flatnonzero(noisy):
        client = fed.members[i]
        assert torch.equal(client.y[client.rows["distilled"]], client.given[client.rows["distilled"]])


def test_a_budget_without_the_identification_is_refused():
    with pytest.raises(InputError, match="costs 4 of 3 rounds; raise `rounds` or `fraction`"):
        train(method="fedsir", rounds=3, fraction=0.25)


def test_one_client_is_clean_and_is_not_relabeled():
    fed, model, steps = train(method="fedsir", rounds=5, fraction=1.0, count=1)
    assert steps[0].report["noisy_clients"].tolist() == [False] and torch.isfinite(model.weights).all()
    assert torch.equal(fed.members[0].y, fed.members[0].given) and "subspaces" not in fed.traffic.sent


def test_without_clean_clients_nobody_is_relabeled(monkeypatch):
    monkeypatch.setattr(fedsir, "lower_group", lambda points: np.zeros(len(points), bool))
    fed, model, steps = train(method="fedsir", rounds=8, fraction=0.5)
    assert steps[0].report["noisy_clients"].all() and torch.isfinite(model.weights).all()
    assert all(torch.equal(client.y, client.given) for client in fed.members) and "subspaces" not in fed.traffic.sent


# ---- MaskedOptim
def test_a_noisy_client_replies_a_mean_with_the_received_model():
    for noisy, wanted in ((1.0, [0.8, 3.6]), (0.0, [1.0, 4.0])):
        model = SimpleNamespace(start=torch.tensor([0.0, 2.0]), weights=torch.tensor([1.0, 4.0]))
        blend_with_received(None, model, {"noisy": torch.tensor(noisy)}, inertia=0.2)
        assert model.weights.tolist() == pytest.approx(wanted)


def test_models_are_merged_by_their_geometric_median_unless_the_run_has_another_aggregator():
    """One round of warm-up, which trains all clients alike: the aggregators alone differ."""
    ends = {
        each: train(method="maskedoptim(warmup=9)", aggregator=each, rounds=1, fraction=1.0, count=6)[1].weights
        for each in ("mean", "rfa(variant=public)", "median")
    }
    assert torch.equal(ends["mean"], ends["rfa(variant=public)"]) and not torch.allclose(ends["mean"], ends["median"])
