"""FedNoRo, FedELC, RoFL, FedLSR, FedELR: core formulas by hand, in float64, and what they find on noisy clients."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fnlkit.core import registry
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses import adjusted_distilled, label_learning, logit_adjusted, near_centroids, self_regularized
from fnlkit.federated.server.clients import Replies
from fnlkit.kernels.mixture import higher_group
from fnlkit.methods.noisy_clients import aware_of_distance, score_classes, stages, teachers_weight
from fnlkit.methods.rofl import class_means, merge_centroids, move_centroids, pseudo_from
from tests.toy import toy, train

C = 3


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ---- FedNoRo
def test_logits_are_adjusted_by_class_shares():
    """softmax(z + log n) is n exp(z), scaled: with z = (0, log 2, 0) and n = (1/2, 1/4, 1/4) it is (2, 2, 1) / 5."""
    z, y = torch.tensor([[0.0, math.log(2), 0.0]] * 3, dtype=torch.float64), torch.arange(3)
    batch = Batch(y=y, state={"class_share": torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)})
    assert logit_adjusted(z, batch).tolist() == pytest.approx([-math.log(v) for v in (0.4, 0.4, 0.2)])
    batch.state["class_share"] = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)  # a class that is not there
    assert logit_adjusted(z, batch).tolist() == pytest.approx([math.log(3), math.log(1.5), 0])


def test_the_teacher_weighs_w_and_is_softened():
    z, t, y = drawn(4, C), drawn(4, C, seed=1), torch.tensor([0, 1, 2, 0])
    batch = Batch(y=y, state={"class_share": torch.full((C,), 1 / 3, dtype=torch.float64)}, teacher=t)
    for w in (0.0, 0.3, 1.0):
        batch.received = {"distil": torch.tensor(w)}
        p, q = z.log_softmax(-1), (t / 0.8).softmax(-1)
        wanted = (1 - w) * F.cross_entropy(z, y, reduction="none") + w * (q * (q.log() - p)).sum(-1)
        torch.testing.assert_close(adjusted_distilled(z, batch), wanted, rtol=1e-6 if w == 0.3 else 1e-12, atol=0)
    batch.state["class_share"] = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    assert torch.isfinite(adjusted_distilled(z, batch)).all()
    z.requires_grad_()
    adjusted_distilled(z, batch).sum().backward()
    assert torch.isfinite(z.grad).all()


def test_the_teachers_weight_rises_as_published():
    rates = {"strength": 0.8, "start": 10, "end": 49}
    assert teachers_weight(10, **rates) == pytest.approx(0.8 * math.exp(-5))
    assert teachers_weight(49, **rates) == teachers_weight(99, **rates) == 0.8
    assert teachers_weight(23, **rates) == pytest.approx(0.8 * math.exp(-5 * (2 / 3) ** 2))
    assert stages(100, -1, -1) == (10, 49) and stages(100, 3, 7) == (3, 7) and stages(120, -1, -1, 1 / 6)[0] == 20


def test_global_pseudo_labels_begin_after_rounds_not_after_a_share():
    """FedCorr, appendix B: T_pl = 100 of 1,000; a short budget keeps half of its rounds for them."""
    assert [pseudo_from(rounds, -1) for rounds in (1000, 300, 200, 60, 1)] == [100, 100, 100, 30, 0]
    assert pseudo_from(60, 6) == 6 and registry.of_budget("rofl", 60) == [30]


def test_far_noisy_clients_weigh_less():
    """Clean at 0 and 1, noisy at 3 and 5: D = 2 and 4, d = 1/2 and 1, weights n exp(-d)."""
    _, model = toy(count=4)
    stacked = torch.zeros(4, len(model.weights), dtype=torch.float64)
    stacked[:, 0], clients = torch.tensor([0.0, 1.0, 3.0, 5.0]), SimpleNamespace(sizes=torch.arange(1.0, 5.0).double())
    said, noisy = Replies({"weights": stacked}, [0, 1, 2, 3]), np.array([False, False, True, True])
    wanted = np.array([1, 2, 3 * math.exp(-0.5), 4 * math.exp(-1)])
    for distance in ("whole", "layers"):
        found = aware_of_distance(clients, model.network, noisy, distance)(said)
        assert found.tolist() == pytest.approx(wanted / wanted.sum(), rel=1e-12)
    stacked[:, -1] = torch.tensor([0.0, 1.0, 4.0, 2.0])  # lengths sqrt(13) and sqrt(17), or 2 + 3 and 4 + 1
    d = math.sqrt(13 / 17)
    found = aware_of_distance(clients, model.network, noisy, "whole")(said)
    assert (found[2] / found[0]).item() == pytest.approx(3 * math.exp(-d))
    found = aware_of_distance(clients, model.network, noisy, "layers")(said)
    assert (found[2] / found[0]).item() == pytest.approx(3 * math.exp(-1))


def test_noisy_clients_are_found_by_losses_per_class():
    rng = np.random.default_rng(0)
    losses = np.r_[rng.normal(0.5, 0.1, (12, 4)), rng.normal(2.0, 0.1, (5, 4))]
    losses[3, 1] = np.nan
    assert np.flatnonzero(higher_group(losses)).tolist() == [12, 13, 14, 15, 16]
    alone = np.array([[1.0, np.nan], [3, 2], [5, 8]])
    assert np.array_equal(higher_group(alone, missing="mean"), higher_group(np.array([[1.0, 5], [3, 2], [5, 8]])))
    assert np.array_equal(higher_group(alone), higher_group(np.array([[1.0, 2], [3, 2], [5, 8]])))
    assert not higher_group(np.ones((4, 3))).any() and not higher_group(np.ones((1, 3))).any()
    fed, model = toy(count=3)
    fed.members[0].y.fill_(2)
    said = fed.round([0], model, score_classes)["class_losses"][0]
    assert said[[0, 1, 3]].tolist() == [-1] * 3
    logits = fed.predict(model.weights, fed.members[0].x)
    assert said[2].item() == pytest.approx(F.cross_entropy(logits, fed.members[0].y).item())


def test_noisy_clients_of_the_toy_are_found():
    """Every other client has 60 % noise: most of those and few others are called noisy.  FedELC finds them by the same code."""
    _, _, steps = train(method="fednoro(warmup=10)", rounds=14, fraction=0.5)
    noisy = next(step.report["noisy_clients"] for step in steps if "noisy_clients" in step.report)
    assert noisy[::2].mean() > noisy[1::2].mean() + 0.3
    assert [step.stage for step in steps].count("warm-up") == 10


# ---- FedELC
def test_labels_go_against_their_own_gradient():
    logits, labels, y = drawn(5, C), drawn(5, C, seed=2).requires_grad_(), torch.tensor([0, 1, 2, 1, 0])
    share = {"class_share": torch.full((C,), 1 / 3, dtype=torch.float64)}
    batch = Batch(y=y, rows={"label_logits": labels.detach()}, state=share, received={"noisy": torch.tensor(1.0)})
    values, rows = label_learning(logits, batch, alpha=0.5, beta=0.2, rate=2.0)
    p, s = logits.softmax(-1), labels.softmax(-1)
    kl, entropy = (p * (p.log() - s.log())).sum(-1), -(p * p.log()).sum(-1)
    torch.testing.assert_close(values, (kl + 0.2 * entropy).detach() / C, rtol=1e-12, atol=0)
    loss = (kl / C + 0.5 * F.cross_entropy(labels, y, reduction="none")).sum()
    (gradient,) = torch.autograd.grad(loss, labels)
    torch.testing.assert_close(rows["label_logits"], (labels - 2.0 * gradient).detach(), rtol=0, atol=1e-12)
    batch.received["noisy"] = torch.tensor(0.0)
    values, rows = label_learning(logits, batch)
    torch.testing.assert_close(values, F.cross_entropy(logits, y, reduction="none"))
    assert torch.equal(rows["label_logits"], labels.detach())


# ---- RoFL
def rofl_by_hand(logits, features, batch, forget, pull, entropy, pseudo):
    losses = F.cross_entropy(logits, batch.y, reduction="none")
    small, total = losses.argsort()[: max(1, int((1 - forget) * len(losses)))].tolist(), 0.0
    for i in small:
        centroids, p = batch.state["centroids"], logits[i].softmax(-1)
        near = int(torch.stack([F.cosine_similarity(features[i], c, 0) for c in centroids]).argmax())
        agree = near == int(batch.y[i])
        label = batch.y[i] if agree or not pseudo else batch.rows["pseudo_label"][i]
        total = total - p[label].log() - entropy * (p * p.log()).sum()
        total = total + pull * agree * (features[i] - centroids[batch.y[i]]).square().mean()
    return total / len(small)


@pytest.mark.parametrize("pseudo", [False, True])
def test_rofl_sample_by_sample(pseudo):
    features, weights, y = drawn(8, 5).requires_grad_(), drawn(5, C, seed=3), torch.randint(0, C, (8,))
    logits = features @ weights
    batch = Batch(y=y, features=features, rows={"pseudo_label": torch.randint(0, C, (8,))})
    batch.state = {"centroids": drawn(C, 5, seed=4)}
    settings = {"forget": 0.4, "pull": 0.7, "entropy": 0.8, "pseudo": pseudo}
    found, wanted = near_centroids(logits, batch, **settings).mean(), rofl_by_hand(logits, features, batch, **settings)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(v, features, retain_graph=True)[0] for v in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-14)


def test_centroids_move_by_their_cosine_and_are_merged_by_it():
    before = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]], dtype=torch.float64)[0]
    clients = torch.tensor([[[2.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [3.0, 0.0]]], dtype=torch.float64)
    found = merge_centroids(clients, before)
    w = math.sqrt(0.5)  # cosines with (1, 0) are 1 and sqrt(1/2); with (0, 2) 0 and 0: it stays
    assert found[0].tolist() == pytest.approx([(2 + w) / (1 + w), w / (1 + w)]) and found[1].tolist() == [0, 2]
    assert merge_centroids(clients)[1].tolist() == [3, 0]  # the first time: the mean over those who have the class
    means, seen = class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), C)
    assert means[:, 0].tolist() == [2, 0, 5] and seen.tolist() == [True, False, True]
    fed, model = toy(count=1)
    client = fed.members[0]
    client.state["centroids"] = drawn(4, 16)
    said = fed.round([0], model, move_whole)["centroids"][0]
    mean = F.relu(client.x @ model.network.module.hidden.weight.T + model.network.module.hidden.bias)
    for j in range(4):
        old, new = client.state["centroids"][j], mean[client.y == j].mean(0)
        c = F.cosine_similarity(old, new, 0) ** 2 if (client.y == j).any() else 0
        torch.testing.assert_close(said[j], (1 - c) * old + (c * new if c else 0))


def move_whole(client, model, received):
    return move_centroids(client, model, received, forget=0.0)


# ---- FedLSR
def test_fedlsr_equals_its_public_code():
    """The sharpened p is taken for logits, JS is a mean over classes, H is that of the softmax of the first view's p^."""
    logits, y, m = drawn(8, C).requires_grad_(), torch.tensor([0, 1, 2, 1]).repeat(2), 0.3
    with torch.no_grad():
        logits[1] *= 30  # p^ below the clamp
    batch = Batch(y=y, uniform=torch.full((8,), m, dtype=torch.float64))
    values, total = self_regularized(logits, batch, consistency=0.4, entropy=0.3), 0.0
    for i in range(4):
        p = (m * logits[i].softmax(-1) + (1 - m) * logits[i + 4].softmax(-1)) ** 2
        p = p / p.sum()
        one, two = ((3 * logits[j]).softmax(-1).clamp(1e-6, 1) for j in (i, i + 4))
        middle = (one + two) / 2
        js = ((one * (one / middle).log()).sum() + (two * (two / middle).log()).sum()) / 2 / C
        q = one.softmax(-1)
        total = total + p.exp().sum().log() - p[y[i]] + 0.4 * js - 0.3 * (q * q.log()).sum()
    torch.testing.assert_close(values.mean(), total / 4, rtol=1e-12, atol=0)
    assert torch.equal(values[:4], values[4:])
    gradients = [torch.autograd.grad(v, logits, retain_graph=True)[0] for v in (values.mean(), total / 4)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-14)


# ---- FedELR
def test_fedelr_is_elr_with_other_numbers():
    weights = [
        train(method=m, rounds=4)[1].weights for m in ("fedelr(strength=3, momentum=0.5)", "elr(strength=3, momentum=0.5)")
    ]
    assert torch.equal(*weights)
    weights = [train(method=m, rounds=2)[1].weights for m in ("fedelr", "elr(strength=2, momentum=0.1)")]
    assert torch.equal(*weights)  # the defaults of its public code
