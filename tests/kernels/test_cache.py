"""Compiled kernels on disk: shared by processes that start together, and no failure where they cannot be kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fnlkit._kernels import _compile
from tests.commands import LIMIT, refuse_call

WORK = """
import numpy as np
from fnlkit import kernels
T = np.array([[0.5, 0.5], [0.25, 0.75]])
print(kernels.flip_labels([0, 0, 1, 1], T, [0.4, 0.6, 0.2, 0.3]).tolist())
"""


def start(folder, before=""):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "FNLKIT_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", before + WORK]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert out.strip() == "[0, 1, 0, 1]"
    return err


NOTES = """
from fnlkit._kernels import _compile
_compile._PATIENCE = 0
"""


def test_processes_that_start_together_share_a_folder_and_damage_is_healed(tmp_path):
    together = [start(tmp_path, NOTES) for _ in range(2)]
    notes = [line for process in together for line in finish(process).splitlines()]
    files = sorted((tmp_path / "fnlkit").iterdir())
    assert files and all(file.suffix == ".kernel" for file in files)
    # One process compiles each kernel and prints a note; the other waits.
    compiled = [line.split()[2] for line in notes if "compiling" in line]
    assert sorted(compiled) == sorted(file.name.rpartition("-")[0].removeprefix("fnlkit._kernels.") for file in files)
    raw = bytearray(files[0].read_bytes())
    raw[len(raw) // 2] ^= 16
    files[0].write_bytes(raw)
    written = [file.stat().st_mtime_ns for file in files]
    assert "compiling" not in finish(start(tmp_path, NOTES))
    # Only the damaged kernel is compiled and written again.
    assert [file.stat().st_mtime_ns > time for file, time in zip(files, written, strict=True)] == [True, False]
    for file in files:
        assert _compile._unseal(file.read_bytes())


@pytest.mark.parametrize("bit", range(0, 8 * 40, 7))
def test_a_turned_bit_is_found(bit):
    raw = bytearray(_compile._seal(b"compiled"))
    raw[bit // 8] ^= 1 << bit % 8
    refuse_call("damaged", _compile._unseal, bytes(raw), error=ValueError)
    refuse_call("damaged", _compile._unseal, bytes(raw[:bit]), error=ValueError)


NOWHERE = """
import os, pathlib, pwd, tempfile
from fnlkit._kernels import _compile
from tests.commands import LIMIT
def nobody(number):
    raise KeyError(number)
pwd.getpwuid = nobody
os.environ.pop("HOME", None), os.environ.pop("XDG_CACHE_HOME", None)
_compile.__file__ = os.devnull + "/_compile.py"
tempfile.tempdir = {folder!r}
"""


def test_without_a_home_kernels_are_cached_in_a_temporary_folder_with_one_note(tmp_path):
    """As in a container whose user has no name, with the program in a folder that cannot be written."""
    nowhere = NOWHERE.format(folder=str(tmp_path))
    # On a busy machine, compiling takes long enough for a note of its own.
    (said,) = (line for line in finish(start("", nowhere)).splitlines() if "compiling" not in line)
    (folder,) = tmp_path.iterdir()
    assert str(folder) in said and folder.stat().st_mode & 0o77 == 0 and list(folder.glob("*.kernel"))
    assert not finish(start("", nowhere))


# Each of the slow tests imports the compiler in a process of its own.
@pytest.mark.slow
def test_a_temporary_folder_that_others_can_write_is_not_used(tmp_path):
    folder = tmp_path / f"fnlkit-kernels-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    finish(start("", NOWHERE.format(folder=str(tmp_path))))
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_a_kernel_is_compiled_without_the_lock_of_a_process_that_does_not_end(tmp_path):
    (tmp_path / "fnlkit").mkdir()
    stuck = """
from fnlkit._kernels import _compile
import fcntl, os
_compile._LONGEST_WAIT, _compile._PATIENCE, held = 0.3, 0.1, []
def locked(path, before=_compile._hold_lock):
    held.append(os.open(path, os.O_RDWR | os.O_CREAT))
    fcntl.flock(held[-1], fcntl.LOCK_EX)
    return before(path)
_compile._hold_lock = locked
"""
    assert "waiting for another process" in finish(start(tmp_path, stuck))
    assert list((tmp_path / "fnlkit").glob("*.kernel"))


def test_work_goes_on_if_nothing_can_be_locked(tmp_path, monkeypatch):
    def cannot(self, **_):
        raise OSError("no locks")

    monkeypatch.setattr("filelock.FileLock.acquire", cannot)
    with _compile._hold_lock(tmp_path / ".kernel.lock"):
        assert not list(tmp_path.iterdir())


def test_a_changed_kernel_in_any_folder_is_compiled_anew(tmp_path, monkeypatch):
    (tmp_path / "fused").mkdir()
    for place in ("a.py", "fused/b.py"):
        (tmp_path / place).write_text("one = 1\n")
    monkeypatch.setattr(_compile, "__file__", str(tmp_path / "_compile.py"))
    seen = {_compile._digest.__wrapped__()}
    for place in ("a.py", "fused/b.py"):
        (tmp_path / place).write_text("one = 2\n")
        seen.add(_compile._digest.__wrapped__())
    assert len(seen) == 3


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
    refuse_call("", run, lambda a, b: 1 // a, even(10, 4), threads, error=ZeroDivisionError)
