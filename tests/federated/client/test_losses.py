"""Every loss equals its formula, written out sample by sample; its gradient equals finite differences; K stacks."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from fnlkit.federated.client import scoring
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses import calibration, correction, mixture, robust, tempered
from fnlkit.federated.client.losses.contrastive import contrastive, cores, draw_classes
from fnlkit.federated.client.losses.contrastive import peer as peer_loss
from fnlkit.federated.client.losses.cross_entropy import cross_entropy, kept_cross_entropy, smoothed_cross_entropy
from fnlkit.federated.client.losses.distillation import embedding_distilled, logit_distilled
from fnlkit.federated.client.losses.filtered import consistent
from fnlkit.federated.client.losses.mixmatch import mixmatch
from fnlkit.federated.client.losses.parts import away_from_uniform, suits
from fnlkit.federated.client.losses.refurbish import joint
from tests.commands import refuse_call

pytestmark = pytest.mark.smoke

K, B, C, WIDTH, D = 3, 5, 4, 6, 2


def batches(seed=0):
    """Return logits (K, B, C) and a Batch of K clients with everything that some loss reads."""
    rng = np.random.default_rng(seed)

    def real(*shape):
        return torch.from_numpy(rng.normal(size=shape))

    def distribution(*shape):
        return torch.from_numpy(rng.dirichlet(np.ones(C), shape))

    batch = Batch(
        y=torch.from_numpy(rng.integers(0, C, (K, B))),
        rows={
            "keep": torch.from_numpy(rng.random((K, B)).round()) * 1.5,
            "mixture_seen": torch.from_numpy(rng.random((K, B)) < 0.5),
            "mixture_local": distribution(K, B),
            "mixture_server": distribution(K, B),
            "input/embedding": real(K, B, D),
        },
        state={"transition": distribution(K, C), "label_shares": distribution(K)},
        received={
            "prior": torch.from_numpy(rng.dirichlet(np.ones(C))),
            "distil": torch.tensor([1.0, 0.0, 1.0]),
            "embedding_mean": real(D),
        },
        teacher=real(K, B, C),
        features=real(K, B, WIDTH + D),
        uniform=torch.from_numpy(rng.random((K, B))),
    )
    return 2 * real(K, B, C), batch


def softmax(z):
    e = [math.exp(v - max(z)) for v in z]
    return [v / sum(e) for v in e]


def drawn(prior, u):
    total = 0.0
    for j, q in enumerate(prior):
        total += q
        if u < total or j == len(prior) - 1:
            return j


# ---- one sample, in plain Python: (logits (C,), that sample's Batch entries) -> value
def plain(z, s):
    return -math.log(softmax(z)[s["y"]])


def smooth(z, s, a=0.2):
    p = softmax(z)
    target = [(1 - a) * (j == s["y"]) + a / C for j in range(C)]
    return -sum(t * math.log(q) for t, q in zip(target, p, strict=True))


def generalized(z, s, q=0.7, k=0.0):
    return (1 - max(softmax(z)[s["y"]], k) ** q) / q


def reverse(z, s, log_zero=-4.0):
    """-sum_j p_j log(one-hot_j), log 1 = 0 and log 0 = A."""
    return -sum(p * (0.0 if j == s["y"] else log_zero) for j, p in enumerate(softmax(z)))


def symmetric(z, s, a=0.1, b=1.0):
    return a * plain(z, s) + b * reverse(z, s)


def normalized(z, s, a=2.0, b=0.5):
    return a * plain(z, s) / sum(-math.log(p) for p in softmax(z)) + b * reverse(z, s, -9.0)


def forward(z, s):
    p, matrix = softmax(z), s["transition"]
    return -math.log(sum(p[j] * matrix[j][s["y"]] for j in range(C)))


def peer(z, s, b=0.7):
    p = softmax(z)
    return b * math.log(p[drawn(s["prior"], s["uniform"])]) - math.log(p[s["y"]])


def peer_expected(z, s, b=0.7):
    return plain(z, s) + b * sum(q * math.log(p) for q, p in zip(s["prior"], softmax(z), strict=True))


def peer_bounded(z, s, b=0.7, floor=1e-2):
    p = softmax(z)
    return b * math.log(p[drawn(s["prior"], s["uniform"])] + floor) - math.log(p[s["y"]] + floor)


def expected_bounded(z, s, b=0.7, floor=1e-2):
    p = softmax(z)
    return b * sum(q * math.log(v + floor) for q, v in zip(s["prior"], p, strict=True)) - math.log(p[s["y"]] + floor)


def averages(z, s, beta, gamma):
    p, server = softmax(z), softmax(s["teacher"])
    if not s["mixture_seen"]:
        return server, p
    mix = [beta * a + (1 - beta) * b for a, b in zip(s["mixture_server"], server, strict=True)]
    return mix, [gamma * a + (1 - gamma) * b for a, b in zip(s["mixture_local"], p, strict=True)]


def flr(z, s, a=2.0, alpha=0.6, beta=0.7, gamma=0.5):
    server, local = averages(z, s, beta, gamma)
    t = [alpha * x + (1 - alpha) * y for x, y in zip(server, local, strict=True)]
    return plain(z, s) + a * math.log(1 - sum(p * q for p, q in zip(softmax(z), t, strict=True)))


def embedded(z, s, b=10.0, scale=1.0, power=2):
    guess = s["features"][WIDTH:]
    apart = [abs(scale * (e - m) - g) for e, m, g in zip(s["input/embedding"], s["embedding_mean"], guess, strict=True)]
    return plain(z, s) + b * s["distil"] * (sum(d**power for d in apart) / D) ** (1 / power)


def distilled(z, s, b=10.0, temperature=2.0, student_first=True):
    p, q = softmax([v / temperature for v in z]), softmax([v / temperature for v in s["teacher"]])
    if not student_first:
        p, q = q, p
    kl = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    return plain(z, s) + b * s["distil"] * temperature**2 * kl


def clamped(z, s, clamp=0.2):
    """ELR as its public code has it: alpha 0, strength 3, momentum 0.7."""
    p = [min(max(v, clamp), 1 - clamp) for v in softmax(z)]
    now = [v / sum(p) for v in p]
    t = [0.7 * a + 0.3 * b for a, b in zip(s["mixture_local"], now, strict=True)] if s["mixture_seen"] else now
    return plain(z, s) + 3.0 * math.log(1 - sum(a * b for a, b in zip(p, t, strict=True)))


def entropy(z, s, a=1.5):
    return plain(z, s) - a * sum(p * math.log(p) for p in softmax(z))


def normalizer(z, t):
    """lambda with sum_j exp_t(z_j - lambda) = 1 by halving, for any t but 1."""

    def total(x):
        return sum(max(0.0, 1 + (1 - t) * (v - x)) ** (1 / (1 - t)) if 1 + (1 - t) * (v - x) > 0 else 0.0 for v in z)

    low, high = max(z), max(z) + 200.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) > 1 else (low, middle)
    return low


def bregman(z, s, t1=0.8, t2=1.2):
    """Eq. 6 with a one-hot label, sum by sum."""
    away = normalizer(z, t2)
    p = [max(0.0, 1 + (1 - t2) * (v - away)) ** (1 / (1 - t2)) if 1 + (1 - t2) * (v - away) > 0 else 0.0 for v in z]
    value = 0.0
    for j, q in enumerate(p):
        y = float(j == s["y"])
        if y:
            value += (1 ** (1 - t1) - 1) / (1 - t1) - (q ** (1 - t1) - 1) / (1 - t1)
        value += (q ** (2 - t1) - y) / (2 - t1)
    return value


FLIP = [[0.7 if i == j else 0.3 if j == (i + 1) % C else 0.0 for j in range(C)] for i in range(C)]


def unbiased(z, s):
    """Its mean over FLIP is the cross entropy with the true label: solved for the values of all four labels at once."""
    wanted = [-math.log(p) for p in softmax(z)]
    return np.linalg.solve(np.array(FLIP), np.array(wanted))[s["y"]]


CASES = {
    "cross_entropy": (cross_entropy, plain),
    "smoothed": (partial(smoothed_cross_entropy, rate=0.2), smooth),
    "negative": (partial(smoothed_cross_entropy, rate=-0.05), partial(smooth, a=-0.05)),
    "gce": (robust.generalized_cross_entropy, generalized),
    "truncated": (partial(robust.generalized_cross_entropy, truncate=0.1), partial(generalized, k=0.1)),
    "sce": (robust.symmetric_cross_entropy, symmetric),
    "nce-rce": (partial(robust.normalized_and_reverse_cross_entropy, alpha=2.0, beta=0.5, log_zero=-9.0), normalized),
    "temperature": (partial(calibration.temperature_scaled, temperature=2.5), lambda z, s: plain([v / 2.5 for v in z], s)),
    "entropy": (partial(calibration.entropy_minimized, strength=1.5), entropy),
    "bi-tempered": (partial(tempered.bi_tempered, iterations=80), bregman),
    "bi-tempered, light tails": (partial(tempered.bi_tempered, t1=0.3, t2=0.6), partial(bregman, t1=0.3, t2=0.6)),
    "bi-tempered, one": (partial(tempered.bi_tempered, t1=1.0, t2=1.0), plain),
    "given forward": (partial(correction.forward_given, transition="pairflip(eta=0.3)", floor=0.0),
                      lambda z, s: forward(z, {**s, "transition": FLIP})),
    "backward": (partial(correction.backward_given, transition="pairflip(eta=0.3)"), unbiased),
    "peer": (partial(peer_loss, strength=0.7, floor=1e-2), lambda z, s: peer_bounded(z, {**s, "prior": s["label_shares"]})),
    "cores": (partial(cores, strength=0.7, floor=1e-2), lambda z, s: expected_bounded(z, {**s, "prior": s["label_shares"]})),
    "elr": (partial(mixture.early_learning, strength=3.0, momentum=0.7, clamp=0.2), clamped),
    "er": (partial(mixture.entropy_regularized, strength=1.5),
           lambda z, s: plain(z, s) + 1.5 * math.log(1 - sum(p * p for p in softmax(z)))),
    "kept": (kept_cross_entropy, lambda z, s: s["keep"] * plain(z, s)),
    "forward": (partial(correction.forward_corrected, floor=0.0), forward),
    "contrastive": (partial(contrastive, strength=0.7, floor=0), peer),
    "expected": (partial(contrastive, strength=0.7, expected=True, floor=0), peer_expected),
    "bounded": (partial(contrastive, strength=0.7, floor=1e-2), peer_bounded),
    "expected and bounded": (partial(contrastive, strength=0.7, expected=True, floor=1e-2), expected_bounded),
    "contrastive as it is": (contrastive, partial(peer_bounded, b=1.0, floor=1e-5)),
    "mixture": (partial(mixture.label_mixture, strength=2.0, alpha=0.6, beta=0.7, gamma=0.5), flr),
    "clamped": (partial(mixture.label_mixture, strength=3.0, alpha=0.0, beta=0.0, gamma=0.7, floor=1e-9, clamp=0.2), clamped),
    "embedding": (embedding_distilled, embedded),
    "embedding in a unit": (partial(embedding_distilled, scale=0.7, distance="absolute"),
                            partial(embedded, scale=0.7, power=1)),
    "logits": (logit_distilled, distilled),
    "hinton": (partial(logit_distilled, towards="student"), partial(distilled, student_first=False)),
}  # fmt: skip


def values_of(loss, logits, batch):
    out = loss(logits, batch)
    return out if isinstance(out, tuple) else (out, {})


@pytest.mark.parametrize("name", CASES)
def test_a_loss_equals_its_formula(name):
    loss, formula = CASES[name]
    logits, batch = batches()
    values, _ = values_of(loss, logits, batch)
    of_all = {name: batch.received[name].tolist() for name in ("prior", "embedding_mean")}
    of_samples = {name: getattr(batch, name) for name in ("y", "uniform", "teacher", "features")} | batch.rows
    for k in range(K):
        of_client = {name: value[k].tolist() for name, value in (batch.state | {"distil": batch.received["distil"]}).items()}
        for b in range(B):
            sample = of_all | of_client | {name: value[k, b].tolist() for name, value in of_samples.items()}
            assert values[k, b].item() == pytest.approx(formula(logits[k, b].tolist(), sample), rel=1e-12)


# Targets without a gradient: test_methods.py and test_worked_rounds.py of the methods.
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("mixture", "clamped", "elr", "er")])
def test_gradients_equal_finite_differences(name):
    loss = CASES[name][0]
    logits, batch = batches(2)
    assert torch.autograd.gradcheck(lambda z: loss(z, batch), (logits.requires_grad_(),), fast_mode=True)
    if name == "embedding":

        def by_features(f):
            return loss(logits.detach(), Batch(**{**vars(batch), "features": f}))

        assert torch.autograd.gradcheck(by_features, (batch.features.clone().requires_grad_(),))


def test_a_tempered_softmax_is_a_distribution_with_heavy_or_no_tails():
    logits = torch.tensor([[8.0, 0.0, -3.0, -40.0]], dtype=torch.float64, requires_grad=True)
    for t in (0.3, 0.6, 0.9, 1.0, 1.2, 2.0, 4.0):
        p = tempered.tempered_softmax(logits, t, 200)
        assert p.sum().item() == pytest.approx(1, abs=1e-12) and (p[0, 3] == 0) == (t < 1)
        assert torch.autograd.grad(p.sum(), logits)[0].abs().max() < 1e-12  # the sum stays 1 whatever the logits
    five, exact = (tempered.tempered_softmax(4 * batches()[0], 1.2, count) for count in (5, 200))
    assert (five - exact).abs().max() < 1e-4  # the five steps of the public code
    # A label that is out of reach costs at most 1 / (1 - t1) and pulls at nothing that is not finite.
    far = tempered.bi_tempered(logits, Batch(y=torch.tensor([3])), t1=0.5, t2=0.6)
    assert far.item() == pytest.approx(2 - (1 - 1) / 1.5, abs=1e-6)
    assert torch.isfinite(torch.autograd.grad(far.sum(), logits)[0]).all()


def test_a_given_transition_is_a_name_or_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("T.npy", np.array(FLIP))
    for text in ("T.npy", "matrix(path=T.npy)", "pairflip(eta=0.3)"):
        assert correction.transition_matrix(text, C) == pytest.approx(np.array(FLIP))
    for text, said in {
        "none.csv": "none.csv",
        "random(eta=0.2)": "unknown transition 'random'",
        "symmetric(eta=2)": "from 0 to 1",
        "asymmetric(eta=0.1)": "map=NAME",
        "asymmetric(map=mnist)": "for 10 classes, here are 4",
    }.items():
        refuse_call(said, correction.transition_matrix, text, C)
    refuse_call("T.npy: a matrix of", correction.transition_matrix, "T.npy", 5)
    half = partial(correction.backward_given, transition="symmetric(eta=0.75)")  # all labels alike
    refuse_call("cannot be inverted", suits, half, C)
    suits(half, 5)
    suits(cross_entropy, 5)


def test_the_mixture_writes_back_both_averages_and_keeps_none_it_was_not_given():
    logits, batch = batches(3)
    rates = {"strength": 1.0, "alpha": 0.5, "beta": 0.25, "gamma": 0.75}
    _, rows = mixture.label_mixture(logits, batch, **rates)
    seen = batch.rows["mixture_seen"][..., None]
    p, q = logits.softmax(-1), batch.teacher.softmax(-1)
    expected = torch.where(seen, 0.75 * batch.rows["mixture_local"] + 0.25 * p, p)
    assert torch.allclose(rows["mixture_local"], expected)
    assert torch.allclose(rows["mixture_server"], torch.where(seen, 0.25 * batch.rows["mixture_server"] + 0.75 * q, q))
    assert rows["mixture_seen"].all() and not any(v.requires_grad for v in rows.values())
    batch.teacher = None
    _, rows = mixture.label_mixture(logits, batch, **{**rates, "alpha": 0.0})
    assert set(rows) == {"mixture_local", "mixture_seen"}


def test_beyond_the_clamp_the_regularizer_has_no_gradient():
    logits = torch.tensor([[9.0, 0, 0, -9.0]], dtype=torch.float64, requires_grad=True)
    rows = {"mixture_seen": torch.tensor([True]), "mixture_local": torch.full((1, 4), 0.25, dtype=torch.float64)}
    batch = Batch(y=torch.tensor([1]), rows=rows)
    elr = partial(mixture.label_mixture, strength=3.0, alpha=0.0, beta=0.0, gamma=0.7)
    alone = torch.autograd.grad(cross_entropy(logits, batch).sum(), logits)[0]
    clamp_all = torch.autograd.grad(elr(logits, batch, clamp=1e-3)[0].sum(), logits)[0]
    assert torch.allclose(clamp_all, alone, atol=1e-15)  # p = (0.9998, 0.0001, 0.0001, 1e-8) lies beyond it everywhere
    assert not torch.allclose(torch.autograd.grad(elr(logits, batch, clamp=1e-9)[0].sum(), logits)[0], alone, atol=1e-5)


def naive_mixed(z, unmixed, teacher, y, partner, share, rows, *, strength, alpha, beta, gamma):
    """One step of FLR under mixup, sample by sample: (values, s, m).  ELR+: targets are mixed as inputs are."""
    s, m = [], []
    for i in range(len(y)):
        now, server = softmax(unmixed[i]), softmax(teacher[i])
        seen = rows["mixture_seen"][i]
        s.append([beta * a + (1 - beta) * b if seen else b for a, b in zip(rows["mixture_server"][i], server, strict=True)])
        m.append([gamma * a + (1 - gamma) * b if seen else b for a, b in zip(rows["mixture_local"][i], now, strict=True)])
    values = []
    for i, j in enumerate(partner):
        p, target = softmax(z[i]), []
        for c in range(C):
            mine, other = (alpha * s[k][c] + (1 - alpha) * m[k][c] for k in (i, j))
            target.append(share * mine + (1 - share) * other)
        labels = -share * math.log(p[y[i]]) - (1 - share) * math.log(p[y[j]])
        values.append(labels + strength * math.log(1 - sum(a * b for a, b in zip(p, target, strict=True))))
    return values, s, m


def test_under_mixup_targets_are_mixed_and_averages_see_the_samples_themselves():
    logits, batch = batches(4)
    rng = np.random.default_rng(4)
    batch.unmixed = torch.from_numpy(rng.normal(size=(K, B, C)))
    batch.partner = torch.from_numpy(np.stack([rng.permutation(B) for _ in range(K)]))
    batch.share = torch.from_numpy(rng.random(K))
    rates = {"strength": 2.0, "alpha": 0.6, "beta": 0.7, "gamma": 0.5}
    values, rows = mixture.label_mixture(logits, batch, **rates)
    other, again = mixture.label_mixture(logits, Batch(**{**vars(batch), "y": batch.y.gather(1, batch.partner)}), **rates)
    assert all(torch.equal(rows[name], again[name]) for name in rows)
    values = batch.share[:, None] * values + (1 - batch.share[:, None]) * other
    for k in range(K):
        arrays = [v[k].tolist() for v in (logits, batch.unmixed, batch.teacher, batch.y, batch.partner)]
        own = {name: v[k].tolist() for name, v in batch.rows.items()}
        expected, s, m = naive_mixed(*arrays, batch.share[k].item(), own, **rates)
        assert values[k].tolist() == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(rows["mixture_server"][k], s, rtol=1e-12)
        np.testing.assert_allclose(rows["mixture_local"][k], m, rtol=1e-12)


def test_a_sure_prediction_gives_finite_losses_and_gradients():
    logits = torch.tensor([[80.0, 0, 0, -80.0]], dtype=torch.float64, requires_grad=True)
    sure = torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float64)
    batch = Batch(
        y=torch.tensor([3]),
        rows={"mixture_seen": torch.tensor([True]), "mixture_local": sure, "mixture_server": sure},
        state={"transition": torch.eye(4, dtype=torch.float64)},
        received={"prior": torch.tensor([0.0, 0, 0, 1.0], dtype=torch.float64)},
        teacher=logits.detach(),
        uniform=torch.tensor([0.999999]),
    )
    for loss in (
        partial(mixture.label_mixture, strength=2.0, alpha=0.9, beta=0.7, gamma=0.5),
        correction.forward_corrected,
        partial(contrastive, floor=1e-5),
        contrastive,
    ):
        values, _ = values_of(loss, logits, batch)
        (gradient,) = torch.autograd.grad(values.sum(), logits)
        assert torch.isfinite(values).all() and torch.isfinite(gradient).all()


@pytest.mark.parametrize("loss", [partial(mixmatch, unlabeled=1.0, views=1), partial(consistent, prior=1.0),
                                  partial(joint, alpha=1.2, beta=0.8)])  # fmt: skip
def test_a_class_that_vanishes_in_single_precision_is_brought_back(loss):
    """Mean probabilities of about 1, e^-300, e^-300 and e^-300 / 2."""
    logits = torch.tensor([[300.0, 0, 0, -300.0], [300.0, 0, 0, 0]], requires_grad=True)
    labels, pair = torch.tensor([0, 1]), torch.cat([logits, logits], -1)
    rows = {"divided_clean": torch.ones(2, 2), "divided_label": labels, "filter_label": labels, "filter_global": labels}
    rows |= {"filter_keep": labels == 0, "joint_history": torch.zeros(2, 10, 4), "joint_seen": labels}
    state, more = {"filter_bias": torch.ones(4), "filter_agree": torch.tensor(0)}, {"partner": labels.flip(0)}
    more |= {"features": pair, "unmixed": logits.detach(), "unmixed_features": pair.detach(), "share": torch.tensor(0.7)}
    values, _ = values_of(loss, logits, Batch(y=labels, rows=rows, state=state, **more))
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    assert torch.isfinite(values).all() and torch.isfinite(gradient).all() and gradient[1, 3] < 0
    assert away_from_uniform(logits.log_softmax(-1)).item() == pytest.approx((900 + math.log(2)) / 4 - math.log(4))


def test_the_reverse_cross_entropy_has_a_gradient_at_surely_wrong_predictions():
    logits = torch.tensor([[-20.0, 0.0]], requires_grad=True)
    robust.symmetric_cross_entropy(logits, Batch(y=torch.tensor([0])), alpha=0.0).sum().backward()
    torch.testing.assert_close(logits.grad[0, 0], torch.tensor(-4 * math.exp(-20.0)), rtol=1e-4, atol=0)


def test_classes_are_drawn_by_inversion():
    prior = torch.tensor([0.25, 0.0, 0.5, 0.25])
    draws = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 0.99999])
    assert draw_classes(draws, prior).tolist() == [0, 0, 2, 2, 3, 3]
    # A prior in float32 may sum to less than 1; the largest draw must still give a class.
    assert draw_classes(torch.tensor([1 - 2**-53]).double(), torch.tensor([0.3, 0.3, 0.39999]))[0] == 2
    u = torch.from_numpy(np.random.default_rng(0).random(200_000))
    shares = torch.bincount(draw_classes(u, prior), minlength=4) / 200_000
    assert torch.allclose(shares, prior, atol=4e-3)


def test_energy_is_the_logarithm_of_the_sum_of_exponentials():
    assert scoring.energy(torch.tensor([[0.0, 0.0]])).item() == pytest.approx(math.log(2))
