"""partition, inject-noise, info and data as a shell sees them; info of files that no memory holds."""

import io
import json
import os
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

from fnlkit.artifacts import files, packing
from fnlkit.artifacts.federation import Federation
from tests.commands import fnlkit, refuse, shell, succeed

BIN = Path(sys.executable).parent


def test_noise_before_partition(tmp_path):
    succeed("fnlkit inject-noise --dataset digits --noise 'symmetric(eta=0.4)' -o all.npz", tmp_path)
    split = "--scheme 'openset(q=0.4)' --clients 8"
    done = succeed(f"fnlkit partition all.npz {split} -o fed.npz && fnlkit info fed.npz", tmp_path)
    succeed(f"fnlkit partition - {split} -o again.npz", tmp_path, stdin=(tmp_path / "all.npz").read_bytes())
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "fed.npz").read_bytes()
    fed = Federation.read(tmp_path / "fed.npz")
    assert len(fed) == 8 and fed.noise_transition.shape == (10, 10) and 0.3 < (fed.given != fed.true).mean() < 0.5
    assert "8 clients" in done.stdout and "symmetric(eta=0.4)" in done.stdout


def test_data_of_the_user(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.normal(size=(40, 3)) for part in ("train", "test")}
    arrays |= {f"y_{part}": np.arange(40) % 4 for part in ("train", "test")}
    folder = tmp_path / "with space"
    folder.mkdir()
    np.savez(folder / "my data.npz", **arrays, speaker_train=np.array(["ann", "bob"] * 20))
    command = "fnlkit partition --dataset 'my data.npz' --scheme 'field(name=speaker)'"
    command += " | fnlkit inject-noise --noise instance -o 'a b.npz'"
    succeed(command, folder)
    fed = Federation.read(folder / "a b.npz")
    assert fed.dataset == str(folder / "my data.npz") and len(fed) == 2 and (fed.given != fed.true).any()
    succeed(command.replace("'my data.npz'", f"'{folder}/my data.npz'").replace("a b", "c"), tmp_path)
    assert (tmp_path / "c.npz").read_bytes()[-200:] == (folder / "a b.npz").read_bytes()[-200:]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; needs another user")
def test_a_read_only_folder(tmp_path):
    (tmp_path / "ro").mkdir(mode=0o555)
    done = shell("fnlkit partition -o ro/x.npz", tmp_path)
    assert done.returncode == 2 and "is not writable; choose another folder" in done.stderr


def test_without_home_and_with_an_odd_locale(tmp_path):
    line = "env -u HOME -u FNLKIT_CACHE LC_ALL=POSIX PYTHONUTF8=0 fnlkit"
    done = shell(f"{line} partition | {line} info", tmp_path)
    assert done.returncode == 0 and "federation of digits" in done.stdout, done.stderr


def test_a_terminal_gets_a_table_and_no_bytes(tmp_path):
    if not Path("/usr/bin/script").exists():
        pytest.skip("needs script(1)")
    done = shell("script -qec 'fnlkit partition' /dev/null", tmp_path)
    assert done.returncode == 0 and "client_offsets" in done.stdout and "PK" not in done.stdout
    assert "not written: stdout is a terminal" in done.stdout


def test_hostile_text_in_a_file_does_not_reach_the_terminal(tmp_path):
    fed = Federation("digits", 10, np.array([0, 2]), np.arange(2), np.arange(10), np.arange(10))
    fed.meta = {"provenance": [{"command": "\x1b[2J[red]x", "parameters": {"a": "\x07"}}], "noise": [{"model": "\x1b[1mx"}]}
    files.write(fed.to_artifact(), tmp_path / "x.npz")
    done = succeed("fnlkit info x.npz && fnlkit info x.npz --json", tmp_path)
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout and "[red]x" in done.stdout


@pytest.mark.parametrize(("name", "needs"), [("folder", ["path"]), ("votes", ["data"])])
def test_info_of_a_kind_of_data_set_is_its_card(name, needs, tmp_path):
    assert "**Files.**" in succeed(f"fnlkit data info {name} -v", tmp_path).stdout
    assert json.loads(succeed(f"fnlkit data info {name} --json", tmp_path).stdout) == {"name": name, "needs": needs}


# ---- `fnlkit info` of files that no memory holds
ROWS, WIDTH = 1_200_000, 1280  # 6.1 GB


def member(array):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=(1, 0))
    return out.getvalue()


