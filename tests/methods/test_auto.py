"""Method auto: evidence by hand, treatments that ignore held-back labels, and the choice on every engine and after a stop."""

from functools import partial

import numpy as np
import pytest
import torch

from fnlkit.client.client import Batch, LocalModel
from fnlkit.kernels.mixture import two_groups
from fnlkit.methods import auto
from fnlkit.methods.auto import TREATMENTS, Evidence, candidates, explain_choice, measure_lead
from tests.engines.test_engines import ENGINES, agree, run
from tests.engines.test_resume import finish
from tests.experiment.test_experiment import problem, reread, same, settings
from tests.toy import CLASSES, toy, train

COMPETING = "auto(warmup=3, trial=1)"
FOUND = Evidence(0.5, 0.1, 0.1, 0.3, -1.0, 0.1, 0.3, 0.1, 0.0, np.zeros(3), np.eye(2))


def trials(history):
    return [row["stage"].removeprefix("trial of ") for row in history if row["stage"].startswith("trial of ")]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [COMPETING, *(f"auto(treatment={name}, warmup=2)" for name in TREATMENTS)])
def test_every_treatment_trains_alike_on_every_engine(method, engine):
    found = run(engine, method, "fedavg", "uniform", rounds=16)
    agree(found, run("sequential", method, "fedavg", "uniform", rounds=16))
    assert not [note for note in found[0].notes if engine in note]


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_labels_of_held_back_samples_do_not_train(treatment):

    def trained(change):
        fed, model = toy(count=4)
        step = auto.local_training(treatment, partial(auto.hold_back, share=0.3))
        for client in fed.members:
            client.begin_round(0, 0)
            local = LocalModel(fed.network, model.weights, model.weights, client.inputs)
            for before in step["before"]:
                before(client, local, None)
            held = client.rows["held_back"]
            assert held.sum() == max(1, round(0.3 * len(client))) and (client.rows["keep"][held] == 0).all()
            assert abs(client.rows["keep"].sum() - len(client)) < 1e-9
            if change:
                client.y[held] = (client.y[held] + 1) % CLASSES
        loss, logits = step["loss"], torch.zeros(len(fed.members[0]), CLASSES, dtype=torch.float64)
        client = fed.members[0]
        client.rows["inferred"] = torch.nn.functional.one_hot(client.y, CLASSES).double()
        logits += torch.arange(CLASSES)
        values = loss(logits, Batch(client.y, client.rows, client.state))
        return values[0] if isinstance(values, tuple) else values

    assert torch.equal(trained(False), trained(True)) and trained(False).abs().sum() > 0


def test_two_groups_by_their_bic():
    rng = np.random.default_rng(0)
    one = 0.4 + 0.05 * rng.standard_normal(40)
    assert two_groups(one) < 0 < two_groups(np.r_[one, 0.02 * rng.random(20)])
    assert two_groups([0.1, 0.9, 0.5]) == 0 == two_groups(np.full(9, 0.3))


def test_a_difference_and_its_standard_error_by_hand():
    """Three clients with 4 held-back samples: differences 1, 2 and 3; the standard deviation of their sum is sqrt(3)."""
    ours, theirs = (np.array([[[n, 4 - n], [0, 0]] for n in row], float) for row in ((3, 3, 4), (2, 1, 1)))
    difference, error = measure_lead(ours, theirs, np.eye(2))
    assert difference == pytest.approx(6 / 12) and error == pytest.approx(np.sqrt(3 * 2 / 2) / 12)
    assert measure_lead(ours[:1], theirs[:1], np.eye(2)) == (0.0, np.inf)


def test_agreement_corrected_by_the_transition_is_the_accuracy():
    """Given labels of class 0 are wrong with 0.4: a model that is always right agrees with 60 %, corrected with 100 %."""
    T = np.array([[0.6, 0.4], [0.0, 1.0]])
    tables = np.array([[[60.0, 40.0], [0.0, 100.0]]])  # predicted (here also true) and given class
    assert auto.agreements(tables, np.linalg.inv(T))[0] == pytest.approx(200)
    assert auto.agreements(tables, np.eye(2))[0] == 160


