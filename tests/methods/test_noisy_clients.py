"""FedNoRo, FedELC, RoFL, FedLSR, FedELR, FedRN, FedDiv: formulas by hand, in float64, and what they find on noisy clients."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.mixture import GaussianMixture

from fnlkit.core import registry
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.adjusted import adjusted_distilled, label_learning, logit_adjusted
from fnlkit.federated.client.losses.centroids import near_centroids
from fnlkit.federated.client.losses.consistency import self_regularized
from fnlkit.federated.client.losses.filtered import consistent, filter_weight
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.clients import Replies
from fnlkit.kernels.mixture import fit_from, higher_group
from fnlkit.methods.feddiv import filter_losses, filter_samples, first_visits, update_bias
from fnlkit.methods.fedrn import reliabilities, select_clean
from fnlkit.methods.noisy_clients import aware_of_distance, score_classes, stages, teachers_weight
from fnlkit.methods.rofl import class_means, merge_centroids, move_centroids, pseudo_from
from tests.toy import toy, train, visit

C = 3


def test_reliable_neighbors_are_expert_and_similar():
    """Known are 0, 1, 2: expertise scaled is 0, 1, 1/2; similarity to 0 is 1, 0, -1, scaled 1, 1/2, 0."""
    expertise, known = np.array([0.5, 0.9, 0.7, 0.99]), np.array([True, True, True, False])
    outputs = np.array([[1.0, 0], [0, 2], [-3, 0], [1, 0]])
    judges, weights = reliabilities(0, expertise, outputs, known, k=1, share=0.6)
    score = {0: 0.4 * 1, 1: 0.6 * 1 + 0.4 * 0.5, 2: 0.6 * 0.5}
    assert judges.tolist() == [0, 1] and weights == pytest.approx([score[0] / (score[0] + score[1]), score[1] / 1.2])
    judges, weights = reliabilities(0, expertise, outputs, known, k=5, share=0.6)
    assert judges.tolist() == [0, 1, 2] and weights.sum() == pytest.approx(1)
    assert len(reliabilities(3, expertise, outputs, known, k=2, share=0.6)[0]) == 0
    alone = reliabilities(1, expertise, outputs, np.arange(4) == 1, k=2, share=0.6)
    assert alone[0].tolist() == [1] and alone[1].tolist() == [1]


def test_judges_are_averaged_by_their_reliability():
    fed, model, client, local = visit(2, 1)
    client.y[:2] = (client.y[:2] + 1) % 4
    good, bad = model.weights.clone(), torch.randn_like(model.weights)
    for weights in ([1.0, 0.0], [0.3, 0.7]):
        received = {"judges": torch.stack([good, bad]), "reliability": torch.tensor(weights, dtype=torch.float64)}
        select_clean(client, local, received, threshold=0.5, seed=0)
        total = np.zeros(len(client))
        for vector, share in zip((good, bad), weights, strict=True):
            losses = F.cross_entropy(fed.predict(vector, client.x), client.y, reduction="none").numpy()
            scaled = ((losses - losses.min()) / np.ptp(losses))[:, None]
            mixture = GaussianMixture(2, max_iter=100, tol=1e-2, reg_covar=5e-4, random_state=0).fit(scaled)
            total += share * mixture.predict_proba(scaled)[:, mixture.means_[:, 0].argmin()]
        keep = client.rows["keep"]
        assert np.array_equal(keep.numpy() > 0, total > 0.5) and keep.sum().item() == pytest.approx(len(client))


def test_a_filter_equals_scikit_learns_fit():
    rng = np.random.default_rng(0)
    values = np.r_[rng.normal(0.4, 0.1, 300), rng.normal(2.0, 0.5, 100)]
    mean, variance, share = fit_from(values, steps=1000)
    mixture = GaussianMixture(2, tol=1e-6, max_iter=1000, reg_covar=1e-6, random_state=0).fit(values[:, None])
    order = mixture.means_[:, 0].argsort()
    assert mean == pytest.approx(mixture.means_[order, 0], abs=0.02)
    assert variance == pytest.approx(mixture.covariances_[order, 0, 0], rel=0.1)
    assert share == pytest.approx(mixture.weights_[order], abs=0.02)
    again = fit_from(values, np.stack([mean, variance, share]))
    assert again == pytest.approx(np.stack([mean, variance, share]), abs=1e-2)
    for few in ([1.0], [2.0, 2.0], [0.0, 5.0]):
        assert np.isfinite(fit_from(few)).all() and (fit_from(few)[1] > 0).all()


def test_the_filters_probability_by_hand():
    """At the middle of two equal Gaussians it is the clean share; densities elsewhere by the formula."""
    filter = torch.tensor([[0.0, 2.0], [1.0, 1.0], [0.7, 0.3]], dtype=torch.float64)
    found = filter_weight(torch.tensor([1.0, 0.5], dtype=torch.float64), filter)
    clean, noisy = 0.7 * math.exp(-0.125), 0.3 * math.exp(-1.125)
    assert found.tolist() == pytest.approx([0.7, clean / (clean + noisy)])


OPTIONS = {"level": 0.1, "relabel_level": 0.2, "confidence": 0.5, "losses": "plain", "clean_visits": 0}


def judged():
    """Return (client, model, labels, logits, losses) of the toy federation."""
    fed, model, client, local = visit(2, 1)
    logits = fed.predict(model.weights, client.x)
    return client, local, client.y, logits, F.cross_entropy(logits, client.y, reduction="none")


def halves(values):
    """Return a filter that takes values up to their median for clean."""
    return torch.tensor([[0.0, 2 * values.median()], [1.0, 1.0], [0.5, 0.5]], dtype=torch.float64)


def test_samples_are_filtered_relabeled_or_left_out():
    client, local, labels, logits, losses = judged()
    top, guess = logits.softmax(-1).max(-1)
    clean, received = losses <= losses.median(), {"filter": halves(losses)}
    filter_samples(client, local, received, **OPTIONS)
    relabeled = ~clean & (top >= 0.5)
    assert torch.equal(client.rows["filter_keep"], clean | relabeled) and client.state["filter_agree"] == 1
    assert torch.equal(client.rows["filter_label"], torch.where(relabeled, guess, labels))
    filter_samples(client, local, received, **OPTIONS | {"relabel_level": 0.6})  # about half are noisy: none is relabeled
    assert torch.equal(client.rows["filter_keep"], clean) and torch.equal(client.rows["filter_label"], labels)
    filter_samples(client, local, received, **OPTIONS | {"level": 0.9})  # few enough: a clean client
    assert client.rows["filter_keep"].all() and client.state["filter_agree"] == 0
    assert torch.equal(client.rows["filter_label"], labels)


def test_first_visits_use_only_clean_samples():
    client, local, labels, _, losses = judged()
    clean, received = losses <= losses.median(), {"filter": halves(losses)}
    for _ in range(2):
        filter_samples(client, local, received, **OPTIONS | {"clean_visits": 2, "confidence": 0.0})
        assert torch.equal(client.rows["filter_keep"], clean) and client.state["filter_agree"] == 0
        assert torch.equal(client.rows["filter_label"], labels)
    filter_samples(client, local, received, **OPTIONS | {"clean_visits": 2, "confidence": 0.0})
    assert client.rows["filter_keep"].all() and client.state["filter_agree"] == 1


def test_scaled_losses_by_hand():
    """Of the softmax p: log(sum_j e^p_j) - p_y, then scaled to [0, 1] over the client's samples."""
    logits = torch.tensor([[4.0, 0, 0], [0, 1, 0], [0, 0, 3], [1, 1, 1]], dtype=torch.float64)
    labels, values = torch.tensor([0, 1, 0, 2]), []
    for z, y in zip(logits.tolist(), labels.tolist(), strict=True):
        p = [math.exp(v) / sum(map(math.exp, z)) for v in z]
        values.append(math.log(sum(map(math.exp, p))) - p[y])
    wanted = [(v - min(values)) / (max(values) - min(values)) for v in values]
    assert filter_losses(logits, labels, "scaled").tolist() == pytest.approx(wanted)
    assert torch.equal(filter_losses(logits, labels, "plain"), F.cross_entropy(logits, labels, reduction="none"))
    assert filter_losses(logits[:1], labels[:1], "scaled").tolist() == [0.0]


