"""Runs: written, read, interrupted at any round, resumed, extended, refused when they do not fit."""

import dataclasses
import signal
import types

import numpy as np
import pytest
import torch

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.core.processes import defer_interrupts
from fnlkit.estimators import estimate
from fnlkit.estimators.warmup import model_probabilities
from fnlkit.experiment import Experiment, Settings
from fnlkit.experiment.network import build_network, load_trained
from fnlkit.experiment.plan import BoundMethod
from fnlkit.federated.engines import sequential
from fnlkit.results import evaluation
from tests.commands import fnlkit, refuse_call
from tests.toy import IN_SESSION


def blobs(x, y, x_test, y_test):
    """Return a data set of vectors in four classes."""
    return types.SimpleNamespace(
        name="blobs", kind="vector", x_train=x.astype(np.float32), y_train=y, x_test=x_test.astype(np.float32),
        y_test=y_test, mean=(), std=(), checksum="0" * 64, features=None, table=None, sample_rate=0, class_names=list("abcd"),
        test_verified=True,
    )  # fmt: skip


def problem(seed=0, count=8, size=24, classes=4, public=0):
    """Return (federation, data set) of Gaussian blobs, half of the clients noisy; `public` samples are nobody's."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(classes, 6)) * 2
    n = count * size
    y, y_test = rng.integers(0, classes, n), rng.integers(0, classes, 60)
    x, x_test = (centers[labels] + rng.normal(size=(len(labels), 6)) for labels in (y, y_test))
    given = y.copy()
    noisy = np.flatnonzero((np.arange(n) // size) % 2 == 0)
    noisy = noisy[rng.random(len(noisy)) < 0.6]
    given[noisy] = rng.integers(0, classes, len(noisy))
    offsets = np.arange(0, n + 1, size)
    offsets[-1] -= public
    owned = rng.permutation(n)[: n - public]
    return Federation("blobs", classes, offsets, owned, given, true=y), blobs(x, y, x_test, y_test)


def settings(method="fedavg", **values):
    defaults = {"model": "mlp(hidden=[8])", "rounds": 12, "fraction": 0.25, "epochs": 2, "batch_size": 24, "lr": 0.05}
    return Settings(method=method, **(defaults | values))


def finish(federation, dataset, chosen, stop_after=None, resume=None, engine="sequential", make=Experiment, **options):
    """Run an experiment; with `stop_after` press Ctrl-C in that round and return what the checkpoint left, or None."""
    left = []

    def on_round(row):
        if stop_after is not None and row["round"] == stop_after:
            raise KeyboardInterrupt

    experiment = make(federation, dataset, chosen, engine=engine, resume=resume, **options)
    try:
        return experiment.run(on_round=on_round, checkpoint=left.append, checkpoint_every=1000)
    except KeyboardInterrupt:
        return left[-1] if left else None


def same(a, b):
    assert torch.equal(a.weights, b.weights)
    assert a.history == b.history
    for name in a.labels:
        assert np.array_equal(a.labels[name], b.labels[name])
    assert a.memory.keys() == b.memory.keys()
    assert all(torch.equal(a.memory[name], b.memory[name]) for name in a.memory)
    assert a.records.keys() == b.records.keys()
    assert vars(a.traffic) == vars(b.traffic)


def reread(run, folder):
    path = str(folder / "a run.pt")
    run.write(path)
    return Run.read(path)


# All methods replay their program in tests/methods/test_methods.py, and memories are stored by name. These methods have one of
# each kind: labels and rows, whole numbers, state, a model per client, a pair, models at the server, sums of visits to all
# clients, a public set, clients of their own, and booleans with a number of visits.
REMEMBERED = {"fedcorr", "selfie", "feddpcont", "local", "coteaching", "fedreda", "fedem", "rhfl", "centralized", "feddiv"}
CASES = [("fedavg", "feddyn(alpha=0.1)", "uniform"), ("fedavg", "fedprox", "power-of-choice(d=4)")] + [
    pytest.param(method, "fedavg", "uniform", marks=() if method in REMEMBERED else pytest.mark.slow) for method in IN_SESSION
]


@pytest.mark.parametrize(("method", "optimizer", "selector"), CASES)
def test_a_resumed_run_ends_bit_for_bit_like_one_never_stopped(method, optimizer, selector, tmp_path):
    federation, dataset = problem(public=8 if "public" in registry.needs(method) else 0)
    more = {"rounds": 32} if method == "centralized" else {"rounds": 8}  # one client there, four a round elsewhere
    chosen = settings(method, optimizer=optimizer, selector=selector, epochs=1, batch_size=24, **more)
    whole = finish(federation, dataset, chosen)
    assert whole.finished and "accuracy" in whole.history[-1]
    run = reread(finish(federation, dataset, chosen, stop_after=4), tmp_path)
    assert not run.finished and len(run.history) == 5
    same(reread(finish(federation, dataset, chosen, resume=run), tmp_path), reread(whole, tmp_path))


@pytest.mark.parametrize(("method", "missed"), [("nnc(k=5)", 0), ("oracle(usual=nnc(k=5))", 0), ("t-revision", 2)])
def test_a_resumed_run_in_which_a_client_makes_up_for_a_missed_round(method, missed, tmp_path, monkeypatch):
    """The clients that did not miss the round do its step once, also after the run is resumed."""
    visit = sequential._replies

    def lossy(network, twin, client, *arguments, seed, round):
        if (client.id, round) == (1, missed):
            raise ConnectionError
        return visit(network, twin, client, *arguments, seed=seed, round=round)

    monkeypatch.setattr(sequential, "_replies", lossy)
    federation, dataset = problem()
    chosen = settings(method, fraction=0.5)
    whole = finish(federation, dataset, chosen)
    assert [row["client"] for row in whole.rejected] == [1]
    run = None
    for stop in (2, 5, 9):
        run = reread(finish(federation, dataset, chosen, stop_after=stop, resume=run), tmp_path)
    same(reread(finish(federation, dataset, chosen, resume=run), tmp_path), reread(whole, tmp_path))


@pytest.mark.parametrize(("scored", "number"), [(False, 9), (True, 4)])
def test_an_interruption_inside_a_round_loses_only_that_round(scored, number, tmp_path, monkeypatch):
    """After the clients changed their memory and before the server received it, or while the round is scored."""
    federation, dataset = problem()
    chosen = settings("fedcorr", **({"eval_every": 1} if scored else {}))
    whole = finish(federation, dataset, chosen)
    experiment, lengths = Experiment(federation, dataset, chosen, engine="sequential"), []
    where, name = (experiment, "_scores") if scored else (experiment.clients.engine, "run")
    inner = getattr(where, name)

    def interrupted(*arguments):
        replies = inner(*arguments)
        lengths.append(len(experiment.history))
        if len(lengths) == number:
            raise KeyboardInterrupt
        return replies

    monkeypatch.setattr(where, name, interrupted)
    left = []
    refuse_call("", experiment.run, checkpoint=left.append, checkpoint_every=1000, error=KeyboardInterrupt)
    assert len(left[-1].history) == lengths[-1]
    same(finish(federation, dataset, chosen, resume=reread(left[-1], tmp_path)), whole)


def test_a_signal_waits_until_a_round_is_complete():
    """SIGTERM; Ctrl-C: the test below."""
    done, before = [], signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), defer_interrupts():
            signal.raise_signal(signal.SIGTERM)
            done.append("complete")
        assert done == ["complete"] and signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_interruption_waits_until_the_run_is_saved():
    """As two Ctrl-C, or `timeout -s INT`, which sends the signal to the process and to its group."""
    experiment, saved = Experiment(*problem(), settings(rounds=4)), []

    def stop(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    def save(run):
        signal.raise_signal(signal.SIGINT)
        saved.append(len(run.history))

    refuse_call("", experiment.run, on_round=stop, checkpoint=save, error=KeyboardInterrupt)
    assert saved == [2]


UNBUDGETED = ["elr", "flr(warmup=2, rates=constant)", "feddpcont", "fedefc(start=2, patience=2)", "na-fedavg(at=2)"]


@pytest.mark.parametrize(("method", "more"), [
    ("fedavg", {"eval_every": 3}),
    ("centralized", {"decay": 0.5, "fraction": 0.3}),  # 1.5 passes, then 3.6
    ("fednoro(warmup=6, end=8)", {"epochs": 1}),
    ("fedelc(warmup=6)", {"epochs": 1}),
    ("maskedoptim(warmup=6)", {"epochs": 1}),
    *((method, {}) for method in UNBUDGETED),
])  # fmt: skip
def test_more_rounds_continue_a_finished_run(method, more, tmp_path):
    """Also a run that ended within its warm-up."""
    assert registry.of_budget(method, 5) == registry.of_budget(method, 12)
    federation, dataset = problem()
    short = finish(federation, dataset, settings(method, rounds=5, **more))
    assert (short.history[-1]["stage"] == "final") == ("eval_every" in more)
    longer = finish(federation, dataset, settings(method, rounds=12, **more), resume=reread(short, tmp_path))
    same(longer, finish(federation, dataset, settings(method, rounds=12, **more)))


def test_more_rounds_are_refused_if_stages_follow_from_the_rounds_that_are_left():
    """14 and 15 rounds give fedsir equal stages, but the 12 and 13 rounds after its identification do not."""
    plan = BoundMethod.of("fedsir")
    assert plan.budget(14) != plan.budget(15)
    fixed = BoundMethod.of("fedsir(interval=2, begin=0, end=5)")
    assert fixed.budget(14) == fixed.budget(15)


def test_a_finished_run_whose_method_asked_after_its_last_round_stays_as_it_is(tmp_path):
    federation, dataset = problem()
    chosen = settings("fedcorr(iterations=1, finetune_rounds=2, usual_rounds=0)")
    whole = reread(finish(federation, dataset, chosen), tmp_path)
    assert whole.finished and len(whole.log) > len([row for row in whole.history if row["stage"] != "final"])
    same(reread(finish(federation, dataset, chosen, resume=whole), tmp_path), whole)


def test_a_run_is_refused_with_other_settings():
    federation, dataset = problem()
    run = finish(federation, dataset, settings(rounds=3))
    refuse_call("`lr` 0.05, not 0.1", Experiment, federation, dataset, settings(rounds=3, lr=0.1), resume=run)
    refuse_call("more than `rounds`", Experiment, federation, dataset, settings(rounds=2), resume=run)
    damaged = dataclasses.replace(run, weights=run.weights.repeat(2))
    refuse_call("weights, but its network", Experiment, federation, dataset, settings(rounds=3), resume=damaged)


def test_seeds_decide_everything():
    federation, dataset = problem()
    runs = [finish(federation, dataset, settings("fedcorr", seed=seed)) for seed in (0, 0, 1)]
    same(runs[0], runs[1])
    assert not torch.equal(runs[0].weights, runs[2].weights)


def test_memorization_is_recorded_and_changes_nothing():
    federation, dataset = problem()
    plain, watched = (finish(federation, dataset, settings(memorization=m)) for m in (False, True))
    assert torch.equal(plain.weights, watched.weights)
    row = watched.history[-1]
    for where in ("global", "local"):
        parts = [row[f"{where}_noisy_{what}"] for what in ("correct", "memorized", "wrong")]
        assert sum(parts) == pytest.approx(1) and row[f"{where}_clean_correct"] > 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [("rounds", 0), ("fraction", 1.5), ("lr", -1), ("lr", float("nan")), ("client_optimizer", "lion"), ("seed", -1)],
)
def test_settings_out_of_range_are_named(name, value):
    refuse_call(f"^`{name}` is ", Settings, **{name: value})


def test_tf32_needs_a_gpu_for_training_and_not_for_its_runs():
    refuse_call("requires a GPU", Experiment, *problem(), settings(precision="tf32"), device="cpu")
    assert str(build_network("mlp", input_shape=(8,), classes=3, precision="tf32").device) == "cpu"


def test_a_student_of_another_width_gets_a_head_and_learns(tmp_path):
    federation, dataset = problem()
    vectors = dataset.x_train @ np.random.default_rng(0).normal(size=(6, 20))
    run = finish(federation, dataset, settings("akd(k=5)", rounds=20), embeddings=vectors)
    assert run.meta["head"] == 20 and run.history[-1]["accuracy"] > 0.6
    plain = finish(federation, dataset, settings(rounds=1))
    assert len(run.weights) == len(plain.weights) + (8 + 1) * 20
    assert len(evaluation.test_predictions(reread(run, tmp_path), dataset)) == len(dataset.y_test)
    same(finish(federation, dataset, settings("akd(k=5)", rounds=20), embeddings=vectors, resume=run), run)


def test_a_late_score_is_of_the_last_fifth_of_the_client_rounds():
    """20 rounds of one client, then 8 of ten, evaluated every 10 client-rounds: 0.9 and 1.0 are after client-round 80.

    Of the 28 rounds, the last fifth begins after round 22 and contains six evaluations, with a mean of 0.75.
    """
    spent = [*range(1, 21), *range(30, 101, 10)]
    rows = [{"client_rounds": n} | ({} if n % 10 else {"accuracy": n / 100}) for n in spent]
    assert evaluation.late_score(rows) == pytest.approx(0.95)
    last = {"accuracy": 0.5}  # of the last model, after the last round
    assert evaluation.late_score([*rows[:-1], {"client_rounds": 100}, last]) == pytest.approx(0.7)  # 0.9 and 0.5
    assert evaluation.late_score([*rows[:-2], {"client_rounds": 200}]) == pytest.approx(0.8)  # none after 160: the last one
    assert evaluation.late_score([]) is None and evaluation.late_score([{"client_rounds": 5}]) is None


def test_a_loss_is_compared_by_resume_and_older_runs_had_the_cross_entropy(tmp_path):
    federation, dataset = problem()
    left = finish(federation, dataset, settings(loss="gce(q=0.5)"), stop_after=4)
    refuse_call(r"made with `loss` gce\(q=0.5\), not ce", finish, federation, dataset, settings(), resume=left)
    straight = finish(federation, dataset, settings(loss="gce(q=0.5)"))
    same(finish(federation, dataset, settings(loss="gce(q=0.5)"), resume=reread(left, tmp_path)), straight)
    left = reread(finish(federation, dataset, settings(), stop_after=4), tmp_path)
    del left.settings["loss"]
    same(finish(federation, dataset, settings(), resume=left), finish(federation, dataset, settings()))


def test_a_run_with_a_head_is_a_model_for_estimators():
    """AKD's second output is no part of what predicts: the probabilities are those that evaluate sees."""
    federation, dataset = problem()
    embeddings = np.random.default_rng(0).normal(size=(len(dataset.y_train), 5)).astype(np.float32)
    run = finish(federation, dataset, settings("akd(k=5)", rounds=4), embeddings=embeddings)
    assert run.meta["head"] == 5
    found = estimate(federation, dataset, "loss", run=run, warm_up={"rounds": 2, "epochs": 1, "fraction": 0.5})
    assert np.isfinite(found["estimate_issue_score"]).all()
    probabilities = model_probabilities(run, dataset, np.arange(20), 4)
    logits = load_trained(run, dataset).logits(torch.from_numpy(dataset.x_train[:20]))
    assert np.allclose(probabilities, logits.double().softmax(-1)) and len(logits[0]) == 4


