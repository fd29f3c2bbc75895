"""What goes wrong inside clients, seen from the command line: what is said, and what is not."""

import re
import sys

import numpy as np
import pytest

from fnlkit.cli import main

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


def call(*arguments):
    """Run a command in this process and return its exit code."""
    with pytest.raises(SystemExit) as end:
        main(list(map(str, arguments)))
    return end.value.code or 0


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
    (place / "evilmod.py").write_text(
        "import pathlib\nfrom mynets import build\npathlib.Path(__file__).with_name('imported').touch()\n"
    )
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
