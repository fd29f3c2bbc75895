"""Where a command reads from: pipes that are read, refused, closed or never written; the data set that must be the same."""

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.cli import group, source
from fnlkit.datasets.partitioning import federation
from fnlkit.errors import InputError
from fnlkit.experiment import Experiment, Settings
from tests.commands import BIN, ENVIRONMENT, fnlkit, shell

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
    done = fnlkit(
        "fnlkit partition --dataset d.npz --clients 4 --labels true -o f.npz && fnlkit inject-noise f.npz --noise "
        "'symmetric(eta=0.2)' -o n.npz && fnlkit train n.npz --rounds 1 --fraction 1 --epochs 1 --engine sequential -o run.pt",
        folder,
    )
    assert done.returncode == 0, done.stderr
    return folder


def run(arguments, folder, **pipes):
    return subprocess.Popen(
        [str(BIN / "fnlkit"), *arguments], cwd=folder, env=ENVIRONMENT, text=True, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, **pipes,
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        "train n.npz --rounds 1 --engine sequential -o never.pt",
        "estimate-noise n.npz -o never.npz",
        "estimate-noise n.npz --estimator loss --rounds 1 --engine sequential -o never.npz",
        "evaluate run.pt",
        "embed n.npz --backbone pixels -o never.npz",
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


def test_the_file_itself_may_have_changed(place, tmp_path):
    for name in ("f.npz", "d.npz"):
        shutil.copy(place / name, tmp_path)
    whole = Federation.read(str(tmp_path / "f.npz"))
    whole.dataset = str(tmp_path / "d.npz")
    whole.write(tmp_path / "f.npz")
    shutil.copy(place / "turned.npz", tmp_path / "d.npz")
    code, _, err = fnlkit("fnlkit train f.npz -o run.pt", tmp_path)
    assert code == 2 and "reordered" in err


def test_an_old_federation_without_a_checksum_prints_one_note():
    data = datasets.load("digits")
    old = federation(data, clients=4)
    del old.meta["dataset_checksum"]
    notes = Experiment(old, data, Settings(rounds=1)).clients.notes
    assert sum("no checksum" in note for note in notes) == 1
    assert not any("no checksum" in n for n in Experiment(federation(data, clients=4), data, Settings(rounds=1)).clients.notes)


@pytest.mark.parametrize(
    "command",
    [
        "fnlkit partition --dataset d.npz --clients 4 | fnlkit inject-noise --dataset d.npz --noise 'symmetric(eta=0.4)'",
        "cat f.npz | fnlkit inject-noise --dataset d.npz --noise 'symmetric(eta=0.4)'",
        "fnlkit inject-noise --noise 'symmetric(eta=0.4)' <f.npz --dataset d.npz",
        "fnlkit inject-noise --dataset d.npz --noise 'symmetric(eta=0.4)' | fnlkit partition --dataset d.npz",
        "cat f.npz | fnlkit embed --dataset d.npz --backbone pixels",
    ],
)
def test_a_piped_federation_with_a_data_set_option_is_refused(command, place):
    done = shell(f"{command} -o never.npz", place)
    assert done.returncode == 2 and "write - to read the pipe" in done.stderr, done.stderr
    assert not (place / "never.npz").exists()


def test_a_pipe_that_has_data_is_read_without_a_dash(place, tmp_path):
    first = "fnlkit inject-noise --dataset d.npz --noise 'symmetric(eta=0.4)'"
    for dash in ("", " -", " - --dataset d.npz"):
        done = shell(f"{first} | fnlkit partition{dash} --clients 4 -o {tmp_path}/x.npz", place)
        assert done.returncode == 0, done.stderr
        found = Federation.read(str(tmp_path / "x.npz"))
        assert len(found) == 4 and 0.2 < (found.given != found.true).mean() < 0.6


@pytest.mark.parametrize("before", ["true", "false", "fnlkit inject-noise --dataset nowhere.npz"])
def test_an_empty_pipe_never_becomes_clean_digits(before, place):
    done = shell(f"{before} | fnlkit partition -o never.npz", place)
    assert done.returncode != 0 and "the pipe is empty" in done.stderr and not (place / "never.npz").exists()


def test_a_command_that_ends_between_two_looks_at_its_pipe(monkeypatch):
    out, into = os.pipe()

    def ended():
        os.close(into)
        return False  # nobody holds the other end any more

    with open(out) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        monkeypatch.setattr(source, "_fed_by_a_pipeline", ended)
        with pytest.raises(InputError, match="the pipe is empty"):
            source.chosen(None, None)


def test_a_loop_over_names_keeps_its_names(place):
    """A shell loop hands its own input to every command in it; not a byte may be missing."""
    loop = "while read name; do fnlkit partition --dataset $name --clients 4 -o /dev/null && echo $name; done"
    for feed in ("printf 'd.npz\\nd.npz\\nd.npz\\n' | ", ""):
        (place / "names").write_text("d.npz\n" * 3)
        done = shell(f"{feed}{loop}" + ("" if feed else " < names"), place)
        assert done.returncode == 0 and done.stdout.split() == ["d.npz"] * 3, (done.stdout, done.stderr)
    assert "holds no file of fnlkit" in shell("echo hello | fnlkit partition", place).stderr


def test_an_unwritten_pipe_does_not_block(place):
    """As ssh and many programs leave it: open, and silent for ever."""
    for command in (["partition", "--clients", "4"], ["inject-noise", "--dataset", "d.npz", "--noise", "none"]):
        began = time.monotonic()
        process = run([*command, "-o", "/dev/null"], place, stdin=subprocess.PIPE)
        assert process.wait(60) == 0, process.stderr.read()
        assert time.monotonic() - began < 8
        for end in (process.stdin, process.stdout, process.stderr):
            end.close()


def test_a_pipeline_that_stays_silent_is_not_waited_for_without_end(place, monkeypatch):
    from fnlkit.cli import source

    read, write = os.pipe()
    # A process whose standard output is the pipe, as in `sleep 30 | fnlkit ...`.
    sleeper = subprocess.Popen(["sleep", "30"], stdout=write)
    os.close(write)
    try:
        with open(read) as end:
            monkeypatch.setattr(source.sys, "stdin", end)
            for name, value in (("_REPORTED", 0.1), ("_SHORT", 0.2), ("_LONG", 0.2)):
                monkeypatch.setattr(source, name, value)
            with pytest.raises(source.InputError, match="sent nothing"):
                source.chosen(None, None)
            source.refuse_both(None, "d.npz")
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("command", ["train", "estimate-noise", "evaluate", "info", "inject-noise", "embed"])
def test_a_command_without_input_is_refused(command, monkeypatch):
    with open(os.devnull) as nothing:
        for stdin in (None, nothing):
            monkeypatch.setattr("sys.stdin", stdin)
            with pytest.raises(InputError, match="no FILE and nothing in the pipe"):
                group.main([command], standalone_mode=False)
