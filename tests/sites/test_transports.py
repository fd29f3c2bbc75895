"""The same tasks over all transports: a folder of files, Flower and NVIDIA FLARE in one process; the same bytes leave."""

import importlib.util
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from fnlkit.sites import ledger, tasks
from fnlkit.sites.door import Door
from fnlkit.sites.site import Place
from tests.sites.by_folder import result_of, run_by_folder
from tests.sites.deployed import SITES, Deployed, Judged


@pytest.fixture(autouse=True)
def named(monkeypatch):
    """Give all runs the same name: the ledger contains it."""
    monkeypatch.setattr(tasks.secrets, "token_hex", lambda size: "ab" * size)


def by_folder(deployed):
    doors = {name: Door(Place.of(node)) for name, node in zip(deployed.project.names, deployed.nodes.values(), strict=True)}
    return run_by_folder(deployed.project, tasks.options_of(deployed.options), doors, deployed.folder / "mail")


class Job:
    """The parts of NVIDIA FLARE that both ends use: a controller whose tasks reach the executors in this process."""

    def __init__(self, deployed, site):
        self.deployed, self.site = deployed, site

    def get_engine(self):
        return self

    def get_clients(self):
        return [SimpleNamespace(name=name) for name in self.deployed.project.names]

    def send(self, task, fl_ctx, targets):
        (name,) = targets
        context = SimpleNamespace(get_identity_name=lambda: name)
        client = SimpleNamespace(name=name)
        task.result_received_cb(
            SimpleNamespace(client=client, result=self.site.execute(task.name, task.data, context, None)), None
        )


def by_flare(deployed, monkeypatch):
    from fnlkit.sites import nvflare

    places = dict(zip(deployed.project.names, (Place.of(node) for node in deployed.nodes.values()), strict=True))
    monkeypatch.setattr(nvflare, "_place", places.__getitem__)
    job = Job(deployed, nvflare.Site())
    options = tasks.options_of(deployed.options)
    tasks.conduct(nvflare.FlareTransport(job, job, None), deployed.project, options)
    return result_of(options)


def ledgers(deployed):
    return [ledger.read_ledger(str(deployed.folder / f"memory-{k}/left.jsonl")) for k in range(len(deployed.nodes))]


@pytest.mark.parametrize("task", ["audit", "fedavg", "fedcorr"])
def test_the_same_bytes_leave_over_each_transport(task, place, audited, tmp_path, monkeypatch, capsys):
    out, left = [], []
    ways = {"flower": Deployed.run, "folder": by_folder}
    if importlib.util.find_spec("nvflare"):
        ways["flare"] = partial(by_flare, monkeypatch=monkeypatch)
    for name, run in ways.items():
        if task == "audit":
            deployed = Judged(audited, tmp_path / name)
        else:
            deployed = Deployed(place, tmp_path / name, task, rounds=3)
        out.append(run(deployed))
        left.append(ledgers(deployed))
    first, *others = left
    replies = [[line for line in lines if "arrays" in line] for lines in first]
    assert len(replies) == (SITES if task == "audit" else 3) and all(len(lines) >= 2 for lines in replies)
    for other in others:
        assert other == first
    for found in out[1:]:
        if task == "audit":
            assert found["digest"] == out[0]["digest"] and found["sites"] == out[0]["sites"]
        else:
            assert np.array_equal(found.weights, out[0].weights)
