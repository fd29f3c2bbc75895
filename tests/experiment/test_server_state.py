"""State that own server parts compute from weights: restored with a run, or refused when a run is resumed."""

import pytest
import torch

from fnlkit.experiment import Experiment
from tests.commands import refuse_call
from tests.experiment.test_experiment import finish, problem, reread, same, settings

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
