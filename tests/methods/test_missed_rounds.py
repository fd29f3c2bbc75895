"""A client that misses a round costs at most what a run without this client costs, in accuracy and for every method.

A step that combines sums of different clients, or that trusts a client that nobody judged, ends far below.
"""

import types
from functools import cache

import numpy as np
import pytest

from fnlkit.artifacts.federation import Federation
from fnlkit.engines import sequential
from fnlkit.experiment import Experiment, Settings
from tests.toy import IN_SESSION

SIZES, CLASSES, FEATURES, PUBLIC = (30, 30, 30, 30, 30, 60), 4, 6, 30
LAST = len(SIZES) - 1
METHODS = [name for name in IN_SESSION if name != "centralized"]  # which has one client
# Methods with rounds that do not train, or with a single round of a kind. In the others every round is one of many alike.
STAGED = ("feddpcont", "flr-plus", "nnc", "akd", "na-fedavg", "t-revision", "fednoro", "fedelc", "fedem", "oracle")
# Four standard deviations of a run without the client over three seeds: 0.015, pooled over all methods but feddpcont (0.09).
TOLERANCE = 0.06
SETTINGS = {"model": "mlp(hidden=[32])", "rounds": 12, "fraction": 1.0, "epochs": 2, "lr": 0.1, "eval_every": 100}


def problem(kind, seed=0, *, without=False):
    """Return (federation, data set) of Gaussian blobs; the largest client, the last, has `clean` or only `wrong` labels."""
    rng = np.random.default_rng(100 + seed)
    centers = 3.2 * np.linalg.qr(rng.normal(size=(FEATURES, FEATURES)))[0][:CLASSES]
    offsets = PUBLIC + np.concatenate([[0], np.cumsum(SIZES)])
    n = offsets[-1]
    y, y_test = rng.integers(0, CLASSES, n), rng.integers(0, CLASSES, 500)
    x, x_test = (centers[labels] + rng.normal(size=(len(labels), FEATURES)) for labels in (y, y_test))
    used = slice(offsets[-2 if without else -1])  # the samples of a client that is left out are not public
    dataset = types.SimpleNamespace(
        name="blobs", kind="vector", x_train=x[used].astype(np.float32), y_train=y[used], x_test=x_test.astype(np.float32),
        y_test=y_test, mean=(), std=(), checksum="0" * 64, features=None, table=None, sample_rate=0, class_names=list("abcd"),
        test_verified=True,
    )  # fmt: skip
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


def run(method, kind, *, seed=0, without=False, missed=None, engine="sequential", **options):
    """Return (accuracy, [(clients, names of steps)] of the rounds); the last client's reply is lost in round `missed`."""
    rounds, visit = [], sequential._replies

    def lossy(network, twin, client, *args, seed, round):
        reply = visit(network, twin, client, *args, seed=seed, round=round)
        if (client.id, round) == (LAST, missed):
            raise ConnectionError
        return reply

    experiment = Experiment(
        *problem(kind, seed, without=without), Settings(method=method, seed=seed, **SETTINGS), engine=engine, **options
    )
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


def positions(rounds, *, more=False):
    """Return {round: (whether it trains, number of rounds with the same steps)} of the last client.

    The rounds are the first with each kind of steps and, if requested, the middle and the last one.
    """
    asked = [r for r, (ids, _) in enumerate(rounds) if LAST in ids]
    alike = {r: [other for other in asked if rounds[other][1] == rounds[r][1]] for r in asked}
    chosen = {same[0] for same in alike.values()} | ({asked[len(asked) // 2], asked[-1]} if more else set())
    return {r: ("fit" in rounds[r][1], len(alike[r])) for r in sorted(chosen)}


@cache
def complete(method, kind):
    """Return (accuracy without the client, accuracy with all replies, rounds of the latter)."""
    return run(method, kind, without=True)[0], *run(method, kind)


def must_be_close(method, kind, missed):
    without, accuracy, _ = complete(method, kind)
    assert run(method, kind, missed=missed)[0] >= min(without, accuracy) - TOLERANCE, (kind, missed)


# Of the methods without --slow, each has a round of another kind: one that votes, one that scores, one that only sums.
QUICK = ("nnc", "na-fedavg", "fedem")


def quick(methods):
    return [pytest.param(method, marks=() if method in QUICK else pytest.mark.slow) for method in methods]


@pytest.mark.parametrize("method", quick(["fedavg", *STAGED]))
def test_a_missed_round_costs_no_more_than_the_client(method):
    """A client with right labels misses a round of each kind; one with wrong labels a stage's only round."""
    found = positions(complete(method, "clean")[2])
    for r in found:
        must_be_close(method, "clean", r)
    if any(number == 1 for _, number in found.values()):
        for r, (_, number) in positions(complete(method, "wrong")[2]).items():
            if number == 1:
                must_be_close(method, "wrong", r)


# If one client has a third of the samples and only wrong labels, the accuracy of these methods depends on the seed: standard
# deviations of 0.09 to 0.22 over 32 seeds with all replies (FedAvg: 0.06). `fedefc` learns the wrong labels (accuracy 0.02 to
# 0.04) for 3 of 32 seeds with all replies and for 5 with a missed first round. Two single runs cannot be compared.
UNSTABLE = ("fedefc", "forward", "coteaching-plus", "fedrn", "dividemix")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clean", "wrong"])
@pytest.mark.parametrize("method", METHODS)
def test_any_missed_round(method, kind):
    if kind == "wrong" and method in UNSTABLE:
        pytest.skip("compared over 32 seeds by test_a_missed_first_round_of_unstable_methods")
    found = positions(complete(method, kind)[2], more=True)
    assert (method in STAGED) == any(not trains or number == 1 for trains, number in found.values())
    for r in found:
        must_be_close(method, kind, r)


@pytest.mark.slow
@pytest.mark.parametrize("method", UNSTABLE)
def test_a_missed_first_round_of_unstable_methods(method):
    """The mean difference over 32 seeds is above the tolerance, with an allowance of two standard errors."""
    first = min(positions(complete(method, "wrong")[2]))
    differences = np.array([difference_of(method, "wrong", seed, first) for seed in range(32)])
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    assert differences.mean() >= -TOLERANCE - 2 * error, (differences.mean(), error)


def difference_of(method, kind, seed, missed):
    """Return the accuracy with a missed round minus the accuracy with all replies."""
    return run(method, kind, seed=seed, missed=missed)[0] - run(method, kind, seed=seed)[0]
