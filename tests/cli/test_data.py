"""partition, inject-noise, info, data, estimate-noise, audit, review, correct and demo as a person at a shell uses them."""

import io
import json
import os
import re
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts import files, packing
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.estimators import estimate
from fnlkit.estimators.judgment import add_judgment, compare
from tests.commands import fnlkit, refuse, refuse_call, shell, succeed
from tests.tables import edit_csv

# ---- partition, inject-noise, info and data as a shell sees them; info of files that no memory holds
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


def test_every_data_set_has_a_card():
    assert all("**Source.**" in datasets.card(name) for name in datasets.registry())


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
    refuse("fnlkit evaluate a.pt --by method --tidy t.csv", tmp_path, "not finished: a.pt; groups need finished runs")
    assert not (tmp_path / "t.csv").exists()
    assert "2 of 5 rounds, not finished; continue with train --resume" in fnlkit("fnlkit info a.pt", tmp_path).stdout
    watched = succeed("fnlkit watch a.metrics.jsonl", tmp_path).stderr
    assert watched == "the run is not finished; repeat its command with --resume a.pt\n"
    facts = json.loads(fnlkit("fnlkit info a.pt --json", tmp_path).stdout)
    assert (facts["finished"], facts["rounds_done"], facts["rounds_planned"]) == (False, 2, 5)


# ---- estimate-noise, audit, review, correct and demo as a person at a shell uses them
@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    succeed("fnlkit partition --clients 8 | fnlkit inject-noise -o noisy.npz", folder)
    return folder


def test_unknown_arrays_are_passed_on(folder):
    before = Federation.read(str(folder / "noisy.npz"))
    before.extra["color_of_the_sky"] = np.arange(3)
    before.write(folder / "more.npz")
    done = succeed("fnlkit estimate-noise more.npz | fnlkit estimate-noise --estimator 'knn(k=3)' -o judged.npz", folder)
    assert "against the truth" in done.stderr
    after = Federation.read(str(folder / "judged.npz"))
    assert (after.given == before.given).all() and (after.extra["color_of_the_sky"] == np.arange(3)).all()
    assert after.extra["estimate_client_transition"].shape == (8, 10, 10)
    commands = [step["command"] for step in after.meta["provenance"]]
    assert commands == ["partition", "inject-noise", "estimate-noise", "estimate-noise"]
    assert after.meta["provenance"][-1]["parameters"]["estimator"] == "knn(k=3)"


def test_probabilities_and_embeddings_from_files(folder):
    given = Federation.read(str(folder / "noisy.npz")).given
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(10), len(given))
    np.save(folder / "p.npy", probs)
    np.savez(folder / "emb.npz", embeddings=rng.normal(size=(len(given), 8)))
    np.savez(folder / "p.npz", probs=probs, index=np.arange(len(given)))
    done = succeed(
        "fnlkit estimate-noise noisy.npz --embeddings emb.npz -o knn.npz && "
        "fnlkit estimate-noise noisy.npz --estimator confident --probs p.npy --json -o a.npz && "
        "fnlkit estimate-noise noisy.npz --estimator confident --probs p.npz --json -o b.npz",
        folder,
    )
    assert "neighbors are searched" not in done.stderr
    a, b = (Federation.read(str(folder / name)).extra for name in ("a.npz", "b.npz"))
    assert (a["estimate_issue_score"] == b["estimate_issue_score"]).all()