def test_the_bias_follows_sure_predictions():
    client, local, _, logits, _ = judged()
    old = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)
    p, sure = logits.softmax(-1), (logits - 0.5 * old.log()).softmax(-1).amax(-1) >= 0.5
    assert 0 < sure.sum() < len(sure)
    for least, chosen in ((0.5, sure), (0.0, torch.ones_like(sure)), (1.0, torch.zeros_like(sure))):
        client.state["filter_bias"] = old.clone()
        update_bias(client, local, {}, momentum=0.2, debias=0.5, sure=least)
        wanted = 0.2 * old + 0.8 * p[chosen].mean(0) if chosen.any() else old
        torch.testing.assert_close(client.state["filter_bias"], wanted)


@pytest.mark.parametrize("agree", [0, 1])
def test_feddiv_sample_by_sample(agree):
    torch.manual_seed(0)
    n, share, mate = 7, 0.3, torch.randperm(7)
    logits, unmixed = torch.randn(n, C, dtype=torch.float64, requires_grad=True), torch.randn(n, C, dtype=torch.float64)
    rows = {"filter_label": torch.randint(0, C, (n,)), "filter_global": torch.randint(0, C, (n,))}
    rows["filter_keep"] = torch.rand(n) < 0.7
    bias = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    batch = Batch(y=torch.zeros(n, dtype=torch.int64), rows=rows, unmixed=unmixed, partner=mate)
    batch.state = {"filter_bias": bias, "filter_agree": torch.tensor(agree)}
    batch.share = torch.tensor(share, dtype=torch.float64)
    total, weight, p = 0.0, 0.0, logits.softmax(-1)

    def counts(i):
        same = (unmixed[i] - 0.5 * bias.log()).argmax() == rows["filter_global"][i]
        return float(rows["filter_keep"][i] and (same or not agree))

    for i in range(n):
        j = int(mate[i])
        own, other = share * counts(i), (1 - share) * counts(j)
        total = total - own * p[i, rows["filter_label"][i]].log() - other * p[i, rows["filter_label"][j]].log()
        weight += own + other
    mean = p.mean(0)
    wanted = total / weight + 0.8 * (1 / C * (1 / C / mean).log()).sum()
    found = consistent(logits, batch, prior=0.8).mean()
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(v, logits, retain_graph=True)[0] for v in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-14)


