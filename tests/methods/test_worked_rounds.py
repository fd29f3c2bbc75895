"""One tiny round of each method, worked by hand beside the test.

Two clients, two classes, one feature x, logits z = W x with W = (w0, w1) and no bias, so that a gradient is the loss's
gradient with respect to z times x.  Client A has one sample, client B three.  With W = 0 every p is (1/2, 1/2) and
the cross entropy's gradient p - onehot(y) is (-1/2, 1/2) for y = 0 and (1/2, -1/2) for y = 1.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.federated.client.client import Client
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.client.training import Fit, plan
from fnlkit.federated.engines import make
from fnlkit.kernels.streams import stream
from fnlkit.methods.akd import measure_moments
from fnlkit.models.head import WithHead
from tests import naive

pytestmark = pytest.mark.smoke

A, B = 0, 1


class Line(nn.Module):
    """logits = features = W x."""

    width = 2

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 2, bias=False)

    def features(self, x):
        return self.line(x)

    def classify(self, features):
        return features

    def forward(self, x):
        return self.line(x)


def client(i, x, y, embedding=None):
    y = torch.tensor(y)
    made = Client(i, torch.tensor(x, dtype=torch.float64)[:, None], y.clone(), y, 2, Inputs(False, dtype=torch.float64))
    if embedding is not None:
        made.rows["input/embedding"] = torch.tensor(embedding, dtype=torch.float32)
    return made


def worked(method, clients, *, w=(0.0, 0.0), rounds=1, module=None, **fit):
    """Return (W after the rounds, federation, rounds yielded) with full batches, everybody in every round."""
    network = Network(module or Line(), dtype=torch.float64)
    for one in clients:
        one.secret = bytes(32)
    fed = make("sequential", clients, network, clients[0].inputs)
    opt = registry.optimizer("fedavg", Fit(**({"epochs": 1, "batch_size": 10, "lr": 1.0, "momentum": 0.0} | fit)))
    program = registry.method(method)
    model = Model(network, torch.tensor(w, dtype=torch.float64))
    steps = []
    for step in program(fed, model, opt, registry.selector("uniform", 1.0), rounds=rounds):
        steps.append(step)
    return steps[-1].model.weights.numpy(), fed, steps


def plain_clients(**embeddings):
    return [client(A, [1.0], [0]), client(B, [1.0] * 3, [1] * 3)]


def antisymmetric(w0):
    return pytest.approx([w0, -w0], rel=1e-9)


def sigma(v):
    return 1 / (1 + math.exp(-v))


def test_fedavg():
    # A: 0 - (-1/2) = 1/2.  B: -1/2.  Weighted 1 : 3: (1/2 - 3/2) / 4 = -1/4.
    assert worked("fedavg", plain_clients())[0] == antisymmetric(-0.25)


def test_flr_after_half_of_the_rounds():
    """R = 4, two epochs of one step: R_w = 1, rates (alpha, beta, gamma)(r) = -, (.225, 0, .5), (.45, .7, .5), (.675, .7, .5).

    With (p, 1 - p), p = sigma(2 w), as prediction and (t, 1 - t) as target, <p, t> = p t + (1 - p)(1 - t) =: a, and the slope
    at z_0 is p - [y = 0] - 2 p (t - a) / (1 - a); w falls by it.  By hand for A, whose label is 0:

    round 0, cross entropy: w = 0: p = .5: w = .5; p = .731059: w = .768941.  B's mirror it: mean (w_A + 3 w_B) / 4 =
    (.768941 - 3 x .768941) / 4 = -.384470, where every client starts round 1.
    """
    rates = [None, (0.225, 0.0, 0.5), (0.45, 0.7, 0.5), (0.675, 0.7, 0.5)]
    w, memory = 0.0, {A: None, B: None}
    for r, now in enumerate(rates):
        ends = {}
        for who, y in ((A, 0), (B, 1)):
            own, server = w, sigma(2 * w)
            for _ in range(2):
                p = sigma(2 * own)
                slope = p - (y == 0)
                if now:
                    alpha, beta, gamma = now
                    s, m = memory[who] or (None, None)
                    s = server if s is None else beta * s + (1 - beta) * server
                    m = p if m is None else gamma * m + (1 - gamma) * p
                    memory[who] = s, m
                    t = alpha * s + (1 - alpha) * m
                    a = p * t + (1 - p) * (1 - t)
                    slope -= 2 * p * (t - a) / (1 - a)
                own -= slope
            ends[who] = own
        w = (ends[A] + 3 * ends[B]) / 4
        if r == 0:
            assert w == pytest.approx(-0.3844707, abs=1e-6)
    weights, fed, steps = worked("flr", plain_clients(), rounds=4, epochs=2)
    assert [s.report for s in steps] == [
        {} if now is None else pytest.approx(dict(zip(("alpha", "beta", "gamma"), now, strict=True))) for now in rates
    ]
    assert weights == antisymmetric(w)
    for who in (A, B):
        rows = fed.members[who].rows
        found = rows["mixture_server"][0, 0].item(), rows["mixture_local"][0, 0].item()
        assert found == pytest.approx(memory[who]) and abs(found[0] - found[1]) > 1e-3


def fedefc_client():
    """W = (ln 3 / 2, -ln 3 / 2): p = (3/4, 1/4) at x = 1 and (1/4, 3/4) at x = -1; the last label is wrong."""
    return client(0, [1.0, 1.0, -1.0, -1.0], [0, 0, 1, 0])


def test_fedefc():
    # Thresholds: tau_0 = (3/4 + 3/4 + 1/4) / 3 = 7/12, tau_1 = 3/4.  x = 1 is confidently 0, x = -1 confidently 1.
    # counts[true, given] = [[2, 0], [1, 1]], T = [[1, 0], [1/2, 1/2]]; the paper's Q is its transpose.
    # Gradient p_j - p_j T[j, y] / (pT)_y, first entry: samples 1, 2: 3/4 - (3/4)/(7/8) = -3/28; sample 3: (1/4 - 0)
    # times x = -1: -1/4; sample 4: (1/4 - (1/4)/(5/8)) times -1: 3/20.  Mean: (-6/28 - 1/4 + 3/20) / 4 = -11/140.
    # The cohort first trains one plain round, at which T_e is set (latest=0): p - onehot(y), first entry: samples 1,
    # 2: -1/4; 3: -1/4; 4: (1/4 - 1) times -1 = 3/4.  Mean 0: W is the same when phase 2 begins.
    w = math.log(3) / 2
    weights, fed, steps = worked("fedefc(latest=0, report_transition=true)", [fedefc_client()], w=(w, -w), rounds=2)
    assert steps[0].model.weights.numpy() == antisymmetric(w)
    assert steps[0].report == {"estimated_accuracy": 0.75, "prestopping_round": 0}
    assert fed.members[0].state["transition"].tolist() == [[1, 0], [0.5, 0.5]]
    assert steps[1].report["transition"].tolist() == [[1, 0], [0.5, 0.5]]
    assert weights == antisymmetric(w + 11 / 140)


def test_fedefc_counts_only_the_most_probable_class():
    # p(0) = 9/10 at x = 2, 3/4 at x = 1.  Labels 0 0 0 1 at x = 2 2 1 1: tau_0 = (9/10 + 9/10 + 3/4) / 3 = 17/20, tau_1 =
    # 1/4.  At x = 1 class 1 reaches its threshold and is not the largest, class 0 is the largest and does not reach its
    # own: by eqs. 3 and 4 the two samples are not counted and T is the identity, cleanlab's rule counts both as class 1.
    # W moves by the cross entropy twice; first entry of p - onehot(y) times x: 2 (p(2) - 1) twice, p(1) - 1, p(1).
    def step(w):
        at_2, at_1 = sigma(4 * w), sigma(2 * w)
        return w - (4 * (at_2 - 1) + (at_1 - 1) + at_1) / 4

    w, people = math.log(3) / 2, client(0, [2.0, 2.0, 1.0, 1.0], [0, 0, 0, 1])
    weights, fed, steps = worked("fedefc(latest=0)", [people], w=(w, -w), rounds=2)
    assert fed.members[0].state["transition"].tolist() == [[1, 0], [0, 1]]
    assert weights == antisymmetric(step(step(w)))
    people = client(0, [2.0, 2.0, 1.0, 1.0], [0, 0, 0, 1])
    _, fed, _ = worked("fedefc(latest=0, rule=cleanlab)", [people], w=(w, -w), rounds=2)
    assert fed.members[0].state["transition"].tolist() == [[1, 0], [0.5, 0.5]]


def test_forward_correction():
    # Anchors at the 100th percentile: the rows of T are (3/4, 1/4) and (1/4, 3/4).  pT = (5/8, 3/8) at x = 1.
    # Samples 1, 2: 3/4 - (9/16)/(5/8) = -3/20; 3: (1/4 - (1/16)/(5/8)) x -1 = -3/20; 4: (1/4 - (3/16)/(3/8)) x -1 =
    # 1/4. Mean: (-9/20 + 1/4) / 4 = -1/20.
    w = math.log(3) / 2
    weights, _, _ = worked("forward(latest=0, percentile=100)", [fedefc_client()], w=(w, -w), rounds=2)
    assert weights == antisymmetric(w + 1 / 20)


def test_confident_learning():
    # Sample 4 is confidently 1 but labeled 0: it is left out.  The others: -1/4 each, mean over the three: -1/4.
    w = math.log(3) / 2
    weights, fed, _ = worked("confident-learning(latest=0)", [fedefc_client()], w=(w, -w), rounds=2)
    assert fed.members[0].rows["keep"].tolist() == pytest.approx([4 / 3, 4 / 3, 4 / 3, 0])
    assert weights == antisymmetric(w + 1 / 4)


def test_feddpcont():
    # At epsilon = 40 every label is kept: the prior is (1/4, 3/4).  Gradient (p - onehot(y)) - b (p - prior), b = 1/2,
    # p - prior = (1/4, -1/4).  A: -1/2 - 1/8 = -5/8; B: 1/2 - 1/8 = 3/8.  W: (5/8 - 9/8) / 4 = -1/8.
    weights, _, steps = worked(
        "feddpcont(epsilon=40, strength=0.5, expected=true, delay=0, length=0, floor=0)", plain_clients()
    )
    assert steps[0].report["prior"] == pytest.approx([0.25, 0.75])
    assert weights == antisymmetric(-1 / 8)


def test_feddpcont_with_drawn_labels_and_the_floor():
    # The default path at W = (7, -7): p = (P, r), r = sigma(-14) = 8.3153e-7.  A term with label j is -log(p_j + f), f =
    # 1e-5; its gradient with respect to z_0 is -k_j (onehot_j - P), k_0 = P / (P + f), k_1 = r / (r + f) = 0.076771: for j =
    # 0 it is -k_0 r, for j = 1 it is k_1 P.  With y and y' the loss has g(y) - g(y'): 0 where y' = y, else plus or minus
    # d = k_1 P + k_0 r.  A has y = 0: -d where y' = 1.  B has y = 1: d where y' = 0.
    r = sigma(-14.0)
    d = r / (r + 1e-5) * (1 - r) + (1 - r) / (1 - r + 1e-5) * r
    assert d == pytest.approx(0.0767700, abs=1e-6)
    weights, fed, steps = worked("feddpcont(epsilon=40)", plain_clients(), w=(7.0, -7.0))
    # The labels drawn: the plan's own uniform numbers against the prior (1/4, 3/4), whatever they are at this seed.
    from fnlkit.federated.client.training import plan

    fit = Fit(epochs=1, batch_size=10, uniform=True)
    moved = []
    for i, n, y in ((A, 1, 0), (B, 3, 1)):
        drawn = (plan(n, fit, seed=0, round=1, client=i).uniform[0] >= 0.25).astype(int)
        moved.append(7 + sum((1 if y == 0 else -1) * d for other in drawn if other != y) / n)
    assert steps[0].report["contrast"] == 1 and steps[0].report["prior"] == pytest.approx([0.25, 0.75])
    assert any(m != 7 for m in moved)
    assert weights == antisymmetric((moved[0] + 3 * moved[1]) / 4)


def test_na_fedavg():
    # W = (1, -1): every energy of the received model is ln(2 cosh 1), and so is the threshold.  A (y = 0) gets surer,
    # to 1 + (1 - p0): its energy rises, level 0.  B (y = 1) falls to 1 - p0: energy below, level 1, weight 0.01 x 3.
    p0 = sigma(2.0)
    weights, _, steps = worked("na-fedavg(at=1)", plain_clients(), w=(1.0, -1.0))
    assert steps[0].report["noise_level"].tolist() == [0, 1]
    assert steps[0].report["energy_threshold"] == pytest.approx(math.log(2 * math.cosh(1)))
    assert weights == antisymmetric((1 * (2 - p0) + 0.03 * (1 - p0)) / 1.03)


@pytest.mark.parametrize(("percentile", "level"), [(75, 2 / 3), (25, 1 / 3)])
def test_na_fedavg_with_scores_apart(percentile, level):
    # W = (1, -1), energy E(wx) = ln(2 cosh(wx)).  A: x = 3; B: x = 1, 2, 3; all y = 0.  S_G: E(1) E(2) E(3) E(3); its 75th
    # percentile is E(3), its 25th E(1) + 3/4 (E(2) - E(1)).  Both clients get surer: A keeps level 0; of B's E(w), E(2w),
    # E(3w) two lie below E(3), one below the other.  Weights: 1 and 3 (1 - level).
    a = 1 + 3 * (1 - sigma(6))
    b = 1 + ((1 - sigma(2)) + 2 * (1 - sigma(4)) + 3 * (1 - sigma(6))) / 3
    people = [client(A, [3.0], [0]), client(B, [1.0, 2.0, 3.0], [0, 0, 0])]
    weights, _, steps = worked(f"na-fedavg(at=1, percentile={percentile})", people, w=(1.0, -1.0))
    energies = [math.log(2 * math.cosh(x)) for x in (1, 2, 3)]
    tau = energies[2] if percentile == 75 else energies[0] + 0.75 * (energies[1] - energies[0])
    assert steps[0].report["energy_threshold"] == pytest.approx(tau)
    assert steps[0].report["noise_level"].tolist() == pytest.approx([0, level])
    assert weights == antisymmetric((a + 3 * (1 - level) * b) / (1 + 3 * (1 - level)))


def test_nnc():
    # Two groups of four, one label wrong in each: the other three outvote it.  Level 2/8; labels become 0 0 0 0 1 1 1
    # 1. x = 1 throughout: gradients cancel, W stays 0; with the given labels they would too, so x tells the groups
    # apart: first entry of p - onehot(y) times x: -1/2 each for y = 0 at x = 1 and for y = 1 at x = -1: W = 1/2.
    x, points = [1.0] * 4 + [-1.0] * 4, [[float(v)] for v in (0, 1, 2, 3, 10, 11, 12, 13)]
    weights, fed, steps = worked("nnc(k=3)", [client(0, x, [0, 0, 0, 1, 1, 1, 1, 0], points)])
    assert steps[0].report["noise_level"].tolist() == [0.25]
    assert fed.members[0].y.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert fed.members[0].given.tolist() == [0, 0, 0, 1, 1, 1, 1, 0]
    third = 1 / 3
    apart = [third, third, third, 1, third, third, third, 1]
    assert fed.members[0].rows["neighbor_disagreement"].tolist() == pytest.approx(apart)
    assert weights == antisymmetric(0.5)


def test_akd_embeddings():
    # Widths are equal, so there is no head.  A has one sample, no neighbor, level 0: cross entropy alone, 0.1 x 1/2
    # = 0.05. B has labels 0 0 1: the third is outvoted, level >= 1/3.  Cross entropy: mean of -1/2 -1/2 +1/2 is -1/6;
    # distillation: 10 x sign(0 - 1) / 2 = -5.  W_B = 0.1 x 31/6.  Mean: (0.05 + 3 x 31/60) / 4 = 0.4.
    teacher = [1.0, -1.0]
    clients = [client(A, [1.0], [0], [teacher]), client(B, [1.0] * 3, [0, 0, 1], [teacher] * 3)]
    weights, _, steps = worked("akd(k=2, scale=given, distance=absolute)", clients, lr=0.1)
    assert steps[0].report["noise_level"][A] == 0 and steps[0].report["noise_level"][B] >= 1 / 3
    assert steps[0].report["distilled_clients"] == 1
    assert weights == antisymmetric(0.4)


def with_head():
    """Line with a head of one number, v = (1, 1/2), b = 1/2; flat weights: W, v, b."""
    return WithHead(Line(), 1)


@pytest.mark.parametrize("scale", ["given", "rms"])
def test_akd_with_a_head(scale):
    # The teacher's e is 8 for A, 4 for B; ê = v W x + b = 1/2 at W = 0.  A has level 0: cross entropy alone, W_A = 0.05.
    # B has labels 0 0 1: distilled, 10 x -sign(e - ê) = -10 for b, 0 for v (the features are 0), -10 v for W: first entry
    # -1/6 - 10, second 1/6 - 5.  W_B = 0.1 (61/6, 29/6), b = 3/2.  Mean 1 : 3: W = (31/40, 7/20), b = 5/4.
    # In a unit of mean square 1 over the federation, (64 + 3 x 16) / 4 = 28, e is 8 / sqrt 28 and 4 / sqrt 28, above 1/2 too.
    clients = [client(A, [1.0], [0], [[8.0]]), client(B, [1.0] * 3, [0, 0, 1], [[4.0]] * 3)]
    start, method = (0.0, 0.0, 1.0, 0.5, 0.5), f"akd(k=2, scale={scale}, distance=absolute)"
    weights, _, steps = worked(method, clients, w=start, lr=0.1, module=with_head())
    assert weights == pytest.approx([31 / 40, 7 / 20, 1, 1 / 2, 5 / 4], rel=1e-9)
    assert steps[0].report.get("embedding_scale") == (pytest.approx(28**-0.5) if scale == "rms" else None)
    # The second step tells the units apart: ê is now 2.2, above 4 / sqrt 28 but not above 4.
    clients = [client(A, [1.0], [0], [[8.0]]), client(B, [1.0] * 3, [0, 0, 1], [[4.0]] * 3)]
    weights, _, _ = worked(method, clients, w=start, lr=0.1, module=with_head(), rounds=2)
    assert (weights[4] < 5 / 4) == (scale == "rms")


def standardized(few=()):
    """Five samples with e = 8 at A, fifteen with e = 4 at B, ten of them labeled 0; more samples of further clients."""
    clients = [client(A, [1.0] * 5, [0] * 5, [[8.0]] * 5), client(B, [1.0] * 15, [0] * 10 + [1] * 5, [[4.0]] * 15)]
    clients += [client(2 + i, [1.0] * n, [0] * n, [[99.0]] * n) for i, n in enumerate(few)]
    start, fit = (0.0, 0.0, 1.0, 0.5, 0.5), {"lr": 0.1, "batch_size": 15}
    return worked("akd(level=all)", clients, w=start, module=with_head(), **fit)


def test_akd_standardizes_its_teacher():
    # As above, with e - 5 over the root of the variance (64 + 3 x 16) / 4 - 5^2 = 3: root 3 for A, -1 / root 3 for B.  Both are
    # distilled.  ê = 1/2 is below e of A: -10 for b, -10 v for W: W_A = 0.1 (1/2 + 10, -1/2 + 5), b = 3/2.  It is above e of B:
    # W_B = 0.1 (1/6 - 10, -1/6 - 5), b = -1/2.  Mean 1 : 3: W = (-19/40, -11/40), b = 0.
    weights, _, steps = standardized()
    assert weights == pytest.approx([-19 / 40, -11 / 40, 1, 1 / 2, 0], rel=1e-6, abs=1e-9)
    assert steps[0].report["embedding_scale"] == pytest.approx(3**-0.5)


def test_a_few_samples_do_not_describe_their_embeddings():
    """A mean of one or four embeddings is not sent, so that the scale is that of A and B."""
    _, fed, steps = standardized(few=(1, 4))
    assert steps[0].report["embedding_scale"] == pytest.approx(3**-0.5)
    replies = [measure_moments(one, None, {})["teacher_moments"] for one in fed.members]
    assert [bool(reply.any()) for reply in replies] == [True, True, False, False]
    with pytest.raises(InputError, match="5 samples"):
        worked("akd(level=all)", [client(A, [1.0] * 4, [0] * 4, [[8.0]] * 4)], w=(0.0, 0.0, 1.0, 0.5, 0.5), module=with_head())


def test_akd_logits():
    # First step: student = teacher, KL has no gradient.  Second, client A at (1/2, -1/2), T = 2, beta = 1: q =
    # sigma(1/2), teacher 1/2; KL = sum q ln(2 q); its gradient is T^2 (1/T) q_j (ln(2 q_j) - KL).
    p0, q = sigma(1.0), sigma(0.5)
    kl = q * math.log(2 * q) + (1 - q) * math.log(2 * (1 - q))
    a = 0.5 - (p0 - 1 + 2 * q * (math.log(2 * q) - kl))
    weights, _, _ = worked("akd(source=logits, level=all, strength=1)", plain_clients(), epochs=2)
    assert weights == antisymmetric(-a / 2)


def test_fedcorr_proximal_term():
    # beta mu = 0.1, two steps of A: first 1/2; then 1/2 - (p0 - 1) - 2 x 0.1 x (1/2 - 0), p0 = sigma(1): 0.6689414.
    from fnlkit.methods.fedcorr import adaptive_proximal

    network = Network(Line(), dtype=torch.float64)
    fed = make("sequential", plain_clients(), network, plain_clients()[0].inputs)
    opt = registry.optimizer("fedavg", Fit(epochs=2, lr=1.0, momentum=0.0))
    start = Model(network, torch.zeros(2, dtype=torch.float64))
    after, _ = opt.round(fed, [A], start, corrections=(adaptive_proximal,), scatter={"proximal": np.array([0.1])})
    assert after.weights.numpy() == antisymmetric(0.5 + 1 - sigma(1.0) - 0.1)
    assert 0.5 + 1 - sigma(1.0) - 0.1 == pytest.approx(0.6689414, abs=1e-7)


# ---- FedCorr whole, once more, in plain loops
NOISY_HALF = 0.35  # kappa: of the clients that the mixture calls noisy, some are clean enough for fine-tuning


def softmax(x, w):
    z = np.outer(x, w)
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def local_by_hand(x, y, w, draws, *, lr, momentum, proximal=0.0):
    """Local training with mixup (eq. 5) as the draws have it; without their mixup plain cross entropy."""
    start, v, onehot = w.copy(), np.zeros(2), np.eye(2)
    for t in range(len(draws)):
        i = draws.order[t][draws.order[t] >= 0]
        xs, ys = x[i], onehot[y[i]]
        if draws.share is not None:
            share, partner = draws.share[t], draws.partner[t][: len(i)]
            xs, ys = share * xs + (1 - share) * xs[partner], share * ys + (1 - share) * ys[partner]
        v = momentum * v + ((softmax(xs, w) - ys) * xs[:, None]).mean(0) + 2 * proximal * (w - start)
        w = w - lr * v
    return w


def upper(values, seed):
    """Gaussian mixture of two: which values belong to the one with the larger mean."""
    from sklearn.mixture import GaussianMixture

    fitted = GaussianMixture(2, random_state=seed).fit(np.reshape(values, (-1, 1)))
    return fitted.predict(np.reshape(values, (-1, 1))) == fitted.means_.argmax()


def fedcorr_by_hand(people, w, fit, *, seed, beta=5.0, theta=0.5, pi=0.5, kappa=NOISY_HALF, later=1.0):
    """Two iterations, two rounds of fine-tuning, two of usual training; return what a run's steps must show."""
    x, y = [c.x[:, 0].numpy() for c in people], [c.y.numpy().copy() for c in people]
    count, r, sgd = len(people), 0, {"lr": fit.lr, "momentum": fit.momentum}
    mu, lid, seen = np.zeros(count), np.zeros(count), {"relabeled": 0, "noisy": [], "mu": []}

    def draws(k, mixup):
        return plan(len(y[k]), fit.changed(mixup=mixup), seed=seed, round=r, client=k)

    def sure(k, index):
        p = softmax(x[k][index], w)
        index = index[p.max(1) >= theta]
        seen["relabeled"] += int((y[k][index] != softmax(x[k][index], w).argmax(1)).sum())
        y[k][index] = softmax(x[k][index], w).argmax(1)

    for iteration in range(2):
        losses = [None] * count
        for k in stream(seed, "fedcorr-visits", iteration).permutation(count):
            w = local_by_hand(x[k], y[k], w, draws(k, 1.0), proximal=beta * mu[k], **sgd)
            p = softmax(x[k], w)
            lid[k] += naive.lid(p, 20).mean()
            losses[k] = -np.log(p[np.arange(len(p)), y[k]])
            r += 1
        noisy, mu = upper(lid, seed), np.zeros(count)
        for k in np.flatnonzero(noisy):
            wrong = upper(losses[k], seed)
            mu[k] = wrong.mean()
            p = softmax(x[k], w)
            worst = sorted(np.flatnonzero(wrong), key=lambda i, p=p, k=k: np.log(p[i, y[k][i]]))
            sure(k, np.array(worst[: int(wrong.sum() * pi)], int))
        r += 1
        seen["noisy"].append(noisy)
        seen["mu"].append(mu)
    for stage in range(2):
        among = [k for k in range(count) if stage or mu[k] <= kappa]
        for _ in range(2):
            local = [local_by_hand(x[k], y[k], w, draws(k, later), **sgd) for k in among]
            w = np.average(local, axis=0, weights=[len(y[k]) for k in among])
            r += 1
        if not stage:
            for k in np.flatnonzero(mu > kappa):
                sure(k, np.arange(len(y[k])))
            r += 1
    return w, y, lid, seen


