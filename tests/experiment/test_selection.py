"""`--select` and `--patience`, and state of a user's server parts: restored with a run, or refused when it is resumed."""

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
from tests.experiment.test_experiment import finish, problem, reread, same, settings

# ---- `--select` and `--patience`: criteria against naive references, resumes bit for bit, and the counts that clients send
CRITERIA = ("best-holdout", "nes(patience=2)", "label-wave(window=2, patience=2)")


def held_out():
    federation, dataset = problem()
    return set_apart(federation, holdout=0.25), dataset


def finish_held_out(chosen, *, given=None, **options):
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
        run = reread(finish_held_out(chosen, stop_after=stop, resume=run), tmp_path)
    again = reread(finish_held_out(chosen, resume=run), tmp_path)
    same(again, whole)
    assert again.meta["selection"] == about
    assert again.selection.keys() == whole.selection.keys()
    assert all(torch.equal(again.selection[name], whole.selection[name]) for name in whole.selection)


@pytest.mark.parametrize("engine", ["stacked", "fused", pytest.param("workers", marks=pytest.mark.slow)])
def test_engines_choose_the_same_round(engine):
    chosen = settings(select="label-wave(window=1)", rounds=6, precision="fp64" if engine == "stacked" else "fp32")
    one, other = finish_held_out(chosen), finish_held_out(chosen, engine=engine)
    assert one.meta["selection"]["round"] == other.meta["selection"]["round"]
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-3, atol=1e-4)


def test_selection_changes_no_training():
    plain, selecting = finish_held_out(settings(rounds=6)), finish_held_out(settings(rounds=6, select="best-holdout"))
    last = selecting.selection.get("last", selecting.weights)
    assert torch.equal(plain.weights, last)
    assert plain.history == selecting.history  # the agreement is always recorded with held-out samples
    assert plain.meta["selection"] is None
    assert not plain.selection


def test_clients_send_one_count_per_measurement():
    """8 clients, 6 rounds: 16 bytes each; from the second round on, the model before is sent too."""
    run = finish_held_out(settings(rounds=6, select="label-wave"))
    assert run.traffic.sent["held_out_agreement"] == 16 * 8 * 6 and run.traffic.sent["prediction_changes"] == 16 * 8 * 5
    federation, _ = held_out()
    without = dataclasses.replace(federation, extra={})
    down = finish_held_out(settings(rounds=6), given=(without, held_out()[1])).traffic.bytes_down
    assert run.traffic.bytes_down == down + (6 + 5) * 8 * run.weights.numel() * 4
    agreements = [row["held_out_agreement"] * sum(map(len, federation.held_out)) for row in run.history]
    assert agreements == pytest.approx(np.round(agreements))
    changes = [row.get("prediction_changes") for row in run.history]
    assert changes[0] is None
    assert all(0 <= change <= len(federation.client_indices) for change in changes[1:])


def test_prediction_changes_are_counted_against_the_last_measurement():
    run = finish_held_out(settings(rounds=4, select="label-wave", lr=0.3))
    shorter = finish_held_out(settings(rounds=3, select="label-wave", lr=0.3))
    before, after = shorter.selection["predicted"], run.selection["predicted"]
    assert run.history[3]["prediction_changes"] == int((before != after).sum())


def test_patience_ends_a_run_and_a_resume_does_not_continue_it(tmp_path):
    chosen = settings(select="best-holdout", patience=2, rounds=40, lr=0.3)
    run = reread(finish_held_out(chosen), tmp_path)
    about = run.meta["selection"]
    assert run.finished
    assert about["stopped"]
    assert len(run.history) == about["round"] + 3 < 40
    same(finish_held_out(chosen, resume=run), run)


def test_without_test_samples_the_agreement_of_the_evaluation_is_used():
    federation, dataset = held_out()
    dataset.x_test, dataset.y_test = dataset.x_test[:0], dataset.y_test[:0]
    run = finish_held_out(settings(rounds=6, select="best-holdout", lr=0.3), given=(federation, dataset))
    values = [row["agreement"] for row in run.history]
    assert run.meta["selection"]["round"] == values.index(max(values))
    assert "held_out_agreement" not in run.traffic.sent


