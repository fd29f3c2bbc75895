"""Updates that sites mask: which methods, optimizers and selectors need only sums."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import reconstruction
from benchmarks.reconstruction import closed_form, of_sums, page_table, recovered, span
from fnlkit.artifacts.run import Run
from fnlkit.core import registry
from fnlkit.experiment import cards
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.clients import Clients, Replies
from tests import toy
from tests.commands import refuse, succeed
from tests.experiment.test_experiment import same

# By hand, from the papers' algorithms.
SINGLE = {"fedcorr", "flr-plus", "nnc", "akd", "na-fedavg", "fednoro", "fedelc", "maskedoptim", "fedsir", "rofl", "fedrn",
          "feddiv", "fedreda", "rhfl", "centralized", "local"}  # fmt: skip
SOLVED = {"fedsums", "ridge", "lda"}
SUMMED = {"fedefc", "fedem", "forward", "confident-learning", "feddpcont", "fedgr"}


def planned(**settings):
    return Plan.of(Settings(**settings))


# ---- which methods can
def test_possible_protection_follows_from_the_replies():
    found = {name: cards.protection_of_replies(name) for name in registry.METHODS}
    assert {found[name] for name in SINGLE} == {"–"} and {found[name] for name in SUMMED} == {"sum"}
    assert {found[name] for name in ("fedavg", "flr", "elr", "coteaching", "oracle", *SOLVED)} == {"secagg"}
    assert "fedcorr reads each client's reply: mean LID" in planned(method="fedcorr").single_replies_reason
    assert "sends more than weights: label counts" in planned(method="feddpcont").unprotected_reason
    assert "reads each" in planned(method="oracle(usual=fedcorr)").single_replies_reason
    assert planned(method="oracle(usual=flr)").single_replies_reason is None


def test_aggregators_optimizers_and_selection_that_look_at_single_clients():
    specs = {"daagg": "daagg(clean=[0])"}
    assert [a for a in registry.AGGREGATORS if planned(aggregator=specs.get(a, a)).single_replies_reason is None] == ["mean"]
    assert {o for o in registry.OPTIMIZERS if planned(optimizer=o).single_replies_reason} == {"scaffold", "fednova", "fedexp"}
    assert planned(optimizer="feddyn(rule=fedefc)").single_replies_reason
    assert planned(optimizer="feddyn").single_replies_reason is None
    assert [s for s in registry.SELECTORS if planned(selector=s).single_replies_reason] == ["power-of-choice"]


@pytest.mark.parametrize("method", sorted(SUMMED))
def test_summed_replies_are_only_summed(method, monkeypatch):
    """Each client's reply replaced by the mean over the round: sums stay, and so does the run."""

    def trained():
        clients, model = toy.toy(network=toy.fitting(toy.Net, method), count=6)
        run = toy.program(method, clients, model, rounds=6, fit=Fit(epochs=1, batch_size=10, lr=0.1))
        return [step.model.weights for step in run][-1]

    plain, real, hidden = trained(), Clients.round, []

    def averaged(self, *args, **more):
        said = real(self, *args, **more)
        for name in set(said) - {"weights"}:
            hidden.append(name)
            said[name] = said[name].double().mean(0, keepdim=True).expand_as(said[name])
        return Replies(said, said.ids)

    monkeypatch.setattr(Clients, "round", averaged)
    declared = {name for _, sends in planned(method=method).method.list_replies() for name in sends}
    torch.testing.assert_close(trained(), plain, rtol=1e-9, atol=1e-12)
    assert hidden and set(hidden) <= declared