CHANGED = [
    (lambda f: {"client_offsets": np.r_[0, f.client_offsets[1:-1] + 1, f.client_offsets[-1]]}, "another partition"),
    (lambda f: {"client_indices": f.client_indices[::-1].copy()}, "another partition"),
    (lambda f: {"classes": f.classes + 1}, "another partition"),
    (lambda f: {"given": np.roll(f.given, 1)}, "another set of labels"),
    (lambda f: {"true": np.roll(f.true, 1)}, "another set of true labels"),
    (lambda f: {"true": None}, "another set of true labels"),
    (lambda f: {"extra": {"reviewed": f.given == 0}}, "another review of labels"),
]


def test_a_run_is_continued_on_the_very_federation():
    federation, dataset = problem()
    left = finish(federation, dataset, settings(), stop_after=1)
    for change, different in CHANGED:
        with pytest.raises(InputError, match=f"`resume`: the run was made from {different}"):
            finish(dataclasses.replace(federation, **change(federation)), dataset, settings(), resume=left)


BUDGETED = ["flr", "slr", "flr(warmup=2, rates=alpha-constant)", "fedcorr(iterations=1)", "feddpcont(delay=-1)", "fedefc",
            "confident-learning(patience=2)", "na-fedavg", "nnc(usual=flr())", "akd(source=logits)"]  # fmt: skip


