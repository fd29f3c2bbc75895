"""The pipeline from Python: the same functions, files and sentences as the commands."""

import json

import pytest
import torch

import fnlkit
from fnlkit.artifacts import files
from tests.commands import fnlkit as command
from tests.commands import succeed

pytestmark = pytest.mark.smoke

TRAINING = {"rounds": 2, "fraction": 0.5, "epochs": 1, "batch_size": 60, "engine": "sequential"}
OPTIONS = "--rounds 2 --fraction 0.5 --epochs 1 --batch-size 60 --engine sequential"


@pytest.fixture(scope="module")
def fed():
    clean = fnlkit.partition("digits", "dirichlet(alpha=1)", clients=4, seed=3)
    return fnlkit.inject_noise(clean, "symmetric(eta=0.4)", seed=5)


@pytest.fixture(scope="module")
def run(fed):
    return fnlkit.train(fed, "fedavg", say=None, **TRAINING)


@pytest.fixture(scope="module")
def by_commands(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    lines = [
        "partition --scheme 'dirichlet(alpha=1)' --clients 4 --seed 3 -o clean.npz",
        "inject-noise clean.npz --noise 'symmetric(eta=0.4)' --seed 5 -o noisy.npz",
        "estimate-noise noisy.npz --estimator 'knn(k=10)' --apply relabel --seed 1 -o judged.npz",
        f"train noisy.npz {OPTIONS} -o run.pt",
        "inject-noise --dataset digits --noise 'pairflip(eta=0.3)' -o whole.npz",
        "partition whole.npz --clients 5 -o split.npz",
    ]
    for line in lines:
        succeed(f"fnlkit {line}", folder)
    return folder


def test_each_function_writes_the_bytes_of_its_command(fed, run, by_commands, tmp_path):
    judged = fnlkit.estimate_noise(fed, "knn(k=10)", relabel=True, seed=1, say=None)
    whole = fnlkit.inject_noise("digits", "pairflip(eta=0.3)")
    for name, thing in {
        "noisy": fed, "judged": judged, "whole": whole, "split": fnlkit.partition(whole, clients=5),
    }.items():  # fmt: skip
        fnlkit.save(thing, tmp_path / f"{name}.npz")
        assert (tmp_path / f"{name}.npz").read_bytes() == (by_commands / f"{name}.npz").read_bytes(), name
    theirs = fnlkit.load(by_commands / "run.pt")
    assert torch.equal(theirs.weights, run.weights) and theirs.history == run.history
    assert theirs.meta["provenance"] == run.meta["provenance"] and theirs.settings == run.settings


def test_evaluate_returns_the_numbers_of_the_command(by_commands):
    done = command("fnlkit evaluate run.pt --json", by_commands)
    said = json.loads(done.stdout)
    ours = fnlkit.evaluate(by_commands / "run.pt")
    assert ours.rows == [said | {"run": str(by_commands / "run.pt")}]
    assert ours.arrays["test_confusion"].sum() == 359


def test_a_run_displays_a_summary(run):
    facts = run.summary()
    assert facts["method"] == "fedavg" and facts["accuracy_best"] == max(row["accuracy"] for row in run.history)
    assert "accuracy best" in repr(facts) and "<table>" in facts._repr_html_()
    assert "fedavg on digits, 2 rounds" in repr(run)
    frame = run.to_pandas()
    assert frame["accuracy"].tolist() == [row["accuracy"] for row in run.history]


def test_several_runs_make_one_table(run, fed):
    other = fnlkit.train(fed, "fedavg", say=None, seed=1, **TRAINING)
    found = fnlkit.evaluate(run, other)
    assert [row["run"] for row in found.rows] == ["fedavg-0", "fedavg-1"]
    (group,) = found.groups()
    assert group["runs"] == 2 and len(found.to_pandas()) == 2 and "fedavg-1" in repr(found)
    assert "<td" in found._repr_html_()


@pytest.mark.parametrize("method", ["_repr_html_", "__repr__"])
def test_text_from_files_is_not_markup(method, fed):
    import dataclasses

    hostile = dataclasses.replace(fed, meta={**fed.meta, "noise": [{"model": "<script>alert(1)</script>\x1b[31m"}]})
    shown = getattr(hostile, method)()
    assert "\x1b" not in shown and ("<script>" not in shown or method == "__repr__")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fnlkit.train(3), "`federation` is int"),
        (lambda: fnlkit.train(fnlkit.partition("digits"), round=3), "no option `round`; did you mean 'rounds'?"),
        (lambda: fnlkit.estimate_noise(fnlkit.partition("digits"), "confident", epoch=3), "no option `epoch`"),
        (lambda: fnlkit.partition("digits", dataset="digits"), "first argument"),
        (lambda: fnlkit.inject_noise("digits", dataset="digits"), "first argument"),
        (lambda: fnlkit.evaluate(), "needs a run"),
        (lambda: fnlkit.evaluate(fnlkit.partition("digits")), "takes runs, found Federation"),
        (lambda: fnlkit.save({}, "x.npz"), "cannot write dict"),
        (lambda: fnlkit.train(fnlkit.partition("digits"), features="digits.npz"), "write --backbone SPEC"),
    ],
)
def test_mistakes_that_only_python_can_make(call, words):
    with pytest.raises(fnlkit.InputError) as error:
        call()
    assert words in str(error.value)


def test_training_calls_on_round_and_restores_the_thread_count(fed, tmp_path, capsys):
    rows, before = [], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        made = fnlkit.train(fed, on_round=rows.append, output=tmp_path / "run.pt", **TRAINING)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert rows == made.history and made.meta["machine"]["threads"] == 1
    lines = (tmp_path / "run.metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    again = fnlkit.train(fed, resume=tmp_path / "run.pt", say=None, **TRAINING)
    assert again.history == made.history and torch.equal(again.weights, made.weights)


def test_other_files_load_as_artifacts(run, tmp_path):
    fnlkit.save(fnlkit.evaluate(run), tmp_path / "found.npz")
    found = fnlkit.load(tmp_path / "found.npz")
    assert isinstance(found, files.Artifact) and found.kind == "fnlkit.evaluation/1"
    fnlkit.save(found, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "found.npz").read_bytes()
