"""What `train` prints at its start and end, what continues a run, and what is printed of errors inside clients."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.run import Run
from fnlkit.experiment import Experiment
from fnlkit.experiment.output import lock_output
from fnlkit.federated.client.losses.correction import inverse_matrix, transition_matrix
from fnlkit.simulate import noise, partitioning
from tests.commands import BIN, ENVIRONMENT, LIMIT, call, fnlkit, refuse, succeed

SHORT = "--rounds 2 --fraction 0.5 --epochs 1 --batch-size 60 --engine sequential"


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    path = tmp_path_factory.mktemp("train") / "noisy.npz"
    noise.inject(partitioning.federation(datasets.load("digits"), clients=6), "clients", seed=0).write(path)
    return path


@pytest.mark.parametrize(
    ("preset", "left_out"),
    [
        ("flr-plus/cifar10", "warmup=50, iterations=5, finetune_rounds=300, usual_rounds=300"),
        ("fedefc/cifar10", "start=40, patience=6"),
    ],
)
def test_the_rounds_of_the_command_line_beat_a_preset(preset, left_out, fed, tmp_path):
    run = tmp_path / "run.pt"
    options = "--rounds 8 --fraction 0.5 --epochs 1 --batch-size 60 --model mlp --augment none --engine sequential"
    err = succeed(f"fnlkit train {fed} --preset {preset} {options} -o {run}", tmp_path).stderr
    assert f"--preset {preset}: {left_out} of the preset" in err
    shown = re.findall(r"(\d+) of (\d+) client-rounds, ", err)
    done = Run.read(str(run))
    assert all(int(part) <= int(total) == 8 * 3 for part, total in shown[:-1]), err
    assert shown[-1] == (str(done.traffic.client_rounds),) * 2 and "client-rounds" not in err.partition("wrote")[2], err
    assert done.traffic.client_rounds <= 8 * 3 and f"({left_out.partition('=')[0]}=" not in done.settings["method"]


def test_a_terminal_gets_no_run_and_no_hour_is_lost(fed, tmp_path):
    mine, its = pty.openpty()
    done = subprocess.run(
        [str(BIN / "fnlkit"), "train", str(fed)], stdout=its, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env=ENVIRONMENT, cwd=tmp_path, timeout=LIMIT, text=True,
    )  # fmt: skip
    os.close(its), os.close(mine)
    assert done.returncode == 2 and "add -o run.pt" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_one_line(error, fed, tmp_path, monkeypatch):
    def stop(self, *arguments, **settings):
        raise error

    monkeypatch.setattr(Experiment, "__init__", stop)
    code, _, err = fnlkit(f"fnlkit train {fed} {SHORT} --rounds 4 -o run.pt", tmp_path)
    assert code == 1 and err.splitlines()[-1].startswith("fnlkit: error: there is not enough memory for this")
    assert not list(tmp_path.glob("run.pt*"))


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_prints_the_command_that_resumes_it(sent, code, fed, tmp_path, monkeypatch):
    run, measure = tmp_path / "run.pt", Experiment._measure

    def stop(self, step):
        if len(self.history) == 2:
            os.kill(os.getpid(), sent)
        return measure(self, step)

    line = f"train {fed} {SHORT} --rounds 4 -o {run}"
    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "_measure", stop)
        found, _, err = fnlkit(f"fnlkit {line}", tmp_path)
    assert found == code
    (said,) = [text for text in err.splitlines() if "are saved in" in text]
    assert said.startswith(f"2 rounds are saved in {run}; continue with: fnlkit train ")
    assert {path.name for path in tmp_path.iterdir()} <= {"run.pt", "run.metrics.jsonl", "run.pt.lock"}
    before = run.read_bytes()
    refuse(f"fnlkit {line}", tmp_path, f"--resume {run}", "--overwrite")  # without --resume
    assert run.read_bytes() == before
    succeed(f"fnlkit {line} --rounds 1 --overwrite", tmp_path)
    assert len(Run.read(str(run)).history) == 1
    run.write_bytes(before)
    succeed(said.partition("continue with: ")[2], tmp_path)
    assert len([row for row in Run.read(str(run)).history if row["stage"] != "final"]) == 4


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train {fed} -o .", "-o .: is a folder; name a file in it"),
        ("train over.npz -o link.npz", "-o link.npz is also the input file"),
        ("evaluate over.npz -o over.npz", "-o over.npz is also the input file"),
        ("train observed.npz --memorization -o r.pt", "--memorization requires true labels, but digits declares none"),
        ("audit {fed} --html no/a.html -o a.npz", "--html no/a.html: the folder"),
        ("evaluate r.pt -o no/e.npz", "-o no/e.npz: the folder"),
        ("evaluate r.pt -o - --json", "-o - writes the arrays alone"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(line, says, fed, tmp_path):
    shutil.copy(fed, tmp_path / "over.npz")
    (tmp_path / "link.npz").symlink_to("over.npz")
    if "observed" in line:
        assert fnlkit("fnlkit partition --labels observed -o observed.npz", tmp_path).returncode == 0
    before = sorted(path.name for path in tmp_path.iterdir())
    code, out, err = fnlkit(f"fnlkit {line.format(fed=fed)}", tmp_path)
    assert code == 2 and err.splitlines()[-1].startswith(f"fnlkit: error: {says}") and "client-rounds" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "over.npz").read_bytes() == (tmp_path / fed).read_bytes()


def test_links_to_one_file_share_a_lock(fed, tmp_path):
    (tmp_path / "run.pt").touch()
    (tmp_path / "link.pt").symlink_to(tmp_path / "run.pt")
    with lock_output(str(tmp_path / "run.pt")):
        refuse(f"fnlkit train {fed} {SHORT} -o link.pt", tmp_path, f"process {os.getpid()} is training into this file")
    with lock_output(str(tmp_path / "shared.jsonl"), "--metrics"):
        refuse(f"fnlkit train {fed} {SHORT} -o other.pt --metrics shared.jsonl", tmp_path, "--metrics shared.jsonl: process")
    same = "--metrics ./other.pt: -o names the same file"
    refuse(f"fnlkit train {fed} {SHORT} -o other.pt --metrics ./other.pt", tmp_path, same)
    assert {p.name for p in tmp_path.iterdir()} == {"run.pt", "link.pt"}
    (tmp_path / "new.pt.lock").symlink_to(tmp_path / "run.pt")
    refuse(f"fnlkit train {fed} {SHORT} -o new.pt", tmp_path, "new.pt.lock is not a regular file")
    assert not (tmp_path / "run.pt").read_bytes()


def test_a_run_into_nowhere_leaves_nothing(fed, tmp_path):
    before = set(os.listdir("/dev"))
    succeed(f"fnlkit train {fed} {SHORT} --rounds 1 -o /dev/null", tmp_path)
    assert set(os.listdir("/dev")) == before and not list(tmp_path.iterdir())


def test_a_matrix_that_was_written_anew_is_read_anew(tmp_path, monkeypatch):
    for folder, share in (("a", 0.7), ("b", 0.4), ("a", 0.1)):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        np.savetxt("T.csv", share * np.eye(4) + (1 - share) / 4, delimiter=",")
        assert transition_matrix("T.csv", 4)[0, 0] == pytest.approx(share + (1 - share) / 4)
        assert inverse_matrix("T.csv", 4)[0, 0] == pytest.approx((1 + 3 / share) / 4)


# ---- what goes wrong inside clients, seen from the command line
# Samples are recognized wherever they turn up: in a file, on a terminal, as text or as bytes.
CANARY = 0.87654321
NETWORK = """
import sys
import torch
from torch import nn
from fnlkit.core.errors import InputError