@pytest.mark.parametrize("method", BUDGETED)
def test_resuming_with_another_budget_is_refused_if_the_schedule_depends_on_it(method):
    assert registry.of_budget(method, 20) != registry.of_budget(method, 140)
    if method in ("flr", "fedcorr(iterations=1)"):
        federation, dataset = problem()
        left = finish(federation, dataset, settings(method, rounds=8), stop_after=5)
        refuse_call("`rounds=8`", finish, federation, dataset, settings(method, rounds=16), resume=left)


def test_weights_of_a_recorded_round_are_released():
    """Weights are most of the memory, and methods keep the last replies while the next replies arrive."""
    experiment = Experiment(*problem(), Settings(rounds=3, epochs=1, fraction=0.5, model="mlp(hidden=3)"), engine="sequential")
    program, seen = experiment.program, []

    def watched():
        for step in program:
            seen.append((step.replies, "weights" in step.replies))
            yield step

    experiment.program = watched()
    experiment.run()
    assert [there for _, there in seen] == [True] * 3 and all("weights" not in replies for replies, _ in seen)


@pytest.mark.parametrize(
    ("selector", "alike"), [("uniform", False), ("power-of-choice(d=4)", True), ("power-of-choice(weights=samples)", False)]
)
def test_a_selector_decides_how_its_cohort_is_averaged(selector, alike):
    assert Experiment(*problem(), settings(selector=selector), engine="sequential").opt.equal_weights == alike


def test_a_short_run_without_any_accepted_reply_fails(tmp_path):
    """Three rounds of one client each are too few to judge a single round, but no model was trained."""
    (tmp_path / "mine.py").write_text("def broken(logits, batch):\n    raise ValueError\n")
    train = "fnlkit train --loss mine.py:broken --rounds 3 --fraction 0.05 -o run.pt"
    done = fnlkit(f"fnlkit partition | {train}", tmp_path)
    assert done.returncode == 1 and "1 of 1 replies rejected" in done.stderr.splitlines()[-1]
    assert not Run.read(str(tmp_path / "run.pt")).finished
