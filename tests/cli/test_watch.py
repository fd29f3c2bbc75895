"""A run is followed from another terminal, whatever state its file is in."""

import json
import os
import threading
import time

import pytest
from filelock import FileLock

from tests.commands import fnlkit, refuse, succeed


def row(number, accuracy=None, stage="training"):
    out = {"round": number, "stage": stage, "client_rounds": 5 * (number + 1)}
    return json.dumps(out | ({} if accuracy is None else {"accuracy": accuracy})) + "\n"


def test_rows_are_summarized_and_a_row_that_is_still_written_is_left_out(tmp_path):
    (tmp_path / "run.metrics.jsonl").write_text(row(0, 0.5) + row(1) + row(2, 0.75) + row(3)[:10])
    lines = succeed("fnlkit watch run.metrics.jsonl", tmp_path).stdout.splitlines()
    assert lines == ["training, 3 rounds, 15 client-rounds, accuracy 0.7500, best 0.7500", "▁█"]


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
    """After SIGKILL the file of the lock stays, and nobody holds it: the command ends."""
    (tmp_path / "run.metrics.jsonl").write_text(row(0, 0.5))
    (tmp_path / "run.metrics.jsonl.lock").write_text("123456")
    assert "1 rounds" in succeed("fnlkit watch run.metrics.jsonl", tmp_path).stdout


def test_missing_files_folders_and_strange_stages(tmp_path):
    for name in ("nothing.jsonl", "."):
        refuse(f"fnlkit watch {name}", tmp_path, "RUN.metrics.jsonl")
    (tmp_path / "x.jsonl").write_text(row(0, 0.5, "\x1b[31mred"))
    done = fnlkit("fnlkit watch x.jsonl", tmp_path)
    assert "\x1b" not in done.stdout and "red" in done.stdout
    (tmp_path / "empty.jsonl").write_text("")
    assert "no round yet" in fnlkit("fnlkit watch empty.jsonl", tmp_path).stdout