def test_a_stage_begins_the_first_peak_anew():
    """FedCorr's stages differ in their training, so NES considers the rounds of the current stage only."""
    run = finish_held_out(settings("fedcorr(iterations=1)", select="nes(patience=1)", rounds=12))
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
    run = finish_held_out(settings(rounds=8, select="best-holdout", lr=0.3))
    about = run.meta["selection"]
    found = evaluation.summary(run)
    assert found["chosen_round"] == about["round"] + 1
    assert found["accuracy_chosen"] == run.history[about["round"]]["accuracy"]
    assert found["criterion"] == "best-holdout"
    plain = finish_held_out(settings(rounds=8, lr=0.3))
    groups = evaluate(run, plain, say=None).groups(by="select")
    assert [("accuracy_chosen" in one["measures"]) for one in groups] == [True, False]


def test_damaged_selections_are_refused(tmp_path):
    run = finish_held_out(settings(rounds=4, select="label-wave"))
    for change in ({"predicted": run.selection["predicted"] + 9}, {"last": run.weights[:3]}, {"other": run.weights}):
        refuse_call("", reread, dataclasses.replace(run, selection=change), tmp_path)
    about = run.meta["selection"] | {"round": 99}
    refuse_call("", reread, dataclasses.replace(run, meta=run.meta | {"selection": about}), tmp_path)


# ---- state that own server parts compute from weights: restored with a run, or refused when a run is resumed
PARTS = '''
from functools import partial

import numpy as np
import torch

from fnlkit.methods.fedavg import Round
from fnlkit.federated.server.optimizers import FedOpt


def plain(work, clients, model, opt, select, rounds):
    for r in range(rounds):
        model, replies = opt.round(clients, select(clients, model), model)
        model = work(r, model, replies) or model
        yield Round(model, "own", replies)


def average(clients, model, opt, select, *, rounds):
    """Train on from the running mean of the models; the mean is state computed from weights."""

    def move(model):
        clients.memory["mean"] = 0.5 * clients.memory.get("mean", torch.zeros_like(model.weights)) + 0.5 * model.weights
        return model.with_weights(clients.memory["mean"])

    return plain(lambda r, model, replies: clients.once(move, model), clients, model, opt, select, rounds)


def unsaved(clients, model, opt, select, *, rounds):
    """The same, with a variable of the program in place of the memory."""
    mean = torch.zeros_like(model.weights)

    def move(r, model, replies):
        nonlocal mean
        mean = 0.5 * mean + 0.5 * model.weights
        return model.with_weights(mean)

    return plain(move, clients, model, opt, select, rounds)


def spread(clients, model, opt, select, *, rounds):
    """Read the clients' weights, which a log does not hold."""
    return plain(lambda r, model, replies: replies["weights"].std() and None, clients, model, opt, select, rounds)


class Turning:
    """Choose clients by where the model moved since the last choice."""

    def __init__(self, *, fraction=0.1):
        self.fraction = fraction

    def __call__(self, clients, model, among=None):
        return clients.once(self.choose, clients, model)

    def choose(self, clients, model):
        moved = model.weights - clients.memory.get("turning", torch.zeros_like(model.weights))
        clients.memory["turning"] = model.weights.clone()
        first = int(1e6 * float(moved.double().abs().sum())) % len(clients)
        return np.sort((first + np.arange(2)) % len(clients))


class Forgetful(Turning):
    """The same, computed anew whenever the program runs."""

    def __call__(self, clients, model, among=None):
        return self.choose(clients, model)


def heavy(updates, merged):
    step = 0.5 * updates.memory.get("step", torch.zeros_like(merged)) + merged - updates.start
    updates.memory["step"] = step
    return updates.start + step


def momentum(fit, **more):
    return FedOpt(fit, server=heavy, prepare=expect_step, **more)


def expect_step(request):
    from fnlkit.federated.server.optimizers import Additions

    if len(request.memory):
        request.memory["step"].sum()
    return Additions()


def in_place(updates, merged):
    step = updates.memory.setdefault("step", torch.zeros_like(merged))
    step.mul_(0.5).add_(merged - updates.start)
    return updates.start + step


def steady(stacked, weights, *, start, memory):
    step = 0.5 * memory.get("step", torch.zeros_like(start)) + stacked.mean(0) - start
    memory["step"] = step
    return start + step


class Heavy:
    """Momentum of the server in an attribute, which no run saves."""

    step = 0.0

    def __call__(self, updates, merged):
        self.step = 0.5 * self.step + merged - updates.start
        return updates.start + self.step


def hidden(fit, **more):
    return FedOpt(fit, server=Heavy(), **more)


def careless(fit, **more):
    return FedOpt(fit, server=in_place, **more)
'''


