"""Malformed replies of single clients: every method names the client and goes on, whatever the form."""

from functools import cache

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artifacts.run import Run
from fnlkit.core import registry
from fnlkit.core.declarations import LARGEST, Sent
from fnlkit.core.errors import InputError
from fnlkit.experiment import Experiment, Settings
from fnlkit.experiment.plan import Plan
from fnlkit.federated.client.failure import Failure
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.clients import TooManyLost
from fnlkit.simulate import partitioning
from tests.methods.test_methods import with_embeddings
from tests.toy import IN_SESSION, Net, fitting, toy

# Every method, and options that change its replies.
SPECS = [*(name for name in IN_SESSION if name not in ("nnc", "akd", "fedrg", "fedefc", "forward", "confident-learning")),
    "fedcorr(iterations=1, usual_selector=power-of-choice(d=30))", "fedefc(latest=1, report_transition=true)",
    "fedefc(latest=1)",
    "forward(latest=1, report_transition=true)", "confident-learning(latest=1)", "feddpcont(release=exact)",
    "na-fedavg(threshold=own)", "nnc(k=5)", "akd(k=5)", "akd(k=5, scale=rms)", "akd(source=logits)",
    "nnc(k=5, usual=feddpcont())"]  # fmt: skip


def number_of(value, number):
    """Return a reply of the same shape whose entries are all one number."""
    return torch.full_like(value.double(), number)


EXTRA = {f"extra {i}": torch.tensor(1.0) for i in range(1000)}
# Form: what a client sends in place of one reply, {name: value}.
FORMS = {
    "wrong name": lambda name, value: {f"{name}s": value},
    "wrong shape": lambda name, value: {name: torch.cat([value.reshape(-1)] * 2)[None]},
    "wrong dtype": lambda name, value: {name: value.to(torch.complex128)},
    "text": lambda name, value: {name: "0.5"},
    "NaN": lambda name, value: {name: number_of(value, torch.nan)},
    "above": lambda name, value: {name: number_of(value, 1e300)},
    "below": lambda name, value: {name: number_of(value, -1e300)},
    "extra names": lambda name, value: {name: value} | EXTRA,
    "missing name": lambda name, value: {},
    "huge string": lambda name, value: {name: "x" * 1_000_000, "y" * 1_000_000: value},
    "number as name": lambda name, value: {name: value, 7: value},
    "empty": lambda name, value: None,
}  # fmt: skip
# The client that spoils its weights in each form, and the one that spoils all other replies.
WITH_WEIGHTS = {form: 2 * place for place, form in enumerate(FORMS)}
WITH_OTHERS = {form: 2 * place + 1 for place, form in enumerate(FORMS)}
COUNT = 32


def spoiled(form, reply, others):
    """Return a client's reply in a malformed form: of its weights, or of all `others`."""
    wanted = [name for name in reply if (name != "weights") == others]
    if form == "empty":
        return {} if wanted else reply
    out = {name: value for name, value in reply.items() if name not in wanted}
    for name in wanted:
        out |= FORMS[form](name, reply[name])
    return out


@cache
def run(method, rounds=4):
    """Return (federation, steps, clients that sent something malformed) of a run in which some clients always do."""
    fed, model = toy(count=COUNT, min_replies=0.0, network=fitting(Net, method))
    with_embeddings(fed.members)
    fed.sends = Plan.of(Settings(method=method)).sends
    visit, spoils = fed.engine.run, set()

    def hostile(request):
        replies = visit(request)
        for j, client in enumerate(request.ids.tolist()):
            for whose, others in ((WITH_WEIGHTS, False), (WITH_OTHERS, True)):
                for form, bad in whose.items():
                    if client == bad and any((name != "weights") == others for name in replies[j]):
                        replies[j] = spoiled(form, replies[j], others)
                        spoils.add(client)
        return replies

    fed.engine.run = hostile
    opt = registry.optimizer("fedavg", Fit(epochs=1, lr=0.1, batch_size=40))
    program = registry.method(method)(fed, model, opt, registry.selector("uniform", 1.0), rounds=rounds)
    return fed, list(program), spoils


def quick(specs):
    """Return parameters; of methods that send the same replies all but the first are slow."""
    seen, out = set(), []
    for spec in specs:
        names = frozenset(registry.sends(spec))
        out.append(pytest.param(spec, marks=pytest.mark.slow if names in seen else ()))
        seen.add(names)
    return out


