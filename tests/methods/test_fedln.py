"""FedLN's methods: what the round of all clients costs, how rounds are counted, which score judges."""

import math

import numpy as np
import pytest
import torch

import fnlkit
from fnlkit import datasets
from fnlkit.federated.client.scoring import confidence, energy
from fnlkit.federated.privacy import debias
from fnlkit.federated.server.selection import Uniform
from fnlkit.methods.energy_levels import when_to_estimate
from fnlkit.methods.feddpcont import expected_error
from fnlkit.methods.neighbor_votes import limit_neighbors, neighbors_for
from tests.methods.test_methods import run


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
