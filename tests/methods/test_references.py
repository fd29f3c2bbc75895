"""References (all data in one place, no federation, true labels), and RHFL's public set that no client holds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fnlkit.artifacts.federation import Federation
from fnlkit.core import registry
from fnlkit.datasets import load
from fnlkit.experiment import Experiment
from fnlkit.experiment.network import network_of
from fnlkit.experiment.settings import Settings
from fnlkit.federated.server.schedules import pooled_rounds
from fnlkit.methods.rhfl import align, confidences, reply_knowledge
from tests.commands import fnlkit, refuse, refuse_call, succeed
from tests.experiment.test_experiment import finish, problem, settings
from tests.toy import train, visit


@pytest.fixture(scope="module")
def data():
    return problem()


def test_centralized_passes_over_all_samples_as_often_as_fedavg(data):
    federation, dataset = data
    run = finish(federation, dataset, settings("centralized", rounds=12, fraction=0.25))
    assert run.traffic.client_rounds == 3 == pooled_rounds(12, 0.25) and pooled_rounds(1, 0.1) == 1
    assert run.client_offsets.tolist() == [0, len(federation.client_indices)]
    assert run.client_indices.tolist() == sorted(federation.client_indices.tolist())
    # It is plain training on the whole set: one client that holds everything, of a federation of one.
    whole = np.array([0, len(federation.client_indices)])
    one = replace(federation, client_offsets=whole, client_indices=np.sort(federation.client_indices))
    one.noise_client_level = one.noise_client_noisy = None
    same = finish(one, dataset, settings("fedavg", rounds=3, fraction=1.0))
    assert torch.equal(run.weights, same.weights)
    assert finish(federation, dataset, settings("centralized", loss="gce", rounds=4)).finished
    # The learning rate has decayed as far over the whole run.
    decayed = finish(federation, dataset, settings("centralized", rounds=8, fraction=0.25, decay=0.9))
    same = finish(one, dataset, settings("fedavg", rounds=2, fraction=1.0, decay=0.9**4))
    assert torch.equal(decayed.weights, same.weights)


def test_centralized_runs_another_method_on_the_whole_set(data):
    federation, dataset = data
    for method, kept in (("jointopt(warmup=1)", "joint_history"), ("dividemix(warmup=1)", "divided_clean")):
        run = finish(federation, dataset, settings(f"centralized(usual={method})", rounds=6, fraction=0.5))
        assert run.traffic.client_rounds == 3 and len(run.client_offsets) == 2
        assert any(kept in name for name in run.memory)
    refuse_call("own loss", finish, federation, dataset, settings("centralized(usual=elr)", loss="gce"))
    # Its stages follow from the share of the rounds in which it runs, so that it resumes with the same budget only.
    assert registry.of_budget("centralized(usual=elr)", 8) != registry.of_budget("centralized(usual=elr)", 9)
    assert registry.of_budget("centralized", 8) == registry.of_budget("centralized", 9)


def test_local_models_never_meet_and_their_mean_accuracy_is_the_runs(data):
    federation, dataset = data
    experiment = Experiment(federation, dataset, settings("local", rounds=4, fraction=0.5), engine="sequential")
    start = experiment.model.weights.clone()
    run = experiment.run()
    assert torch.equal(run.weights, start)  # nothing was averaged
    clients, found, x = experiment.clients, [], torch.from_numpy(dataset.x_test)
    trained = {i for row in run.history for i in row["clients"]}
    assert 0 < len(trained) <= len(clients)
    for i in range(len(clients)):
        own = clients.members[i].state.get("own", start)
        assert torch.equal(own, start) == (i not in trained)
        found.append(np.mean(clients.predict(own, x).argmax(-1).numpy() == dataset.y_test))
    assert run.history[-1]["accuracy"] == pytest.approx(np.mean(found), abs=1e-12)
    refuse_call("no global model", network_of, run)


def test_oracle_requires_true_labels_and_trains_on_them(data):
    federation, dataset = data
    wrong = federation.given.copy()
    wrong[::3] = (wrong[::3] + 1) % federation.classes
    noisy = replace(federation, given=wrong)
    run = finish(noisy, dataset, settings("oracle", loss="sce"))
    assert run.history[-1]["label_accuracy"] == 1 and np.array_equal(run.labels["given"], wrong)
    assert np.array_equal(run.labels["corrected"][run.client_indices], federation.true[run.client_indices])
    clean = finish(replace(federation, given=federation.true.copy()), dataset, settings("fedavg", loss="sce"))
    accuracy = [[row["accuracy"] for row in r.history] for r in (run, clean)]
    assert np.mean(accuracy[0]) == pytest.approx(np.mean(accuracy[1]), abs=0.1)
    assert finish(noisy, dataset, settings("oracle(usual=flr)", rounds=4)).finished
    refuse_call("blobs declares none; declare them", finish, replace(federation, true=None), dataset, settings("oracle"))


@pytest.mark.parametrize(("name", "value"), [("optimizer", "feddyn"), ("aggregator", "median")])
def test_methods_without_averages_refuse_aggregators(name, value, data):
    refuse_call(f"`{name}` {value}: local .*; omit `{name}`", Experiment, *data, settings("local", **{name: value}))


# ---- rHFL
def test_a_public_set_is_nobodys(tmp_path):
    line = "fnlkit partition --clients 5 --seed 3 {} -o {}.npz"
    for options, name in (("", "all"), ("--public 0.1", "some"), ("--public 0.1 --scheme shards", "shards")):
        succeed(line.format(options, name), tmp_path)
    whole, some, shards = (Federation.read(str(tmp_path / f"{name}.npz")) for name in ("all", "some", "shards"))
    n = len(whole.given)
    for few in (some, shards):
        assert len(few.client_indices) == n - round(0.1 * n)
    left = np.setdiff1d(np.arange(n), some.client_indices)
    assert np.array_equal(left, np.setdiff1d(np.arange(n), shards.client_indices))  # whatever the scheme
    for mine, theirs in zip(some.clients, whole.clients, strict=True):  # the others lie where they lay
        assert np.array_equal(mine, theirs[~np.isin(theirs, left)])
    refuse("fnlkit partition --clients 700 --public 0.9 -o no.npz", tmp_path, "leaves a client without a sample")


def test_methods_with_a_public_set_require_and_use_it(tmp_path):
    rest = "fnlkit train --method rhfl --rounds 2 --epochs 1 --fraction 0.5 --model 'mlp(hidden=[8])' -o run.pt"
    refuse(f"fnlkit partition --clients 4 | {rest}", tmp_path, "fnlkit partition --public 0.1")
    succeed(f"fnlkit partition --clients 4 --public 0.1 | {rest} && fnlkit evaluate run.pt", tmp_path)


def test_held_out_samples_are_not_public(tmp_path):
    line = "fnlkit partition --clients 4 --public 0.1 --holdout 0.2 -o fed.npz"
    assert fnlkit(line, tmp_path).returncode == 0
    few, data = Federation.read(str(tmp_path / "fed.npz")), load("digits")
    settings = Settings(method="rhfl", rounds=1, fraction=0.5, epochs=1, model="mlp(hidden=[4])")
    clients = Experiment(few, data, settings, engine="sequential").clients
    n = len(few.given)
    apart = few.extra["holdout_client"] >= 0
    assert apart.sum() > 0.1 * n and len(clients.public.x) == len(clients.public.y) == round(0.1 * n)
    rest = np.setdiff1d(np.flatnonzero(~apart), few.client_indices)
    assert np.array_equal(clients.public.x.numpy(), data.x_train[rest])


def test_confidence_follows_the_decrease_of_losses():
    """Losses 1, 1, 2 were 2, 1.5, 1: q = 1, 1/2, and 0 for the rise; shares 2/3, 1/3, 0."""
    found = confidences(np.array([1.0, 1.0, 2.0]), np.array([2.0, 1.5, 1.0]), strength=0.5)
    wanted = np.exp([1 / 3, 1 / 6, 0])
    assert found == pytest.approx(wanted / wanted.sum())
    for before, strength in ((np.full(3, np.nan), 0.5), (np.array([2.0, 1.5, 1.0]), 0.0)):
        assert confidences(np.array([1.0, 1.0, 2.0]), before, strength=strength) == pytest.approx([1 / 3] * 3)


def test_aligning_is_adam_on_the_divergence_from_the_target():
    """Four steps on 30 samples in batches of 12: a pass of three, then the first batch of the next."""
    fed, model, client, local = visit()
    x = fed.public.x
    client.rng, draws = np.random.default_rng(5), np.random.default_rng(5)
    target = torch.rand(len(x), 4, dtype=torch.float64).softmax(-1)
    options = {"steps": 4, "lr": 0.02, "batch_size": 12}
    align(client, local, {"public": x, "public_target": target}, **options)
    net = fed.network.twin().module
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    passes = [np.split(draws.permutation(len(x)), [12, 24]) for _ in range(2)]
    for part in (*passes[0], passes[1][0]):
        optimizer.zero_grad()
        F.kl_div(net(x[part]).log_softmax(-1), target[part], reduction="batchmean").backward()
        optimizer.step()
    by_hand = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(local.weights, by_hand, rtol=0, atol=1e-12)
    assert not torch.equal(local.weights, model.weights) and torch.equal(local.start, model.weights)
    local.weights = model.weights
    align(client, local, {"public": x}, **options)  # the first round has no target
    assert torch.equal(local.weights, model.weights)


def test_replies_of_a_client_on_the_public_set():
    fed, model, client, local = visit()
    said = reply_knowledge(client, local, {"public": fed.public.x}, alpha=0.1, beta=1.0, log_zero=-3.0)
    torch.testing.assert_close(said["public_prediction"], fed.predict(model.weights, fed.public.x).softmax(-1))
    p = fed.predict(model.weights, client.x).softmax(-1)[torch.arange(len(client)), client.y]
    assert said["private_loss"].item() == pytest.approx((-0.1 * p.log() + 3 * (1 - p)).mean().item())


def test_the_target_is_the_cohorts_weighed_mean():
    fed, _, steps = train(method="rhfl", rounds=3, count=6, fraction=0.5)
    for entry, step in zip(fed.log, steps, strict=True):
        weights = step.report["confidence"]
        assert weights.sum() == pytest.approx(1) and np.flatnonzero(weights).tolist() == entry.kept.tolist()


def test_the_loss_is_the_public_codes():
    """RHFL's code clamps one-hot labels at 1e-4 inside the logarithm: A is log 1e-4, not Wang's -4."""
    weights = [train(method=f"rhfl{options}", rounds=2)[1].weights for options in ("", "(log_zero=-9.21)", "(log_zero=-4)")]
    assert torch.equal(*weights[:2]) and not torch.equal(*weights[1:]) and math.log(1e-4) == pytest.approx(-9.21, abs=1e-3)


def test_public_steps_are_taken_once_there_is_a_target():
    """They change the second round: without them RHFL is FedAvg with the symmetric cross entropy."""
    plain, aligned = (train(method=f"rhfl(steps={steps})", rounds=2)[1].weights for steps in (0, 20))
    assert not torch.allclose(plain, aligned, atol=1e-4)
