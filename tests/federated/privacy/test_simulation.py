"""A simulation: every draw follows from the seed, and nothing is written outside its output and the cache."""

import os
from pathlib import Path

import pytest

from fnlkit.artifacts.run import Run
from fnlkit.experiment import Experiment
from tests.commands import succeed
from tests.experiment.test_experiment import problem, same, settings

CASES = ["--method feddpcont"]


def _files(folder):
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", CASES)
def test_equal_seeds_give_equal_runs_in_every_home_and_leave_no_file_there(options, noisy, tmp_path, monkeypatch):
    runs = []
    for home in ("a", "b"):
        folder = tmp_path / home
        (folder / "data").mkdir(parents=True)
        os.link(noisy, folder / "data" / "noisy.npz")
        monkeypatch.setenv("HOME", str(folder / "home"))
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        line = f"fnlkit train data/noisy.npz {options} --seed 1 --rounds 2 --epochs 1 --model 'mlp(hidden=[4])' -o run.pt"
        assert "this simulation protects nobody" in " ".join(succeed(f"{line} --engine sequential", folder).stderr.split())
        assert _files(folder) == {"data/noisy.npz", "run.pt", "run.metrics.jsonl"}
        runs.append(Run.read(folder / "run.pt"))
    same(*runs)


@pytest.mark.parametrize("method", ["fedavg", "nnc(usual=feddpcont())"])
def test_methods_that_release_labels_give_equal_bytes_in_two_homes(method, tmp_path, monkeypatch):
    runs = []
    for home in ("a", "b"):
        monkeypatch.setenv("HOME", str(tmp_path / home))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / home / "state"))
        chosen = settings(method, rounds=6, fraction=0.5, epochs=1, eval_every=6)
        runs.append(Experiment(*problem(), chosen, engine="sequential").run())
    same(*runs)
    assert not _files(tmp_path)