def sparse(path, *, claimed=(ROWS, WIDTH), kind="fnlkit.embeddings/1"):
    """Write an npz of fnlkit's form whose array of 6 GB is a hole in the file."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": claimed})
    size = len(head.getvalue()) + 4 * ROWS * WIDTH
    small = {"kind": np.array(kind), "meta": np.array(json.dumps({"dataset": "photos"})), "sha256": np.array("ab" * 32)}
    entries, at, (*first, last) = [], 0, [(name, member(array)) for name, array in small.items()]
    with open(path, "wb") as handle:
        for name, content in [*first, ("embeddings", None), last]:
            length, crc = (size, 0) if content is None else (len(content), zlib.crc32(content))
            local = packing._local(f"{name}.npy", crc, length, at)
            handle.write(local + (head.getvalue() if content is None else content))
            entries.append((f"{name}.npy", crc, length, at))
            at += len(local) + length
            handle.seek(at)
        handle.write(packing._tail(entries, at))
    return path


def test_a_file_of_six_gigabytes_is_described_from_its_heads(tmp_path):
    path = sparse(tmp_path / "big.npz")
    assert path.stat().st_size > files.MAX_BYTES and path.stat().st_blocks * 512 < 2**20
    fnlkit(f"fnlkit info {path}", tmp_path)  # what is imported once
    tracemalloc.start()
    done = fnlkit(f"fnlkit info {path} --json", tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["arrays"] == {"embeddings": {"dtype": "float32", "shape": [ROWS, WIDTH]}}
    assert facts["meta"]["dataset"] == "photos" and not facts["checked"] and facts["sha256"] == "ab" * 32
    assert peak < 4 * 2**20, peak
    shown = fnlkit("fnlkit info big.npz", tmp_path).stdout
    assert "1,200,000 x 1,280" in shown and "large arrays were not checked" in shown


@pytest.mark.parametrize("what", ["shape", "truncated", "kind", "no kind"])
def test_a_large_file_that_is_wrong_is_one_line(what, tmp_path):
    wrong = {"shape": {"claimed": (ROWS, WIDTH + 1)}, "kind": {"kind": "fnlkit.nonsense/1"}}.get(what, {})
    path = sparse(tmp_path / "big.npz", **wrong)
    if what == "truncated":
        os.truncate(path, 5 * 2**30)
    elif what == "no kind":
        with open(path, "r+b") as handle:  # in the member's head and in the directory
            raw = handle.read(4096)
            handle.seek(raw.index(b"kind.npy"))
            handle.write(b"sort.npy")
            handle.seek(-4096, os.SEEK_END)
            tail = handle.read()
            handle.seek(-4096 + tail.index(b"kind.npy"), os.SEEK_END)
            handle.write(b"sort.npy")
    says = {"shape": "declares", "truncated": "damaged", "kind": "is unknown", "no kind": "a plain npz without 'kind'"}[what]
    assert refuse("fnlkit info big.npz", tmp_path, says).stderr.count("\n") == 1


def test_a_small_file_is_still_checked_to_the_last_bit(noisy, tmp_path):
    raw = bytearray(noisy.read_bytes())
    facts = json.loads(fnlkit(f"fnlkit info {noisy} --json", tmp_path).stdout)
    assert facts["checked"] and facts["sha256"] == files.digest(files.read(noisy))
    raw[len(raw) // 2] ^= 1
    (tmp_path / "flipped.npz").write_bytes(raw)
    refuse("fnlkit info flipped.npz", tmp_path, "damaged")


def test_an_unfinished_run_is_named(noisy, tmp_path):
    from fnlkit.artifacts.run import Run

    line = f"fnlkit train {noisy} --rounds 2 --fraction 0.1 --epochs 1 --model 'mlp(hidden=[4])' --quiet -o a.pt"
    assert not succeed(line, tmp_path).stderr
    facts = json.loads(fnlkit("fnlkit info a.pt --json", tmp_path).stdout)
    assert facts["finished"] and "finished" not in fnlkit("fnlkit info a.pt", tmp_path).stdout
    run = Run.read(str(tmp_path / "a.pt"))
    run.finished = False
    run.settings["rounds"] = 5
    run.write(str(tmp_path / "a.pt"))
    run.history = [{key: value for key, value in row.items() if key != "accuracy"} for row in run.history]
    run.write(str(tmp_path / "untested.pt"))
    tested, untested = succeed("fnlkit evaluate a.pt untested.pt", tmp_path).stdout.splitlines()[1:3]
    assert "accuracy" in tested and "accuracy" not in untested
    assert "2 of 5 rounds, not finished; continue with train --resume" in fnlkit("fnlkit info a.pt", tmp_path).stdout
    facts = json.loads(fnlkit("fnlkit info a.pt --json", tmp_path).stdout)
    assert (facts["finished"], facts["rounds_done"], facts["rounds_planned"]) == (False, 2, 5)
