"""The core works without torch, torchvision and faiss; a command that needs one names the extra that installs it."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from fnlkit.artifacts.run import Run
from fnlkit.kernels import neighbors
from fnlkit.kernels.nearby import nearest as near_with_distances
from tests.commands import ENVIRONMENT, LIMIT
from tests.test_package import ROOT

# The usual finder, which does not find the packages of the first argument.
BLOCKED = """
import sys
from importlib.machinery import PathFinder
missing = sys.argv.pop(1).split(",")
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in missing else PathFinder.find_spec(name, path, target)
    @classmethod
    def find_distributions(cls, context):
        return () if context.name in missing else PathFinder.find_distributions(context)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
# A line that begins with ! ends with 2, others end with 0.
CALL = """
from fnlkit.cli import main
for line in sys.argv[1:]:
    try:
        main(line.removeprefix("!").split())
    except SystemExit as end:
        if (end.code or 0) != 2 * line.startswith("!"):
            raise
"""


def without(names, folder, *lines, after=""):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED + CALL + after, names, *lines], cwd=folder,
        env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip


@pytest.fixture
def table(tmp_path):
    """A folder with cases.csv of three sites with 40 rows each."""
    points = np.random.default_rng(0).normal(size=(120, 2)) + 2 * (np.arange(120) % 2)[:, None]
    rows = "".join(f"{a:.3f},{b:.3f},s{i // 40},{'xy'[i % 2]}\n" for i, (a, b) in enumerate(points))
    (tmp_path / "cases.csv").write_text("a,b,site,label\n" + rows)
    return tmp_path


def test_a_table_needs_neither_torch_nor_torchvision_nor_faiss(table):
    """A command that needs torch ends with one line: the command that installs it."""
    done = without(
        "torch,torchvision,faiss,efficientnet_lite_pytorch",
        table,
        "partition --dataset cases.csv --scheme sites --holdout 0 -o fed.npz",
        "inject-noise fed.npz --noise symmetric(eta=0.2) -o noisy.npz",
        "estimate-noise noisy.npz --estimator fedsums --apply relabel -o relabeled.npz",
        "estimate-noise noisy.npz --estimator knn(across=true) -o neighbors.npz",
        "estimate-noise noisy.npz --estimator confident -o confident.npz",
        "estimate-noise noisy.npz --estimator em -o em.npz",
        "train noisy.npz --method fedsums -o run.pt",
        "train noisy.npz --method fedsums --resume run.pt -o again.pt",
        "evaluate run.pt",
        "predict run.pt cases.csv -o predictions.csv",
        "report run.pt -o report.html",
        "audit noisy.npz -o judged.npz",
        "review export judged.npz --client 0 -o review",
        "review suspects judged.npz -o suspects.csv",
        "!train fed.npz -o run.pt",
        "!estimate-noise fed.npz --estimator em --rounds 2",
        "doctor",
        "--version",
        after="import fnlkit\nprint('loaded', fnlkit.load('run.pt').settings['method'])\n",
    )
    assert done.returncode == 0, done.stderr
    errors = [text for text in done.stderr.splitlines() if text.startswith("fnlkit: error: ")]
    assert errors == ["fnlkit: error: torch is not installed; run: pip install 'fnlkit[train]'"] * 2
    assert "no problem found" in done.stdout and {"torch not installed", "loaded fedsums"} <= {*done.stdout.splitlines()}
    run, again = (Run.read(table / name) for name in ("run.pt", "again.pt"))
    assert torch.equal(run.weights, again.weights)
    assert {*torch.load(table / "run.pt", weights_only=True)} == {"kind", "meta", "sha256", "tensors"}


def test_neighbors_without_faiss_are_those_of_faiss(monkeypatch):
    """A large site, in float32; distances that are equal up to rounding do not occur in these numbers."""
    rng = np.random.default_rng(5)
    points, labels, draws = rng.normal(size=(1500, 32)), rng.integers(0, 10, 1500), rng.random(1500)
    votes = np.zeros(0, np.int64), 10, 9, False, draws, 1
    by_faiss = neighbors.nearest(points, 9), *neighbors.vote_by_index(points, labels, *votes)
    lists = near_with_distances(np.repeat(points[:500], 8, 0)[:, :20], 7)[0]
    monkeypatch.setattr(neighbors, "_faiss", lambda: None)
    by_sklearn = neighbors.nearest(points, 9), *neighbors.vote_by_index(points, labels, *votes)
    for first, second in zip(by_faiss, by_sklearn, strict=True):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(near_with_distances(np.repeat(points[:500], 8, 0)[:, :20], 7)[0], lists, atol=1e-6)
    assert (neighbors.nearest_in_lists(points, 3) == by_sklearn[0][:, :3]).all()
