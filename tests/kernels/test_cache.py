"""Compiled kernels on disk: shared by processes that start together, and no failure where they cannot be kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fnlkit._kernels import _compile

WORK = """
import numpy as np
from fnlkit import kernels
T = np.array([[0.5, 0.5], [0.25, 0.75]])
print(kernels.flip_labels([0, 0, 1, 1], T, [0.4, 0.6, 0.2, 0.3]).tolist())
"""


def start(folder):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "FNLKIT_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", WORK]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.strip() == "[0, 1, 0, 1]"


def test_processes_that_start_together_share_a_folder_and_damage_is_healed(tmp_path):
    together = [start(tmp_path) for _ in range(3)]
    for process in together:
        finish(process)
    files = sorted((tmp_path / "fnlkit").iterdir())
    assert files and all(file.suffix == ".kernel" for file in files)
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    finish(start(tmp_path))


def test_no_writable_folder_is_no_failure(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder should be")
    finish(start(blocked))
    assert blocked.read_text().startswith("a file")


def test_code_of_another_source_or_for_other_types_is_not_taken(monkeypatch):
    shelf = _compile._Shelf(finish)

    class Codegen:
        @staticmethod
        def magic_tuple():
            return ("processor",)

    def name(signature):
        return shelf._file(signature, Codegen)[1]

    first = name("float32")
    assert first != name("float64")
    monkeypatch.setattr(_compile, "_digest", lambda: "changed")
    assert first != name("float32")


def test_default_folders_end_with_one_of_the_users(monkeypatch):
    monkeypatch.setattr(_compile.numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/somebody/.cache")
    assert _compile.cache_folders.__wrapped__()[-1] == Path("/home/somebody/.cache/fnlkit")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_pieces_come_back_in_order_and_errors_come_out(threads):
    from fnlkit._kernels.threads import even, run

    assert run(lambda a, b: (a, b), even(10, 4), threads) == even(10, 4)
    with pytest.raises(ZeroDivisionError):
        run(lambda a, b: 1 // a, even(10, 4), threads)