def test_feddivs_visits_on_clean_samples_are_the_share_of_the_public_codes_visits():
    """Its clients have 95 visits with the filter (950 rounds, fraction 0.1); five of nine would be most of a short run.

    A single client is visited in every round, whatever the fraction: 19 visits with the filter, one of them first.
    """
    assert [first_visits(-1, visits) for visits in (95, 1000, 57, 9, 0)] == [5, 5, 3, 0, 0] and first_visits(2, 0) == 2
    assert registry.of_budget("feddiv(warmup=2)", 8) != registry.of_budget("feddiv(warmup=2)", 9)
    runs = [f"feddiv(warmup=2{more})" for more in ("", ", clean_visits=1", ", clean_visits=0")]
    options = {"rounds": 21, "fraction": 0.1, "count": 1, "fit": Fit(epochs=1, lr=0.1, batch_size=20)}
    default, one, none = (train(method=method, **options)[1].weights for method in runs)
    assert torch.equal(default, one) and not torch.equal(default, none)


def test_feddivs_filter_is_the_mean_of_the_clients_by_size():
    fed, _, steps = train(method="feddiv(warmup=2)", rounds=5, fraction=0.25)
    last, sizes = {}, fed.sizes.numpy()
    for entry in fed.log[:2]:  # models of the warm-up fit wrong labels too
        assert "filter" not in entry.values
    for entry in fed.log[2:]:
        last |= dict(zip(entry.kept.tolist(), entry.values["filter"], strict=True))
    ids = sorted(last)
    mean = np.average([last[i] for i in ids], axis=0, weights=sizes[ids])
    report = steps[-1].report
    assert [report["filter_means"], report["filter_variances"], report["filter_shares"]] == pytest.approx(mean)
    assert (np.diff(report["filter_means"]) > 0).all()


# ---- fedNoRo, FedELC, RoFL, FedLSR, FedELR


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
