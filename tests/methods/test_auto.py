"""Method auto: labels judged by the other clients, alternating treatments, every engine, and runs after a stop."""

import numpy as np
import pytest
import torch

from fnlkit import noise, pipeline
from fnlkit.client.client import LocalModel
from fnlkit.methods import auto, fedem
from fnlkit.methods.auto import TREATMENTS, explain_choice
from fnlkit.results.evaluation import late_score
from tests.engines.test_engines import ENGINES, agree, run
from tests.engines.test_resume import finish
from tests.experiment.test_experiment import problem, reread, same, settings
from tests.toy import toy, train


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("treatment", ["both", *TREATMENTS])
def test_every_treatment_trains_alike_on_every_engine(treatment, engine):
    method = f"auto(treatment={treatment}, warmup=2)"
    found = run(engine, method, "fedavg", "uniform", rounds=8)
    agree(found, run("sequential", method, "fedavg", "uniform", rounds=8))
    assert not [note for note in found[0].notes if engine in note]


def passes(clients, model, included):
    """Run two passes at all members; return their features and their inferred labels (n, C) after each pass."""
    features, inferred = [], []
    told = {"strength": torch.tensor(3.0), "common": 0.6 * torch.eye(clients.classes) + 0.4 / clients.classes}
    for last in (False, True):
        replies = []
        for client, counted in zip(clients.members, included, strict=True):
            client.begin_round(int(last), 0)
            local = LocalModel(clients.network, model.weights, model.weights, client.inputs)
            received = {name: value.double() for name, value in told.items()} | {"included": torch.tensor(float(counted))}
            replies.append(auto._infer_apart(client, local, received, ridge=0.1, last=last, keep=not last))
            features += [] if last else [local.features(client.x).double()]
        inferred.append([client.rows["inferred"].double() for client in clients.members])
        if not last:
            sums = {name: sum(reply[name].double() for reply in replies) for name in replies[0]}
            told |= sums
    return features, inferred


@pytest.mark.parametrize("included", [True, False])
def test_a_client_is_judged_by_the_classifier_of_the_others(included):
    """Without an included reply, the sums of all clients are those of the others already."""
    clients, model = toy(count=4)
    features, (before, after) = passes(clients, model, [True, True, included, True])
    for k, client in enumerate(clients.members):
        others = [i for i in range(4) if i != k or (k == 2 and not included)]
        f, q = torch.cat([features[i] for i in others]), torch.cat([before[i] for i in others])
        # The counts of a pass are the sums of q by true class, whatever the given label is.
        head = fedem.gaussian_head(f.T @ f, q.T @ f, q.sum(0), 0.1)
        p = (features[k] @ head[:-1] + head[-1]).softmax(-1)
        common = 0.6 * torch.eye(clients.classes, dtype=torch.float64) + 0.4 / clients.classes
        expected = auto_reference(p.numpy(), client.y.numpy(), common.numpy())
        assert np.allclose(after[k].numpy(), expected, atol=1e-5)
        assert not [name for name in client.state if name.startswith("own_")]  # nothing of the passes is stored with a run


def auto_reference(p, y, common, strength=3.0, steps=3):
    """Return q (n, C) after steps of expectation maximization, as plain loops."""
    classes, counts = p.shape[1], np.zeros(common.shape)
    for step in range(steps + 1):
        T = counts + strength * common
        T = T / T.sum(1, keepdims=True)
        q = np.array([row * T[:, label] / (row * T[:, label]).sum() for row, label in zip(p, y, strict=True)])
        if step < steps:
            counts = np.array([[q[y == j, i].sum() for j in range(classes)] for i in range(classes)])
    return q


def test_rounds_alternate_and_the_estimate_is_explained():
    whole = finish(problem(), settings("auto", rounds=30), "sequential")
    stages = [row["stage"] for row in whole.history]
    assert stages[:2] == ["warm-up"] * 2 and stages[2:] == ["infer", "regularize"] * 14
    row = next(row for row in whole.history if "wrong_share" in row)
    assert row["round"] == 2 and 0 <= row["wrong_share"] <= 1
    assert f"round 3 (estimated share of wrong labels {100 * row['wrong_share']:.0f} %)" in explain_choice(whole.history)
    assert "infer and regularize" in explain_choice(whole.history)
    assert explain_choice(finish(problem(), settings("auto(treatment=regularize)", rounds=3), "sequential").history) is None
    assert set(whole.traffic.sent) >= {"weights", *fedem.SENDS}


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 9])
def test_a_run_stopped_in_any_stage_ends_like_one_never_stopped(stop, tmp_path):
    given, chosen = problem(), settings("auto(warmup=2)", rounds=10)
    whole = finish(given, chosen, "sequential")
    stopped = reread(finish(given, chosen, "sequential", stop_after=stop), tmp_path)
    same(finish(given, chosen, "sequential", resume=stopped), whole)


@pytest.mark.parametrize("rounds", [1, 2, 6, 20])
@pytest.mark.parametrize("method", ["auto", "auto(warmup=0)"])
def test_degenerate_federations_train(method, rounds):
    """A single client, clients with one class, and few rounds."""
    for count in (1, 3):
        fed, model, _ = train(method=method, rounds=rounds, count=count, fraction=1.0)
        assert torch.isfinite(model.weights).all() and not fed.rejected
    given = problem(count=3)
    given[0].given[:] = 1
    assert len(finish(given, settings(method, rounds=rounds, fraction=1.0), "sequential").history) == rounds


def test_where_the_regularizer_alone_fails_both_treatments_do_not():
    """`slr` stays at the first, linear border of `hastie` (two seeds of one table); `auto` is not far behind `fedavg`."""
    late = {}
    for name in ("fedavg", "auto", "slr"):
        for seed in range(2):
            federation = pipeline.partition("small-table(source=hastie, sites=6, rows=200)", "sites", seed=seed, say=None)
            federation = noise.inject(federation, "symmetric(eta=0.3)", seed=seed)
            options = {"rounds": 45, "fraction": 0.5, "epochs": 5, "batch_size": 10, "lr": 0.01, "momentum": 0.5, "seed": seed}
            run = pipeline.train(federation, method=name, model="mlp(hidden=[128])", ledger="none", say=None, **options)
            late.setdefault(name, []).append(late_score(run.history))
    mean = {name: np.mean(values) for name, values in late.items()}
    assert mean["auto"] > mean["slr"] + 0.05 and mean["auto"] > mean["fedavg"] - 0.02, mean
