"""Tracked metrics, read back with the readers of the tracking programs, equal the history."""

import errno
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import fnlkit
from fnlkit.errors import InputError
from fnlkit.experiment.tracking import numbers
from tests.commands import fnlkit as command
from tests.commands import succeed

QUICK = {"fraction": 0.4, "epochs": 1, "say": None}


@pytest.fixture(scope="module")
def federation():
    return fnlkit.inject_noise(fnlkit.partition("digits", clients=5), "clients(rho=1, tau=0.5)")


def curves(folder):
    """{tag: [(step, value), ...]} of a folder, by TensorBoard's own reader; no step twice."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    out = {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    assert all(len({step for step, _ in points}) == len(points) for points in out.values())
    return out


def wanted(run):
    out, at = {}, 0
    for row in run.history:
        at = row.get("client_rounds", at)
        for name, value in numbers(row).items():
            out.setdefault(name, []).append((at, pytest.approx(value, rel=1e-6)))
    return out


def test_tensorboard_reads_the_history(federation, tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard (extra `tensorboard`)")
    run = fnlkit.train(federation, "fedcorr(iterations=1)", rounds=8, eval_every=3, log=f"tensorboard:{tmp_path}/tb", **QUICK)
    found = curves(tmp_path / "tb")
    assert found == wanted(run) and {"accuracy", "loss", "label_accuracy", "bytes_up"} <= found.keys()
    assert "final" in {row["stage"] for row in run.history}  # its score stands at the last round's place


def test_a_resumed_run_continues_its_curve_without_doubles(federation, tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard (extra `tensorboard`)")
    log = f"tensorboard:{tmp_path}/tb"
    place = tmp_path / "run.pt"

    def stop(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fnlkit.train(federation, rounds=6, output=place, checkpoint_every=2, log=log, on_round=stop, **QUICK)
    whole = fnlkit.load(place)
    # As after a kill: rounds were tracked that no checkpoint contains.
    short = fnlkit.train(federation, rounds=2, **QUICK)
    assert len(curves(tmp_path / "tb")["accuracy"]) == 4 > len(short.history)
    resumed = fnlkit.train(federation, rounds=6, resume=replace(whole), log=log, **QUICK)
    assert curves(tmp_path / "tb") == wanted(resumed) and len(resumed.history) == 6
    again = fnlkit.train(federation, rounds=4, resume=short, log=log, **QUICK)
    assert curves(tmp_path / "tb") == wanted(again) and len(again.history) == 4


def test_the_log_option(federation, tmp_path):
    federation.write(tmp_path / "noisy.npz")
    pytest.importorskip("tensorboard", reason="needs tensorboard (extra `tensorboard`)")
    line = "fnlkit train noisy.npz --rounds 1 --epochs 1 --fraction 0.4 -o run.pt"
    done = succeed(f"{line} --log tensorboard:a --log tensorboard:b", tmp_path)
    assert curves(tmp_path / "a") == curves(tmp_path / "b") == wanted(fnlkit.load(tmp_path / "run.pt"))
    for log, says in (
        ("tensorbord:x", "did you mean 'tensorboard'"),
        ("tensorboard", "after a colon, write a folder"),
        ("tensorboard:noisy.npz", "noisy.npz"),
    ):
        done = command(f"{line} --log {log}", tmp_path)
        assert done.returncode == 2 and says in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_library_is_one_line_with_the_command(kind, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"{kind} is not installed; run pip install 'fnlkit\[{kind}\]'"):
        fnlkit.train(Path("nothing.npz"), log=[f"{kind}:x"])


def test_mlflow_has_each_point_once_after_a_resume(federation, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    log = f"mlflow:sqlite:///{tmp_path}/mlflow.db"
    place = tmp_path / "run.pt"
    fnlkit.train(federation, rounds=2, output=place, log=log, **QUICK)
    run = fnlkit.train(federation, rounds=4, output=place, resume=place, log=log, **QUICK)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "fnlkit"]
    (found,) = client.search_runs([experiment.experiment_id])  # the same, continued
    points = [(one.step, one.value) for one in client.get_metric_history(found.info.run_id, "accuracy")]
    assert sorted(points) == wanted(run)["accuracy"]


def test_trackers_get_the_data_set_and_the_noise(federation):
    from types import SimpleNamespace

    from fnlkit.experiment import Settings
    from fnlkit.experiment.tracking import describe_run

    facts = describe_run(SimpleNamespace(settings=Settings(lr=0.5), federation=federation))
    made = [step["parameters"] for step in federation.meta["provenance"] if step["command"] == "inject-noise"]
    assert facts["dataset"] == "digits" and facts["lr"] == 0.5 and facts["inject-noise.noise"] == made[0]["noise"]
    assert "partition.clients" in facts


def test_a_run_is_known_again_by_its_file_settings_and_labels(federation):
    from types import SimpleNamespace

    from fnlkit.experiment import Settings
    from fnlkit.experiment.tracking import _identity

    def identity(name="run.pt", given=federation.given, **settings):
        fed = replace(federation, given=given)
        return _identity(SimpleNamespace(settings=Settings(**settings), federation=fed), name)

    assert identity() == identity(rounds=500) != identity(lr=0.5)
    assert len({identity(), identity("other.pt"), identity(None), identity(given=federation.true)}) == 4


def test_a_full_disk_of_the_log_is_one_line_and_names_the_place(federation, tmp_path, monkeypatch, capfd):
    writer = pytest.importorskip("tensorboard.summary.writer.record_writer", reason="needs tensorboard").RecordWriter
    count, write = [0], writer.write

    def full(self, data):
        count[0] += 1
        if count[0] > 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, data)

    monkeypatch.setattr(writer, "write", full)
    federation.write(str(tmp_path / "noisy.npz"))
    done = command("fnlkit train noisy.npz --rounds 5 --epochs 1 --fraction 0.4 --log tensorboard:tb -o run.pt", tmp_path)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("fnlkit: error: tb")
    assert "Traceback" not in done.stderr + capfd.readouterr().err
    assert fnlkit.load(tmp_path / "run.pt").history  # what was trained is saved