def test_evidence_decides_the_favorite():
    assert candidates(FOUND._replace(level=0.02, gap=0.0), level=0.1)[0] == "plain"
    assert candidates(FOUND._replace(level=0.02, gap=0.09), level=0.1)[0] == "infer"  # labels that are learned look right
    assert set(candidates(FOUND, level=0.1)) == set(TREATMENTS)


def test_labels_of_held_back_samples_do_not_count_in_the_inference():
    def sums(change):
        fed, model = toy(count=3)
        auto.infer_all(fed, model, partial(auto.hold_back, share=0.3))
        fed.log.clear()
        for client in fed.members if change else ():
            held = client.rows["held_back"]
            client.y[held] = (client.y[held] + 1) % CLASSES
        auto.infer_all(fed, model, partial(auto.hold_back, share=0.3))
        return [{name: np.stack(values) for name, values in entry.values.items()} for entry in fed.log]

    for one, other in zip(sums(False), sums(True), strict=True):
        assert one.keys() == other.keys() and all(np.allclose(one[name], other[name], atol=1e-12) for name in one)


def test_trials_share_the_budget_and_the_choice_is_explained():
    whole = finish(problem(), settings(COMPETING, rounds=20), "sequential")
    assert len(whole.history) == 20 and whole.traffic.client_rounds == 40
    row = next(row for row in whole.history if "runner_up" in row)
    chosen, runner = TREATMENTS[int(row["treatment"])], TREATMENTS[int(row["runner_up"])]
    text = explain_choice(whole.history)
    assert row["stage"] == chosen and chosen != runner and chosen in text and runner in text
    names = trials(whole.history)
    assert {chosen, runner} <= set(names) == set(TREATMENTS)
    assert set(whole.traffic.sent) >= {"weights", *auto.SENDS}


@pytest.fixture(scope="module")
def competing():
    """A problem, settings with trials, and their run without a stop."""
    given, chosen = problem(), settings(COMPETING, rounds=18)
    return given, chosen, finish(given, chosen, "sequential")


@pytest.mark.parametrize("stop", [1, 3, 4, 6, 8, 9, 11, 14, 17])
def test_a_run_stopped_in_any_stage_ends_like_one_never_stopped(stop, competing, tmp_path):
    given, chosen, whole = competing
    run = reread(finish(given, chosen, "sequential", stop_after=stop), tmp_path)
    same(finish(given, chosen, "sequential", resume=run), whole)


def test_a_resumed_run_returns_to_plain_training_alike(monkeypatch, tmp_path):
    """If every later comparison is far behind, the best model returns and trains plainly."""
    compared = auto.collect_tables

    def worse(clients, model, hold, inside):
        tables = compared(clients, model, hold, inside)
        clients.compared = getattr(clients, "compared", 0) + bool(inside.all())
        if clients.compared < 2:  # trials, and the first comparison after the choice
            return tables
        out = np.zeros_like(tables)
        out[:, 0, 1] = tables.sum((1, 2))
        return out

    monkeypatch.setattr(auto, "collect_tables", worse)
    given, chosen = problem(), settings("auto(warmup=3, trial=1, errors=1000)", rounds=24)
    monkeypatch.setattr(auto, "candidates", lambda *found, **limits: ("prune", "plain", "infer"))
    whole = finish(given, chosen, "sequential")
    back = [row["round"] for row in whole.history if row.get("returned")]
    assert len(back) == 1 and whole.history[-1]["stage"] == "plain" and "fallen" in explain_choice(whole.history)
    for stop in (back[0] - 1, back[0]):
        run = reread(finish(given, chosen, "sequential", stop_after=stop), tmp_path)
        same(finish(given, chosen, "sequential", resume=run), whole)


@pytest.mark.parametrize("rounds", [1, 2, 6, 20])
@pytest.mark.parametrize("method", ["auto", "auto(share=0)", "auto(share=1)", COMPETING])
def test_degenerate_federations_train(method, rounds):
    """A single client, clients with one class, clients with one sample, and no held-back samples."""
    for count in (1, 3):
        fed, model, _ = train(method=method, rounds=rounds, count=count, fraction=1.0)
        assert torch.isfinite(model.weights).all() and not fed.rejected
    given = problem(count=3)
    given[0].given[:] = 1
    assert len(finish(given, settings(method, rounds=rounds, fraction=1.0), "sequential").history) == rounds
