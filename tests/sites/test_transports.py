"""The same tasks over both transports: a folder of files, and Flower in one process; the same bytes leave."""

import os

import numpy as np
import pytest

from fnlkit.sites.server import tasks
from fnlkit.sites.server.folder import Folder, Waiting
from fnlkit.sites.site import ledger
from fnlkit.sites.site.door import Door
from fnlkit.sites.site.opening import Place
from tests.sites.by_folder import run_by_folder
from tests.sites.deployed import SITES, Deployed, Judged


@pytest.fixture(autouse=True)
def named(monkeypatch):
    """Give all runs the same name: the ledger contains it."""
    monkeypatch.setattr(tasks.secrets, "token_hex", lambda size: "ab" * size)


def by_folder(deployed):
    doors = {name: Door(Place.of(node)) for name, node in zip(deployed.project.names, deployed.nodes.values(), strict=True)}
    return run_by_folder(deployed.project, tasks.options_of(deployed.options), doors, deployed.folder / "mail")


def ledgers(deployed):
    return [ledger.read_ledger(str(deployed.folder / f"memory-{k}/left.jsonl")) for k in range(len(deployed.nodes))]


@pytest.mark.parametrize("task", ["audit", "fedavg", "fedcorr"])
def test_the_same_bytes_leave_over_each_transport(task, place, audited, tmp_path, capsys):
    out, left = [], []
    for name, run in {"flower": Deployed.run, "folder": by_folder}.items():
        if task == "audit":
            deployed = Judged(audited, tmp_path / name)
            if name == "flower":
                deployed.admit_keys()  # a folder's sites have names; without either, Flower asks who they are first
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


def test_a_training_over_files_continues_with_each_call_of_the_command(place, tmp_path, monkeypatch):
    """Until the first round was complete, each call drew another name of the run, and so wrote other requests for ever."""
    names = (f"{number:016x}" for number in range(99))
    monkeypatch.setattr(tasks.secrets, "token_hex", lambda size: next(names))
    deployed = Deployed(place, tmp_path, "fedavg", rounds=2)
    assert len(by_folder(deployed).history) == 2
    # A hello and an exchange per round.
    assert len(list((tmp_path / "mail").glob("site-0-*.request"))) == 3
    other = deployed.options | {"output": str(tmp_path / "other")}
    with pytest.raises(Waiting):  # another training is another run at the sites, also in the same folder
        tasks.conduct(Folder(tmp_path / "mail", deployed.project.names), deployed.project, tasks.options_of(other),
                      folder=str(tmp_path / "mail"))  # fmt: skip
    assert len(list((tmp_path / "mail").glob("site-0-*.request"))) == 4
    # A finished training whose run was moved away is asked anew; while the run is there, the command only ends again.
    mail, output = tmp_path / "mail", tasks.options_of(deployed.options).output
    by_folder(deployed)
    assert len(list(mail.glob("site-0-*.request"))) == 4
    os.rename(output, tmp_path / "earlier.pt")
    assert len(by_folder(deployed).history) == 2
    assert len(list(mail.glob("site-0-*.request"))) == 6
