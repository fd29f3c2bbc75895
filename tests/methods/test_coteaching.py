"""Methods that choose samples: co-teaching against a loop of two optimizers, CUFIT by the agreement with a probe."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.exchange import exchanged
from fnlkit.federated.client.training import Fit, plan
from fnlkit.kernels.streams import stream
from fnlkit.methods.cufit import cufit
from fnlkit.methods.warmup import forgotten
from fnlkit.models.dropout import Dropout2d
from fnlkit.models.pair import Pair
from tests.commands import refuse_call, succeed
from tests.methods.test_methods import run
from tests.toy import Net, clients, fitting, toy, train


# ---- two models that choose samples for each other: choices by hand, a loop of two optimizers as the twin
def batch_of(losses_a, losses_b):
    """Two classes, all labels 0, so that a loss l needs the logits (0, log(e^l - 1)); returns (features, Batch)."""
    first, second = (torch.tensor([[0.0, np.log(np.expm1(v))] for v in of], dtype=torch.float64) for of in (losses_a, losses_b))
    return torch.cat([first, second], -1).requires_grad_(), Batch(y=torch.zeros(len(losses_a), dtype=torch.int64))


def test_only_disagreements_count_when_asked():
    """A loss below log 2 predicts class 0, above it class 1: the models disagree on samples 0 and 3."""
    features, batch = batch_of([0.1, 0.2, 2.0, 3.0], [1.0, 0.3, 1.5, 0.4])
    batch.features = features
    assert exchanged(None, batch, forget=0.5, disagreeing=True).mean().item() == pytest.approx(3.0 + 1.0)  # A: 3, B: 0
    everything = exchanged(None, batch, forget=0.0, disagreeing=True).mean().item()
    assert everything == pytest.approx((0.1 + 3.0) / 2 + (1.0 + 0.4) / 2)
    batch.features, _ = batch_of([0.1, 2.0], [0.2, 3.0])  # they agree
    batch.y = batch.y[:2]
    assert exchanged(None, batch, forget=0.0, disagreeing=True).sum() == 0
    assert exchanged(None, batch, forget=0.0, disagreeing=True, agreed="all").mean().item() == pytest.approx(1.05 + 1.6)


def test_the_share_forgotten_is_exact_and_rises_over_t_k_rounds():
    assert [forgotten(r, forget=0.4, ramp=4) for r in (0, 1, 3, 9)] == pytest.approx([0.1, 0.2, 0.4, 0.4])
    losses = np.arange(1, 11) / 10
    for forget, kept in ((0.9, 1), (0.7, 3), (0.3, 7), (0.25, 7), (0.99, 1), (0.0, 10)):
        batch = batch_of(losses, losses)
        batch[1].features = batch[0]
        assert (exchanged(None, batch[1], forget=forget) > 0).sum() == kept


def test_a_round_is_two_optimizers_that_exchange_samples():
    """One client's round by hand: two networks, two torch optimizers, the paper's lines 4 to 8."""
    fed, after, _ = train(method="coteaching(forget=0.5, ramp=1)", rounds=1, count=1, fraction=1.0)
    _, start = toy(network=fitting(Net, "coteaching"), count=1)
    start.network.load(start.weights)
    client, fit = fed.members[0], Fit(epochs=2, lr=0.1, batch_size=20)
    nets = [start.network.module.first, start.network.module.second]
    optimizers = [torch.optim.SGD(net.parameters(), lr=fit.lr, momentum=fit.momentum) for net in nets]
    for indices in plan(len(client), fit, seed=0, round=0, client=0).order:
        x, y = client.x[indices[indices >= 0]], client.y[indices[indices >= 0]]
        out = [net(x) for net in nets]
        keep = max(1, len(y) // 2)
        small = [F.cross_entropy(o, y, reduction="none").argsort(dim=-1, stable=True)[:keep] for o in out]
        grads = [torch.autograd.grad(F.cross_entropy(o[s], y[s]), list(net.parameters()))
                 for net, o, s in zip(nets, out, small[::-1], strict=True)]  # fmt: skip
        for net, opt, grad in zip(nets, optimizers, grads, strict=True):
            for p, g in zip(net.parameters(), grad, strict=True):
                p.grad = g
            opt.step()
    by_hand = torch.cat([p.detach().flatten() for net in nets for p in net.parameters()])
    torch.testing.assert_close(after.weights, by_hand, rtol=0, atol=1e-12)


def test_a_pair_predicts_by_the_mean_of_its_probabilities():
    _, model = toy(network=fitting(Net, "coteaching"))
    pair, x = model.network.module, torch.randn(5, 8, dtype=torch.float64)
    mean = (pair.first(x).softmax(-1) + pair.second(x).softmax(-1)) / 2
    torch.testing.assert_close(pair(x).exp(), mean, rtol=0, atol=1e-14)
    layers = Pair(Dropout2d(0.5, 1), Dropout2d(0.5, 1))
    assert layers.first.layer != layers.second.layer  # or both would drop the same channels
    assert stream(0, "second-model").integers(2**31) != 0


def test_one_model_is_refused():
    refuse_call("coteaching trains two models", train, method="coteaching", network=Net, rounds=1)


def test_evaluate_and_predict_handle_pairs_of_models(noisy, tmp_path):
    line = f"fnlkit train {noisy} --method 'coteaching(forget=0.3)' --rounds 2 --epochs 1 --model 'mlp(hidden=[8])'"
    succeed(f"{line} --engine sequential -o run.pt && fnlkit evaluate run.pt && fnlkit export run.pt -o net.pt", tmp_path)
    state = torch.load(tmp_path / "net.pt")
    assert {name.split(".")[0] for name in state} == {"first", "second"}
    assert not torch.equal(state["first.fc1.weight"], state["second.fc1.weight"])


# ---- CUFIT: samples are chosen by the agreement of the label with the probe, then with the intermediate model
def train_cufit(people=None, rounds=8, **settings):
    """Return (clients, the models before and after each round)."""
    models = []

    def program(clients, model, *parts, rounds):
        models.append(model)
        return cufit(clients, model, *parts, rounds=rounds, **settings)

    fed, _, steps = run(program, people=people or clients(count=6), rounds=rounds)
    return list(fed.members), [*models, *(step.model for step in steps)]


def predictions(model, client):
    twin = model.network.twin()
    twin.load(model.weights)
    with torch.no_grad():
        return twin.module.eval()(client.inputs.plain(client.x)).argmax(-1)


@pytest.mark.parametrize(("intermediate", "judge"), [(0, 0), (3, 3), (-1, 4), (8, 0)])
def test_the_last_model_learns_where_the_model_before_it_agrees(intermediate, judge):
    people, models = train_cufit(intermediate=intermediate)
    for client in people:
        agreed = predictions(models[judge], client) == client.y
        np.testing.assert_array_equal(client.rows["keep"].bool().numpy(), agreed.numpy())


def test_nothing_is_learned_from_samples_on_which_the_probe_disagrees():
    people = clients()
    probe = train_cufit(rounds=1)[1][0]
    for client in people:
        client.y.copy_((predictions(probe, client) + 1) % client.classes)
        client.given.copy_(client.y)
    for model in train_cufit(people, rounds=4)[1]:
        torch.testing.assert_close(model.weights, probe.weights)


def test_labels_are_not_mixed():
    refuse_call("cannot be mixed", run, "cufit", fit=Fit(epochs=1, lr=0.1, batch_size=8, mixup=1.0))
