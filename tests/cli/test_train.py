"""What `train` says at its start and end: whose budget counts, where the run goes, what continues it."""

import os
import pty
import shutil
import signal
import subprocess

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import Terminated
from fnlkit.experiment import Experiment
from fnlkit.experiment.output import lock_output
from fnlkit.federated.client.losses.correction import inverse_matrix, transition_matrix
from fnlkit.simulate import noise, partitioning
from tests.commands import BIN, ENVIRONMENT, LIMIT, fnlkit

SHORT = "--rounds 2 --fraction 0.5 --epochs 1 --engine sequential"


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
    options = "--rounds 8 --fraction 0.5 --epochs 1 --model mlp --augment none --engine sequential"
    code, _, err = fnlkit(f"fnlkit train {fed} --preset {preset} {options} -o {run}", tmp_path)
    assert code == 0, err
    assert f"--preset {preset}: {left_out} of the preset" in err
    shown = [line.partition(" ")[0].split("/") for line in err.splitlines() if " client-rounds, " in line]
    assert shown and all(int(done) <= int(total) == 8 * 3 for done, total in shown), err
    done = Run.read(str(run))
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


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (Terminated(128 + signal.SIGTERM), 143)])
def test_an_interrupted_run_prints_the_command_that_resumes_it(error, code, fed, tmp_path, monkeypatch):
    run, measure = tmp_path / "run.pt", Experiment._measure

    def stop(self, step):
        if len(self.history) == 2:
            raise error
        return measure(self, step)

    line = f"train {fed} {SHORT} --rounds 4 -o {run}"
    monkeypatch.setattr("sys.argv", ["fnlkit", *line.split()])
    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "_measure", stop)
        found, _, err = fnlkit(f"fnlkit {line}", tmp_path)
    assert found == code
    (said,) = [text for text in err.splitlines() if "are saved in" in text]
    assert said.startswith(f"2 rounds are saved in {run}; continue with: fnlkit train ")
    before = run.read_bytes()
    code, _, err = fnlkit(f"fnlkit {line}", tmp_path)  # without --resume
    assert code == 2 and f"--resume {run}" in err.splitlines()[-1] and "--overwrite" in err.splitlines()[-1]
    assert run.read_bytes() == before
    assert fnlkit(f"fnlkit {line} --rounds 1 --overwrite", tmp_path)[0] == 0 and len(Run.read(str(run)).history) == 1
    run.write_bytes(before)
    code, _, err = fnlkit(said.partition("continue with: ")[2], tmp_path)
    assert code == 0 and len([row for row in Run.read(str(run)).history if row["stage"] != "final"]) == 4


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train {fed} -o .", "-o .: is a folder; name a file in it"),
        ("train over.npz -o link.npz", "-o link.npz is also the input federation"),
        ("evaluate over.npz -o over.npz", "-o over.npz is also the input run"),
        ("train observed.npz --memorization -o r.pt", "--memorization requires true labels, but digits declares none"),
        ("audit {fed} --html no/a.html -o a.npz", "--html no/a.html: the folder"),
        ("evaluate r.pt -o no/e.npz", "-o no/e.npz: the folder"),
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
        code, _, err = fnlkit(f"fnlkit train {fed} {SHORT} -o link.pt", tmp_path)
        assert code == 2 and f"process {os.getpid()} is training into this file" in err
    with lock_output(str(tmp_path / "shared.jsonl"), "--metrics"):
        code, _, err = fnlkit(f"fnlkit train {fed} {SHORT} -o other.pt --metrics shared.jsonl", tmp_path)
        assert code == 2 and "--metrics shared.jsonl: process" in err
    code, _, err = fnlkit(f"fnlkit train {fed} {SHORT} -o other.pt --metrics ./other.pt", tmp_path)
    assert code == 2 and "--metrics ./other.pt: -o names the same file" in err
    assert {p.name for p in tmp_path.iterdir()} == {"run.pt", "link.pt"}
    (tmp_path / "new.pt.lock").symlink_to(tmp_path / "run.pt")
    code, _, err = fnlkit(f"fnlkit train {fed} {SHORT} -o new.pt", tmp_path)
    assert code == 2 and "new.pt.lock is not a regular file" in err and not (tmp_path / "run.pt").read_bytes()


def test_a_run_into_nowhere_leaves_nothing(fed, tmp_path):
    before = set(os.listdir("/dev"))
    code, _, err = fnlkit(f"fnlkit train {fed} {SHORT} --rounds 1 -o /dev/null", tmp_path)
    assert code == 0, err
    assert set(os.listdir("/dev")) == before and not list(tmp_path.iterdir())


def test_a_matrix_that_was_written_anew_is_read_anew(tmp_path, monkeypatch):
    for folder, share in (("a", 0.7), ("b", 0.4), ("a", 0.1)):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        np.savetxt("T.csv", share * np.eye(4) + (1 - share) / 4, delimiter=",")
        assert transition_matrix("T.csv", 4)[0, 0] == pytest.approx(share + (1 - share) / 4)
        assert inverse_matrix("T.csv", 4)[0, 0] == pytest.approx((1 + 3 / share) / 4)
