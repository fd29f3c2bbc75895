"""Names of a recipe's rows in evaluate, tidy tables, plots and Python."""

import json

import pytest

import fnlkit as library
from fnlkit.core.errors import InputError
from fnlkit.results.plots import curves
from tests.commands import fnlkit, succeed
from tests.recipes.test_reproduce import here as here  # noqa: PLC0414

RECIPE = """
dataset = "digits"
seeds = [0, 1]
methods = ["fedavg", { method = "fedavg", name = "fast", train = { lr = 0.1 } }]
[train]
rounds = 2
fraction = 0.5
epochs = 1
model = "mlp(hidden=[8])"
engine = "sequential"
[[regime]]
name = "first"
steps = ["partition --clients 4 --holdout 0.2"]
"""


@pytest.fixture
def folder(tmp_path, here):
    (tmp_path / "r.toml").write_text(RECIPE)
    succeed("fnlkit reproduce r.toml --jobs 1 -o runs --tidy runs.csv", tmp_path)
    return tmp_path


def test_names_of_rows_reach_evaluate_tidy_and_legends(folder):
    done = fnlkit("fnlkit evaluate runs --by name --json", folder)
    assert {json.loads(line)["group"]["name"] for line in done.stdout.splitlines()} == {None, "fast"}
    header, *lines = (folder / "runs.csv").read_text().splitlines()
    place = header.split(",").index("name")
    assert "regime" in header.split(",") and {line.split(",")[place] for line in lines} == {"", "fast"}
    runs = [library.load(path) for path in sorted((folder / "runs").glob("0-*.pt"))]
    assert "row" not in runs[0].meta  # the names are read from the folder when runs are evaluated
    found = library.evaluate(folder / "runs", say=None)
    figure = curves.accuracy(found.runs)
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert [label.partition(" (")[0] for label in labels] == ["fedavg", "fast"]


def test_a_recipe_runs_from_python(folder):
    said = []
    found = library.reproduce(str(folder / "r.toml"), output=str(folder / "runs"), jobs=1, seeds=1, say=said.append)
    assert [row["method"] for row in found.rows] == ["fedavg", "fast"] and not found.failed and "2/2" in said[-1]
    assert [row["name"] for row in found.tidy()] == [None, "fast"]
    assert found.summary().columns[:2] == ["method", "first"]
    with pytest.raises(InputError, match="no recipe"):
        library.reproduce("nothing")