@pytest.mark.parametrize("method", quick(SPECS))
def test_malformed_replies_are_refused_and_their_clients_named(method):
    fed, steps, spoils = run(method)
    named = {row["client"] for row in fed.rejected}
    assert torch.isfinite(steps[-1].model.weights).all()
    for form in FORMS:
        bad = WITH_WEIGHTS[form], WITH_OTHERS[form]
        assert bad[0] in named and set(bad) & spoils <= named, form
    assert all(len(row["reason"]) <= 300 and row["reason"].isprintable() for row in fed.rejected)
    # Valid replies are accepted next to them.
    assert {row["client"] for row in fed.rejected} == spoils
    kept = set(np.concatenate([entry.kept for entry in fed.log]).tolist())
    assert kept >= set(range(COUNT)) - spoils
    assert set(fed.traffic.sent) <= {"weights", "refused", *fed.sends}


@pytest.mark.parametrize("method", ["fedcorr", "feddpcont", "na-fedavg", "nnc(k=5)"])
@pytest.mark.parametrize("form", ["wrong shape", "empty"])
def test_a_run_stops_in_one_line_where_too_few_replies_are_left(method, form):
    fed, model = toy(count=12, network=Net)
    with_embeddings(fed.members)
    fed.sends, visit = Plan.of(Settings(method=method)).sends, fed.engine.run
    fed.engine.run = lambda request: [spoiled(form, reply, True) for reply in visit(request)]
    opt = registry.optimizer("fedavg", Fit(epochs=1, lr=0.1, batch_size=40))
    program = registry.method(method)(fed, model, opt, registry.selector("uniform", 0.5), rounds=8)
    with pytest.raises((InputError, TooManyLost)) as stopped:
        list(program)
    assert len(str(stopped.value).splitlines()) == 1 and len(str(stopped.value)) < 1000


def test_a_run_that_met_long_names_and_reasons_can_be_read(tmp_path):
    """A client sends 20,000 names, another fails with 10,000 characters: the file names both and opens."""
    digits = datasets.load("digits")
    federation = partitioning.federation(digits, clients=8, seed=0)
    chosen = Settings(rounds=2, fraction=1.0, epochs=1, model="mlp(hidden=4)", standardize="none")
    experiment = Experiment(federation, digits, chosen, engine="sequential")
    visit = experiment.clients.engine.run

    def hostile(request):
        replies = visit(request)
        replies[1] |= {f"name {i}": torch.tensor(1.0) for i in range(20_000)}
        replies[2] = Failure("failed", "\x1b[2J" + "E" * 10_000)
        return replies

    experiment.clients.engine.run = hostile
    experiment.run().write(str(tmp_path / "run.pt"))
    run = Run.read(str(tmp_path / "run.pt"))
    assert {row["client"] for row in run.rejected} == {1, 2} and set(run.traffic.sent) == {"weights", "refused", "moments"}
    assert max(len(row["reason"]) for row in run.rejected) <= 300
    assert all(row["reason"].isprintable() for row in run.rejected)


@pytest.mark.parametrize(
    ("value", "admitted"),
    [
        (torch.tensor([0, 3, 7]), [0, 3, 7]),
        (torch.tensor([0, 3, 7], dtype=torch.int32), [0, 3, 7]),
        ([1, 1, 1], [1, 1, 1]),
        (np.ones(3, bool), [1, 1, 1]),
        (torch.tensor([0, 3, 8]), None),  # the client has 7 samples
        (torch.tensor([-1, 3, 7]), None),
        (torch.tensor([1.0, 1.0, 1.0]), None),
        (np.array([2**64 - 1] * 3, np.uint64), None),
        ([2**70] * 3, None),
        (torch.eye(3, dtype=torch.int64).to_sparse(), None),
        (torch.ones(3, dtype=torch.int64)[None], None),
        (None, None),
    ],
)
def test_a_reply_is_converted_to_its_declared_type_or_refused(value, admitted):
    fed, model = toy(count=3)
    fed.sends, fed.sizes = {"counts": Sent("of labels", "once", (3,), "int64", low=0, high="n")}, torch.tensor([7.0, 7.0, 7.0])
    fed.engine.run = lambda request: [{"counts": torch.zeros(3, dtype=torch.int64)}, {"counts": value}, {"counts": [1, 2, 3]}]
    said = fed.round([0, 1, 2], model, expect=("counts",))
    assert said.ids.tolist() == [0, 2] if admitted is None else said["counts"][1].tolist() == admitted
    assert said["counts"].dtype == torch.int64


def test_an_entry_that_is_not_bounded_by_its_declaration_is_bounded_all_the_same():
    fed, model = toy(count=3)
    fed.sends = {"scores": Sent("of its samples", "once", ())}
    fed.engine.run = lambda request: [{"scores": value} for value in (1.0, LARGEST, 2 * LARGEST)]
    assert fed.round([0, 1, 2], model, expect=("scores",)).ids.tolist() == [0, 1]