class Mine(nn.Module):
    def __init__(self, features, classes, error):
        super().__init__()
        self.layer, self.error = nn.Linear(features, classes), error
    def forward(self, x):
        if self.training and (x > 0.87).any():
            raise self.error(f"cannot take {x.tolist()}")
        return self.layer(x)

def named(text):
    return type(text.replace(".", "_").replace("[", "_").replace("]", "_"), (Exception,), {})(text)

def build(*, input_shape, classes, error="value"):
    kinds = {"value": ValueError, "input": InputError, "exit": SystemExit, "named": named}
    return Mine(input_shape[0], classes, kinds[error])

class Normed(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))
    def forward(self, x):
        return self.layers(x)

def normed(*, input_shape, classes):
    return Normed(input_shape[0], classes)

def leaves(*, input_shape, classes):
    sys.exit(0)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a network of the user's, 60 samples of which six carry the canary, and a federation of 5 clients."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "mynets.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 3)).astype(np.float32) * 0.8, rng.integers(0, 3, 60)
    x[::10, 1] = CANARY
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x[1:10], y_test=y[1:10])
    np.save(folder / "x.npy", x[1:10])
    split = np.arange(60) // 12
    split[::10] = 0  # client 0 holds all of them
    np.save(folder / "split.npy", split)
    scheme = f'file(path="{folder}/split.npy")'
    assert call("partition", "--dataset", folder / "data.npz", "--scheme", scheme, "-o", folder / "fed.npz") == 0
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("mynets", None)


