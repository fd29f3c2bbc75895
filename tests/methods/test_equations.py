"""Equations of the papers with numbers derived by hand, where no other test notices a change of the formula."""

import inspect
import math

import numpy as np
import pytest
import torch

from fnlkit import kernels
from fnlkit.core import registry
from fnlkit.estimators.confident import off_diagonal
from fnlkit.estimators.loss import cross_entropies
from fnlkit.federated.client.client import Client
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.client.training import Fit, plan
from fnlkit.federated.engines import make
from fnlkit.kernels import matrices
from fnlkit.kernels.scores import memorization
from fnlkit.methods import corrected_training, energy_levels, fedcorr, fedefc, flr, na_fedavg, prestopping
from fnlkit.simulate import schemes
from tests.methods.test_golden import Scored
from tests.methods.test_worked_rounds import A, B, Line, antisymmetric, client, plain_clients, sigma, worked
from tests.simulate.noise.test_noise import fed as federation
from tests.simulate.noise.test_noise import noisy as corrupted


def labeled(labels, classes=2):
    """Return a client without features, for steps with a model of given logits."""
    y = torch.tensor(labels)
    return Client(0, torch.zeros(len(y), 1), y.clone(), y, classes, Inputs(False))


# ---- kernels
def test_lid_of_four_points():
    # k = 2, distances of 0: 1, 3; of 1: 1, 2; of 3: 2, 3; of 7: 4, 6.  LID = -(mean of log(r_i / r_2))^-1 = 2 / log(r_2 / r_1):
    # 2 / log 3, 2 / log 2, 2 / log 1.5, 2 / log 1.5.
    expected = [2 / math.log(3), 2 / math.log(2), 2 / math.log(1.5), 2 / math.log(1.5)]
    assert kernels.lid(np.array([[0.0], [1.0], [3.0], [7.0]]), k=2) == pytest.approx(expected, rel=1e-12)


def test_votes_of_five_points():
    # Points 0 1 2 10 11 with labels 0 0 1 1 1.  Three neighbors of 0: 1 2 10, labels 0 1 1: vote 1, two of three disagree with
    # label 0.  Of 1: 0 2 10, labels 0 1 1.  Of 2: 1 0 10, labels 0 0 1: vote 0.  Of 10: 11 2 1, labels 1 1 0.  Of 11: 10 2 1.
    points, labels = np.array([[0.0], [1.0], [2.0], [10.0], [11.0]]), np.array([0, 0, 1, 1, 1])
    votes, share = kernels.knn_vote(points, labels, k=3)
    assert votes.tolist() == [1, 1, 0, 1, 1]
    assert share == pytest.approx(np.array([2, 2, 2, 1, 1]) / 3)


def test_neighbors_are_the_nearest_points():
    # Points -8 -7 -4 4 7 8 with labels 0 0 1 1 0 0.  Nearest: -7 -8 -7 7 8 7, all with label 0.
    points = np.array([[-8.0], [-7.0], [-4.0], [4.0], [7.0], [8.0]])
    votes, share = kernels.knn_vote(points, np.array([0, 0, 1, 1, 0, 0]), k=1)
    assert votes.tolist() == [0] * 6 and share.tolist() == [0, 0, 1, 1, 0, 0]


def test_class_thresholds_by_hand():
    # Label 0: (0.9 + 0.6) / 2.  Label 1: 0.8.
    found = kernels.class_thresholds(np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), np.array([0, 0, 1]))
    assert found == pytest.approx([0.75, 0.8])


def test_the_inverse_of_symmetric_noise():
    # T = 0.6 I + 0.1 J of four classes (J: all ones), J J = 4 J.  T^-1 = (I - 0.1 J / (0.6 + 0.4)) / 0.6: 1.5 on the diagonal,
    # -1/6 off it.  Largest row sum of |T^-1|: 1.5 + 3/6 = 2, of T: 1.
    inverse, condition = kernels.invert_transition(matrices.symmetric(4, 0.3))
    assert inverse == pytest.approx(np.where(np.eye(4) > 0, 1.5, -1 / 6)) and condition == pytest.approx(2)


