"""The example of docs/deployment.md: real processes on loopback, with TLS and keys.

Minutes, since Flower starts a process for every message.
"""

import importlib.util
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artefacts.federation import Federation
from fnlkit.artefacts.run import Run
from fnlkit.experiment import Experiment
from fnlkit.pipeline import deployment

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CORRECTED = ["--method", "fedcorr(iterations=1, finetune_rounds=1)", "--rounds", "3", "--fraction", "1", "--epochs", "1",
             "--model", "mlp(hidden=8)", "--optimizer", "feddyn(alpha=0.1)"]  # fmt: skip
AVERAGED = ["--rounds", "3", "--fraction", "1", "--epochs", "1", "--model", "mlp(hidden=8)"]


def example():
    spec = importlib.util.spec_from_file_location("flower_app_example", ROOT / "examples/flower_app/run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulated(folder):
    """Return the run that sequential makes of the sites' samples under the project's settings."""
    import tomllib

    config = tomllib.loads((folder / "project/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings, task = deployment.read_config(config)
    sites = [np.load(folder / f"site-{k}.npz") for k in range(3)]
    x, given = (np.concatenate([site[name] for site in sites]) for name in ("x_train", "y_train"))
    server = np.load(folder / "server.npz")
    data = datasets.dataset.Dataset(
        "all", task.kind, given, server["y_test"], list(task.classes), lambda: (x, server["x_test"]),
        statistics=(task.mean, task.std), observed=True, test_true=True,
    )  # fmt: skip
    offsets = np.concatenate([[0], np.cumsum([len(site["y_train"]) for site in sites])])
    return Experiment(Federation("all", 10, offsets, np.arange(len(x)), given), data, settings, engine="sequential").run()


def processes_in(folder):
    """Return the ids of living processes that work in a folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and Path(os.readlink(process / "cwd")).is_relative_to(folder):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def serverapps(folder):
    return [pid for pid in processes_in(folder) if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def rounds_done(folder):
    path = folder / "run.metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def place(tmp_path, request):
    module = example()
    module.prepare(tmp_path, request.param)
    yield module, tmp_path
    assert processes_in(tmp_path) == []


@pytest.mark.parametrize("place", [CORRECTED], indirect=True)
def test_real_sites_end_where_a_simulation_does(place):
    """The example's own way; with TLS, node keys, and nothing left running."""
    module, folder = place
    with module.Federation(folder) as federation:
        assert federation.wait(federation.submit()) == "finished:completed"
    run, plain = Run.read(str(folder / "run.pt")), simulated(folder)
    assert torch.equal(run.weights, plain.weights) and not run.rejected
    assert [row.get("accuracy") for row in run.history] == [row.get("accuracy") for row in plain.history]


@pytest.mark.parametrize("place", [AVERAGED], indirect=True)
def test_a_killed_supernode_is_named_and_a_killed_server_goes_on(place):
    """SIGKILL in mid-round: of a site, whose loss is named; of the ServerApp, whose run the next submission continues."""
    module, folder = place
    with module.Federation(folder) as federation:
        run = federation.submit()
        while not (folder / "memory-0").is_dir() or not list((folder / "memory-0").glob("*/client-0/state-0.npz")):
            assert not federation.status(run).startswith("finished")
        os.killpg(federation.processes["site-2"].pid, signal.SIGKILL)
        while rounds_done(folder) < 1:
            assert not federation.status(run).startswith("finished")
        (killed,) = serverapps(folder)
        os.kill(killed, signal.SIGKILL)
        assert federation.wait(run) != "finished:completed"
        federation.start_site(2)
        time.sleep(5)
        assert federation.wait(federation.submit()) == "finished:completed"
    run = Run.read(str(folder / "run.pt"))
    assert run.finished and len(run.history) == 3
    lost = {(r["client"], r["reason"]) for r in run.rejected}
    assert lost <= {(2, "its node did not reply"), (2, "did not answer within 600 s")}, lost
