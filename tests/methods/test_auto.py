"""Method auto: classifiers of the other clients, the choice, every engine, and runs after a stop."""

import numpy as np
import pytest
import torch

from fnlkit import noise, pipeline
from fnlkit.client.client import LocalModel
from fnlkit.client.failure import Failure
from fnlkit.methods.auto import compare_borders, explain_choice
from fnlkit.results.evaluation import late_score, summary
from tests.engines.test_engines import ENGINES, agree, run
from tests.engines.test_resume import finish
from tests.experiment.test_experiment import problem, reread, same, settings
from tests.toy import toy, train


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("few", [0, 1e9])
def test_each_choice_trains_alike_on_every_engine(few, engine):
    method = f"auto(few={few})"
    found = run(engine, method, "fedavg", "uniform", rounds=8)
    agree(found, run("sequential", method, "fedavg", "uniform", rounds=8))
    assert not [note for note in found[0].notes if engine in note]


def test_with_many_samples_auto_is_fedem():
    whole = finish(problem(), settings("auto(few=0)", rounds=12), "sequential")
    assert torch.equal(whole.weights, finish(problem(), settings("fedem", rounds=12), "sequential").weights)
    assert f"auto chose fedem: there are {whole.history[0]['rows_per_feature']:.1f} samples" in explain_choice(whole.history)


@pytest.mark.parametrize("curved", [0, 1])
def test_with_few_samples_the_classifiers_decide(curved):
    """Their draws follow two more rounds, so that weights differ from those of the chosen method."""
    history = finish(problem(), settings(f"auto(few=1e9, curved={curved})", rounds=12), "sequential").history
    bent = history[0]["curved_agreement"] - history[0]["linear_agreement"] >= curved
    chosen = "fedem" if bent else "confident-learning"
    alone = finish(problem(), settings(chosen, rounds=12), "sequential").history
    assert {row["stage"] for row in history} == {row["stage"] for row in alone}
    assert f"auto chose {chosen}: " in explain_choice(history) and "a linear classifier" in explain_choice(history)


def gaussian(x, y, classes):
    """Return a classifier with class means, class shares and the covariance plus its mean variance, by plain sums."""
    number = np.array([(y == c).sum() for c in range(classes)]) + 1.0
    means = np.array([x[y == c].sum(0) for c in range(classes)]) / number[:, None]
    covariance = (x.T @ x - sum(n * np.outer(m, m) for n, m in zip(number, means, strict=True))) / len(y)
    inverse = np.linalg.inv(covariance + np.eye(x.shape[1]) * np.trace(covariance) / x.shape[1])
    return lambda z: np.array(
        [z @ inverse @ m - 0.5 * m @ inverse @ m + np.log(n / number.sum()) for n, m in zip(number, means, strict=True)]
    ).argmax(0)


def test_labels_are_compared_with_classifiers_of_the_other_clients():
    clients, model = toy(count=4)
    found = compare_borders(clients, model)
    local = LocalModel(clients.network, model.weights, model.weights, clients.members[0].inputs)
    for share, values in zip(found, (lambda x: x, local.features), strict=True):
        rows = [(values(client.x).double().numpy(), client.y.numpy()) for client in clients.members]
        agreed = 0
        for k, (x, y) in enumerate(rows):
            others = [pair for i, pair in enumerate(rows) if i != k]
            predict = gaussian(np.concatenate([a for a, _ in others]), np.concatenate([b for _, b in others]), clients.classes)
            agreed += (predict(x) == y).sum()
        assert share == pytest.approx(agreed / sum(len(y) for _, y in rows))
    assert not [name for client in clients.members for name in client.state if name.startswith("own_")]


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("few", [0, 1e9])
def test_a_run_stopped_in_any_stage_ends_like_one_never_stopped(stop, few, tmp_path):
    given, chosen = problem(), settings(f"auto(few={few})", rounds=10)
    whole = finish(given, chosen, "sequential")
    stopped = reread(finish(given, chosen, "sequential", stop_after=stop), tmp_path)
    same(finish(given, chosen, "sequential", resume=stopped), whole)


@pytest.mark.parametrize("rounds", [1, 2, 6, 20])
@pytest.mark.parametrize("few", [0, 1e9])
def test_degenerate_federations_train(few, rounds):
    """A single client, clients with one class, and few rounds."""
    method = f"auto(few={few})"
    for count in (1, 3):
        fed, model, _ = train(method=method, rounds=rounds, count=count, fraction=1.0)
        assert torch.isfinite(model.weights).all() and not fed.rejected
    given = problem(count=3)
    given[0].given[:] = 1
    assert len(finish(given, settings(method, rounds=rounds, fraction=1.0), "sequential").history) == rounds


def table(spec, model_noise, method, seed, **more):
    """Return a run on a small table, with the settings of the recipe `league-real`."""
    federation = noise.inject(pipeline.partition(f"small-table({spec})", "sites", seed=seed, say=None), model_noise, seed=seed)
    options = {"rounds": 45, "fraction": 0.5, "epochs": 5, "batch_size": 10, "lr": 0.01, "momentum": 0.5, "seed": seed}
    return pipeline.train(federation, method=method, model="mlp(hidden=[128])", ledger="none", say=None, **options | more)


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        ("source=breast-cancer, sites=5, rows=60", "confident-learning"),
        ("source=hastie, sites=5, rows=100", "fedem"),  # few rows, a sphere as border
        ("source=hastie, sites=6, rows=200", "fedem"),
    ],
)
def test_few_samples_are_pruned_unless_borders_are_curved(spec, chosen):
    found = table(spec, "symmetric(eta=0.2)", "auto", 0, rounds=6)
    assert f"auto chose {chosen}" in summary(found)["choice"]
    assert ("linear_agreement" in found.history[0]) == ("rows=200" not in spec)


def test_the_linear_classifier_has_the_scaled_inputs_of_the_network():
    """Columns of heart have standard deviations between 0.1 and 110."""
    federation = pipeline.partition("heart", "sites", seed=0, say=None)
    options = {"rounds": 1, "fraction": 1.0, "epochs": 1, "batch_size": 10, "lr": 0.01, "ledger": "none", "say": None}
    first = pipeline.train(federation, method="auto", model="mlp(hidden=[128])", **options).history[0]
    assert first["linear_agreement"] > 0.7, first


def test_where_a_regularizer_fails_auto_does_not():
    """`slr` stays at the first, linear border of `hastie` (two seeds of one table); `auto` is not far behind `fedavg`."""
    late = {}
    for name in ("fedavg", "auto", "slr"):
        scores = [late_score(table("source=hastie, sites=6, rows=200", "symmetric(eta=0.3)", name, k).history) for k in (0, 1)]
        late[name] = np.mean(scores)
    assert late["auto"] > late["slr"] + 0.05 and late["auto"] > late["fedavg"] - 0.02, late


@pytest.mark.parametrize("missing", ["_sum_inputs", "count_agreement"])
def test_a_client_that_misses_the_test_costs_no_more_than_this_client(missing):
    clients, model = toy(count=4)
    run_all, whole = clients.engine.run, compare_borders(clients, model)

    def lossy(request):
        replies = run_all(request)
        lost = any(getattr(step, "func", step).__name__ == missing for step in request.steps)
        return [Failure("failed", "Lost") if lost and i == 1 else r for i, r in zip(request.ids, replies, strict=True)]

    clients.engine.run = lossy
    found = compare_borders(clients, model)
    assert all(0 <= share <= 1 for share in found) and max(abs(a - b) for a, b in zip(found, whole, strict=True)) < 0.3