def test_a_run_replaces_the_warm_up(folder):
    succeed("fnlkit train noisy.npz --rounds 8 --fraction 0.5 --epochs 2 -o run.pt", folder)
    done = succeed("fnlkit estimate-noise noisy.npz --estimator anchor --run run.pt --json -o out.npz", folder)
    assert json.loads(done.stdout)["sample_auc"] > 0.9
    federation, run = Federation.read(str(folder / "noisy.npz")), Run.read(str(folder / "run.pt"))
    found = estimate(federation, datasets.load("digits"), "lid(iterations=1)", run=run)
    assert compare(add_judgment(federation, found))["sample_auc"] > 0.6
    run.weights[:] = float("nan")
    refuse_call("not finite: training diverged", estimate, federation, datasets.load("digits"), "loss", run=run)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--estimator 'knn(k=5000)'", "the largest client has 180 samples; write k from 1 to 179"),
        ("--estimator 'knn(k=5000, across=true)'", "all clients together have 1,438 samples; write k from 1 to 1,437"),
        ("--estimator confident --probs short.npy", "short.npy: array 'array' has shape (5, 10); expected 1,438 rows"),
        ("--estimator confident --probs narrow.npy", "narrow.npy has 3 columns, but the federation has labels of 10 classes"),
        ("--estimator confident --probs other.npz", "`index` is int64 (5,) for 'probs'"),
        ("--embeddings -", "cannot come from the pipe"),
        ("--embeddings foreign.npz", "the checksums differ"),
        ("--apply drop", "--apply"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(options, says, folder):
    np.save(folder / "short.npy", np.full((5, 10), 0.1))
    np.save(folder / "narrow.npy", np.full((1438, 3), 1 / 3))
    np.savez(folder / "other.npz", probs=np.full((5, 10), 0.1), index=np.array([0, 1, 2, 3, 5000]))
    meta = {"dataset": "mnist", "checksum": "0" * 64}
    foreign = files.Artifact("fnlkit.embeddings/1", {"embeddings": np.zeros((1438, 2))}, meta)
    files.write(foreign, folder / "foreign.npz")
    done = refuse(f"fnlkit estimate-noise noisy.npz -o never.npz {options}", folder, says)
    assert done.stderr.count("\n") == 1 and not (folder / "never.npz").exists()


# ---- from doubtful labels to reviewed ones, as a person at a shell does it
def test_audit_review_and_correct(tmp_path):
    succeed("fnlkit partition --clients 3 --labels observed -o fed.npz", tmp_path)
    audit = "fnlkit audit fed.npz --json --html audit.html -o judged.npz"
    facts = json.loads(succeed(audit, tmp_path).stdout)
    assert len(facts["sites"]) == 3 and facts["sent"]["counts"]["bytes"] == 3 * 8 * 10
    page = (tmp_path / "audit.html").read_text()
    assert "Audit of digits" in page and all(row["words"][0] in page for row in facts["sites"])
    passed = succeed("fnlkit audit fed.npz | fnlkit info", tmp_path)  # the federation goes down the pipe
    assert "noise level" in passed.stdout and "audit" in passed.stdout
    shown = " ".join(passed.stderr.split())
    assert "range" in shown and all(row["site"] in shown for row in facts["sites"])
    assert "95 % interval" not in shown and "95&nbsp;%" not in page
    succeed("fnlkit review export judged.npz --client 1 --budget 20 -o review", tmp_path)
    assert "Review of client 1" in (tmp_path / "review/review.html").read_text()
    refuse("fnlkit review export judged.npz --client 1 -o review", tmp_path, "may hold decisions")
    decide = "fnlkit review import judged.npz review/decisions.csv -o reviewed.npz"
    refuse(decide, tmp_path, "no row is decided yet; decide in review.html")
    assert not (tmp_path / "reviewed.npz").exists()
    said = iter([lambda row: {"decision": "7" if row["given"] != "7" else "3"}])
    rows = edit_csv(tmp_path / "review/decisions.csv", lambda row: next(said, lambda row: {"decision": "keep"})(row))
    assert len(rows) == 20
    done = succeed(decide, tmp_path)
    assert "20 decided: 1 changed" in done.stderr
    out = Federation.read(str(tmp_path / "reviewed.npz"))
    mask = out.extra["reviewed"]
    assert mask.sum() == 20 and out.meta["reviews"][0]["changed"][0][0] == int(rows[0]["position"])
    succeed("fnlkit correct reviewed.npz --above 0.5 -o corrected.npz", tmp_path)
    last = Federation.read(str(tmp_path / "corrected.npz"))
    assert (last.given[mask] == out.given[mask]).all() and np.array_equal(last.extra["received"], out.extra["received"])
    train = "fnlkit train corrected.npz --method 'nnc(k=5)' --rounds 1 -o run.pt"
    succeed(train, tmp_path)
    labels = Run.read(tmp_path / "run.pt").labels["corrected"]
    assert (labels[mask] == out.given[mask]).all() and (labels != last.given).any()


# ---- the demo prints the commands that it runs, and they find the noisy sites and train
def test_the_demo_runs_five_commands_and_overwrites_nothing(tmp_path):
    done = succeed("fnlkit demo -o 'my files'", tmp_path)
    ran = re.findall(r"(?m)^\$ fnlkit (\S+)", done.stdout)
    assert ran == ["partition", "inject-noise", "audit", "train", "evaluate"]
    assert float(re.search(r"accuracy last +(\S+)", done.stdout)[1]) > 0.9
    assert "3 of 6 sites have more wrong labels" in done.stderr and "my files/audit.html in a browser" in done.stderr
    assert (tmp_path / "my files/audit.html").stat().st_size > 10_000
    refuse("fnlkit demo -o 'my files'", tmp_path, "exists")
