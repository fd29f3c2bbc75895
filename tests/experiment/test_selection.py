"""`--select` and `--patience`: criteria against naive references, resumes bit for bit, and the counts that clients send."""

import dataclasses

import numpy as np
import pytest
import torch

from fnlkit import evaluate
from fnlkit.experiment import Experiment
from fnlkit.experiment.criteria import best_holdout, criterion, label_wave, nes
from fnlkit.results import evaluation
from fnlkit.simulate.holdout import set_apart
from tests.commands import refuse_call
from tests.experiment import test_experiment as experiment
from tests.experiment.test_experiment import problem, reread, same, settings

CRITERIA = ("best-holdout", "nes(patience=2)", "label-wave(window=2, patience=2)")


def held_out():
    federation, dataset = problem()
    return set_apart(federation, holdout=0.25), dataset


def finish(chosen, *, given=None, **options):
    return experiment.finish(*(given or held_out()), chosen, **options)


def naive_peak(values, patience):
    """The first value that none of the next `patience` values exceeds, and that exceeds all values before."""
    for i, value in enumerate(values):
        after = values[i + 1 : i + 1 + patience]
        if all(value > v for v in values[:i]) and all(value >= v for v in after):
            return i
    raise AssertionError


@pytest.mark.parametrize("seed", range(30))
def test_first_peak_and_first_local_minimum_agree_with_a_naive_search(seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 9, rng.integers(1, 15)).tolist()
    patience, window = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    assert nes(values, patience=patience) == naive_peak(values, patience)
    assert best_holdout(values) == values.index(max(values))
    averages = [sum(values[i - window + 1 : i + 1]) / window for i in range(window - 1, len(values))]
    expected = window - 1 + naive_peak([100 - v for v in averages], patience) if averages else len(values) - 1
    assert label_wave(values, window=window, patience=patience) == expected


@pytest.mark.parametrize("spec", CRITERIA)
def test_a_choice_stays_or_moves_to_the_newest_round(spec):
    """Otherwise all models of a run would have to be stored."""
    values, choose, before = np.random.default_rng(0).integers(0, 20, 200).tolist(), criterion(spec), None
    for count in range(1, 201):
        now = choose(values[:count])
        assert now in (before, count - 1)
        before = now


@pytest.mark.parametrize(
    ("method", "spec"),
    [*(("fedavg", spec) for spec in CRITERIA), ("fedcorr(iterations=1)", CRITERIA[1]), ("coteaching", CRITERIA[2])],
)
def test_the_run_keeps_the_chosen_model_and_resumes_bit_for_bit(method, spec, tmp_path):
    models = []

    class Recorded(Experiment):
        def _commit(self, model):
            models.append(model.weights.clone())
            super()._commit(model)

    chosen = settings(method, select=spec, rounds=8, lr=0.3)
    whole = Recorded(*held_out(), chosen, engine="sequential").run()
    about = whole.meta["selection"]
    assert torch.equal(whole.weights, models[about["round"]])
    assert whole.history[about["round"]][about["column"]] == about["value"]
    run = None
    for stop in (0, 4):
        run = reread(finish(chosen, stop_after=stop, resume=run), tmp_path)
    again = reread(finish(chosen, resume=run), tmp_path)
    same(again, whole)
    assert again.meta["selection"] == about
    assert again.selection.keys() == whole.selection.keys()
    assert all(torch.equal(again.selection[name], whole.selection[name]) for name in whole.selection)


@pytest.mark.parametrize("engine", ["stacked", "fused", pytest.param("workers", marks=pytest.mark.slow)])
def test_engines_choose_the_same_round(engine):
    chosen = settings(select="label-wave(window=1)", rounds=6, precision="fp64" if engine == "stacked" else "fp32")
    one, other = finish(chosen), finish(chosen, engine=engine)
    assert one.meta["selection"]["round"] == other.meta["selection"]["round"]
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-3, atol=1e-4)


def test_selection_changes_no_training():
    plain, selecting = finish(settings(rounds=6)), finish(settings(rounds=6, select="best-holdout"))
    last = selecting.selection.get("last", selecting.weights)
    assert torch.equal(plain.weights, last)
    assert plain.history == selecting.history  # the agreement is always recorded with held-out samples
    assert plain.meta["selection"] is None
    assert not plain.selection


