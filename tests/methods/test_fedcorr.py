"""FedCorr's stages and options: what an ablation leaves alone, what acts in the last stage only, who is relabeled."""

from functools import cache, partial

import numpy as np
import pytest
import torch

from fnlkit.core import registry
from fnlkit.federated.client.scoring import double_softmax_losses, sample_losses
from fnlkit.federated.server.optimizers import FedOpt
from fnlkit.federated.server.selection import average_for
from fnlkit.methods import fedcorr
from tests.commands import refuse_call
from tests.methods.test_methods import SHORT, clients, run
from tests.toy import toy


@pytest.mark.parametrize(("asked", "stages"), [
    ((-1, -1, -1), (5, 500, 450)),
    ((0, -1, -1), (0, 500, 450)),
    ((-1, 0, -1), (5, 0, 450)),  # appendix C.6: the curve without fine-tuning ends at 5000 client-rounds
    ((-1, -1, 0), (5, 500, 0)),
    ((-1, 0, 0), (5, 0, 0)),
    ((-1, 300, -1), (5, 300, 650)),
    ((-1, -1, 300), (5, 650, 300)),
    ((10, -1, -1), (10, 474, 426)),
])  # fmt: skip
def test_an_ablation_leaves_the_other_stages_their_rounds(asked, stages):
    assert fedcorr.budget(1000, 0.1, *asked) == stages


def test_stages_that_cost_too_much_are_refused():
    refuse_call("raise `rounds`", fedcorr.budget, 40, 0.1, 5, -1, -1)
    refuse_call("4 iterations cost 40 of 100", fedcorr.budget, 100, 0.1, -1, 50, 50)


@cache
def steps_of_fedcorr():
    return run("fedcorr", people=clients(count=8), rounds=12, fit=SHORT)[2]


def stage(steps, name):
    return [step for step in steps if step.stage == name]


@pytest.mark.parametrize("late", [
    "usual_optimizer=feddyn(alpha=0.1)", "usual_aggregator=median", "usual_selector=power-of-choice(d=8)", "usual_lr=0.01",
    "usual_decay=0.5",
])  # fmt: skip
def test_usual_components_act_in_the_last_stage_only(late):
    plain, (_, _, changed) = steps_of_fedcorr(), run(f"fedcorr({late})", people=clients(count=8), rounds=12, fit=SHORT)
    early = [step.stage != "usual training" for step in plain]
    assert early == [step.stage != "usual training" for step in changed] and sum(early) < len(early)
    same = [torch.equal(a.model.weights, b.model.weights) for a, b in zip(plain, changed, strict=True)]
    assert all(same[i] for i in range(len(same)) if early[i])
    assert not same[-1]


def test_the_last_stage_has_its_own_learning_rate_and_clock():
    """FedDyn as in Figure 4: every local step of stage 3 is taken at usual_lr x usual_decay^r, r counted from there."""
    seen = []

    class Opt(FedOpt):
        def round(self, *arguments, **keywords):
            seen.append(self.fit.lr * self.schedule(self.rounds))
            return super().round(*arguments, **keywords)

    def optimizer(fit, **settings):
        return Opt(fit, **settings)

    run(partial(fedcorr.fedcorr, usual_optimizer=optimizer, usual_lr=0.1, usual_decay=0.998), rounds=12, fit=SHORT)
    assert seen == [0.1 * 0.998**r for r in range(len(seen))] and len(seen) > 1


def test_a_loss_of_the_first_stages_does_not_end_the_run_before_the_last_one():
    stages = "iterations=1, finetune_rounds=1, usual_rounds=1"
    settings = {"people": clients(count=8), "rounds": 6, "fit": SHORT.changed(loss=registry.loss("gce"))}
    _, _, steps = run(f"fedcorr({stages}, usual=elr, usual_lr=0.1)", **settings)
    assert steps[-1].stage == "training"


@pytest.mark.parametrize(("of_run", "of_stage", "equal"), [
    ("power-of-choice(d=4)", "usual_optimizer=fedprox", True), ("power-of-choice(d=4)", "usual_selector=uniform", False),
    ("uniform", "usual_selector=power-of-choice(d=4)", True),
])  # fmt: skip
def test_the_selector_of_the_last_stage_decides_how_its_cohorts_are_averaged(of_run, of_stage, equal, monkeypatch):
    seen = []
    monkeypatch.setattr(FedOpt, "_counts", lambda self, clients: seen.append(self.equal_weights) or clients.sizes)
    fed, model = toy(count=6)
    opt, select = registry.optimizer("fedavg", SHORT), registry.selector(of_run, 0.5)
    average_for(select, opt)
    stages = "iterations=1, finetune_rounds=0, usual_rounds=1"
    list(registry.method(f"fedcorr({stages}, {of_stage})")(fed, model, opt, select, rounds=6))
    assert seen[-1] == equal and seen[0] == (of_run != "uniform")


def test_feddyn_remembers_nothing_of_the_first_stages():
    fed, _, steps = run("fedcorr(usual_optimizer=feddyn(alpha=0.1))", rounds=12, fit=SHORT)
    late = {int(i) for step in stage(steps, "usual training") for i in step.replies.ids}
    assert {c.id for c in fed.members if "dual" in c.state} == late


def asked_to_relabel(relabeled, monkeypatch):
    """Return (clients relabeled after fine-tuning, noisy by the last mixture, outside of the clean set)."""
    asked = []
    monkeypatch.setattr(fedcorr, "relabel_confident", lambda client, model, received, **options: asked.append(client.id))
    # kappa 0.3: some clients that the mixture calls noisy are clean enough for fine-tuning.
    _, _, steps = run(f"fedcorr(code=[{relabeled}], clean_level=0.3)", rounds=12)
    last = stage(steps, "pre-processing")[-1].report
    return asked, np.flatnonzero(last["noisy_clients"]).tolist(), np.flatnonzero(last["noise_level"] > 0.3).tolist()


def test_clients_relabeled_after_fine_tuning(monkeypatch):
    asked, noisy, rest = asked_to_relabel("", monkeypatch)
    assert asked == rest and rest != noisy
    asked, noisy, rest = asked_to_relabel("relabeled", monkeypatch)
    assert asked == noisy and rest != noisy


def test_a_softmax_of_a_softmax_ranks_differently():
    # Right label at probability p, K = 3: log sum_j exp(p_j) - p_y, whatever the logits' scale: (0.6, 0.4, 0) costs
    # log(e^.6 + e^.4 + 1) - .6 = 0.8619; (0.6, 0.2, 0.2): log(e^.6 + 2 e^.2) - .6 = 0.8504.  Cross entropy: -log 0.6 both.
    logits = torch.log(torch.tensor([[0.6, 0.4, 1e-12], [0.6, 0.2, 0.2]], dtype=torch.float64))
    y = torch.tensor([0, 0])
    assert double_softmax_losses(logits, y).tolist() == pytest.approx([0.8619, 0.8504], abs=1e-4)
    assert sample_losses(logits, y).tolist() == pytest.approx([0.5108, 0.5108], abs=1e-4)
