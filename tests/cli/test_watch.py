"""A run is followed from another terminal, whatever state its file is in."""

import json
import os
import threading
import time

import pytest
from filelock import FileLock

from fnlkit.errors import InputError
from fnlkit.results import live_metrics
from fnlkit.results.live_metrics import Metrics, summary
from tests.commands import fnlkit, refuse, succeed


def row(number, accuracy=None, stage="training"):
    out = {"round": number, "stage": stage, "client_rounds": 5 * (number + 1)}
    return json.dumps(out | ({} if accuracy is None else {"accuracy": accuracy})) + "\n"


def test_a_file_that_grows_is_read_once_and_one_that_begins_anew_from_the_start(tmp_path):
    path = tmp_path / "run.metrics.jsonl"
    path.write_text(row(0, 0.5) + row(1)[:10])
    found = Metrics(str(path))
    assert [r["round"] for r in found.update()] == [0]
    path.write_text(row(0, 0.5) + row(1) + row(2, 0.75))
    assert [r["round"] for r in found.update()] == [1, 2] and found.update() == []
    assert summary(found.rows) == ("training, 3 rounds, 15 client-rounds, accuracy 0.7500, best 0.7500", [0.5, 0.75])
    path.write_text(row(0, 0.25))  # --resume writes it anew
    found.update()
    assert len(found.rows) == 1 and not found.running


def test_watch_follows_until_the_run_ends(tmp_path):
    path, lock = tmp_path / "run.metrics.jsonl", tmp_path / "run.metrics.jsonl.lock"
    path.write_text(row(0, 0.5))
    held = FileLock(lock)
    held.acquire()

    def train():
        time.sleep(0.3)  # the command starts and shows the first row
        with open(path, "a") as file:
            file.write(row(1, 0.75) + row(2, 0.8, "final"))
        os.unlink(lock)
        held.release()

    other = threading.Thread(target=train)
    other.start()
    done = fnlkit("fnlkit watch run.metrics.jsonl --every 0.05", tmp_path)
    other.join()
    assert done.returncode == 0 and "accuracy 0.5000" in done.stdout and "final" in done.stdout and "best 0.8000" in done.stdout


def test_a_run_that_trained_is_shown_and_a_terminal_too(noisy, tmp_path):
    line = f"fnlkit train {noisy} --rounds 2 --engine sequential --epochs 1 -o run.pt && fnlkit watch run.metrics.jsonl --once"
    assert "training, 2 rounds, 4 client-rounds, accuracy 0." in succeed(line, tmp_path).stdout
    assert "2 rounds" in succeed("fnlkit watch run.metrics.jsonl", tmp_path, terminal=True).stdout


@pytest.mark.parametrize(
    "text",
    [
        "hello\n",
        "5\n",
        '{"round": 1}\n',
        '{"round": 1, "stage": "x", "accuracy": "high"}\n',
        "\n",
        "[" * 100000 + "\n",
    ],
)
def test_watch_refuses_other_files(text, tmp_path):
    (tmp_path / "x.jsonl").write_text(text)
    refuse("fnlkit watch x.jsonl", tmp_path, "line 1 is no row")


def test_the_lock_of_a_killed_run_is_ignored(tmp_path):
    """After SIGKILL the file of the lock stays, and nobody holds it."""
    (tmp_path / "run.metrics.jsonl").write_text(row(0, 0.5))
    (tmp_path / "run.metrics.jsonl.lock").write_text("123456")
    found = Metrics(str(tmp_path / "run.metrics.jsonl"))
    assert not found.running
    with FileLock(tmp_path / "run.metrics.jsonl.lock"):
        assert found.running
    assert not found.running


def test_a_large_file_is_read_in_pieces_and_rows_are_kept_short(tmp_path, monkeypatch):
    rows = [json.loads(row(i, 0.5)) | {"clients": list(range(50))} for i in range(40)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    monkeypatch.setattr(live_metrics, "_BLOCK", 100)
    found = Metrics(str(tmp_path / "long.jsonl"))
    assert [one["round"] for one in found.update()] == list(range(40)) and not any("clients" in one for one in found.rows)
    (tmp_path / "endless.jsonl").write_bytes(bytes(2**24))
    monkeypatch.setattr(live_metrics, "_LONGEST", 1000)
    found = Metrics(str(tmp_path / "endless.jsonl"))
    with pytest.raises(InputError):
        found.update()
    assert found._at <= 1200  # and no more was read


def test_missing_files_folders_and_strange_stages(tmp_path):
    for name in ("nothing.jsonl", "."):
        with pytest.raises(InputError):
            Metrics(str(tmp_path / name))
    (tmp_path / "x.jsonl").write_text(row(0, 0.5, "\x1b[31mred"))
    done = fnlkit("fnlkit watch x.jsonl", tmp_path)
    assert "\x1b" not in done.stdout and "red" in done.stdout
    (tmp_path / "empty.jsonl").write_text("")
    assert "no round yet" in fnlkit("fnlkit watch empty.jsonl", tmp_path).stdout
