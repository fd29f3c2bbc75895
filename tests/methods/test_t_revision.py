"""T-revision: its stages, and the slack against the formula's gradient."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fnlkit.federated.client.client import Batch, Client
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.losses import importance_reweighted
from fnlkit.methods.t_revision import revise, revise_transition, stages
from tests.toy import train


class Scored:
    def __init__(self, logits):
        self.logits = self.weights = logits

    def __call__(self, x):
        return self.logits


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
