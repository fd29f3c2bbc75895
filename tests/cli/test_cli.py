"""The command line as a shell sees it: pipes, typos, full disks, signals, two runs on one file, where a command reads from."""

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.cli import group
from fnlkit.experiment import Experiment, Settings
from fnlkit.simulate.partitioning import federation
from tests.commands import ENVIRONMENT, LIMIT, fnlkit, refuse, refuse_call, shell, succeed

# ---- the command line as a shell sees it: pipes, typos, closed pipes, full disks, signals, two runs on one file
SMALL = "--model 'mlp(hidden=[8])' --batch-size 60 --engine sequential"


def test_the_bare_pipe_runs(tmp_path):
    pipe = "fnlkit partition | fnlkit inject-noise | fnlkit estimate-noise | fnlkit train -o run.pt"
    done = succeed(f"{pipe} && fnlkit evaluate run.pt", tmp_path)
    assert "accuracy best" in done.stdout and "Traceback" not in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run.metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 50 and rows[-1]["accuracy"] > 0.5
    assert {p.name for p in tmp_path.iterdir()} == {"run.pt", "run.metrics.jsonl"}


def test_evaluate_prints_the_error_of_the_estimated_transition(noisy, tmp_path):
    method, quick = "'fedefc(latest=4, patience=12, report_transition=true)'", f"--rounds 12 --fraction 0.2 --epochs 1 {SMALL}"
    done = succeed(f"fnlkit train {noisy} {quick} --method {method} -o run.pt && fnlkit evaluate run.pt", tmp_path)
    assert "estimated against true transition matrix" in done.stdout
    run = Run.read(str(tmp_path / "run.pt"))
    rounds, estimates = run.records["transition"]
    truth = np.zeros((10, 10))
    np.add.at(truth, (run.labels["true"][run.client_indices], run.labels["given"][run.client_indices]), 1)
    truth /= truth.sum(1, keepdims=True)
    expected = [np.sum(T * truth) / np.linalg.norm(T) / np.linalg.norm(truth) for T in estimates]
    succeed("fnlkit evaluate run.pt -o - | fnlkit info -", tmp_path)
    done = fnlkit("fnlkit evaluate run.pt --json -o found.npz", tmp_path)
    found = json.loads(done.stdout)
    assert len(rounds) == 7 and found["transition_cosine_first"] == pytest.approx(expected[0])
    assert found["transition_cosine_last"] == pytest.approx(expected[-1])
    with np.load(tmp_path / "found.npz") as arrays:
        names = [n for n in arrays.files if n.endswith("record_transition_cosine")]
        np.testing.assert_allclose(arrays[names[0]], expected, rtol=1e-12)


def test_releases_of_the_same_labels_add_up_over_runs_and_partitions(noisy, tmp_path, monkeypatch):
    monkeypatch.setenv("FNLKIT_CACHE", str(tmp_path / "cache"))  # beside the embedded digits
    train = f"--rounds 2 --fraction 0.2 --epochs 1 {SMALL} --method feddpcont --privacy-key my.key"
    done = succeed(" && ".join(f"fnlkit train {noisy} {train} --seed {s} -o {s}.pt" for s in range(2)), tmp_path)
    said = " ".join(done.stderr.split())
    assert "was released once" in said and "released 2 times by randomized response: (1.62, 0)-label-DP" in said
    assert [path.name for path in (tmp_path / "cache").glob("*.ledger")] == ["digits.ledger"]
    shutil.copy(tmp_path / "1.pt", tmp_path / "again.pt")
    done = fnlkit("fnlkit evaluate 0.pt 1.pt again.pt --json --ledger none", tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["label_epsilon"] for row in rows] == [0.81] * 2
    assert [row["label_together_releases"] for row in rows] == [2] * 2  # a copy tells nothing new
    assert rows[0]["label_together_epsilon"] == pytest.approx(2 * 0.81)
    assert "released 2 times" in fnlkit("fnlkit evaluate 0.pt 1.pt", tmp_path).stdout.replace("\n", " ")
    assert "label_together_releases" not in fnlkit("fnlkit evaluate 0.pt --json --ledger none", tmp_path).stdout
    # The ledger knows more than the run alone, and another partition of the same samples is another release.
    (row,) = map(json.loads, fnlkit("fnlkit evaluate 0.pt --json", tmp_path).stdout.splitlines())
    assert row["label_epsilon"] == 0.81 and row["label_together_epsilon"] == pytest.approx(1.62)
    split = "fnlkit partition --clients 10 --seed 5"
    done = fnlkit(f"{split} | fnlkit train {train} --ledger cache/digits.ledger -o p.pt", tmp_path)
    assert "released 3 times" in " ".join(done.stderr.split()), done.stderr
    refuse(f"fnlkit train {noisy} {train} --seed 7 --ledger {noisy} -o 7.pt", tmp_path, "--ledger")
    assert not (tmp_path / "7.pt").exists()


