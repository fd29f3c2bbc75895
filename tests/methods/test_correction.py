"""DivideMix, JointOpt, SELFIE and T-revision: core formulas against loops over samples, stages, and the slack's gradient."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fnlkit.federated.client.client import Batch, Client
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.losses.correction import importance_reweighted
from fnlkit.federated.client.losses.mixmatch import mixmatch
from fnlkit.federated.client.losses.refurbish import joint, refurbished
from fnlkit.federated.client.training import Fit
from fnlkit.methods.corrected_training import confident_transition
from fnlkit.methods.t_revision import revise, revise_transition, stages
from tests.commands import refuse_call
from tests.methods.test_golden import Scored
from tests.toy import toy, train

C = 3


def divided_batch(n=6, share=0.3, seed=0):
    """Two views of n / 2 samples; returns (features with gradient, Batch)."""
    torch.manual_seed(seed)
    half = n // 2
    rows = {
        "divided_clean": torch.rand(half, 2, dtype=torch.float64).repeat(2, 1),
        "divided_label": torch.randint(0, C, (half,)).repeat(2),
    }
    features = torch.randn(n, 2 * C, dtype=torch.float64, requires_grad=True)
    batch = Batch(y=rows["divided_label"], rows=rows, features=features, partner=torch.randperm(n))
    batch.share = torch.tensor(share, dtype=torch.float64)
    batch.unmixed_features = torch.randn(n, 2 * C, dtype=torch.float64)
    batch.unmixed = torch.zeros(n, C)
    return features, batch


def dividemix_by_hand(batch, unlabeled, temperature, threshold):
    """Li 2020, Algorithm 1, sample by sample: the mean of the batch's losses of both models."""
    n, half, share = len(batch.y), len(batch.y) // 2, batch.share.item()
    said, total = batch.unmixed_features.view(n, 2, C).softmax(-1), 0.0
    for k in (0, 1):
        targets, right = [], []
        for i in range(n):
            own = (said[i % half, k] + said[i % half + half, k]) / 2
            other = (said[i % half, 1 - k] + said[i % half + half, 1 - k]) / 2
            w = batch.rows["divided_clean"][i, 1 - k]
            right.append(bool(w >= threshold))
            t = w * F.one_hot(batch.rows["divided_label"][i], C) + (1 - w) * own if right[-1] else (own + other) / 2
            targets.append(t ** (1 / temperature) / (t ** (1 / temperature)).sum())
        logits, supervised, unsupervised = batch.features.view(n, 2, C)[:, k], [], []
        for i in range(n):
            j = int(batch.partner[i])
            t, p = share * targets[i] + (1 - share) * targets[j], logits[i].softmax(-1)
            (supervised if right[i if share >= 0.5 else j] else unsupervised).append(
                -(t * p.log()).sum() if right[i if share >= 0.5 else j] else (t - p).square().mean()
            )
        mean = logits.softmax(-1).mean(0)
        total = total + sum(supervised) / max(1, len(supervised)) + (1 / C * (1 / C / mean).log()).sum()
        total = total + unlabeled * sum(unsupervised) / max(1, len(unsupervised))
    return total


@pytest.mark.parametrize("share", [0.2, 0.8])
@pytest.mark.parametrize("threshold", [0.5, 0.0, 1.0])  # some, all and no sample labeled
def test_dividemix_is_the_papers_loss(share, threshold):
    features, batch = divided_batch(share=share)
    values = mixmatch(torch.zeros(6, C), batch, unlabeled=25.0, temperature=0.5, threshold=threshold)
    by_hand = dividemix_by_hand(batch, 25.0, 0.5, threshold)
    torch.testing.assert_close(values.mean(), by_hand, rtol=1e-12, atol=0)
    (found,) = torch.autograd.grad(values.mean(), features)
    (wanted,) = torch.autograd.grad(by_hand, features)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-13)


def test_jointopt_by_hand():
    """Two samples, uniform prior 1/2: s is the mean of what was predicted before, the label where nothing was."""
    p = torch.tensor([[0.8, 0.2], [0.4, 0.6]], dtype=torch.float64)
    history = torch.zeros(2, 3, 2, dtype=torch.float64)
    history[0, :2] = torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
    rows = {"joint_history": history, "joint_seen": torch.tensor([2, 0])}
    batch = Batch(y=torch.tensor([0, 1]), rows=rows)
    values, new = joint(p.log(), batch, alpha=1.2, beta=0.8, length=3)
    first = -(0.3 * math.log(0.8) + 0.7 * math.log(0.2))
    mean = (0.6, 0.4)
    prior = sum(0.5 * math.log(0.5 / m) for m in mean)
    entropies = [-(a * math.log(a) + (1 - a) * math.log(1 - a)) for a in (0.8, 0.4)]
    wanted = [first + 1.2 * prior + 0.8 * entropies[0], -math.log(0.6) + 1.2 * prior + 0.8 * entropies[1]]
    assert values.tolist() == pytest.approx(wanted, rel=1e-12)
    torch.testing.assert_close(torch.stack([new["joint_history"][0, 2], new["joint_history"][1, 0]]), p)
    assert new["joint_seen"].tolist() == [3, 1]
    given, _ = joint(p.log(), batch, alpha=0, beta=0, length=3, given=True)
    assert given.tolist() == pytest.approx([-math.log(0.8), -math.log(0.6)])


