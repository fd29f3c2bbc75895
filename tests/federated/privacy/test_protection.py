"""Updates that sites mask: which methods, optimizers and selectors need only sums."""

import math

import numpy as np
import pytest
import torch

from fnlkit.core import registry
from fnlkit.experiment import cards
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.clients import Clients, Replies
from tests import toy
from tests.commands import refuse

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
    assert {found[name] for name in SINGLE} == {"–"} and {found[name] for name in SUMMED | SOLVED} == {"sum"}
    assert {found[name] for name in ("fedavg", "flr", "elr", "coteaching", "oracle")} == {"secagg"}
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
        clients, model = toy.toy(network=toy.fitting(toy.Net, method))
        opt = registry.optimizer("fedavg", Fit(epochs=1, batch_size=10, lr=0.1))
        program = registry.method(method)(clients, model, opt, registry.selector("uniform", 0.5), rounds=6)
        return [step.model.weights for step in program][-1]

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