@pytest.mark.parametrize("words", ["fnlkit", "fnlkit review", "fnlkit data", "fnlkit site", "fnlkit sites"])
def test_a_group_without_a_command_prints_help(words, tmp_path):
    done = fnlkit(words, tmp_path)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(f"Usage: {words} ") and "\n\nCommands:\n" in done.stderr or "\nThe pipe:\n" in done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("fnlkit trian", "did you mean 'train'?"),
        ("fnlkit train --method 'fedcorr(beat=5)' {noisy}", "did you mean 'beta'?"),
        ("fnlkit train --fraction 0 {noisy}", "--fraction is 0.0; write a number above 0 and at most 1"),
        ("fnlkit train {noisy} -o run.JSON", "write a name such as RUN.pt"),
        ("fnlkit partition --scheme 'shards(per_client=1e400)'", "'per_client' is inf; write a whole number"),
        (f"fnlkit partition --scheme 'dirichlet(alpha={'9' * 400})'", "'alpha' is too large; write a number below 2^63"),
        ("fnlkit inject-noise {noisy} --noise 'symmetric(0.3)'", "`fnlkit methods symmetric` lists the keys"),
        ("fnlkit inject-noise {noisy} --noise symmetric:0.3", "No module named 'symmetric'; write name(key=value, ...)"),
        ("fnlkit train --loss 'my files/a.py:x(b=1)' {noisy}", 'quotes of its own, "my files/a.py:x"'),
        ("fnlkit train --rounds many {noisy}", "'many' is not a valid integer"),
        ("fnlkit train {noisy} --resume {noisy}", "noisy.npz"),
        ("fnlkit review import {noisy} none.csv", "none.csv: no such file"),
        ("fnlkit partition digits", "digits: no such file; a data set is named by --dataset 'digits'"),
        ("fnlkit partition --gold none.csv", "none.csv"),
        ("fnlkit partition --clients 5000", "lower --clients"),
        ("fnlkit partition -q | fnlkit partition -", "already partitioned"),
        ("fnlkit inject-noise", "the pipe is empty"),
        ("fnlkit inject-noise --dataset digits --noise 'clients(rho=0.5)'", "run `fnlkit partition` first"),
        (f"fnlkit info {__file__}", "test_cli.py: not a file of fnlkit"),
        ("fnlkit data get clothing1m", "on request"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(command, says, noisy, tmp_path):
    done = refuse(command.format(noisy=noisy), tmp_path, says)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("loading ")]  # printed after 0.6 seconds
    assert len(lines) == 1 and len(lines[0]) <= 300 and not done.stdout and not list(tmp_path.iterdir())


def test_the_page_of_help_is_no_correction_of_an_option(tmp_path):
    for typed, near in (("audit --label", None), ("train --round", "--rounds")):
        done = refuse(f"fnlkit {typed} fed.npz", tmp_path, near or "No such option '--label'")
        assert "Did you mean '--help" not in done.stderr


def test_half_a_pipe_is_one_line_and_exit_2(noisy, tmp_path):
    refuse("fnlkit train", tmp_path, "stdin", stdin=noisy.read_bytes()[:100])


def test_divergence_is_not_reported_as_an_internal_error(noisy, tmp_path):
    done = fnlkit(f"fnlkit train {noisy} --lr 1e9 --rounds 3 -o run.pt", tmp_path)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "lower the learning rate" in last and "internal" not in last


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line_and_exit_1(noisy, tmp_path):
    for command in (f"fnlkit info {noisy} >", "fnlkit partition -o"):
        done = shell(f"{command} /dev/full", tmp_path)
        assert done.returncode == 1 and "No space left" in done.stderr, (command, done.stderr)
        assert "Traceback" not in done.stderr


