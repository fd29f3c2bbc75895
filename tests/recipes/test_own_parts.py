"""Users' components in recipes: checked before the first command, and compared fairly."""

import json
import shutil

import pytest

from fnlkit.recipes import cells, recipe
from tests.commands import refuse, succeed
from tests.recipes.test_reproduce import here as here  # noqa: PLC0414

MINE = """
from fnlkit.components.declarations import declare, method
from fnlkit.errors import InputError
from fnlkit.methods.fedavg import fedavg
from fnlkit.noise import Corruption


@method()
def copy(clients, model, opt, select, *, rounds, trust=1.0):
    if trust > 5:
        raise ValueError("too much trust")
    return (yield from fedavg(clients, model, opt, select, rounds=rounds))


def loss(logits, batch, *, power=1.0):
    return power * (1 - logits.softmax(-1).gather(-1, batch.y[..., None])[..., 0])


def mean(stacked, weights, *, trust=1.0):
    return stacked.mean(0)


def noise(ground, *, step=1):
    return Corruption((ground.labels + step) % ground.classes)
"""
RECIPE = """
dataset = "digits"
seeds = [0, 1]
methods = ["fedavg", "mine.py:copy"]
[train]
rounds = 3
lr = 0.003
fraction = 0.5
epochs = 1
model = "mlp(hidden=[8])"
engine = "sequential"
loss = "ce"
aggregator = "mean"
[[regime]]
name = "first"
steps = ["partition --clients 4 --holdout 0.2", "inject-noise --noise 'symmetric(eta=0.4)'"]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "r.toml").write_text(RECIPE)
    return tmp_path


def edit(folder, *changes):
    text = (folder / "r.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "r.toml").write_text(text)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('"fedavg", "mine.py:copy"', '"mine.py:copy(truts=1)", "mine.py:copy"', "did you mean 'trust'"),
        ('loss = "ce"', 'loss = "mine.py:loss(powr=2)"', "did you mean 'power'"),
        ('aggregator = "mean"', 'aggregator = "mine.py:mean(truts=2)"', "did you mean 'trust'"),
        ("symmetric(eta=0.4)", "mine.py:noise(stp=2)", "did you mean 'step'"),
        ("symmetric(eta=0.4)", "symmetric(etta=0.4)", "did you mean 'eta'"),
        ("mlp(hidden=[8])", "mlp(hiden=[8])", "did you mean 'hidden'"),
    ],
)
def test_a_dry_run_checks_components_and_their_parameters(old, new, named, folder):
    edit(folder, (old, new))
    refuse("fnlkit reproduce r.toml --dry-run", folder, named)


def test_a_function_of_the_user_is_no_data_set_of_a_recipe(folder):
    """Before the first command: `train` would refuse to run the function."""
    refuse("fnlkit reproduce r.toml --dataset mine.py:noise --dry-run", folder, "--dataset mine.py:noise", "np.savez")
    edit(folder, ('dataset = "digits"', 'dataset = "mine.py:noise"'))
    refuse("fnlkit reproduce r.toml --dry-run", folder, "r.toml: dataset mine.py:noise")


@pytest.fixture
def finished(folder, here):
    """A finished recipe of FedAvg, its stored results, and its folder."""
    edit(folder, (', "mine.py:copy"', ""))
    succeed("fnlkit reproduce r.toml --jobs 1 -o runs --export cells.jsonl", folder)
    return folder


def test_a_copy_of_fedavg_does_not_differ_from_stored_fedavg(finished):
    line = "fnlkit reproduce r.toml --jobs 1 -o new --stored cells.jsonl --json --add"
    fedavg, copy = (json.loads(text) for text in succeed(f"{line} mine.py:copy", finished).stdout.splitlines())
    assert copy["late_ahead"] == pytest.approx(0, abs=1e-3) and not copy["late_clear"] and fedavg["method"] == "fedavg"
    refuse(f"{line} 'mine.py:copy(truts=1)'", finished, "did you mean 'trust'")


def test_stored_results_of_other_code_do_not_fit(folder, tmp_path):
    """The code of steps and common options counts, and its folder does not."""
    edit(folder, ('loss = "ce"', 'loss = "mine.py:loss"'), ("symmetric(eta=0.4)", "noise.py:noise(step=1)"))
    (folder / "noise.py").write_text(MINE)

    def fingerprint(at):
        return cells.fingerprints(recipe.load_recipe(str(at / "r.toml")))["first"]

    first, other = fingerprint(folder), tmp_path / "other"
    other.mkdir()
    for name in ("r.toml", "mine.py", "noise.py"):
        shutil.copy(folder / name, other)
    assert fingerprint(other) == first
    for name in ("mine.py", "noise.py"):
        (other / name).write_text(MINE + "# edited")
        assert fingerprint(other) != first
        (other / name).write_text(MINE)