# The canary is a value of a sample as it is.
OPTIONS = ["--rounds", 3, "--fraction", 1, "--epochs", 1, "--engine", "sequential", "--standardize", "none"]


@pytest.mark.parametrize(
    ("error", "method"),
    [("value", "fedcorr(iterations=1)"), ("input", "fedavg"), ("exit", "fedavg"), ("named", "fedcorr(iterations=1)")],
)
def test_no_sample_leaves_a_client_in_the_text_of_an_exception(place, tmp_path, capfd, error, method):
    run = tmp_path / "run.pt"
    arguments = place / "fed.npz", "--model", f"mynets:build(error={error})", "--method", method, "-o", run
    assert call("train", *arguments, *OPTIONS) == 0
    said = capfd.readouterr()
    wanted = {"value": "failed: ValueError", "input": "failed: InputError", "exit": "failed: SystemExit"}
    assert wanted.get(error, "failed: Exception") in (tmp_path / "run.metrics.jsonl").read_text()
    for text in (said.err, said.out, (tmp_path / "run.metrics.jsonl").read_text(), run.read_bytes().decode("latin-1")):
        assert "cannot take" not in text and not re.search("0[._]8765", text)
    assert np.float32(CANARY).tobytes() not in run.read_bytes()


def test_the_text_is_in_the_clients_own_log(place, tmp_path, capfd):
    arguments = place / "fed.npz", "--model", "mynets:build", "-o", tmp_path / "run.pt"
    assert call("-vv", "train", *arguments, *OPTIONS) == 0
    assert "ValueError: cannot take [[" in capfd.readouterr().err
    assert call("train", *arguments, *OPTIONS) == 0  # one command's -vv is not the next one's
    assert "cannot take" not in capfd.readouterr().err


def test_batch_norm_on_a_last_batch_of_one_gets_advice(place, tmp_path, capfd):
    arguments = place / "fed.npz", "--model", "mynets:normed", "--batch-size", "1", "-o", tmp_path / "run.pt"
    assert call("train", *arguments, *OPTIONS) == 1
    assert "batch norm cannot train on a last batch of one sample; change --batch-size" in capfd.readouterr().err


@pytest.fixture(scope="module")
def foreign(place):
    """A run of one's own network, as somebody else gets it: the code that it names would leave a mark."""
    mark = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n"
    (place / "evilmod.py").write_text(f"from mynets import build\n{mark}")
    run = place / "foreign.pt"
    assert call("train", place / "fed.npz", "--model", "evilmod:build", "-o", run, *OPTIONS) == 0
    sys.modules.pop("evilmod")
    (place / "imported").unlink()
    return run


@pytest.mark.parametrize(
    "command",
    [
        "estimate-noise {fed} --estimator loss --run {run} -o {folder}/x.npz",
        "predict {run} {folder}/x.npy -o {folder}/x.csv",
        "export {run} -o {folder}/state_dict.pt",
    ],
)
def test_code_named_by_a_run_requires_trust(place, foreign, capfd, command):
    arguments = [part.format(run=foreign, fed=place / "fed.npz", folder=place) for part in command.split()]
    assert call(*arguments) == 2
    said = capfd.readouterr().err
    assert "evilmod:build" in said and "add --trust" in said and not (place / "imported").exists()
    assert call(*arguments, "--trust") == 0 and (place / "imported").exists()
    sys.modules.pop("evilmod", None)
    (place / "imported").unlink()


def test_evaluating_stored_predictions_imports_no_code_of_the_run(place, foreign):
    assert call("evaluate", foreign) == 0 and not (place / "imported").exists()


def test_a_run_with_a_user_network_is_resumed_by_naming_it(place, foreign, tmp_path, capfd):
    own = tmp_path / "run.pt"
    own.write_bytes(foreign.read_bytes())
    more = ["--rounds", 4, *OPTIONS[2:], "-o", own, "--resume", own]
    assert call("train", place / "fed.npz", *more) == 2
    assert "--resume: the run was made with --model evilmod:build" in capfd.readouterr().err
    assert not (place / "imported").exists()
    assert call("train", place / "fed.npz", "--model", "evilmod:build", *more) == 0