def test_clients_send_one_count_per_measurement():
    """8 clients, 6 rounds: 16 bytes each; from the second round on, the model before is sent too."""
    run = finish(settings(rounds=6, select="label-wave"))
    assert run.traffic.sent["held_out_agreement"] == 16 * 8 * 6 and run.traffic.sent["prediction_changes"] == 16 * 8 * 5
    federation, _ = held_out()
    without = dataclasses.replace(federation, extra={})
    down = finish(settings(rounds=6), given=(without, held_out()[1])).traffic.bytes_down
    assert run.traffic.bytes_down == down + (6 + 5) * 8 * run.weights.numel() * 4
    agreements = [row["held_out_agreement"] * sum(map(len, federation.held_out)) for row in run.history]
    assert agreements == pytest.approx(np.round(agreements))
    changes = [row.get("prediction_changes") for row in run.history]
    assert changes[0] is None
    assert all(0 <= change <= len(federation.client_indices) for change in changes[1:])


def test_prediction_changes_are_counted_against_the_last_measurement():
    run = finish(settings(rounds=4, select="label-wave", lr=0.3))
    shorter = finish(settings(rounds=3, select="label-wave", lr=0.3))
    before, after = shorter.selection["predicted"], run.selection["predicted"]
    assert run.history[3]["prediction_changes"] == int((before != after).sum())


def test_patience_ends_a_run_and_a_resume_does_not_continue_it(tmp_path):
    chosen = settings(select="best-holdout", patience=2, rounds=40, lr=0.3)
    run = reread(finish(chosen), tmp_path)
    about = run.meta["selection"]
    assert run.finished
    assert about["stopped"]
    assert len(run.history) == about["round"] + 3 < 40
    same(finish(chosen, resume=run), run)


def test_without_test_samples_the_agreement_of_the_evaluation_is_used():
    federation, dataset = held_out()
    dataset.x_test, dataset.y_test = dataset.x_test[:0], dataset.y_test[:0]
    run = finish(settings(rounds=6, select="best-holdout", lr=0.3), given=(federation, dataset))
    values = [row["agreement"] for row in run.history]
    assert run.meta["selection"]["round"] == values.index(max(values))
    assert "held_out_agreement" not in run.traffic.sent


def test_a_stage_begins_the_first_peak_anew():
    """FedCorr's stages differ in their training, so NES considers the rounds of the current stage only."""
    run = finish(settings("fedcorr(iterations=1)", select="nes(patience=1)", rounds=12))
    assert run.meta["selection"]["stage"] == run.history[-1]["stage"] != run.history[0]["stage"]


@pytest.mark.parametrize(("values", "option"), [
    ({"select": "nonsense"}, "criterion"),
    ({"select": "nes(patience=0)"}, "patience"),
    ({"patience": 3}, "`patience`"),
    ({"select": "best-holdout", "method": "local"}, "`select`"),
    ({"select": "best-holdout", "patience": 3, "method": "fedcorr"}, "`patience`"),
    ({"select": "best-holdout", "protect": "secagg"}, "`select`"),
])  # fmt: skip
def test_combinations_that_cannot_work_are_refused(values, option):
    refuse_call(option, Experiment, *held_out(), settings(**values), engine="sequential", privacy_key=bytes(32))


def test_held_out_samples_are_required():
    refuse_call("holdout=0.1", Experiment, *problem(), settings(select="best-holdout"), engine="sequential")
    Experiment(*problem(), settings(select="label-wave"), engine="sequential")


def test_evaluate_shows_the_chosen_round(tmp_path):
    run = finish(settings(rounds=8, select="best-holdout", lr=0.3))
    about = run.meta["selection"]
    found = evaluation.summary(run)
    assert found["chosen_round"] == about["round"] + 1
    assert found["accuracy_chosen"] == run.history[about["round"]]["accuracy"]
    assert found["criterion"] == "best-holdout"
    plain = finish(settings(rounds=8, lr=0.3))
    groups = evaluate(run, plain, say=None).groups(by="select")
    assert [("accuracy_chosen" in one["measures"]) for one in groups] == [True, False]


def test_damaged_selections_are_refused(tmp_path):
    run = finish(settings(rounds=4, select="label-wave"))
    for change in ({"predicted": run.selection["predicted"] + 9}, {"last": run.weights[:3]}, {"other": run.weights}):
        refuse_call("", reread, dataclasses.replace(run, selection=change), tmp_path)
    about = run.meta["selection"] | {"round": 99}
    refuse_call("", reread, dataclasses.replace(run, meta=run.meta | {"selection": about}), tmp_path)