def noisy_line(seed):
    """Eight clients of 8 to 15 samples, right labels y = [x < 0]; half of the clients have a third of theirs wrong."""
    rng = np.random.default_rng(seed)
    people = []
    for k in range(8):
        x = rng.normal(size=rng.integers(8, 16)).round(3)
        y = (x < 0).astype(int)
        wrong = rng.random(len(x)) < (0.4 if k % 2 else 0)
        people.append(client(k, x.tolist(), np.where(wrong, 1 - y, y).tolist()))
    return people


@pytest.mark.parametrize(("mixup_in", "later"), [("all", 1.0), ("first", 0.0)])
def test_fedcorr_whole(mixup_in, later):
    """Mixup, the adaptive proximal term, cumulative LID, both mixtures, relabeling and kappa, against plain loops."""
    local = {"epochs": 2, "batch_size": 4, "lr": 0.3, "momentum": 0.5}
    fit, start = Fit(**local), (0.3, -0.1)
    expected, labels, lid, seen = fedcorr_by_hand(noisy_line(27), np.array(start), fit, seed=0, later=later)
    stages = f"iterations=2, finetune_rounds=2, usual_rounds=2, clean_level={NOISY_HALF}, mixup_in={mixup_in}"
    weights, fed, steps = worked(f"fedcorr({stages})", noisy_line(27), w=start, rounds=6, **local)
    # The example exercises what it is for: another split each time, labels changed, one noisy client in fine-tuning.
    assert seen["relabeled"] > 5 and all(0 < n.sum() < 8 for n in seen["noisy"])
    assert 0 < ((seen["mu"][1] > 0) & (seen["mu"][1] <= NOISY_HALF)).sum() and (seen["mu"][1] > NOISY_HALF).any()
    assert (seen["mu"][0] > 0).any()  # so that the second iteration has a proximal term
    found = [step.report for step in steps if "noisy_clients" in step.report]
    assert np.array_equal([f["noisy_clients"] for f in found], seen["noisy"])
    assert np.array([f["noise_level"] for f in found]) == pytest.approx(np.array(seen["mu"]))
    assert found[1]["cumulative_lid"] == pytest.approx(lid, rel=1e-9)
    assert all(np.array_equal(c.y.numpy(), y) for c, y in zip(fed.members, labels, strict=True))
    assert weights == pytest.approx(expected, rel=1e-9)