def test_control_characters_in_errors_are_escaped(noisy, tmp_path):
    """A parser's own words may quote a file; the line, and with -vv the traceback, are printable all the same."""
    succeed(f"fnlkit train {noisy} --rounds 1 --fraction 0.1 --epochs 1 --engine sequential -o run.pt", tmp_path)
    found = files.read(tmp_path / "run.pt")
    body = json.loads(bytes(np.asarray(found.arrays["body"])))
    body["traffic"]["\x1b[2J"] = 1
    found.arrays["body"] = np.frombuffer(json.dumps(body).encode(), np.uint8)
    files.write(found, tmp_path / "run.pt", format="pt")
    for line in ("evaluate run.pt", "evaluate run.pt -vv"):
        done = refuse(f"fnlkit {line}", tmp_path, "\\x1b[2J")
        assert all(c.isprintable() or c == "\n" for c in done.stderr), line


def test_files_may_have_names_in_any_bytes(tmp_path):
    name = os.fsdecode(b"\xff~nobody.npz")
    for line in (f"partition --clients 3 -o {name}", f"inject-noise {name} -o n{name}", f"info {name}", f"info {name} --json"):
        succeed(f"fnlkit {line}", tmp_path)
    refuse(f"fnlkit evaluate {name}", tmp_path, "\\udcff~nobody.npz")


LONG = "--method fedcorr(iterations=1) --rounds 9 --fraction 0.2 --epochs 1 --checkpoint-every 1 -o run.pt".split()
LONG += shlex.split(SMALL)
# A command that kills itself after six rounds.
STOPS = """
import os, sys
from fnlkit.cli import main
from fnlkit.experiment import Experiment
sys.argv[0] = "fnlkit"
measure = Experiment._measure
def measured(self, step):
    if len(self.history) == 6:
        os.kill(os.getpid(), 9)
    return measure(self, step)
Experiment._measure = measured
main()
"""


@pytest.fixture(scope="module")
def whole(noisy, tmp_path_factory):
    """The run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    succeed(shlex.join(["fnlkit", "train", str(noisy), *LONG]), folder)
    return folder


def test_a_killed_run_resumes_bit_for_bit(noisy, whole, tmp_path):
    """Interrupts in this process: test_train.py."""
    line = ["train", str(noisy), *LONG, "--resume", "run.pt"]
    program = [sys.executable, "-c", STOPS, *line]
    stopped = subprocess.run(program, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT)
    assert stopped.returncode == -signal.SIGKILL and "Traceback" not in stopped.stderr, stopped.stderr
    run = Run.read(str(tmp_path / "run.pt"))
    assert not run.finished and len(run.history) == 6
    succeed(shlex.join(["fnlkit", *line]), tmp_path)
    ours, theirs = (Run.read(str(place / "run.pt")) for place in (tmp_path, whole))
    assert ours.weights.equal(theirs.weights) and (ours.labels["corrected"] == theirs.labels["corrected"]).all()
    assert (tmp_path / "run.metrics.jsonl").read_bytes() == (whole / "run.metrics.jsonl").read_bytes()


def test_names_that_look_like_markup(tmp_path):
    folder = tmp_path / "of [bold]mine[" / "b]"
    folder.mkdir(parents=True)
    arrays = {f"x_{part}": np.random.default_rng(0).normal(size=(40, 3)) for part in ("train", "test")}
    np.savez(folder / "d.npz", **arrays, y_train=np.arange(40) % 4, y_test=np.arange(40) % 4)
    for command in (
        f"partition --dataset '{folder}/d.npz' --clients 2 -o 'f[red].npz'",
        "estimate-noise 'f[red].npz' --estimator knn --embeddings pixels -o 'e[i].npz'",
        "train 'f[red].npz' --rounds 1 --fraction 1 -o 'r[dim].pt'",
        "evaluate 'r[dim].pt' -v",
        "info 'f[red].npz'",
    ):
        done = succeed(f"fnlkit {command}", folder, terminal=True)
        if command.startswith("evaluate"):
            assert "r[dim].pt" in done.stdout and f"{folder}/d.npz" in done.stdout


def test_a_listener_that_leaves_stderr_stops_nothing(noisy, tmp_path):
    leaves = "2> >(head -c 1 >/dev/null)"
    done = shell(f"fnlkit inject-noise {noisy} -o out.npz {leaves}; code=$?; sleep 0.5; exit $code", tmp_path)
    assert done.returncode == 0 and (tmp_path / "out.npz").exists(), done.stderr


def test_bash_loads_the_completion(tmp_path):
    words = 'COMP_WORDS=(fnlkit estimate-noise --est); COMP_CWORD=2; _fnlkit_completion fnlkit; echo "${COMPREPLY[@]}"'
    done = shell(f'eval "$(_FNLKIT_COMPLETE=bash_source fnlkit)" && {words}', tmp_path)
    assert done.returncode == 0 and done.stdout.split() == ["--estimator"], done.stderr


# ---- where a command reads from: pipes that are read, refused, closed or never written; the data set that must be the same
SAMPLES = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
LABELS = np.arange(80) % 4


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data of the user's, the same with its rows reordered, and a federation and a run over the first."""
    folder = tmp_path_factory.mktemp("source")
    turned = np.random.default_rng(1).permutation(80)
    test = {"x_test": SAMPLES[:20], "y_test": LABELS[:20]}
    np.savez(folder / "d.npz", x_train=SAMPLES, y_train=LABELS, **test)
    np.savez(folder / "turned.npz", x_train=SAMPLES[turned], y_train=LABELS[turned], **test)
    succeed(
        "fnlkit partition --dataset d.npz --clients 4 --labels true -o f.npz && fnlkit inject-noise f.npz --noise "
        "'symmetric(eta=0.2)' -o n.npz && fnlkit train n.npz --rounds 1 --fraction 1 --epochs 1 --engine sequential -o run.pt",
        folder,
    )
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "train n.npz --rounds 1 --engine sequential -o never.pt",
        "estimate-noise n.npz -o never.npz",
        "evaluate run.pt",
        "inject-noise n.npz --noise none -o never.npz",
        "inject-noise n.npz --noise instance -o never.npz",
    ],
)
def test_data_with_reordered_rows_is_refused_by_every_command(command, place):
    code, out, err = fnlkit(f"fnlkit {command} --dataset turned.npz", place)
    assert code == 2 and err.count("\n") == 1, err
    sums = [datasets.load(place / name).checksum[:12] for name in ("turned.npz", "d.npz")]
    assert all(part in err for part in (*sums, "turned.npz", "reordered", "--dataset")), err
    assert not list(place.glob("never*"))
    assert fnlkit(f"fnlkit {command} --dataset d.npz", place)[0] == 0
    for file in place.glob("never*"):
        file.unlink()