def test_an_inverse_is_applied_from_the_right():
    # (0.5, 0.5) T = (0.5 x 0.8 + 0.5 x 0.4, 0.5 x 0.2 + 0.5 x 0.6) = (0.6, 0.4).
    assert kernels.apply_inverse([[0.8, 0.2], [0.4, 0.6]], [0.6, 0.4]) == pytest.approx([0.5, 0.5])


def test_cross_entropies_by_hand():
    assert cross_entropies(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 0])) == pytest.approx([math.log(2), math.log(4)])


def test_the_level_of_a_label_without_confident_samples():
    # Label 0: 3 samples confident in it, 1 in another class.  Label 1: 4 samples, none confident: the share of
    # all labels, 1/4.
    assert off_diagonal([3, 0, 1, 0, 0, 4]) == pytest.approx((4 * 0.25 + 4 * 0.25) / 8)


def test_memorization_by_hand():
    # True 0 0 1 1 2 2, given 0 0 1 0 0 1: three mislabeled samples with predictions 1 (correct), 0 (memorized), 0 (wrong).  The
    # predictions of the three others are 0 (correct), 1, 1 (correct).
    found = memorization([0, 1, 1, 1, 0, 0], [0, 0, 1, 0, 0, 1], [0, 0, 1, 1, 2, 2])
    assert found == pytest.approx(
        {"clean_correct": 2 / 3, "clean_wrong": 1 / 3}
        | dict.fromkeys(["noisy_correct", "noisy_memorized", "noisy_wrong"], 1 / 3)
    )


# ---- local training
def test_mixup_draws_lambda_from_beta():
    # Beta(a, a) has the mean 1/2 and the variance 1 / (4 (2 a + 1)): 0.1786 at a = 0.2.  Standard errors of 5,000 draws: 0.006
    # and 0.001.
    share = plan(1000, Fit(epochs=5, batch_size=1, mixup=0.2), seed=0, round=0, client=0).share
    assert (
        len(share) == 5000 and share.mean() == pytest.approx(0.5, abs=0.03) and share.var() == pytest.approx(1 / 5.6, abs=0.01)
    )


def test_labels_are_drawn_afresh_in_each_epoch():
    uniform = plan(6, Fit(epochs=3, batch_size=2, uniform=True), seed=0, round=0, client=0).uniform
    assert uniform.shape == (9, 2) and len(np.unique(uniform)) == 18


# ---- FedCorr
def test_fedcorrs_defaults_are_the_papers():
    """Table 6 of the appendix and Section 4.1: beta 5, k 20, pi = theta = 0.5, kappa 0.1, mixup with alpha = 1."""
    defaults = {name: one.default for name, one in inspect.signature(fedcorr.fedcorr).parameters.items()}
    names = ("beta", "k", "ratio", "confidence", "clean_level", "mixup")
    assert [defaults[name] for name in names] == [5.0, 20, 0.5, 0.5, 0.1, 1.0]


def test_fedcorr_relabels_the_noisy_samples_with_large_global_losses():
    # The mixture on the local losses separates the last four of eight samples: level 1/2.  All labels are 0.  pi = 1/2 selects
    # two of the four.  Global probabilities p of class 1: 0.99 for sample 0 (not noisy), 0.97 and 0.96 for samples 4 and 5, 0.7
    # and 0.6 for samples 6 and 7: the losses -log(1 - p) of samples 4 and 5 are the largest of the four.
    p = torch.tensor([0.99, 0.1, 0.1, 0.1, 0.97, 0.96, 0.7, 0.6], dtype=torch.float64)
    one = labeled([0] * 8)
    one.rows["loss"] = torch.tensor([0.1, 0.11, 0.12, 0.13, 5.0, 5.1, 5.2, 5.3], dtype=torch.float64)
    options = {"ratio": 0.5, "confidence": 0.5, "ranking": "global", "strict": False, "seed": 0}
    said = fedcorr.find_and_relabel(one, Scored(torch.stack([1 - p, p], 1).log()), {}, **options)
    assert said["noise_level"].item() == 0.5 and one.y.tolist() == [0, 0, 0, 0, 1, 1, 0, 0]


