"""Users' components in recipes: checked before the first command, searched like built-in ones, and compared fairly."""

import json
import shutil

import pytest

from fnlkit.errors import InputError
from fnlkit.recipes import recipe, search, spaces, stored
from tests.commands import fnlkit, refuse, succeed
from tests.recipes.test_reproduce import Here
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
[search]
budget = 9
[search.space]
lr = { low = 0.05, high = 0.3, log = true }
[search.spaces."mine.py:copy"]
method.trust = [0.5]
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
        ("method.trust", "method.truts", "did you mean 'trust'"),
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


def test_a_failed_search_is_an_error_and_its_method_is_not_in_the_table(folder, here):
    edit(folder, ("method.trust = [0.5]", "method.trust = [9.0]"), ("seeds = [0, 1]", "seeds = [0]"))
    done = fnlkit("fnlkit reproduce r.toml --jobs 1 -o runs --json", folder)
    assert done.returncode == 1
    assert "1 searches failed" in done.stderr and "mine.py:copy in first" in done.stderr and "too much trust" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["method"] for row in rows if "method" in row] == ["fedavg"]


def test_methods_with_equal_spaces_get_equal_configurations_on_three_seeds(folder):
    """By default the seeds after the recipe's; a further option leaves the values of the common ones unchanged."""
    made = recipe.load_recipe(str(folder / "r.toml"))
    plain, copy = search.cells(made)
    assert plain.seeds == copy.seeds == [2, 3, 4]
    assert len(plain.left) == 3  # 9 runs are 3 configurations on 3 seeds
    assert [values.get("lr") for values in plain.left] == [values.get("lr") for values in copy.left]
    with pytest.raises(InputError, match="write at least 6"):
        spaces.must_fit({"budget": 5, "space": {}})


@pytest.fixture
def searched(folder, here):
    """A finished recipe of FedAvg with a search, its stored results, and its folder."""
    edit(folder, (', "mine.py:copy"', ""), ('[search.spaces."mine.py:copy"]\nmethod.trust = [0.5]\n', ""))
    done = succeed("fnlkit reproduce r.toml --jobs 1 -o runs --export cells.jsonl", folder)
    assert "±" in done.stdout.partition("Search")[2].splitlines()[2]  # spread over the seeds of the search
    return folder


def test_a_copy_of_fedavg_does_not_differ_from_searched_fedavg(searched):
    """The added method gets the search of the stored ones; without it, the recipe's own learning rate is far worse."""
    line = "fnlkit reproduce r.toml --jobs 1 -o new --add mine.py:copy --stored cells.jsonl --json"
    done = succeed(line, searched)
    rows = [json.loads(text) for text in done.stdout.splitlines()]
    fedavg, copy = rows[:2]
    assert rows[2]["search"]["method"] == "mine.py:copy" and rows[2]["search"]["chosen"]
    assert copy["late_ahead"] == copy["late_ahead_half"] == 0 and not copy["late_clear"]
    own = fnlkit("fnlkit reproduce r.toml --jobs 1 -o own --no-search --json", searched)
    assert fedavg["late_mean"] > 5 + json.loads(own.stdout.splitlines()[0])["late_mean"]


def test_untuned_results_are_compared_with_an_untuned_method(searched):
    assert "not searched" in succeed("fnlkit reproduce r.toml --jobs 1 -o own --no-search --export own.jsonl", searched).stdout
    add = "fnlkit reproduce r.toml --jobs 1 -o new --add mine.py:copy"
    for more in ("--stored own.jsonl", "--stored cells.jsonl --no-search"):
        refuse(f"{add} {more}", searched, "--no-search")
    done = succeed(f"{add} --stored own.jsonl --no-search --json", searched)
    assert json.loads(done.stdout.splitlines()[1])["late_ahead"] == pytest.approx(0, abs=1e-3)
    edit(searched, ("budget = 9", "budget = 12"))
    refuse(f"{add} --stored cells.jsonl", searched, "another search")
    refuse(
        "fnlkit reproduce r.toml -o new --add 'mine.py:copy(truts=1)' --stored own.jsonl --no-search",
        searched,
        "did you mean 'trust'",
    )


def test_stored_results_of_other_code_do_not_fit(folder, tmp_path):
    """The code of steps and common options counts, and its folder does not."""
    edit(folder, ('loss = "ce"', 'loss = "mine.py:loss"'), ("symmetric(eta=0.4)", "noise.py:noise(step=1)"))
    (folder / "noise.py").write_text(MINE)

    def fingerprint(at):
        return stored.fingerprints(recipe.load_recipe(str(at / "r.toml")))["first"]

    first, other = fingerprint(folder), tmp_path / "other"
    other.mkdir()
    for name in ("r.toml", "mine.py", "noise.py"):
        shutil.copy(folder / name, other)
    assert fingerprint(other) == first
    for name in ("mine.py", "noise.py"):
        (other / name).write_text(MINE + "# edited")
        assert fingerprint(other) != first
        (other / name).write_text(MINE)


def test_a_merged_folder_is_neither_searched_nor_trained_again(searched, monkeypatch):
    """Also when the runs of the search are not there, as after --merge; a changed space is searched again."""
    succeed("fnlkit reproduce r.toml --merge runs -o all", searched)
    before = {path.name: path.read_bytes() for path in (searched / "all").glob("*.pt")}
    started = []
    monkeypatch.setattr(Here, "run", lambda self, line, own=Here.run: (started.append(line), own(self, line))[1])
    line = "fnlkit reproduce r.toml --jobs 1 -o all --json"
    assert fnlkit(line, searched).returncode == 0
    assert {path.name: path.read_bytes() for path in (searched / "all").glob("*.pt")} == before
    assert not any(words[0] == "train" for words in started)
    shutil.rmtree(searched / "all")
    edit(searched, ("high = 0.3", "high = 0.2"))
    assert fnlkit(line, searched).returncode == 0
    assert sum("--measure=holdout" in words for words in started) == 9