def test_poisson_rounds_are_binomial_and_each_client_is_drawn_alike():
    clients, model = toy.toy(count=50)
    select, drawn = registry.selector("poisson", 0.2), np.zeros((400, 50))
    for r in range(400):
        clients.rounds = r
        drawn[r, select(clients, model)] = 1
    sizes = drawn.sum(1)
    assert sizes.mean() == pytest.approx(10, abs=4 * math.sqrt(8 / 400)) and sizes.var() == pytest.approx(8, rel=0.35)
    assert abs(drawn.mean(0) - 0.2).max() < 4.5 * math.sqrt(0.16 / 400)
    assert set(select(clients, model, np.arange(50) < 3)) <= {0, 1, 2}


def test_noise_on_updates_was_removed(noisy, tmp_path):
    refuse(f"fnlkit train {noisy} --protect 'dp(clip=1)' -o run.pt", tmp_path, "the protection dp was removed", "Flower")
    refuse(f"fnlkit train {noisy} --protect secaggs -o run.pt", tmp_path, "did you mean 'secagg'?")


# ---- attacks of the benchmark `reconstruction` on tiny inputs, and the table of docs/privacy
ROOT = Path(__file__).parents[3]


def samples(n, width=16):
    """Return non-negative samples with zeros, like features after ReLU."""
    return np.maximum(np.random.default_rng(0).normal(size=(n, width)), 0)


def test_the_update_of_a_single_sample_is_the_sample():
    """The gradient of W is g x' and that of b is g, so that a row divided by the entry of b is x."""
    x, g = np.array([0.5, 0.0, 2.0]), np.array([3.0, 0.0, -1.0])
    found = closed_form(np.outer(g, x), g)
    np.testing.assert_allclose(found, [x, x])  # no row of a unit without gradient


def test_sums_of_several_passes_reveal_samples_and_one_mean_of_many_does_not():
    x, rng = samples(8, reconstruction.WIDTH), np.random.default_rng(2)
    passes = [rng.dirichlet(np.ones(10), 8).T @ x for _ in range(2)]
    assert recovered(of_sums(passes, rng), x, x, scaled=True)[0] == 1.0
    mean = samples(40).mean(0, keepdims=True)
    assert recovered(span(mean, rng), samples(40), samples(40), scaled=True)[0] == 0.0


def test_recovered_by_hand():
    """Neighbors are 1 apart: a candidate 0.4 away is near enough, one 0.6 away is not."""
    own = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    found = np.array([[1.0, 0.0], [2.4, 0.0]])
    assert recovered(found, own, own) == pytest.approx((1 / 3, 2 / 3))
    assert recovered(np.array([[1.0, 0.6]]), own[:1], own) == (0.0, 0.0)
    assert recovered(np.zeros((0, 2)), own, own) == recovered(np.full((1, 2), np.nan), own, own) == (0.0, 0.0)


def test_a_run_of_fedavg_reveals_a_single_sample():
    assert reconstruction.attack("fedavg", reconstruction.Data(0), 1, rounds=1)["weights"] == (1.0, 1.0)


def test_the_table_of_the_page_is_that_of_the_stored_output():
    stored = (ROOT / "benchmarks/results/reconstruction.txt").read_text()
    assert "\n".join(page_table(stored)) in (ROOT / "docs/privacy.md").read_text()


# ---- a simulation
def _files(folder):
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def test_equal_seeds_give_equal_runs_in_every_home_and_leave_no_file_there(noisy, tmp_path, monkeypatch):
    runs = []
    for home in ("a", "b"):
        folder = tmp_path / home
        (folder / "data").mkdir(parents=True)
        os.link(noisy, folder / "data" / "noisy.npz")
        monkeypatch.setenv("HOME", str(folder / "home"))
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        line = "fnlkit train data/noisy.npz --method feddpcont --rounds 2 --epochs 1 --model 'mlp(hidden=[4])' -o run.pt"
        assert "this simulation protects nobody" in " ".join(succeed(f"{line} --engine sequential", folder).stderr.split())
        assert _files(folder) == {"data/noisy.npz", "run.pt", "run.metrics.jsonl"}
        runs.append(Run.read(folder / "run.pt"))
    same(*runs)