def test_the_oldest_prediction_makes_room():
    rows = {"joint_history": torch.zeros(1, 2, 2, dtype=torch.float64), "joint_seen": torch.tensor([0])}
    for a in (0.1, 0.2, 0.3):
        logits = torch.tensor([[a, 1 - a]], dtype=torch.float64).log()
        _, rows = joint(logits, Batch(y=torch.tensor([0]), rows=rows), alpha=0, beta=0, length=2)
    assert sorted(rows["joint_history"][0, :, 0].tolist()) == pytest.approx([0.2, 0.3])


def test_selfie_by_hand():
    """Four samples, q = 4, half forgotten: the two small losses are trained, and the certain one with its class.

    Sample 2 was predicted 1, 1, 1 and now 1: entropy 0.  Sample 3 was predicted 1, 1, 2 and now 1: entropy
    -(3/4 log 3/4 + 1/4 log 1/4) / log 3 = 0.51.
    """
    p = torch.tensor([[0.9, 0.05, 0.05], [0.8, 0.1, 0.1], [0.1, 0.7, 0.2], [0.2, 0.6, 0.2]], dtype=torch.float64)
    history = torch.tensor([[0, 0, 0, 0], [2, 1, 0, 0], [1, 1, 1, 0], [1, 1, 2, 0]])
    rows = {"selfie_history": history, "selfie_seen": torch.full((4,), 3), "selfie_label": torch.full((4,), -1)}
    batch = Batch(y=torch.zeros(4, dtype=torch.int64), rows=rows)
    values, new = refurbished(p.log(), batch, forget=0.5, certain=0.05, length=4)
    # Sample 0 is certain of its own label; taken are 0, 1, 2 of 4.
    wanted = [-math.log(v) * 4 / 3 for v in (0.9, 0.8, 0.7)] + [0]
    assert values.tolist() == pytest.approx(wanted, rel=1e-12) and new["selfie_label"].tolist() == [0, -1, 1, -1]
    values, new = refurbished(p.log(), batch, forget=0.5, certain=0.52, length=4)
    assert new["selfie_label"].tolist() == [0, -1, 1, 1] and values[3].item() == pytest.approx(-math.log(0.6))
    rows["selfie_seen"] = torch.full((4,), 2)  # not looked back on often enough
    _, new = refurbished(p.log(), batch, forget=0.5, certain=0.05, length=4)
    assert new["selfie_label"].tolist() == [-1] * 4
    plain, kept = refurbished(p.log(), batch, forget=0.5, length=4, plain=True)
    assert plain.tolist() == pytest.approx([-math.log(v) for v in (0.9, 0.8, 0.1, 0.2)]) and "selfie_label" not in kept


def test_views_are_the_same_samples_twice():
    from fnlkit.federated.client.inputs import Augment
    from fnlkit.federated.client.training import plan

    draws = plan(7, Fit(batch_size=4, epochs=2, views=2, augment=Augment(2, True)), seed=0, round=0, client=0, image=(8, 8))
    plain = plan(7, Fit(batch_size=4, epochs=2), seed=0, round=0, client=0)
    assert draws.order.shape == (4, 8) and draws.shift.shape == (4, 8, 2)
    for wide, order in zip(draws.order, plain.order, strict=True):
        real = order[order >= 0]
        assert wide[: 2 * len(real)].tolist() == [*real, *real] and (wide[2 * len(real) :] == -1).all()


@pytest.mark.parametrize("method", ["jointopt", "selfie", "fedlsr", "rofl", "fedelc", "fedrn", "confident-learning"])
def test_labels_of_a_methods_own_are_not_mixed(method):
    refuse_call(f"{method} has labels or weights", train, method=method, rounds=1, fit=Fit(epochs=1, mixup=1.0))


def test_methods_correct_labels():
    fed, _, _ = train(method="jointopt(warmup=2)", rounds=8, count=6, fraction=0.5)
    assert any((c.y != c.given).any() for c in fed.members)
    for client in fed.members:
        assert ("joint_seen" in client.rows) == bool(client.rows)
        if client.rows:
            assert (client.rows["joint_seen"] % 2 == 0).all()  # two epochs a visit
    fed, _, _ = train(method="selfie(length=2, certain=0.1)", rounds=8, count=6, fraction=0.5)
    assert any((c.rows["selfie_label"] >= 0).any() for c in fed.members if c.rows)
    assert all(torch.equal(c.y, c.given) for c in fed.members)
    fed, _, steps = train(method="dividemix(warmup=3, ramp=4)", rounds=8, count=6, fraction=0.5)
    weights = [step.report.get("unlabeled_weight") for step in steps]
    assert weights[:3] == [None] * 3 and weights[3:] == pytest.approx([0, 6.25, 12.5, 18.75, 25])


