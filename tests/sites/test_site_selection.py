"""`--select` at real sites: the counts and choices of a simulation, also after a stop and without samples at the server."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import WorkStopped
from fnlkit.federated.client.measuring import reply_held_out_agreement
from fnlkit.sites.site.preview import describe_data
from tests.commands import refuse_call
from tests.sites.deployed import CANARY, Deployed

EVERY = ("label-wave(window=1, patience=1)", "best-holdout", "nes(patience=1)")


@pytest.fixture
def held(place, tmp_path):
    """The sites of `place`, each with held-out samples and wrong labels among them; none is a training sample."""
    folder, digits = tmp_path / "sites", datasets.load("digits")
    shutil.copytree(place, folder)
    for k in range(3):
        path, rows = folder / f"{CANARY}-{k}.npz", slice(200 + 15 * k, 210 + 20 * k)
        given = digits.y_test[rows].copy()
        given[:k] = (given[:k] + 1) % 10
        x = digits.x_test[rows].astype(np.float32) / 255
        np.savez(path, **np.load(path), x_test=x, y_test=given)
    return folder


def counted(run):
    column = run.meta["selection"]["column"]
    return [row.get(column) for row in run.history]


@pytest.mark.parametrize("select", EVERY)
def test_sites_choose_what_a_simulation_chooses(select, held, tmp_path, capsys):
    deployed = Deployed(held, tmp_path, "fedavg", select=select, rounds=5, lr=0.5)
    run, plain = Run.read(str(deployed.train() and deployed.options["output"])), deployed.simulated(held_out=True)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    column = run.meta["selection"]["column"]
    assert [row.get(column) for row in printed] == counted(run)  # the agreement or changes of each round
    assert counted(run) == counted(plain) and run.meta["selection"] == plain.meta["selection"]
    assert torch.equal(run.weights, plain.weights)
    assert torch.equal(run.selection.get("last", run.weights), plain.selection.get("last", plain.weights))
    assert run.traffic.sent[column] == plain.traffic.sent[column]


@pytest.mark.parametrize("select", EVERY[:2])
def test_a_stopped_selection_resumes(select, held, tmp_path, capsys):
    deployed = Deployed(held, tmp_path, "fedavg", select=select, rounds=4, lr=0.5)
    whole = deployed.simulated(held_out=True)
    deployed.stop_before_replies(5, 8, 12)
    for _ in range(3):
        refuse_call("", deployed.train, error=KeyboardInterrupt)
    run = deployed.train()
    assert torch.equal(run.weights, whole.weights) and counted(run) == counted(whole)


@pytest.mark.parametrize("select", ["label-wave(window=1)", "best-holdout"])
def test_the_server_needs_no_samples(select, held, tmp_path, capsys):
    runs = []
    for name in ("with", "alone"):
        deployed = Deployed(held, tmp_path / name, "fedavg", select=select, rounds=4, eval_every=2)
        if name == "alone":
            del deployed.options["server_data"]
        runs.append(deployed.train())
    assert counted(runs[0]) == counted(runs[1]) and torch.equal(runs[0].weights, runs[1].weights)
    assert not any("accuracy" in row for row in runs[1].history)


def test_a_site_that_does_not_count_is_left_out(held, tmp_path, monkeypatch, capsys):
    from fnlkit.federated.client import client

    deployed = Deployed(held, tmp_path, "fedavg", select="best-holdout", rounds=2)
    whole = deployed.train()
    gather = client.Part.gather

    def fails(part):
        """Fail for the held-out samples of site 1."""
        if len(part.index) == 15:
            raise ValueError("no answer")
        return gather(part)

    monkeypatch.setattr(client.Part, "gather", fails)
    again = Deployed(held, tmp_path / "again", "fedavg", select="best-holdout", rounds=2)
    run = again.train()
    assert not run.rejected and "site-1" in capsys.readouterr().out
    sizes = [10, 15, 20]
    counts = [value * (sizes[0] + sizes[2]) for value in counted(run)]
    assert counts == pytest.approx(np.round(counts))
    assert run.selection.get("last", run.weights).equal(whole.selection.get("last", whole.weights))


def test_selections_that_sites_refuse(held, place, tmp_path, capsys):
    refuse_call("epsilon", Deployed, held, tmp_path / "a", "feddpcont(epsilon=50)", select="best-holdout")
    deployed = Deployed(place, tmp_path / "b", "fedavg", select="best-holdout")
    refuse_call("", deployed.train, error=WorkStopped)
    assert "has none; give it test samples" in capsys.readouterr().err
    assert not (tmp_path / "b/run.pt").exists()


def test_the_check_of_a_site_names_missing_held_out_samples(held, place, tmp_path):
    Deployed(held, tmp_path, "fedavg", select="nes")
    for folder, missing in ((held, 0), (place, 1)):
        found = describe_data(str(folder / f"{CANARY}-0.npz"), str(tmp_path / "project/project.json"))
        assert sum("`select` nes" in problem for problem in found["problems"]) == missing


@pytest.mark.parametrize(("count", "reply"), [(4, [0, 0]), (5, [3, 5])])
def test_few_held_out_samples_are_not_counted(count, reply):
    """The model predicts class 0 for every sample, and the first three samples have it."""
    given = torch.tensor([0, 0, 0, 1, 1])[:count]
    client = SimpleNamespace(held_out=(SimpleNamespace(gather=lambda: torch.zeros(count, 2)), given))
    found = reply_held_out_agreement(client, lambda x: torch.tensor([[1.0, 0.0]]).repeat(len(x), 1), None)
    assert found["held_out_agreement"].tolist() == reply
