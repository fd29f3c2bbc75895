"""Where a command reads from: pipes that are read, refused, closed or never written; the data set that must be the same."""

import io

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.cli import group
from fnlkit.experiment import Experiment, Settings
from fnlkit.simulate.partitioning import federation
from tests.commands import fnlkit, refuse_call, shell, succeed

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
