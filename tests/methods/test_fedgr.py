"""FedGR: the loss against the public code's results, the mixture of counted losses, revised labels, the averaged model."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fnlkit.federated.client.client import Batch, LocalModel
from fnlkit.federated.client.losses.filtered import filter_weight
from fnlkit.federated.client.losses.revised import divergence, revised
from fnlkit.methods.fedgr import BINS, WIDTH, average_and_count, fit_losses, path_weights, relabel, revise_labels, stages
from tests.methods.test_golden import golden
from tests.toy import train, visit

CHOSEN = {"confidence": 0.9, "limit": 0.8, "coverage": 0.5, "keep": 0.9, "temperature": 0.5}


def batch_of(target, found, name="features"):
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
        values = revised(logits, batch_of(weight * given + (1 - weight) * guess, found), distil=0, represent=0)
        assert values.mean().item() == pytest.approx(float(wanted), rel=1e-12)
    nothing = batch_of(torch.zeros(12, 4, dtype=torch.float64), found)
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
    settings = {"revising": True, "silent": False} | CHOSEN | changes
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
    assert stages(500, -1, -1) == (100, 100) and stages(8, 3, 0) == (3, 0) and stages(2, -1, -1) == (0, 0)


def test_the_default_path_counts_each_sample_and_reports_the_mixture():
    fed, model, steps = train(method="fedgr", rounds=10)
    assert [step.stage for step in steps] == ["sniffing"] * 2 + ["revision"] * 8
    assert torch.isfinite(model.weights).all()
    for entry, step in zip(fed.log, steps, strict=True):
        assert (np.sum(entry.values["losses"], 1) == fed.sizes.numpy()[entry.kept]).all()
        assert step.report["loss_means"][0] <= step.report["loss_means"][1]