def test_fedcorr_relabels_from_theta_on():
    # theta = 1/2: 1/2 reaches it, 3/8 does not.
    p = torch.tensor([[0.25, 0.5, 0.25], [0.375, 0.375, 0.25], [0.0, 0.25, 0.75]])
    one = labeled([2, 2, 0], 3)
    fedcorr.relabel(one, torch.arange(3), p, 0.5)
    assert one.y.tolist() == [1, 2, 2]


class Replies(dict):
    """Replies of the clients `ids` by name."""

    def __init__(self, ids, **values):
        super().__init__({name: torch.tensor(each, dtype=torch.float64) for name, each in values.items()})
        self.ids = np.array(ids)


def test_fedcorr_forgets_the_level_of_a_client_that_is_clean_again():
    # Cumulative LID scores: 1 1 1 5, then 21 1 1 5.  Client 3 is noisy after the first iteration, client 0 after the second.
    lid = [[1.0, 1.0, 1.0, 5.0], [20.0, 0.0, 0.0, 0.0]]

    class Clients:
        seed = 0

        def __len__(self):
            return 4

        def round(self, ids, model, step, expect):
            return Replies(ids, noise_level=[0.5] * len(ids))

    class Opt:
        visits = 0

        def round(self, clients, ids, model, **step):
            now = lid[self.visits // 4]
            self.visits += 1
            return model, Replies(ids, lid=[now[i] for i in ids])

    relabeling = fedcorr.Relabeling(confidence=0.5, correct=True, code=frozenset())
    options = {"iterations": 2, "group": 1, "mixup": 0.0, "relabeling": relabeling}
    steps = list(fedcorr.pre_processing(Clients(), None, Opt(), schedule=lambda r: ({}, {}), **options))
    found = [step.report["noise_level"].tolist() for step in steps if "noise_level" in step.report]
    assert found == [[0, 0, 0, 0.5], [0.5, 0, 0, 0]]


def test_fedcorr_fine_tunes_on_clients_whose_level_equals_kappa(monkeypatch):
    # Section 3.3 and the public code: mu <= kappa.  Algorithm 1, line 14, prints mu < 0.1.  A level of 1 in 10 samples is 0.1.
    stages = []
    monkeypatch.setattr(fedcorr, "fedavg", lambda *arguments, among, **options: iter(stages.append(among.tolist()) or ()))
    levels = np.array([0.0, np.mean(np.arange(10) < 1), 2 / 10])
    findings = fedcorr.Findings(levels, noisy=levels > 0, silent=np.zeros(3, bool))
    relabeling = fedcorr.Relabeling(confidence=0.5, correct=False, code=frozenset())
    options = {"rounds": 1, "findings": findings, "relabeling": relabeling, "schedule": None}
    assert list(fedcorr.fine_tuning(None, None, None, None, **options)) == [] and stages == [[True, True, False]]


def test_shares_of_a_class_have_the_variance_of_dirichlet():
    # Dirichlet(a) over K = 5 clients: variance of a share (1/K)(1 - 1/K) / (K a + 1) = 0.16 / 51 at a = 10.  200 samples of a
    # class add at most 0.16 / 200.
    labels = np.repeat(np.arange(300), 200)
    parts = schemes.bernoulli_dirichlet(labels, 300, 5, np.random.default_rng(0), p=1.0, alpha=10.0)
    shares = np.array([np.bincount(labels[part], minlength=300) / 200 for part in parts])
    assert shares.mean() == pytest.approx(0.2) and shares.var() == pytest.approx(0.16 / 51 + 0.16 / 200 * (50 / 51), rel=0.15)


def test_clients_without_a_class_and_classes_without_a_client_are_drawn_again():
    # Phi of 4 clients and 3 classes at p = 0.1: a client has no class with probability 0.9^3 = 0.73, a class no client with
    # probability 0.66.  With alpha = 100 each client with Phi = 1 gets samples of the class.
    labels = np.repeat(np.arange(3), 400)
    for seed in range(20):
        parts = schemes.bernoulli_dirichlet(labels, 3, 4, np.random.default_rng(seed), p=0.1, alpha=100.0)
        assert min(map(len, parts)) > 0 and sum(map(len, parts)) == 1200


def test_iid_is_shuffled():
    parts = schemes.iid(np.zeros(1000, int), 1, 2, np.random.default_rng(0))
    assert 200 < (parts[0] < 500).sum() < 300 and sorted(np.concatenate(parts)) == list(range(1000))


# ---- FedEFC
def test_the_estimated_accuracy_is_a_plain_mean_of_the_received_model():
    # W = (0.1, -0.1) predicts 0.  A (one sample, label 0) is right, B (three samples, label 1) wrong: A(0) = (1 + 0) / 2.
    # Weighted with samples it is 1/4.  B's trained model, at 0.1 - sigma(0.2) < 0, is right: A(0) = 1 with trained models.
    _, _, steps = worked("fedefc(latest=0)", plain_clients(), w=(0.1, -0.1), rounds=2)
    assert steps[0].report["estimated_accuracy"] == 0.5


def test_monitoring_starts_and_ends_as_published():
    """After round 10 with gamma_thr 3 (MNIST, 100 rounds), after round 40 with 6 (CIFAR-10 and -100, 200 and 300 rounds)."""
    assert [prestopping.monitoring_rounds(rounds, -1, -1) for rounds in (100, 200, 300)] == [(10, 3), (40, 6), (40, 6)]


def counted(probabilities, labels, **options):
    return kernels.count_matrix(np.array(probabilities), np.array(labels), rule="largest", **options).tolist()


def test_fedefc_counts_no_absent_class():
    # No label 1: tau_1 does not exist.  tau_0 = (3/4 + 1/4) / 2 = 1/2.  The second sample is predicted as 1 and not counted.
    assert counted([[0.75, 0.25], [0.25, 0.75]], [0, 0], least_diagonal=0) == [[1, 0], [0, 0]]


def test_fedefc_counts_have_no_smallest_diagonal():
    # tau_0 = (3/4 + 1/4) / 2 = 1/2 from the first two samples, tau_1 = 1/4 from the third.  Predicted: 0 1 0, all confident.
    # counts[true, given] = [[1, 1], [1, 0]]: T = [[1/2, 1/2], [1, 0]].  A diagonal of at least 1 gives [1/2, 1/2] twice.
    one = labeled([0, 0, 1])
    logits = torch.tensor([[0.75, 0.25], [0.25, 0.75], [0.75, 0.25]], dtype=torch.float64).log()
    options = {"rule": "largest", "weighting": "off", "clip": False, "limit": 1e3, "report": True}
    said = fedefc.estimate_transition(one, Scored(logits), {}, **options)
    assert said["transition"].tolist() == [[0.5, 0.5], [1, 0]] and one.state["identity_share"] == 0


def test_fedefc_estimates_with_the_received_model():
    seen = []

    def estimate(client, model, received):
        seen.append(model.weights.tolist())

    people = [client(0, [1.0, 2.0], [0, 1])]
    network = Network(Line(), dtype=torch.float64)
    fed, opt = make("sequential", people, network, people[0].inputs), registry.optimizer("fedavg", Fit(epochs=1, lr=1.0))
    start = Model(network, torch.tensor([0.5, -0.5], dtype=torch.float64))
    steps = list(
        corrected_training.train_corrected(fed, start, opt, registry.selector("uniform", 1.0), rounds=2, estimate=estimate)
    )
    assert seen == [[0.5, -0.5], steps[0].model.weights.tolist()] and seen[1] != seen[0]


def test_sparse_matrices_keep_every_class_learnable():
    # P(given i, true i) > P(given i) P(true i) for shares p = 0.7, 0.1, 0.1, 0.1 of the true classes:
    # T_ii > sum_j p_j T_ji.
    shares = np.array([0.7, 0.1, 0.1, 0.1])
    for seed in range(40):
        T = matrices.sparse(4, 0.5, 0.0, np.random.default_rng(seed), shares)
        assert (np.diag(T) > shares @ T).all()


def test_the_largest_remainder_gets_the_missing_sample():
    # One sample of class 0: 0.7 and 0.2 samples of it should change, together 0.9, rounded to one.  0.7 is the
    # larger remainder.
    T = np.array([[0.1, 0.7, 0.2], [0, 1, 0], [0, 0, 1.0]])
    assert matrices.exact(np.array([0]), T, np.random.default_rng(0)).tolist() == [1]


# ---- FedDPCont
def test_feddpcont_at_the_published_epsilon():
    # Two classes at epsilon 0.81: a label is kept with probability k = e^0.81 / (e^0.81 + 1) = 0.69211.  All labels are 0.  The
    # released share p of class 0 solves p = k q + (1 - k)(1 - q): q = (p - (1 - k)) / (2 k - 1).  This seed releases so many
    # zeros that q > 1.  The nearest distribution is (1, 0), and both entries move by q - 1.  At W = 0 and b = 1/2 the first
    # entry of the gradient is (1/2 - 1) - (1/2 - 1) / 2 = -1/4.
    people = [client(i, [1.0] * 15, [0] * 15) for i in (A, B)]
    weights, fed, steps = worked("feddpcont(epsilon=0.81, strength=0.5, expected=true, floor=0)", people, batch_size=15)
    counts = sum(one.state["released_counts"].numpy() for one in fed.members)
    assert counts.sum() == 30 and 0 < counts[1] and len({one.state["released_counts"][0].item() for one in fed.members}) == 2
    k = math.exp(0.81) / (math.exp(0.81) + 1)
    q = (counts[0] / 30 - (1 - k)) / (2 * k - 1)
    assert k == pytest.approx(0.69211, abs=1e-5)
    assert q > 1.01 and steps[0].report["prior_projected"]
    assert steps[0].report["prior_moved"] == pytest.approx(2 * (q - 1))
    assert steps[0].report["prior"].tolist() == [1, 0] and weights == antisymmetric(0.25)


def test_random_noise_has_the_published_spread():
    # U(-0.05, 0.05) has the deviation 0.1 / sqrt(12) = 0.0289.  A share of Dirichlet(1, ..., 1) over 10 classes has the
    # variance 0.1 x 0.9 / 11.
    rng = np.random.default_rng(0)
    drawn = [matrices.random(11, 0.3, rng) for _ in range(200)]
    wrong = np.array([1 - np.diag(T) for T in drawn])
    assert wrong.std() == pytest.approx(0.1 / math.sqrt(12), rel=0.05) and 0.25 <= wrong.min() < wrong.max() <= 0.35
    shares = np.concatenate([T[~np.eye(11, dtype=bool)].reshape(11, 10) / (1 - np.diag(T))[:, None] for T in drawn])
    assert shares.mean() == pytest.approx(0.1) and shares.var() == pytest.approx(0.09 / 11, rel=0.05)


def test_open_sets_have_a_share_q_of_the_classes():
    # Bernoulli(q) of each client and class, without clients that have none or all of the six: at q = 0.3 the share is
    # (0.3 - 0.3^6) / (1 - 0.7^6 - 0.3^6) = 0.3394, at q = 0.9 it is (0.9 - 0.9^6) / (1 - 0.1^6 - 0.9^6) = 0.7866.
    labels = np.repeat(np.arange(6), 2000)
    for q, share in ((0.3, 0.3394), (0.9, 0.7866)):
        parts = schemes.openset(labels, 6, 400, np.random.default_rng(0), q=q)
        held = np.array([np.bincount(labels[part], minlength=6) > 0 for part in parts])
        assert held.mean() == pytest.approx(share, abs=0.03) and not held.all(1).any() and held.any(1).all()


# ---- FLR
def test_flrs_warm_up_towards_the_server():
    """Section 3.2: first only the server's prediction, t = s = p_server: alpha 1, beta 0."""
    _, report = flr.local_training(0, 10, warmup=2, warm="server")
    assert report == {"alpha": 1.0, "beta": 0.0, "gamma": 0.0}


def test_asymmetric_noise_by_hand():
    # Class 1 becomes class 0 with probability 0.4; the others stay.
    assert matrices.map_classes(np.array([0, 0, 2]), 0.4) == pytest.approx(np.array([[1, 0, 0], [0.4, 0.6, 0], [0, 0, 1.0]]))


# ---- FedLN
def test_na_fedavgs_defaults_are_the_papers():
    """v = 75 and R_w = 30 of 200 rounds; of 500 rounds too (CIFAR-100N)."""
    assert inspect.signature(na_fedavg.na_fedavg).parameters["percentile"].default == 75.0
    assert [energy_levels.round_of_estimation(-1, rounds) for rounds in (200, 500, 100)] == [30, 30, 15]


def test_levels_from_a_clients_own_threshold():
    # W = (1, -1), energies E(w x) = ln(2 cosh(w x)).  x = 1, 2, 3, label 1: w falls by (sigma 2 + 2 sigma 4 + 3 sigma 6) / 3 to
    # -0.946.  The median of the received model's energies is E(2).  E(0.946) and E(1.892) are lower, E(2.838) is not: 2/3.
    _, _, steps = worked(
        "na-fedavg(at=1, threshold=own, percentile=50)", [client(A, [1.0, 2.0, 3.0], [1, 1, 1])], w=(1.0, -1.0)
    )
    assert 1 - (sigma(2) + 2 * sigma(4) + 3 * sigma(6)) / 3 == pytest.approx(-0.946, abs=1e-3)
    assert steps[0].report["noise_level"] == pytest.approx([2 / 3])


def test_rounds_after_the_estimation_are_weighted():
    # As test_na_fedavg of worked rounds: levels 0 and 1, weights 1 and 0.03, W_1 = (2 - p0 + 0.03 (1 - p0)) / 1.03 with p0 =
    # sigma(2).  In the next round A moves by 1 - sigma(2 W_1), B by -sigma(2 W_1): together by 1 / 1.03 - sigma(2 W_1).
    p0 = sigma(2.0)
    first = ((2 - p0) + 0.03 * (1 - p0)) / 1.03
    weights, _, steps = worked("na-fedavg(at=1)", plain_clients(), w=(1.0, -1.0), rounds=2)
    assert [step.stage for step in steps] == ["estimation", "noise-aware"]
    assert weights == antisymmetric(first + 1 / 1.03 - sigma(2 * first))


def test_fedlns_rows_sum_to_one():
    # Level 0.4, sparsity 0.5 of ten classes: ceil(9 x 0.5) = 5 entries of 0.08.
    T = matrices.sparse_as_fedln(10, 0.4, 0.5, np.random.default_rng(0))
    assert [sorted(row) for row in T.tolist()] == [pytest.approx([0] * 4 + [0.08] * 5 + [0.6])] * 10


def test_clean_clients_have_their_level():
    spec = "sparse(level=0.4, sparsity=0.4, per_client=true, noisy_share=0.5, clean_level=0.1)"
    found = corrupted(spec, federation=federation(4, 50))
    stay = np.diagonal(found.noise_transition, axis1=1, axis2=2)
    assert found.noise_client_noisy.sum() == 2
    assert stay == pytest.approx(np.where(found.noise_client_noisy, 0.6, 0.9)[:, None].repeat(10, 1))
