"""The example of docs/deployment.md: real processes on loopback, with TLS and keys.

Minutes, since Flower starts a process for every message.
"""

import importlib.util
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import flower_canaries
from fnlkit.artifacts.run import Run
from fnlkit.experiment import Experiment
from fnlkit.sites import project
from tests.commands import wait_until

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")
from tests.sites.deployed import CANARY, pool  # noqa: E402

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CORRECTED = ["--method", "fedcorr(iterations=1, finetune_rounds=1)", "--rounds", "3", "--fraction", "1", "--epochs", "1",
             "--model", "mlp(hidden=8)", "--optimizer", "feddyn(alpha=0.1)"]  # fmt: skip


def example():
    spec = importlib.util.spec_from_file_location("flower_app_example", ROOT / "examples/flower_app/run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulated(folder, **changes):
    """Return the run that sequential makes of the sites' samples under the project's settings."""
    task = project.read(folder / "project")
    sites = [np.load(folder / f"site-{k}.npz") for k in range(3)]
    with np.load(folder / "server.npz") as server:
        test = server["x_test"], server["y_test"]
    federation, data = pool(task, [(site["x_train"], site["y_train"]) for site in sites], test)
    return Experiment(federation, data, replace(project.settings_of(task), **changes), engine="sequential").run()


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


@pytest.fixture
def place(tmp_path, request):
    """(the example's module, a folder whose name no site may tell); afterwards nothing is left running."""
    module, folder = example(), tmp_path / CANARY
    module.prepare(folder, request.param)
    yield module, folder
    assert processes_in(folder) == []


@pytest.mark.parametrize("place", [CORRECTED], indirect=True)
def test_real_sites_end_where_a_simulation_does(place):
    """The example's own way; with TLS, node keys, and nothing left running."""
    module, folder = place
    with module.Federation(folder) as federation:
        assert federation.wait(federation.submit()) == "finished:completed"
    run, plain = Run.read(str(folder / "run.pt")), simulated(folder)
    assert torch.equal(run.weights, plain.weights) and not run.rejected
    assert [row.get("accuracy") for row in run.history] == [row.get("accuracy") for row in plain.history]


MASKED = ["--method", "flr", "--rounds", "2", "--fraction", "1", "--epochs", "1", "--model", "mlp(hidden=8)",
          "--protect", "secagg"]  # fmt: skip


@pytest.mark.parametrize("place", [MASKED], indirect=True)
def test_real_sites_mask_their_updates(place):
    module, folder = place
    with module.Federation(folder) as federation:
        assert federation.wait(federation.submit()) == "finished:completed"
    run, plain = Run.read(str(folder / "run.pt")), simulated(folder, protect="none")
    assert 0 < (run.weights - plain.weights).abs().max() < 1e-4 and not run.rejected
    assert run.traffic.sent["secagg"] > run.traffic.sent["weights"]  # float32 here, eight bytes masked


def test_none_of_a_thousand_canaries_leaves_a_deployment(tmp_path):
    """Labels, names, paths, metadata and texts of exceptions, over all tasks; a canary in a reply is found."""
    found = flower_canaries.searched(tmp_path / "sites")
    ends = {"failing": "finished:failed"} | dict.fromkeys(["audit", "train", "evaluate", "control"], "finished:completed")
    assert found["statuses"] == ends and found["canaries"] >= 1000 and found["readable"] == 4
    assert found["in_bytes_from_sites"] == found["in_files_of_the_coordinator"] == 0
    assert found["raised_in_exceptions"] >= 3 and found["control"] == 1


TWO = ["--rounds", "2", "--fraction", "1", "--epochs", "1", "--model", "mlp(hidden=8)", "--wait", "300"]


@pytest.mark.parametrize("place", [TWO], indirect=True)
def test_a_killed_supernode_is_named_and_a_killed_server_resumes(place):
    """SIGKILL in mid-round: of a site, whose loss is named; of the ServerApp, whose run the next submission continues."""
    module, folder = place
    with module.Federation(folder) as federation:
        run = federation.submit()
        assert wait_until(lambda: b"Receiving: train message" in (folder / "site-2.log").read_bytes())
        os.killpg(federation.processes["site-2"].pid, signal.SIGKILL)
        assert wait_until((folder / "run.pt").exists)
        first = Run.read(str(folder / "run.pt"))
        for process in processes_in(folder):
            if b"flwr-serverapp" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, signal.SIGKILL)
        assert federation.wait(run) != "finished:completed"
        assert federation.wait(federation.submit(), each=federation.revive) == "finished:completed"
    whole = Run.read(str(folder / "run.pt"))
    assert whole.finished and len(whole.history) == 2
    named = [(entry["round"], entry["client"], entry["reason"]) for entry in first.rejected]
    clients = first.history[0]["clients"]
    replied_before = not named and clients == [0, 1, 2]
    assert replied_before or (named == [(0, 2, "its node did not reply")] and clients == [0, 1])
