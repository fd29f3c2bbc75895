"""FedRG, FedReDA, FedSIR, MaskedOptim and FedGR against results of public code, by hand, and on small or single clients."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fnlkit.core import registry
from fnlkit.federated.client.client import Batch, LocalModel
from fnlkit.federated.client.losses.absorbing import absorbing
from fnlkit.federated.client.losses.filtered import filter_weight
from fnlkit.federated.client.losses.reliable import reliable
from fnlkit.federated.client.losses.revised import divergence, revised
from fnlkit.federated.client.network import Model
from fnlkit.kernels.subspaces import class_similarity, class_subspaces, classify_by_subspaces, lower_group, merge_subspaces
from fnlkit.methods import fedsir
from fnlkit.methods.fedgr import (
    BINS,
    WIDTH,
    average_and_count,
    fit_losses,
    path_weights,
    relabel,
    revise_labels,
)
from fnlkit.methods.fedgr import (
    stages as fedgr_stages,
)
from fnlkit.methods.fedreda import FEWEST, find_small_losses, judge_samples, predict_as_teacher, teachers_of
from fnlkit.methods.fedrg import find_noisy, judge_by_geometry, learn_absorption, posteriors, start_mixture, update_mixture
from fnlkit.methods.fedsir import stages
from fnlkit.methods.maskedoptim import blend_with_received
from tests.commands import refuse_call
from tests.methods.test_golden import Scored, golden
from tests.methods.test_methods import run
from tests.toy import toy, train, visit

# ---- FedRG, FedReDA, FedSIR and MaskedOptim against results of public code, by hand, and on small or single clients
CHOSEN = {"groups": -1, "threshold": 0.5, "temperature": 2.0, "rate": 0.1, "batch_size": 10}


def test_two_batches_give_the_public_codes_evidence_and_mixture():
    """With one view: its certainty of a sample, from two views, is then 1 for all."""
    found = golden("fedrg")
    z = found["embedding"] / (np.linalg.norm(found["embedding"], axis=1, keepdims=True) + 1e-8)
    mixture = start_mixture(5, 4, 6, np.random.default_rng(0)) | {"directions": found["start"]}
    for batch in (slice(0, 30), slice(30, 60)):
        labels = found["labels"][batch]
        group, other = posteriors(mixture, z[batch], 2.0)
        np.testing.assert_allclose(group.sum(1) + other, 1)
        evidence = (mixture["map"][labels] * group).sum(1)
        np.testing.assert_allclose(evidence, found["evidence"][batch], rtol=1e-9)
        noisy = find_noisy(evidence, 0.5)
        assert np.array_equal(noisy, found["noisy"][batch]) and 0 < noisy.sum() < 30
        update_mixture(mixture, z[batch], labels, group, other, ~noisy, 0.1)
    for name, value in mixture.items():
        np.testing.assert_allclose(value, found[name], rtol=1e-9, err_msg=name)


def first_batch(found):
    noisy = torch.from_numpy(found["noisy"][:30]).double()
    state = {"rg_absorption": torch.from_numpy(found["absorption"])}
    return Batch(y=torch.from_numpy(found["labels"][:30]), rows={"rg_noisy": noisy}, state=state)


def test_loss_and_gradient_equal_the_public_codes():
    found = golden("fedrg")
    logits = torch.from_numpy(found["logits"][:30]).requires_grad_()
    value = absorbing(logits, first_batch(found)).mean()
    assert value.item() == pytest.approx(float(found["loss"]), rel=1e-9)
    np.testing.assert_allclose(torch.autograd.grad(value, logits)[0].numpy(), found["gradient"], rtol=1e-6, atol=1e-9)


def test_a_step_of_the_matrix_is_the_public_codes_gradient_then_rows_sum_to_one():
    found, (fed, _) = golden("fedrg"), toy(count=1)
    client, batch = fed.members[0], first_batch(found)
    client.samples, client.y, client.given = torch.zeros(30, 1), batch.y, batch.y
    client.rows, client.state = dict(batch.rows), dict(batch.state)
    learn_absorption(client, Scored(torch.from_numpy(found["logits"][:30])), {}, lr=0.01, momentum=0.9, absorb=1.0, epochs=1)
    wanted = np.maximum(found["absorption"] - 0.01 * found["gradient_absorption"], 1e-6)
    np.testing.assert_allclose(client.state["rg_absorption"].numpy(), wanted / wanted.sum(1, keepdims=True), rtol=1e-6)
    assert "rg_noisy" not in client.rows
    client.rows["rg_noisy"] = torch.zeros(30)
    before = client.state["rg_absorption"]
    learn_absorption(client, None, {}, lr=0.01, momentum=0.9, absorb=1.0, epochs=1)  # no noisy sample, no step
    assert client.state["rg_absorption"] is before


@pytest.mark.parametrize("evidence", [[], [0.3], [0.3, 0.3, 0.3]])
def test_equal_evidence_is_clean(evidence):
    assert not find_noisy(np.array(evidence), 0.5).any()


@pytest.mark.parametrize("size", [1, 2])
def test_a_client_of_few_samples_or_without_a_direction_is_judged(size):
    *_, client, local = visit()
    client.samples, client.y, client.given = client.x[:size], client.y[:size], client.given[:size]
    client.rows["input/embedding"] = torch.zeros(size, 3)
    client.begin_round(0, 0)
    for _ in range(2):
        judge_by_geometry(client, local, {}, **CHOSEN)
        assert torch.isfinite(client.rows["rg_noisy"]).all() and client.state["rg_directions"].shape == (4, 3)
        assert all(torch.isfinite(value).all() for value in client.state.values())


def test_the_default_path_needs_an_embedding_and_sends_only_weights():
    assert registry.needs("fedrg") == {"embedding"}
    fed, model, _ = run("fedrg", rounds=4)
    assert torch.isfinite(model.weights).all() and set(fed.traffic.sent) == {"weights"}


# ---- FedReDA
def batch_of(found, **rows):
    tensors = {name: torch.from_numpy(found[key]) for name, key in
               (("reda_teacher", "teacher"), ("reda_clean", "probability"), ("reda_loss", "before"))}  # fmt: skip
    tensors |= {"reda_uses": torch.zeros(len(found["labels"]), dtype=torch.float64)} | rows
    return Batch(y=torch.from_numpy(found["labels"]), rows=tensors, state={"class_share": torch.from_numpy(found["shares"])})


def test_loss_gradient_and_average_losses_equal_the_public_codes():
    found = golden("fedreda")
    logits = torch.from_numpy(found["logits"]).requires_grad_()
    values, rows = reliable(logits, batch_of(found))
    assert values.mean().item() == pytest.approx(float(found["loss"]), rel=1e-12)
    gradient = torch.autograd.grad(values.mean(), logits)[0]
    np.testing.assert_allclose(gradient.numpy(), found["gradient"], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(rows["reda_loss"].numpy(), found["average"], rtol=1e-12)
    assert np.array_equal(rows["reda_uses"].numpy() > 0, found["used"]) and 0 < found["used"].sum() < 16


def test_small_losses_by_class_equal_the_public_codes():
    found = golden("fedreda")
    clean = find_small_losses(found["losses"], found["loss_labels"])
    assert np.array_equal(clean, found["clean"])
    assert clean[found["loss_labels"] == 2].all()  # 12 samples are too few for a mixture
    assert find_small_losses(np.ones(FEWEST + 5), np.zeros(FEWEST + 5, int)).all()


def test_the_teacher_is_the_mean_of_the_other_clients():
    start = torch.tensor([9.0, 9.0])
    model = Model(None, start)
    memory = {f"fedreda/{i}": torch.tensor([float(i), 2.0 * i]) for i in (0, 1, 3)}
    found = teachers_of(np.array([0, 2, 3]), model, memory, 4)
    torch.testing.assert_close(found, torch.tensor([[2, 4], [4 / 3, 8 / 3], [0.5, 1]]))  # client 2 has no model yet
    assert teachers_of(np.array([1, 0]), model, {"fedreda/1": start / 9}, 2).tolist() == [[9, 9], [1, 1]]


def test_probabilities_move_by_a_fifth_and_the_reply_is_the_share_of_clean_uses():
    fed, model, client, local = visit(2, 1)
    predict_as_teacher(client, local, {"teacher": 2 * model.weights})
    torch.testing.assert_close(client.rows["reda_teacher"], fed.predict(2 * model.weights, client.x))
    assert (client.rows["reda_loss"] == -1).all() and (client.rows["reda_clean"] == 1).all()
    client.y[:] = 0
    client.rows["reda_loss"] = torch.linspace(0, 1, len(client), dtype=torch.float64) ** 4
    client.rows["reda_uses"] = torch.full((len(client),), 3.0, dtype=torch.float64)
    reply = judge_samples(client, local, {}, judge=False, momentum=0.8, epochs=4)
    assert reply["clean_share"] == 0.75 and (client.rows["reda_clean"] == 1).all()
    assert set(client.rows) == {"reda_loss", "reda_clean"}
    predict_as_teacher(client, local, {"teacher": model.weights})
    judge_samples(client, local, {}, judge=True, momentum=0.8, epochs=4)
    clean = torch.from_numpy(find_small_losses(client.rows["reda_loss"].numpy(), client.y.numpy()))
    assert len(client) >= FEWEST and 0 < clean.sum() < len(client)
    torch.testing.assert_close(client.rows["reda_clean"], torch.where(clean, 1.0, 0.8).double())


def test_the_default_path_weights_clients_equally_then_by_their_clean_share(monkeypatch):
    from fnlkit.federated.server.optimizers.optimizer import FedOpt

    counted, real = [], FedOpt._counted

    def record(self, clients, replies, weights):
        out = real(self, clients, replies, weights)
        counted.append((out[1].tolist(), replies["clean_share"].tolist() if "clean_share" in replies else None))
        return out

    monkeypatch.setattr(FedOpt, "_counted", record)
    fed, model, steps = train(method="fedreda", rounds=7)
    assert [step.stage for step in steps] == ["warm-up"] + ["reliability"] * 6 and torch.isfinite(model.weights).all()
    assert all(set(weights) == {1.0} for weights, _ in counted[:4])
    assert all(weights == pytest.approx(shares) for weights, shares in counted[4:]) and len(counted) == 7
    last = steps[-1].report["clean_share"]
    assert len(last) == len(fed) and 0 < last.min() <= 1


# ---- FedSIR and MaskedOptim
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
    refuse_call("costs 4 of 3 rounds; raise `rounds` or `fraction`", train, method="fedsir", rounds=3, fraction=0.25)


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


# ---- FedGR: the loss against the public code's results, the mixture of counted losses, revised labels, the averaged model
DEFAULTS = {"confidence": 0.9, "limit": 0.8, "coverage": 0.5, "keep": 0.9, "temperature": 0.5}


def batch_with_target(target, found, name="features"):
    rows = {"gr_target": target, "gr_teacher": torch.from_numpy(found["teacher"] / 0.5).softmax(-1)}
    rows["gr_global"] = torch.from_numpy(found["global_features"] / 0.5).softmax(-1)
    return Batch(y=torch.from_numpy(found["labels"]), rows=rows, features=torch.from_numpy(found[name]))


def test_loss_equals_the_public_codes_terms():
    """Its weights (B, 1) meet losses (B,), so that its label term weights every sample with the mean weight of the batch."""
    found = golden("fedgr")
    logits, labels, revised_to = (torch.from_numpy(found[name]) for name in ("logits", "labels", "revised"))
    clean = torch.from_numpy(found["clean"])
    assert torch.equal(
        relabel(torch.full_like(labels, -1), labels, clean, torch.from_numpy(found["global_logits"]), 0.9), revised_to
    )
    given = F.one_hot(labels, 4).double()
    guess = F.one_hot(revised_to.clamp_min(0), 4).double() * (revised_to >= 0)[:, None]
    for weight, wanted in ((clean[:, None], found["blended"]), (0, found["revised_only"]), (clean.mean(), found["broadcast"])):
        values = revised(logits, batch_with_target(weight * given + (1 - weight) * guess, found), distil=0, represent=0)
        assert values.mean().item() == pytest.approx(float(wanted), rel=1e-12)
    nothing = batch_with_target(torch.zeros(12, 4, dtype=torch.float64), found)
    for weights, name in (({"distil": 0, "represent": 1}, "represent"), ({"distil": 1, "represent": 0}, "distil")):
        assert revised(logits, nothing, **weights).mean().item() == pytest.approx(float(found[name]), rel=1e-9)
    both = revised(logits, nothing, distil=2, represent=3).mean().item()
    assert both == pytest.approx(2 * found["distil"] + 3 * found["represent"], rel=1e-9)


def test_divergence_of_certain_targets_is_the_cross_entropy():
    logits = torch.tensor([[1.0, 0.0, -2.0]], requires_grad=True)
    value = divergence(torch.tensor([[0.0, 1.0, 0.0]]), logits)
    torch.testing.assert_close(value, F.cross_entropy(logits, torch.tensor([1]), reduction="none"))
    assert torch.isfinite(torch.autograd.grad(value.sum(), logits)[0]).all()


def test_mixture_of_counts_is_that_of_the_losses():
    """Half a bin is the largest error of a loss; only probabilities at the border of the two Gaussians differ."""
    found = golden("fedgr")
    counts = np.bincount((found["losses"] / WIDTH).astype(int), minlength=BINS)
    mixture = fit_losses(counts)
    clean = filter_weight(torch.from_numpy(found["losses"]), torch.from_numpy(mixture)).numpy()
    assert np.abs(clean - found["probability"]).max() < 0.03
    assert ((clean >= 0.5) != (found["probability"] >= 0.5)).sum() <= 1
    assert mixture[0, 0] < mixture[0, 1] and mixture[2].sum() == pytest.approx(1)


@pytest.mark.parametrize("place", [0, 17, BINS - 1])
def test_equal_losses_are_all_clean(place):
    mixture = torch.from_numpy(fit_losses(np.bincount([place] * 3, minlength=BINS)))
    assert filter_weight(torch.tensor([0.0, place * WIDTH, 50.0], dtype=torch.float64), mixture).tolist() == [1, 1, 1]


def test_weights_of_a_straight_path_are_those_of_step_by_step_averages():
    rng = np.random.default_rng(0)
    for steps, beta in ((1, 0.99), (7, 0.9), (160, 0.99), (3, 0.0), (3, 1.0)):
        average, first, last = rng.normal(size=3)
        wanted = average
        for t in range(1, steps + 1):
            wanted = beta * wanted + (1 - beta) * (first + t / steps * (last - first))
        assert np.dot(path_weights(steps, beta), [average, first, last]) == pytest.approx(wanted)


def test_revised_labels_by_hand():
    """Clean: the given label; noisy: a confident guess, else the label of an earlier visit."""
    logits = torch.tensor([[9.0, 0, 0], [9.0, 0, 0], [0, 1.0, 0], [0, 1.0, 0]])
    clean, labels = torch.tensor([0.5, 0.4, 0.1, 0.1]), torch.tensor([2, 2, 2, 2])
    assert relabel(torch.tensor([-1, -1, -1, 0]), labels, clean, logits, 0.9).tolist() == [2, 0, -1, 0]


def revise(client, local, mixture, **changes):
    received = {"mixture": torch.as_tensor(mixture, dtype=torch.float64)}
    settings = {"revising": True, "silent": False} | DEFAULTS | changes
    revise_labels(client, local, received, **settings)


def test_a_visit_uses_the_losses_of_earlier_visits_and_averages_them():
    fed, model, client, local = visit(2, 1)
    losses = F.cross_entropy(local(client.x), client.y, reduction="none")
    revise(client, local, np.zeros((3, 2)), revising=False)
    torch.testing.assert_close(client.rows["gr_loss"], losses)
    assert (
        torch.equal(client.rows["gr_target"], F.one_hot(client.y, 4).to(model.weights)) and (client.rows["gr_label"] < 0).all()
    )
    torch.testing.assert_close(client.state["gr_average"], model.weights)
    cut = losses.sort().values[len(client) // 2]
    mixture = [[0.0, 2 * float(cut)], [0.1, 0.1], [0.5, 0.5]]  # clean below the middle
    before = client.rows["gr_loss"].clone()
    later = LocalModel(fed.network, model.weights, 2 * model.weights, client.inputs)
    revise(client, later, mixture, silent=False)
    second = F.cross_entropy(later(client.x), client.y, reduction="none")
    torch.testing.assert_close(client.rows["gr_loss"], (before + second) / 2)
    clean = filter_weight(before, torch.tensor(mixture, dtype=torch.float64))
    kept = clean >= 0.5
    assert 0 < kept.sum() < len(client) and torch.equal(client.rows["gr_label"][kept], client.y[kept])
    torch.testing.assert_close(client.rows["gr_target"][kept], F.one_hot(client.y[kept], 4).double())
    doubtful = ~kept & (client.rows["gr_label"] < 0)
    torch.testing.assert_close(client.rows["gr_target"][doubtful].sum(-1), clean[doubtful])
    torch.testing.assert_close(client.state["gr_average"], 0.9 * model.weights + 0.1 * later.weights)
    torch.testing.assert_close(client.rows["gr_teacher"], (fed.predict(client.state["gr_average"], client.x) / 0.5).softmax(-1))
    torch.testing.assert_close(client.rows["gr_global"], (later.features(client.x) / 0.5).softmax(-1))
    reply = average_and_count(client, later, {}, beta=0.9, epochs=2, batch_size=4)
    assert set(client.rows) == {"gr_loss", "gr_label"} and reply["losses"].sum() == len(client)
    assert reply["losses"][int(client.rows["gr_loss"][0] / WIDTH)] > 0


def test_a_client_of_mostly_noisy_samples_trains_on_revised_labels_and_restarts_its_average():
    _, model, client, local = visit(2, 1)
    revise(client, local, np.zeros((3, 2)), revising=False)
    client.state["gr_average"] = torch.zeros_like(model.weights)
    revise(client, local, [[-9.0, 1.0], [0.01, 1.0], [0.5, 0.5]], confidence=1.0)  # all noisy, and no guess is confident enough
    assert (client.rows["gr_target"] == 0).all() and (client.rows["gr_label"] == -1).all()
    torch.testing.assert_close(client.state["gr_average"], model.weights)
    client.state["gr_average"] = torch.zeros_like(model.weights)
    revise(client, local, [[-9.0, 1.0], [0.01, 1.0], [0.5, 0.5]], confidence=0.0)
    assert torch.equal(client.rows["gr_target"].argmax(-1), local(client.x).argmax(-1))
    torch.testing.assert_close(client.state["gr_average"], 0.1 * model.weights)


def test_stages_are_a_fifth_of_the_rounds():
    assert fedgr_stages(500, -1, -1) == (100, 100) and fedgr_stages(8, 3, 0) == (3, 0) and fedgr_stages(2, -1, -1) == (0, 0)


def test_the_default_path_counts_each_sample_and_reports_the_mixture():
    fed, model, steps = train(method="fedgr", rounds=10)
    assert [step.stage for step in steps] == ["sniffing"] * 2 + ["revision"] * 8
    assert torch.isfinite(model.weights).all()
    for entry, step in zip(fed.log, steps, strict=True):
        assert (np.sum(entry.values["losses"], 1) == fed.sizes.numpy()[entry.kept]).all()
        assert step.report["loss_means"][0] <= step.report["loss_means"][1]