def test_confident_predictions_count_as_true_labels():
    """Three samples above 0.9: two predicted 0 (given 0 and 1), one predicted 2 (given 2); class 1 has none."""
    p = np.array([[0.95, 0.03, 0.02], [0.92, 0.04, 0.04], [0.5, 0.5, 0.0], [0.0, 0.05, 0.95], [0.1, 0.9, 0.0]])
    found = confident_transition(p, np.array([0, 1, 1, 2, 0]), 0.9)
    np.testing.assert_allclose(found, [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 1]])


def test_confident_learning_prunes_by_a_local_model_and_restarts():
    """FedLN's baseline: the model that federated training starts from is the initial one, not a pruning model."""
    start = toy()[1]
    fed, model, steps = train(method="confident-learning(local_epochs=3)", rounds=2)
    assert [step.stage for step in steps] == ["pruning", "training", "training"]
    assert torch.equal(steps[0].model.weights, start.weights) and not torch.equal(model.weights, start.weights)
    assert all("keep" in client.rows for client in fed.members)


# ---- t-revision
@pytest.mark.parametrize("correction", ["forward", "reweight"])
def test_the_slack_descends_the_corrected_loss(correction):
    """One step of Adam moves each entry by lr against the sign of the gradient; its value is checked by differences."""
    rng = np.random.default_rng(0)
    logits, y = torch.from_numpy(rng.normal(size=(20, 3)) * 2), torch.from_numpy(rng.integers(0, 3, 20))
    start = torch.from_numpy(rng.dirichlet(np.ones(3) * 3, 3))

    def loss(slack):
        p, total = logits.softmax(-1).tolist(), 0.0
        matrix = (start + slack).clamp_min(0)
        matrix = (matrix / matrix.sum(1, keepdim=True)).tolist()
        for row, label in zip(p, y.tolist(), strict=True):
            through = sum(row[i] * matrix[i][label] for i in range(3)) + 1e-12
            total -= math.log(through) if correction == "forward" else row[label] / through * math.log(row[label])
        return total / len(y)

    client = Client(0, torch.zeros(20, 1), y.clone(), y, 3, Inputs(False))
    client.state["transition"] = start.clone()
    revise(client, Scored(logits), {}, correction=correction, lr=1e-3, epochs=1, batch_size=20)
    for i in range(3):
        for j in range(3):
            away = torch.zeros(3, 3, dtype=torch.float64)
            away[i, j] = 1e-6
            slope = (loss(away) - loss(-away)) / 2e-6
            assert client.state["slack"][i, j].item() == pytest.approx(-math.copysign(1e-3, slope), rel=1e-3)
    before = loss(torch.zeros(3, 3))
    revise(client, Scored(logits), {}, correction=correction, lr=1e-2, epochs=5, batch_size=4)
    assert loss(client.state["slack"]) < before - 1e-3
    assert torch.equal(client.state["estimated"], start)
    torch.testing.assert_close(client.state["transition"], revise_transition(start, client.state["slack"]))
    torch.testing.assert_close(client.state["transition"].sum(1), torch.ones(3, dtype=torch.float64))


def test_reweighting_sample_by_sample():
    """The weight p_y / (p T)_y times the cross entropy; as a constant it leaves the weight's gradient out."""
    rng = np.random.default_rng(1)
    z, y = torch.from_numpy(rng.normal(size=(6, 3)) * 2).requires_grad_(), torch.from_numpy(rng.integers(0, 3, 6))
    batch = Batch(y=y, state={"transition": torch.from_numpy(rng.dirichlet(np.ones(3), 3))})
    p, each = z.softmax(-1), torch.arange(6)
    weight = p[each, y] / (p @ batch.state["transition"])[each, y]
    plain = F.cross_entropy(z, y, reduction="none")
    for constant, wanted in ((True, weight.detach() * plain), (False, weight * plain)):
        found = importance_reweighted(z, batch, constant=constant)
        torch.testing.assert_close(found, wanted)
        gradients = [torch.autograd.grad(v.sum(), z, retain_graph=True)[0] for v in (found, wanted)]
        torch.testing.assert_close(*gradients)


def test_its_stages():
    assert stages(300, -1, -1) == (20, 160) and stages(60, -1, -1) == (20, 40) and stages(30, -1, -1) == (10, 20)
    assert stages(10, 20, 3) == (10, 3) and stages(10, 2, -1) == (2, 6) and stages(1, -1, -1) == (0, 0)
    spec = "t-revision(warmup=2, revision=4, lr=0.01{})"
    fed, _, steps = train(method=spec.format(""), rounds=6, fraction=0.5)
    other = train(method=spec.format(", correction=reweight"), rounds=6, fraction=0.5)[2]
    assert torch.equal(other[1].model.weights, steps[1].model.weights)
    assert not torch.equal(other[2].model.weights, steps[2].model.weights)
    assert [step.stage for step in steps] == ["warm-up"] * 2 + ["correction"] * 2 + ["revision"] * 2
    late = {i for step in steps[4:] for i in step.replies.ids.tolist()}
    for client in fed.members:
        assert ("slack" in client.state) == (client.id in late) and client.state["transition"].shape == (4, 4)
        if client.id in late:
            assert (client.state["transition"] - client.state["estimated"]).abs().max() > 1e-3
