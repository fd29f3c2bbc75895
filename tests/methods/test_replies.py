"""Malformed and lost replies: each method names the client and goes on; a missed round costs at most what this client costs."""

from functools import cache

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core import registry
from fnlkit.core.declarations import LARGEST, Sent
from fnlkit.core.errors import InputError
from fnlkit.core.spec import parse
from fnlkit.experiment import Experiment, Settings
from fnlkit.experiment.plan import Plan
from fnlkit.federated.client.failure import Failure
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines import sequential
from fnlkit.federated.server.clients import TooManyLost
from fnlkit.methods.missed import ask_again, complete_levels
from fnlkit.simulate import partitioning
from tests.commands import refuse_call
from tests.experiment.test_experiment import blobs
from tests.methods.test_methods import with_embeddings
from tests.toy import IN_SESSION, Net, fitting, program, toy

# ---- malformed and lost replies: every method names the client and goes on, and asks again when it comes round to the client
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


FIT = Fit(epochs=1, lr=0.1, batch_size=40)
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
def run(method, rounds=3):
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
    return fed, list(program(method, fed, model, rounds=rounds, fit=FIT, fraction=1.0)), spoils


def quick(specs):
    """Return parameters; methods are slow if earlier ones send all of their replies."""
    seen, out = set(), []
    for spec in specs:
        names = set(registry.sends(spec))
        out.append(pytest.param(spec, marks=pytest.mark.slow if names <= seen else ()))
        seen |= names
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
    with pytest.raises((InputError, TooManyLost)) as stopped:
        list(program(method, fed, model, rounds=8, fit=FIT))
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
    assert {row["client"] for row in run.rejected} == {1, 2} and set(run.traffic.sent) == {"weights", "refused"}
    assert max(len(row["reason"]) for row in run.rejected) <= 300
    assert all(row["reason"].isprintable() for row in run.rejected)


@pytest.mark.parametrize(("value", "admitted"), [
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
])  # fmt: skip
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


# ---- a visit that fails costs that visit
def test_levels_of_clients_without_a_reply():
    assert complete_levels([0.0, 0.2, 0.0, 0.5], [1, 3]).tolist() == [0.5, 0.2, 0.5, 0.5]
    assert complete_levels([0.0, 0.2], [0, 1]).tolist() == [0.0, 0.2] and complete_levels([0.0, 0.0], []).tolist() == [1.0, 1.0]


ONLY_ROUNDS = {"take_truth", "vote", "keep_anchor_transition", "prune", "score_classes", "score_samples"}
STAGED = ("oracle", "nnc(k=3)", "nnc(k=3, usual=akd())", "t-revision", "confident-learning(local_epochs=1)", "fednoro",
          "na-fedavg", "akd(source=logits)")  # fmt: skip


@pytest.mark.parametrize("method", STAGED)
def test_a_client_that_missed_a_stages_only_round(method):
    """It makes up for the round at its next visit, keeps all samples, or counts as noisy."""
    fed, model = toy(count=6)
    for client in fed.members:
        client.rows |= {"input/true": 0 * client.y, "input/embedding": client.x.float()}
    visit, only = fed.engine.run, []

    def away(request):
        names = {getattr(part, "func", part).__name__ for part in request.steps if not isinstance(part, Fit)}
        replies = visit(request)
        if names & ONLY_ROUNDS and not only:
            only.append(fed.rounds)
            fed.members[2].rows, fed.members[2].state = dict(before[0]), dict(before[1])
            replies[2] = Failure("silent", "")
        return replies

    before = dict(fed.members[2].rows), dict(fed.members[2].state)
    fed.engine.run = away
    steps = list(program(method, fed, model, rounds=6, fit=FIT, fraction=1.0))
    assert [row["client"] for row in fed.rejected] == [2] and only == [fed.rejected[0]["round"]]
    report = {name: value for step in steps for name, value in step.report.items()}
    client = fed.members[2]
    if method == "oracle":
        assert not client.y.any()
    elif method.startswith("nnc"):
        assert ("input/embedding" in client.rows) == ("akd" in method) and "neighbor_disagreement" in client.rows
        assert report["noise_level"][2] == report["noise_level"].max() > 0
    elif method == "t-revision":
        assert "transition" in client.state
    elif method.startswith("confident-learning"):
        assert (client.rows["keep"] == 1).all() and (fed.members[0].rows["keep"] != 1).any()
    elif method == "fednoro":
        assert report["noisy_clients"][2]
    else:
        assert report["noise_level"][2] == report["noise_level"].max() > 0


