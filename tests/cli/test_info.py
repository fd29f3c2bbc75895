"""`fnlkit info` of files that no memory holds: their heads are read, and nothing is claimed of the rest."""

import io
import json
import os
import tracemalloc
import zlib

import numpy as np
import pytest

from fnlkit.artifacts import files, packing
from tests.commands import fnlkit, refuse, succeed

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
    entries, at = [], 0
    with open(path, "wb") as handle:
        for name, content in [*((name, member(array)) for name, array in small.items()), ("embeddings", None)]:
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
    done = fnlkit("fnlkit info big.npz", tmp_path)
    says = {"shape": "declares", "truncated": "damaged", "kind": "is unknown", "no kind": "a plain npz without 'kind'"}[what]
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1, done.stderr


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
    assert "2 of 5 rounds, not finished; continue with train --resume" in fnlkit("fnlkit info a.pt", tmp_path).stdout
    facts = json.loads(fnlkit("fnlkit info a.pt --json", tmp_path).stdout)
    assert (facts["finished"], facts["rounds_done"], facts["rounds_planned"]) == (False, 2, 5)
