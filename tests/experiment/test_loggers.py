"""Loggers: the numbers of metrics.jsonl under the same names and steps, also after a resume; nothing is imported otherwise."""

import json
import subprocess
import sys

import pytest

import fnlkit
from fnlkit.experiment.loggers import LOGGERS, check_loggers, open_loggers
from tests.commands import fnlkit as command
from tests.commands import refuse_call


def logged_tensorboard(folder):
    """Return {name: {step: value}} of the visible events of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "run.tensorboard")).Reload()
    return {name: {e.step: e.value for e in events.Scalars(name)} for name in events.Tags()["scalars"]}


def logged_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("fnlkit").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["rounds"] == "4"
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    assert all(len(history) == len({e.step for e in history}) for history in histories.values())
    return {name: {e.step: e.value for e in history} for name, history in histories.items()}


def records(data):
    """Yield the records of a .wandb file, which has the form of LevelDB's log after seven bytes."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        end = place + 7 + int.from_bytes(data[place + 4 : place + 6], "little")
        record, kind = record + data[place + 7 : end], data[place + 6]
        place = end
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def logged_wandb(folder):
    from wandb.proto.wandb_internal_pb2 import Record

    found, ids = {}, set()
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in map(Record.FromString, records(path.read_bytes())):
            ids |= {record.run.run_id} if record.WhichOneof("record_type") == "run" else set()
            for item in record.history.item:
                name = item.key or ".".join(item.nested_key)
                found.setdefault(name, {})[record.history.step.num] = json.loads(item.value_json)
    assert len(ids) == 1
    return {name: steps for name, steps in found.items() if not name.startswith("_")}


@pytest.fixture
def federation():
    return fnlkit.partition("digits", clients=4, say=None)


@pytest.mark.parametrize("name", LOGGERS)
@pytest.mark.filterwarnings("ignore")  # those of the libraries
def test_a_logger_has_the_numbers_of_the_metrics_also_after_a_resume(name, federation, tmp_path):
    pytest.importorskip(name)
    if name == "mlflow":
        pytest.importorskip("sqlalchemy")
    run, path = {"rounds": 4, "epochs": 1, "say": None, "log": name, "checkpoint_every": 1}, tmp_path / "run.pt"

    def stop(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    refuse_call("", fnlkit.train, federation, on_round=stop, output=path, error=KeyboardInterrupt, **run)
    seen = []
    fnlkit.train(federation, resume=path, output=path, on_round=seen.append, **run)
    rows = [json.loads(line) for line in (tmp_path / "run.metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and seen == rows[2:]
    logged = globals()[f"logged_{name}"](tmp_path)
    numbers = {key for row in rows for key, value in row.items() if type(value) in (int, float)}
    assert logged.keys() == numbers > {"round", "accuracy", "bytes_up"}
    for key, steps in logged.items():
        assert steps == pytest.approx({step: row[key] for step, row in enumerate(rows) if key in row}, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_new_run_hides_events_of_the_old_one_and_another_file_gets_the_earlier_rows(tmp_path):
    pytest.importorskip("tensorboard")
    rows = [{"round": i, "stage": "training", "accuracy": i / 10, "clients": [1], "finished": True} for i in range(3)]
    for first in (rows[:1], rows[1:]):  # as a second run into the same file, and as one that continues another file
        with open_loggers(["tensorboard"], str(tmp_path / "run.pt"), {}, first) as log:
            log(rows[2])
    expected = {"round": {0: 1, 1: 2, 2: 2}, "accuracy": {0: pytest.approx(0.1), 1: pytest.approx(0.2), 2: pytest.approx(0.2)}}
    assert logged_tensorboard(tmp_path) == expected


def test_without_a_logger_no_library_is_imported_and_a_missing_one_is_named(tmp_path, monkeypatch):
    code = "import sys, fnlkit.experiment.loggers; print([n for n in ('tensorboard', 'wandb', 'mlflow') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    monkeypatch.setattr("fnlkit.experiment.loggers.find_spec", lambda name: None)
    (tmp_path / "fed.npz").touch()
    for name in LOGGERS:
        done = command(f"fnlkit train --log {name} fed.npz -o run.pt", tmp_path)
        assert done.returncode == 2 and f"pip install 'fnlkit[{name}]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("names", "output", "words"), [("tensorbord", "a.pt", "tensorboard"), ("tensorboard", "-", "output")])
def test_unusable_loggers_are_refused(names, output, words, monkeypatch):
    monkeypatch.setattr("fnlkit.experiment.loggers.find_spec", lambda name: True)
    refuse_call(words, check_loggers, names, output)