@pytest.mark.parametrize(("error", "back"), [(ValueError, (13, 20)), (InputError, ())])
def test_clients_that_are_still_away_do_not_stop_the_run(back, error):
    """Twelve of 24 clients miss a round; they are asked once more, and all but `back` miss this round too."""
    fed, model = toy(count=24, min_replies=0.5)
    visits = []

    def breaks(client, model, received):
        visits.append(client.id)
        if client.id >= 12 and not (client.id in back and visits.count(client.id) > 1):
            raise error("away")
        client.state["done"] = torch.ones(())

    replies = fed.round(range(24), model, breaks, expect=())
    ask_again(fed, range(24), replies, model, breaks)
    assert visits == [*range(24), *range(12, 24)]
    assert [i for i, client in enumerate(fed.members) if "done" in client.state] == [*range(12), *back]
    with pytest.raises((TooManyLost, InputError)):  # any other round
        fed.round(range(12, 24), model, breaks, expect=())


def refuses(client, model, received):
    if client.id == 2:
        parse("mlp(")  # an InputError, as a part of fnlkit raises it


def run_lossy(method, *, before=(), rounds=12, fraction=0.5, min_replies=0.5, count=6, lost=None):
    """Run a method; `lost` says (client, visit of that client) -> whether it fails."""
    fed, model = toy(count=count, min_replies=min_replies, dtype=torch.float32, network=fitting(Net, method))
    visits = dict.fromkeys(range(count), 0)

    def breaks(client, model, received):
        visits[client.id] += 1
        if lost and lost(client.id, visits[client.id]):
            raise ValueError(f"a sample of mine: {client.x[0].tolist()}")

    steps = list(program(method, fed, model, rounds=rounds, fit=FIT, fraction=fraction, before=(breaks, *before)))
    return fed, steps, visits


@pytest.mark.parametrize(("method", "min_replies"), [("fedcorr(iterations=2)", 0.0), ("flr-plus(iterations=2)", 0.5)])
def test_a_failed_visit_is_skipped_named_and_repeated(method, min_replies):
    fed, steps, visits = run_lossy(method, min_replies=min_replies, lost=lambda client, visit: client == 2 and visit == 1)
    assert [(r["client"], r["reason"]) for r in fed.rejected] == [(2, "failed: ValueError")]
    stage = [s for s in steps if s.stage == "pre-processing"]
    assert len(stage) == 12 and visits[2] >= 2  # an empty round is a round, and the next iteration asks again
    assert [2 in s.replies.ids for s in stage].count(True) == 1
    scores = [s.report["cumulative_lid"] for s in stage if "cumulative_lid" in s.report]
    assert scores[0][2] == 0 and scores[1][2] > 0
    # Its one score stands for both iterations: it is not the cleanest for having been away.
    assert scores[1][2] > np.median(scores[1]) / 2


def test_a_client_that_never_answers_takes_no_part_as_a_clean_one():
    fed, steps, _ = run_lossy("fedcorr(iterations=2, clean_level=1)", lost=lambda client, visit: client == 2)
    tuned = [s.replies.ids for s in steps if s.stage == "fine-tuning"]
    assert tuned and 2 not in np.concatenate(tuned)


def test_a_clients_own_input_error_is_its_own():
    fed, steps, _ = run_lossy("fedcorr(iterations=1)", before=(refuses,))
    assert {(r["client"], r["reason"]) for r in fed.rejected} == {(2, "failed: InputError")}


@pytest.mark.parametrize("method", ["fedavg", "fedcorr(iterations=1)"])
def test_a_mistake_that_meets_every_client_stops_the_run_with_its_sentence(method):
    def mistaken(client, model, received):
        parse("mlp(")

    refuse_call("cannot read 'mlp", run_lossy, method, before=(mistaken,))


@pytest.mark.parametrize(("method", "min_replies"), [("fedavg", 0.5), ("fedavg", 0.0), ("fedcorr(iterations=1)", 0.0)])
def test_a_run_without_any_reply_stops(method, min_replies):
    refuse_call("use -vv", run_lossy, method, min_replies=min_replies, lost=lambda client, visit: True, error=TooManyLost)


@pytest.mark.parametrize("method", [m for m in IN_SESSION if m not in ("nnc", "akd", "fedrg", "oracle")])
def test_every_method_continues_after_a_lost_cohort(method):
    """With min_replies=0 rounds may come back empty, here the second and every fifth visit of whoever is asked."""
    asked = []

    def lost(client, visit):
        asked.append(client)
        return len(asked) in (4, 5, 6)

    fed, steps, _ = run_lossy(method, min_replies=0.0, rounds=6, lost=lost)
    assert len(fed.rejected) == 3 and len(steps) >= 3


def test_fedcorr_spends_no_more_client_rounds_than_its_budget():
    fed, _, _ = run_lossy("fedcorr", rounds=16, fraction=0.3, count=8)
    assert fed.traffic.client_rounds <= 16 * 2