def test_an_old_federation_without_a_checksum_prints_one_note():
    data = datasets.load("digits")
    old = federation(data, clients=4)
    del old.meta["dataset_checksum"]
    notes = Experiment(old, data, Settings(rounds=1)).clients.notes
    assert sum("no checksum" in note for note in notes) == 1
    assert not any("no checksum" in n for n in Experiment(federation(data, clients=4), data, Settings(rounds=1)).clients.notes)


def test_a_dash_reads_the_pipe(place, tmp_path):
    first = "fnlkit inject-noise --dataset d.npz --noise 'symmetric(eta=0.4)'"
    for dash in ("-", "- --dataset d.npz"):
        succeed(f"{first} | fnlkit partition {dash} --clients 4 -o {tmp_path}/x.npz", place)
        found = Federation.read(str(tmp_path / "x.npz"))
        assert len(found) == 4 and 0.2 < (found.given != found.true).mean() < 0.6
    assert fnlkit("fnlkit partition - -o never.npz", place).returncode != 0 and not (place / "never.npz").exists()


def test_the_first_command_does_not_read_its_pipe(place):
    """A loop gives its own input to every command in it, and make a closed pipe to all but one of its parallel commands."""
    (place / "names").write_text("d.npz\n" * 2)
    loop = "{ fnlkit partition --clients 4 -o made.npz && cat; } < names"
    done = shell(f"true | fnlkit partition --dataset d.npz --clients 4 -o a.npz && {loop}", place)
    assert done.returncode == 0 and "standard input" not in done.stderr, done.stderr
    assert done.stdout == (place / "names").read_text() and (place / "made.npz").exists() and (place / "a.npz").exists()


@pytest.mark.parametrize("command", ["train", "estimate-noise", "evaluate", "info", "inject-noise", "partition -"])
def test_a_command_without_input_is_refused(command, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    for stdin in (None, terminal):
        monkeypatch.setattr("sys.stdin", stdin)
        refuse_call("no FILE and nothing in the pipe", group.main, command.split(), standalone_mode=False)