@pytest.fixture
def part(tmp_path):
    (tmp_path / "own_state.py").write_text(PARTS)
    return lambda name: f"{tmp_path}/own_state.py:{name}"


def stopped(chosen, stop, folder, resume=None, **options):
    return reread(finish(*problem(), chosen, stop_after=stop, resume=resume, **options), folder)


@pytest.mark.parametrize(
    ("kind", "name"), [("method", "average"), ("selector", "Turning"), ("optimizer", "momentum"), ("aggregator", "steady")]
)
def test_state_in_the_memory_is_restored(kind, name, part, tmp_path):
    chosen = settings(**{kind: part(name)})
    whole, run = finish(*problem(), chosen), None
    assert not torch.equal(whole.weights, finish(*problem(), settings()).weights)
    for stop in (0, 3, 4):
        run = stopped(chosen, stop, tmp_path, run)
    same(reread(finish(*problem(), chosen, resume=run), tmp_path), reread(whole, tmp_path))


@pytest.mark.parametrize(("kind", "name"), [("method", "unsaved"), ("method", "spread"), ("selector", "Forgetful")])
def test_weights_of_rounds_before_an_interruption_cannot_be_read(kind, name, part, tmp_path):
    chosen = settings(**{kind: part(name)})
    run = stopped(chosen, 4, tmp_path)
    refuse_call("clients.once", finish, *problem(), chosen, resume=run)


@pytest.mark.parametrize(("kind", "name", "noted"), [
    ("method", "unsaved", 1), ("selector", "Forgetful", 1), ("optimizer", "hidden", 1),
    ("method", "average", 0), ("selector", "Turning", 0), ("optimizer", "momentum", 0),
])  # fmt: skip
def test_a_run_that_cannot_be_resumed_has_a_note_after_two_rounds(kind, name, noted, part):
    experiment = Experiment(*problem(), settings(rounds=3, **{kind: part(name)}), engine="sequential")
    notes = []
    experiment.run(checkpoint=lambda run: notes.append(list(experiment.clients.notes)), checkpoint_every=1)
    assert sum("cannot be resumed" in text for text in notes[1]) == noted


def test_an_optimizer_with_state_of_its_own_is_not_resumed(part, tmp_path):
    chosen = settings(optimizer=part("hidden"))
    run = stopped(chosen, 4, tmp_path)
    refuse_call("server.*updates.memory", finish, *problem(), chosen, resume=run)


def test_a_memory_that_is_changed_in_place_is_refused_in_the_second_round(part):
    refuse_call("step.*in place", finish, *problem(), settings(optimizer=part("careless")))


def test_an_interrupted_round_leaves_no_trace_in_the_memory(part, tmp_path, monkeypatch):
    chosen = settings(part("average"))
    whole = finish(*problem(), chosen)
    experiment = Experiment(*problem(), chosen, engine="sequential")
    measure, left = experiment._measure, []

    def interrupted(step):
        if len(experiment.history) == 5:  # after the method changed the memory, before the round counts
            raise KeyboardInterrupt
        return measure(step)

    monkeypatch.setattr(experiment, "_measure", interrupted)
    refuse_call("", experiment.run, checkpoint=left.append, checkpoint_every=1000, error=KeyboardInterrupt)
    run = reread(left[-1], tmp_path)
    assert len(run.history) == len(run.results) == 5
    same(finish(*problem(), chosen, resume=run), whole)


def test_an_edited_file_is_refused_or_accepted_with_both_digests_in_the_run(part, tmp_path):
    chosen = settings(part("average"))
    run = stopped(chosen, 4, tmp_path)
    (tmp_path / "own_state.py").write_text(PARTS + "\n# a comment\n")
    refuse_call("`resume`: the code of .*average changed .*`accept_code_change=True`", finish, *problem(), chosen, resume=run)
    twice = stopped(chosen, 6, tmp_path, run, accept_code_change=True)
    whole = reread(finish(*problem(), chosen, resume=twice), tmp_path)  # the digest of the run is that of the new version
    same(whole, finish(*problem(), chosen))
    (change,) = whole.meta["code_changes"]
    before, after = run.meta["own"][part("average")], whole.meta["own"][part("average")]
    assert before != after and change == {"name": part("average"), "before": before, "after": after, "rounds": 5}