# ---- A client that misses a round costs at most what a run without this client costs, in accuracy and for every method
SIZES, CLASSES, FEATURES, PUBLIC = (30, 30, 30, 30, 30, 60), 4, 6, 30
LAST = len(SIZES) - 1
# Methods with rounds that do not train, or with a single round of a kind. In the others every round is one of many alike.
MISSED = ("feddpcont", "flr-plus", "nnc", "akd", "na-fedavg", "t-revision", "fednoro", "fedelc", "fedem", "oracle")
# Four standard deviations of a run without the client over three seeds: 0.015, pooled over all methods but feddpcont (0.09).
TOLERANCE = 0.06
SETTINGS = {"model": "mlp(hidden=[32])", "rounds": 12, "fraction": 1.0, "epochs": 2, "lr": 0.1, "eval_every": 100}


def problem(kind, *, without=False):
    """Return (federation, data set) of Gaussian blobs; the largest client, the last, has `clean` or only `wrong` labels."""
    rng = np.random.default_rng(100)
    centers = 3.2 * np.linalg.qr(rng.normal(size=(FEATURES, FEATURES)))[0][:CLASSES]
    offsets = PUBLIC + np.concatenate([[0], np.cumsum(SIZES)])
    n = offsets[-1]
    y, y_test = rng.integers(0, CLASSES, n), rng.integers(0, CLASSES, 500)
    x, x_test = (centers[labels] + rng.normal(size=(len(labels), FEATURES)) for labels in (y, y_test))
    used = slice(offsets[-2 if without else -1])  # the samples of a client that is left out are not public
    dataset = blobs(x[used], y[used], x_test, y_test)
    given, client = y.copy(), np.searchsorted(offsets, np.arange(n), side="right") - 1
    flipped = (client < LAST) & (client % 2 == 0) & (rng.random(n) < 0.5)
    given[flipped] = rng.integers(0, CLASSES, flipped.sum())
    if kind == "wrong":
        given[client == LAST] = (y[client == LAST] + 1) % CLASSES
    offsets = offsets[: -1 if without else None]
    indices = np.arange(PUBLIC, offsets[-1])
    return Federation("blobs", CLASSES, offsets - PUBLIC, indices, given[used], true=y[used]), dataset


def steps_of(steps):
    return tuple(getattr(step, "func", step).__name__ if callable(step) else "fit" for step in steps)


def run_missed(method, kind, *, without=False, missed=None):
    """Return (accuracy, [(clients, names of steps)] of the rounds); the last client's reply is lost in round `missed`."""
    rounds, visit = [], sequential._replies

    def lossy(network, twin, client, *args, seed, round):
        reply = visit(network, twin, client, *args, seed=seed, round=round)
        if (client.id, round) == (LAST, missed):
            raise ConnectionError
        return reply

    experiment = Experiment(*problem(kind, without=without), Settings(method=method, **SETTINGS), engine="sequential")
    engine, inner = experiment.clients.engine, experiment.clients.engine.run

    def recorded(request):
        rounds.append((request.ids.tolist(), steps_of(request.steps)))
        return inner(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequential, "_replies", lossy)
        patch.setattr(engine, "run", recorded)
        done = experiment.run()
    lost = [(row["round"], row["client"]) for row in done.rejected]
    assert lost == ([] if missed is None else [(missed, LAST)])
    return done.history[-1]["accuracy"], rounds


def positions(rounds):
    """Return {round: (whether it trains, number of rounds with the same steps)} of the last client.

    The rounds are the first with each kind of steps.
    """
    asked = [r for r, (ids, _) in enumerate(rounds) if LAST in ids]
    alike = {r: [other for other in asked if rounds[other][1] == rounds[r][1]] for r in asked}
    return {r: ("fit" in rounds[r][1], len(alike[r])) for r in sorted({same[0] for same in alike.values()})}


@cache
def complete(method, kind):
    """Return (accuracy without the client, accuracy with all replies, rounds of the latter)."""
    return run_missed(method, kind, without=True)[0], *run_missed(method, kind)


def must_be_close(method, kind, missed):
    without, accuracy, _ = complete(method, kind)
    assert run_missed(method, kind, missed=missed)[0] >= min(without, accuracy) - TOLERANCE, (kind, missed)


# Without --slow, test_fedsums.py misses rounds that sum, and the tests above those that vote, score, prune or estimate.
@pytest.mark.slow
@pytest.mark.parametrize("method", ("fedavg", *MISSED))
def test_a_missed_round_costs_no_more_than_the_client(method):
    """A client with right labels misses a round of each kind; one with wrong labels a stage's only round."""
    found = positions(complete(method, "clean")[2])
    for r in found:
        must_be_close(method, "clean", r)
    if any(number == 1 for _, number in found.values()):
        for r, (_, number) in positions(complete(method, "wrong")[2]).items():
            if number == 1:
                must_be_close(method, "wrong", r)
