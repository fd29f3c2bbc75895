"""The examples of every --help run in a folder with the files that they name."""

import re
import shutil

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.cli import COMMANDS, group
from tests.commands import succeed
from tests.pages.steps import command, shortened

SHORT = {
    "train": "--rounds 5 --epochs 1 --fraction 0.5",
    "estimate-noise": "--rounds 1 --epochs 1",
}


def examples(each):
    """Return the command lines of the examples of a command's help, those of the commands within it after its own."""
    text = re.search(r"Example:\n((?: +\S.*\n?)+)", each.help or "")
    lines = [line.strip() for line in text[1].splitlines()] if text else []
    return lines + [line for inner in getattr(each, "commands", {}).values() for line in examples(inner)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place, digits = tmp_path_factory.mktemp("help"), datasets.load("digits")
    np.savez(place / "photos.npz", x=digits.x_test[:5])
    votes = "\n".join(f"{i},{label},{label},{(label + i % 2) % 10}" for i, label in enumerate(digits.y_train))
    (place / "votes.csv").write_text(f"id,ada,ben,cleo\n{votes}\n")
    for line in (
        "fnlkit partition --clients 5 -o fed.npz",
        "fnlkit inject-noise fed.npz -o noisy.npz",
        "fnlkit estimate-noise noisy.npz --estimator knn -o judged.npz",
        "fnlkit train noisy.npz --rounds 2 --epochs 1 --fraction 0.5 -o run.pt",
        "mkdir -p runs/quickstart",
        "cp run.pt runs/quickstart/fedavg-0.pt",
        "cp run.pt fedavg-0.pt",
        "cp run.pt fedcorr-0.pt",
    ):
        done = command(line, place)
        assert done.returncode == 0, (line, done.stderr)
    return place


# Run in tests/sites/test_site_commands.py, with the folders of a coordinator, and in tests/cli/test_data.py.
ELSEWHERE = ("site", "sites", "demo")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ELSEWHERE])
def test_the_examples_run(name, folder, request):
    lines = examples(group.get_command(None, name))
    assert lines
    if name == "plot":
        pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    if name == "flower-app":
        pytest.importorskip("flwr", reason="needs the extra `flower`")
    if name == "export":
        request.getfixturevalue("exported")
    for line in lines:
        if line.startswith("fnlkit review"):
            # `review export` writes over nobody's decisions.
            _decide(folder / "review") if " import " in line else shutil.rmtree(folder / "review", ignore_errors=True)
        succeed(shortened(line, SHORT), folder)


def _decide(review):
    """Keep the label of the first sample, since `review import` wants a decision."""
    head, first, *rest = (review / "decisions.csv").read_text().splitlines()
    cells = first.split(",")
    cells[head.split(",").index("decision")] = "keep"
    (review / "decisions.csv").write_text("\n".join([head, ",".join(cells), *rest]) + "\n")
