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
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.experiment import Experiment
from fnlkit.sites import project
from tests.commands import wait_until

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")
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
    settings = replace(project.settings_of(task), **changes)
    sites = [np.load(folder / f"site-{k}.npz") for k in range(3)]
    x, given = (np.concatenate([site[name] for site in sites]) for name in ("x_train", "y_train"))
    with np.load(folder / "server.npz") as file:
        server = dict(file)
    data = datasets.dataset.Dataset(
        "all", task.kind, given, server["y_test"], list(task.classes), lambda: (x, server["x_test"]),
        statistics=(tuple(task.mean), tuple(task.std)), observed=True, test_true=True,
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


@pytest.fixture
def place(tmp_path, request):
    """(the example's module, a folder whose name no site may tell); afterwards nothing is left running."""
    module, folder = example(), tmp_path / "CanaryQ7x"
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


CANARY, NUMBER = "CanaryQ7x", np.float32(0.7236068)
ONE = ["--rounds", "1", "--fraction", "1", "--epochs", "1", "--model", "mlp(hidden=8)", "--wait", "60"]


@pytest.mark.parametrize("place", [ONE], indirect=True)
def test_no_canary_in_a_byte_that_leaves_a_site(place):
    """Without TLS, to read along: nothing of samples, labels, paths and texts of exceptions, and the weights are seen there."""
    module, folder = place
    for k in range(3):
        site = dict(np.load(folder / f"site-{k}.npz"))
        site["x_train"] = site["x_train"].astype(np.float32) / 255
        site["x_train"][:, 0, 0, 0] = NUMBER
        np.savez(folder / f"site-{k}.npz", **site)

    flower_canaries.without_keys(folder)
    (folder / "memory-1").write_text("no folder, so that site 1 fails in a sentence that names it")
    with flower_canaries.opened(module)(folder) as federation:
        assert federation.wait(federation.submit()) == "finished:failed"  # too few sites are no success
        (folder / "memory-1").unlink()
        assert federation.wait(federation.submit()) == "finished:completed"
    federation.wire.close()
    heard = b"".join(map(bytes, federation.wire.heard))
    run = Run.read(str(folder / "run.pt"))
    ours = np.load(folder / "site-0.npz")
    secrets = [CANARY.encode(), NUMBER.tobytes(), np.float64(NUMBER).tobytes(), ours["x_train"][3].tobytes()]
    secrets += [ours["y_train"].astype(kind).tobytes() for kind in (np.int64, np.int32, np.uint8)]
    assert [secret for secret in secrets if secret in heard] == []
    seen = [b'"samples"', b'"replies"', b"fnlkit.message", b"FileExistsError"]  # messages can be read along
    assert [part for part in seen if part not in heard] == [] and len(heard) > run.traffic.bytes_up > 1000
    assert CANARY in str(folder)


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
