"""Stages and options of FedCorr and of FedLN's methods: what an ablation leaves alone, how rounds are counted."""

import math
from functools import cache, partial

import numpy as np
import pytest
import torch

import fnlkit
from fnlkit import datasets
from fnlkit.core import registry
from fnlkit.federated.client.scoring import confidence, double_softmax_losses, energy, sample_losses
from fnlkit.federated.privacy import debias
from fnlkit.federated.server.optimizers import FedOpt
from fnlkit.federated.server.selection import Uniform, average_for
from fnlkit.methods import fedcorr
from fnlkit.methods.energy_levels import when_to_estimate
from fnlkit.methods.feddpcont import expected_error
from fnlkit.methods.neighbor_votes import limit_neighbors, neighbors_for
from tests.commands import refuse_call
from tests.methods.test_methods import SHORT, clients, run
from tests.toy import toy


# ---- FedCorr's stages and options: what an ablation leaves alone, what acts in the last stage only, who is relabeled
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


# ---- FedLN's methods: what the round of all clients costs, how rounds are counted, which score judges
@pytest.mark.parametrize(("count", "fraction", "rounds", "at"), [
    (30, 0.8, 200, -1), (30, 0.8, 500, 30), (100, 0.1, 150, -1), (7, 0.4, 20, 1),
])  # fmt: skip
def test_the_round_of_all_clients_is_charged_at_its_cost(count, fraction, rounds, at):
    select = Uniform(fraction=fraction)
    before, after = when_to_estimate(rounds, range(count), select, at, "na-fedavg")
    assert before == (at if at > 0 else min(30, round(0.15 * rounds))) - 1  # R_w is the round of that number
    cohort = max(1, round(fraction * count))
    spent = (before + after) * cohort + count
    assert spent <= rounds * cohort < spent + cohort


@pytest.mark.parametrize("method", ["na-fedavg(at=3)", "akd(source=logits, at=3)"])
def test_rounds_are_counted_from_one_as_in_the_paper(method):
    _, _, steps = run(method)
    assert [step.stage == "estimation" for step in steps[:4]] == [False, False, True, False]


def test_the_softmax_score_is_the_largest_probability():
    # Energies ln(e^2 + 1), ln(e^3 + e^3); largest probabilities e^2 / (e^2 + 1), 1/2: the order is another.
    logits = torch.tensor([[2.0, 0.0], [3.0, 3.0]], dtype=torch.float64)
    assert energy(logits).tolist() == pytest.approx([math.log(math.e**2 + 1), 3 + math.log(2)])
    assert confidence(logits).tolist() == pytest.approx([math.e**2 / (math.e**2 + 1), 0.5])


def test_akd_follows_embeddings_of_length_1_without_collapse():
    """With FedLN's learning rate and momentum, `distance=absolute, scale=given` predicts one class in every round."""
    x = np.asarray(datasets.load("digits").x_train, float).reshape(-1, 64)
    vectors = np.maximum(x @ np.random.default_rng(0).normal(size=(64, 256)), 0)  # pooled features are not negative either
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    noisy = fnlkit.inject_noise(fnlkit.partition("digits", clients=6), "symmetric(eta=0.4)")

    def accuracy(method, **given):
        how = {"rounds": 4, "fraction": 0.5, "epochs": 3, "batch_size": 32, "lr": 0.1, "momentum": 0.9}
        run = fnlkit.train(noisy, method, model="mlp(hidden=[64])", engine="sequential", say=None, **how, **given)
        return np.mean([entry["accuracy"] for entry in run.history[-2:]])

    plain, distilled = accuracy("fedavg"), accuracy("akd(k=10)", embeddings=vectors)
    assert distilled > max(0.5, plain - 0.1), (plain, distilled)


# ---- the error of FedDPCont's released distribution: stated as drawn releases have it, and with a note if it is large
@pytest.mark.parametrize(("epsilon", "labels", "skew"), [(0.81, 50_000, 0.0), (2.0, 2_000, 1.0)])
def test_the_expected_error_is_that_of_drawn_releases(epsilon, labels, skew):
    shares = np.exp(-skew * np.arange(10) / 3)
    shares, stay = shares / shares.sum(), np.exp(epsilon)
    flipped = (shares * (stay - 1) + 1) / (stay + 9)
    draws = np.random.default_rng(0).multinomial(labels, flipped, size=400)
    errors = [np.abs(debias(counts, epsilon) - shares).sum() / 2 for counts in draws]
    assert expected_error(shares, epsilon, labels) == pytest.approx(np.mean(errors), rel=0.05)


# ---- what a method did not do is said
class Held:
    """What `allowed_neighbors` asks of Clients."""

    def __init__(self, sizes, classes=10):
        self.sizes, self.classes, self.notes = torch.tensor(sizes, dtype=torch.float64), classes, []

    def note(self, text):
        self.notes.append(text)


def test_the_papers_k_is_reduced_if_a_client_has_fewer_samples_of_a_class():
    paper = Held([1667] * 30)
    assert limit_neighbors(paper, 100, "nnc") == 100 and neighbors_for([1667], 10).item() == 100
    assert limit_neighbors(paper, -1, "nnc") == 0 and not paper.notes
    small = Held([144] * 10)
    assert limit_neighbors(small, 14, "nnc") == 14 and not small.notes
    assert limit_neighbors(small, 100, "nnc") == 14 and len(small.notes) == 1
    assert limit_neighbors(Held([30] * 4), 100, "akd") == 5
    assert limit_neighbors(small, -1, "akd") == 0 and "akd: k = 9 to 9 neighbors vote" in small.notes[1]


def test_votes_of_too_many_neighbors_made_right_labels_wrong_and_the_default_does_not():
    """144 samples a client, 46 % of the labels wrong: with k = 100 a fifth of the labels was right afterwards."""
    from fnlkit import datasets
    from fnlkit.experiment import Experiment, Settings
    from fnlkit.simulate import noise, partitioning

    digits = datasets.load("digits")
    fed = noise.inject(partitioning.federation(digits, clients=10, seed=0), "symmetric(eta=0.46)", seed=0)
    settings = {"rounds": 1, "epochs": 1, "fraction": 0.2}
    x = digits.x_train.reshape(len(digits.x_train), -1).astype(np.float32)
    run = Experiment(fed, digits, Settings(method="nnc", **settings), embeddings=x, engine="sequential").run()
    right = run.labels["corrected"] == run.labels["true"]
    assert right.mean() > 0.7 > (fed.given == fed.true).mean()
    run = Experiment(fed, digits, Settings(method="nnc(k=100)", **settings), embeddings=x, engine="sequential").run()
    assert (run.labels["corrected"] == run.labels["true"]).mean() > 0.7


@pytest.mark.parametrize("usual", ["akd(k=3)", "fedrg", "nnc(k=3)"])
def test_a_method_that_trains_after_nnc_reads_the_embedding_too(usual):
    fed, _, steps = run(f"nnc(k=3, usual={usual})", rounds=2)
    assert len(steps) == 2 and not fed.rejected
