"""FedRN and FedDiv: who judges whom, the common filter, and the loss on what it keeps, by hand and in float64."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.mixture import GaussianMixture

from fnlkit.core import registry
from fnlkit.federated.client.client import Batch, LocalModel
from fnlkit.federated.client.losses import consistent
from fnlkit.federated.client.losses.filtered import filter_weight
from fnlkit.kernels.mixture import fit_from
from fnlkit.methods.feddiv import filter_losses, filter_samples, first_visits, update_bias
from fnlkit.methods.fedrn import reliabilities, select_clean
from tests.toy import toy, train

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
    fed, model = toy(count=2)
    client = fed.members[1]
    client.y[:2] = (client.y[:2] + 1) % 4
    good, bad = model.weights.clone(), torch.randn_like(model.weights)
    local = LocalModel(fed.network, model.weights, model.weights, client.inputs)
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
    fed, model = toy(count=2)
    client = fed.members[1]
    local = LocalModel(fed.network, model.weights, model.weights, client.inputs)
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
    default, one, none = (train(method=method, rounds=21, fraction=0.1, count=1)[1].weights for method in runs)
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
