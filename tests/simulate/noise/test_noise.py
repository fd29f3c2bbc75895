"""Noise: what was asked for comes out within its bounds, true labels never change, and equal seeds give equal bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from fnlkit.kernels import matrices
from fnlkit.kernels.scores import confusion, transition
from fnlkit.simulate.noise import MODELS, Corruption, inject, mean_requested_transition, summary
from tests.commands import refuse_call

pytestmark = pytest.mark.smoke

GLOBAL = [
    "symmetric(eta=0.4)", "symmetric(eta=0.4, include_true=true)", "pairflip(eta=0.45)", "asymmetric(eta=0.4, map=cifar10)",
    "random(eta=0.3)", "instance(eta=0.4)", "sparse(level=0.4, sparsity=0.8)", "sparse(level=0.3, sparsity=1)",
    "sparse(level=0.4, sparsity=0.8, construction=fedln-code)",
]  # fmt: skip
CLIENTS = [
    "clients(rho=0.6, tau=0.5)",
    "clients(rho=0.6, tau=0.5, exact=true)",
    "clients(rho=0.6, tau=0.5, exact_samples=true)",
    "clients(rho=1, tau=0.2, kind=asymmetric, map=mnist)",
    "clients(rho=1, tau=0.2, kind=pairflip)",
    "sparse(level=0.4, sparsity=0.4, per_client=true, noisy_share=0.8, clean_level=0.1)",
    "sparse(level=0.4, sparsity=0.4, per_client=true, construction=fedln-code)",
]


def fed(count=10, size=400, classes=10, dataset="toy"):
    """N clients of equal size; the classes are mixed."""
    n = count * size if count else size
    true = np.random.default_rng(5).permutation(np.arange(n) % classes)
    order = np.random.default_rng(6).permutation(n)
    offsets = np.arange(0, n + 1, size) if count else np.zeros(1, int)
    return Federation(dataset, classes, offsets, order if count else np.zeros(0, int), true.copy(), true.copy())


def pixels(federation):
    return np.random.default_rng(7).integers(0, 256, (len(federation.given), 5, 5, 1), np.uint8)


def noisy(spec, seed=0, federation=None, **options):
    federation = fed() if federation is None else federation
    return inject(federation, spec, seed=seed, x=lambda: pixels(federation), **options)


def packed(federation):
    return b"".join(files.encode(federation.to_artifact()))


@pytest.mark.parametrize("spec", GLOBAL + CLIENTS)
def test_truth_stays_seeds_repeat_and_rows_sum_to_one(spec):
    clean = fed()
    first, again, other = (noisy(spec, seed, clean) for seed in (1, 1, 2))
    assert packed(first) == packed(again) != packed(other)
    for federation in (first, other):
        assert np.array_equal(federation.true, clean.true) and np.array_equal(clean.given, clean.true)
        assert np.array_equal(federation.client_indices, clean.client_indices)
        assert federation.given.min() >= 0 and federation.given.max() < 10
        np.testing.assert_allclose(federation.noise_transition.sum(-1), 1, atol=1e-12)
        assert federation.noise_transition.min() >= 0
        got = federation.extra["noise_achieved_transition"]
        np.testing.assert_allclose(got.sum(1), 1)
        np.testing.assert_allclose(got, transition(confusion(federation.true, federation.given, 10)))


@pytest.mark.parametrize("spec", GLOBAL)
def test_the_whole_set_can_be_corrupted_before_partition(spec):
    federation = noisy(spec, federation=fed(0, 4000))
    assert len(federation) == 0 and summary(federation)["wrong_share"] > 0.1
    Federation.read(packed(federation))


def bound(share, samples, sigmas=5):
    return sigmas * np.sqrt(share * (1 - share) / samples) + 1e-9


@given(
    st.sampled_from(["symmetric(eta={})", "symmetric(eta={}, include_true=true)", "pairflip(eta={})", "random(eta={})"]),
    st.floats(0, 1),
    st.integers(2, 12),
    st.integers(0, 2**40),
)
def test_achieved_noise_is_within_binomial_bounds(spec, eta, classes, seed):
    federation = noisy(spec.format(eta), seed, fed(4, 500, classes))
    asked = mean_requested_transition(federation)
    for label in range(classes):
        here = federation.true == label
        got = np.bincount(federation.given[here], minlength=classes) / here.sum()
        assert (np.abs(got - asked[label]) <= bound(asked[label], here.sum(), 6) + 2 / here.sum()).all()


@pytest.mark.parametrize("spec", ["instance(eta=0.3)", "asymmetric(eta=0.3, map=mnist)", *CLIENTS])
def test_achieved_noise_of_every_client_is_within_bounds(spec):
    federation = noisy(spec, federation=fed(10, 2000))
    facts = summary(federation)
    assert abs(facts["wrong_share"] - facts["requested_share"]) < 0.015
    for got, asked in zip(facts["client_level"], facts["client_requested"], strict=True):
        assert abs(got - asked) <= bound(asked, 2000)
    assert facts["transition_error"] < 0.03


@pytest.mark.parametrize("spec", [
    "none", "symmetric(eta=0)", "pairflip(eta=0)", "asymmetric(eta=0, map=cifar10)", "instance(eta=0)", "clients(rho=0)",
    "sparse(level=0)", "sparse(level=0, construction=fedln-code)", "sparse(level=0, sparsity=1)",
    "sparse(per_client=true, noisy_share=0)",
])  # fmt: skip
def test_zero_noise_changes_nothing(spec):
    federation = noisy(spec)
    assert np.array_equal(federation.given, federation.true)
    assert not federation.noise_client_noisy.any() and not federation.noise_client_level.any()


def test_fedcorr_noise():
    federation = noisy("clients(rho=0.6, tau=0.5)", 3, fed(200, 300))
    level = 1 - np.diagonal(federation.noise_transition, axis1=1, axis2=2).mean(1)  # mu (C - 1) / C
    mu = level * 10 / 9
    assert abs(federation.noise_client_noisy.mean() - 0.6) < 0.12
    assert (mu[~federation.noise_client_noisy] == 0).all()
    found = mu[federation.noise_client_noisy]
    assert found.min() >= 0.5 and found.max() <= 1 and abs(found.mean() - 0.75) < 0.05
    assert (np.abs(federation.noise_client_level - level) <= bound(level, 300)).all()


def test_fedcorr_noise_reaches_every_class():
    # The authors' code draws from the first ten classes only.
    federation = noisy("clients(rho=1, tau=1)", federation=fed(10, 1000, 100))
    assert len(np.unique(federation.given[federation.given != federation.true])) == 100


def test_flr_noise_takes_exact_shares():
    federation = noisy("clients(rho=0.3, tau=0.25, exact=true, kind=pairflip)", federation=fed(10, 400))
    assert federation.noise_client_noisy.sum() == 3
    for got, asked in zip(summary(federation)["client_level"], summary(federation)["client_requested"], strict=True):
        assert abs(got - asked) <= 0.5 / 400 + 1e-12


def test_fedcorr_noise_with_exact_shares_on_clients_that_are_drawn():
    # Pairflip changes every label that is picked, so that the wrong share is the picked one.
    drawn, exact = (f"clients(rho=0.3, tau=0.25, kind=pairflip{more})" for more in ("", ", exact_samples=true"))
    levels, noisy_clients = [], set()
    for seed in range(5):
        one, other = (noisy(spec, seed, fed(10, 400)) for spec in (drawn, exact))
        assert (one.noise_client_noisy == other.noise_client_noisy).all()  # who is noisy stays a draw
        assert np.array_equal(one.noise_transition, other.noise_transition)
        noisy_clients.add(int(other.noise_client_noisy.sum()))
        asked = np.array(summary(other)["client_requested"])
        assert np.abs(np.array(summary(other)["client_level"]) - asked).max() <= 0.5 / 400 + 1e-12
        levels.append(np.abs(np.array(summary(one)["client_level"]) - asked).max())
    assert len(noisy_clients) > 1 and max(levels) > 2 / 400


def test_published_maps():
    target = matrices.class_map("cifar10", 10)
    # truck -> automobile, bird -> airplane, deer -> horse, cat <-> dog, others stay
    assert target.tolist() == [0, 1, 0, 5, 7, 3, 6, 7, 8, 1]
    assert matrices.class_map("mnist", 10).tolist() == [0, 1, 7, 8, 4, 6, 5, 1, 8, 9]
    assert matrices.class_map("fashion-mnist", 10).tolist() == [0, 1, 6, 4, 3, 5, 6, 5, 8, 7]
    superclass = np.array(matrices.CIFAR100_SUPERCLASS)
    assert np.bincount(superclass).tolist() == [5] * 20
    target = matrices.class_map("cifar100", 100)
    assert (superclass[target] == superclass).all() and (target != np.arange(100)).all() and len(set(target)) == 100
    # aquatic mammals: beaver, dolphin, otter, seal, whale
    assert [target[i] for i in (4, 30, 55, 72, 95)] == [30, 55, 72, 95, 4]


def test_the_map_follows_from_the_data_sets_name():
    federation = noisy("asymmetric(eta=1)", federation=fed(dataset="fashion-mnist"))
    assert np.array_equal(federation.given, matrices.class_map("fashion-mnist", 10)[federation.true])
    refuse_call("no published class map for 'toy'; write map=NAME", noisy, "asymmetric")
    refuse_call("kind=pairflip has no map", noisy, "clients(kind=pairflip, map=mnist)")
    refuse_call("is for 100 classes, here are 10", noisy, "asymmetric(map=cifar100)")


@given(st.integers(2, 30), st.floats(0, 0.45), st.floats(0, 1), st.integers(0, 2**32))
def test_sparse_matrices(classes, level, sparsity, seed):
    T = matrices.sparse(classes, level, sparsity, np.random.default_rng(seed))
    np.testing.assert_allclose(T.sum(1), 1, atol=1e-9)
    assert T.min() >= 0 and abs((1 - np.diag(T)).mean() - level) < 1e-9
    if 0 < level and sparsity < 1:
        zeros = (T == 0).sum() - (np.diag(T) == 0).sum()
        assert zeros >= min(round(classes * (classes - 1) * sparsity), classes * (classes - 2))
        assert ((T > 0).sum(1) >= 2).sum() >= classes - (np.diag(T) > 1 - 1e-9).sum()
        assert (np.diag(T) > T.mean(0)).all()


@pytest.mark.parametrize(
    ("classes", "sparsity", "count"),
    [(10, 0, 9), (10, 0.3, 7), (10, 0.4, 6), (10, 0.5, 5), (10, 0.7, 3), (10, 0.9, 1), (10, 1, 1), (11, 0.7, 4)],
)
def test_fedlns_own_construction(classes, sparsity, count):
    T = matrices.sparse_as_fedln(classes, 0.4, sparsity, np.random.default_rng(0))
    assert ((T > 0).sum(1) == count + 1).all() and np.allclose(np.diag(T), 0.6)


def test_full_sparsity_per_client_confuses_pairs_both_ways():
    """FedLN, Definition 2.2: p(y=i | y*=j) = p(y=j | y*=i) for the two classes of a pair; the public code maps at random."""
    spec = "sparse(level=0.4, sparsity=1, per_client=true{})"
    paper = noisy(spec.format("")).noise_transition
    np.testing.assert_allclose(paper, paper.transpose(0, 2, 1))
    assert ((paper > 0).sum(2) == 2).all() and np.allclose(paper.diagonal(axis1=1, axis2=2), 0.6)
    assert len({T.tobytes() for T in paper}) > 1
    code = noisy(spec.format(", construction=fedln-code")).noise_transition
    assert ((code > 0).sum(2) == 2).all() and not np.allclose(code, code.transpose(0, 2, 1))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.floats(0, 0.6), st.floats(0, 1), st.integers(0, 2**32))
def test_exact_counts_lose_nothing_to_truncation(labels, level, sparsity, seed):
    labels, rng = np.array(labels), np.random.default_rng(seed)
    T = matrices.sparse(5, level, sparsity, rng)
    out = matrices.exact(labels, T, rng)
    want = np.bincount(labels, minlength=5)[:, None] * T
    got = np.zeros((5, 5))
    np.add.at(got, (labels, out), 1)
    off = ~np.eye(5, dtype=bool)
    assert (np.abs(got - want)[off] <= 1 + 1e-9).all()
    assert abs((labels != out).sum() - want[off].sum()) <= 0.5 + 1e-6


def test_every_client_has_its_own_matrix():
    # With one seed for all, FedLN's public code gives every client the same support.
    federation = noisy("sparse(level=0.4, sparsity=0.6, per_client=true, noisy_share=0.8)")
    assert federation.noise_client_noisy.sum() == 8
    assert len({T.tobytes() for T in federation.noise_transition[federation.noise_client_noisy]}) == 8
    assert (federation.noise_transition[~federation.noise_client_noisy] == np.eye(10)).all()


@pytest.mark.parametrize("sparsity", [0, 0.4, 0.7, 1])
def test_a_clients_own_matrix_has_an_even_diagonal(sparsity):
    """FedLN, Definition 2.1: n_l = 1 - diag(Q); one matrix for all keeps confident learning's uneven one (FedEFC)."""
    own = noisy(f"sparse(level=0.4, sparsity={sparsity}, per_client=true)", federation=fed(4, 2000))
    assert np.diagonal(own.noise_transition, axis1=1, axis2=2) == pytest.approx(np.full((4, 10), 0.6))
    assert (np.abs(own.noise_client_level - 0.4) < 0.05).all()
    uneven = noisy(f"sparse(level=0.4, sparsity={sparsity}, per_client=true, construction=confident-learning)")
    one = noisy(f"sparse(level=0.4, sparsity={sparsity})")
    for T in (uneven.noise_transition[0], one.noise_transition):
        assert (np.ptp(np.diag(T)) > 0.1) == (sparsity < 1)


def test_random_noise_has_the_right_diagonal():
    # The paper prints eta + U(-0.05, 0.05) for the diagonal, which would be the share of right labels.
    T = matrices.random(50, 0.3, np.random.default_rng(0))
    stay = np.diag(T)
    assert stay.min() >= 0.65 and stay.max() <= 0.75 and 0.68 < stay.mean() < 0.72
    for eta in (0.0, 0.01, 1.0):  # the mean rate stays eta: no label changes at 0, and none stays at 1
        assert np.diag(matrices.random(2000, eta, np.random.default_rng(0))).mean() == pytest.approx(1 - eta, abs=1e-3)


def test_instance_noise_depends_on_the_sample():
    federation = fed(0, 6000)
    x = pixels(federation)
    x[3000:] = x[:3000]
    federation.given[3000:] = federation.given[:3000]
    federation.true = federation.given.copy()
    found = inject(federation, "instance(eta=0.5)", seed=0, x=x).given
    both = (found[:3000] != federation.true[:3000]) & (found[3000:] != federation.true[3000:])
    assert both.sum() > 500 and (found[:3000] == found[3000:])[both].mean() > 0.6  # by chance: 1 / 9
    refuse_call("is it another data set", inject, federation, "instance", seed=0, x=x[:-1])
    refuse_call("needs the samples", inject, federation, "instance", seed=0)


def test_a_matrix_of_the_user(tmp_path):
    T = np.eye(10) * 0.8 + np.roll(np.eye(10), 3, 1) * 0.2
    np.save(tmp_path / "T.npy", T)
    np.savetxt(tmp_path / "T.csv", T, delimiter=",")
    from_npy, from_csv = (noisy(f'matrix(path="{tmp_path}/T.{end}")') for end in ("npy", "csv"))
    assert np.array_equal(from_npy.given, from_csv.given) and np.allclose(from_npy.noise_transition, T)
    changed = from_npy.given != from_npy.true
    assert ((from_npy.true[changed] + 3) % 10 == from_npy.given[changed]).all()
    bad = T.copy()
    bad[:, 0], bad[0, 0] = 0, 1
    bad[:, 1:] /= bad[:, 1:].sum(0)
    np.save(tmp_path / "bad.npy", bad)
    refuse_call("its columns do: add transpose=true", noisy, f'matrix(path="{tmp_path}/bad.npy")')
    assert np.allclose(noisy(f'matrix(path="{tmp_path}/bad.npy", transpose=true)').noise_transition, bad.T)
    np.save(tmp_path / "small.npy", np.eye(3))
    refuse_call("expected 10 x 10", noisy, f'matrix(path="{tmp_path}/small.npy")')


def test_labels_of_the_user(tmp_path):
    clean = fed(2, 30)
    worse = (clean.true + 1) % 10
    torch.save({"clean_label": clean.true, "worse_label": worse, "aggre_label": clean.true}, tmp_path / "human.pt")
    np.save(tmp_path / "l.npy", worse)
    np.savez(tmp_path / "l.npz", worse=worse, other=clean.true)
    (tmp_path / "l.csv").write_text("id,label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(worse)))
    for spec in ('human.pt", key=worse_label', 'l.npy"', 'l.npz", key=worse', 'l.csv", key=label'):
        federation = noisy(f'labels(path="{tmp_path}/{spec})', federation=clean)
        assert np.array_equal(federation.given, worse) and np.array_equal(federation.true, clean.true)
        assert federation.noise_transition is None and summary(federation)["requested_share"] is None
        assert federation.noise_client_level.tolist() == [1, 1]
    refuse_call("one of aggre_label, clean_label, worse_label", noisy, f'labels(path="{tmp_path}/human.pt")', federation=clean)
    torch.save({"clean_label": clean.true[::-1].copy(), "worse_label": worse}, tmp_path / "human.pt")
    refuse_call("another order", noisy, f'labels(path="{tmp_path}/human.pt", key=worse_label)', federation=clean)
    np.save(tmp_path / "l.npy", worse + 1)
    refuse_call("labels run from 1 to 10, not 0 to 9", noisy, f'labels(path="{tmp_path}/l.npy")', federation=clean)
    np.save(tmp_path / "l.npy", worse[:-1])
    refuse_call("a whole number for each of 60 training samples", noisy, f'labels(path="{tmp_path}/l.npy")', federation=clean)


def test_noise_on_noise_adds_up():
    once = noisy("symmetric(eta=0.2)", federation=fed(4, 5000))
    once.extra["estimate_client_level"], once.extra["future"] = np.zeros(4), np.ones(2)
    twice = noisy("pairflip(eta=0.3)", federation=once)
    assert np.array_equal(twice.true, once.true) and [step["seed"] for step in twice.meta["noise"]] == [0, 0]
    np.testing.assert_allclose(
        twice.noise_transition, matrices.symmetric(10, 0.2) @ matrices.map_classes((np.arange(10) + 1) % 10, 0.3)
    )
    assert summary(twice)["transition_error"] < 0.02
    # Judgments of the old labels do not survive, arrays of a later version do.
    assert "estimate_client_level" not in twice.extra and "future" in twice.extra
    # With one stream for both, equal seeds would corrupt the same samples again.
    again = noisy("symmetric(eta=0.2)", federation=once)
    assert abs((again.given != again.true).mean() - summary(again)["requested_share"]) < 0.02


def test_noise_without_known_true_labels():
    federation = fed()
    federation.true = None
    kept = noisy("none", federation=federation)
    assert kept.true is None and kept.noise_client_level is None and summary(kept)["wrong_share"] is None
    Federation.read(packed(kept))


def test_noise_treats_undeclared_labels_as_true_with_a_warning():
    federation = fed()
    federation.true = None
    once = noisy("symmetric(eta=0.4)", federation=federation)
    assert (once.true == federation.given).all() and once.meta["truth"] == "the labels before the noise"
    assert once.noise_client_level == pytest.approx(once.wrong_share()) and abs(summary(once)["wrong_share"] - 0.4) < 0.05
    twice = noisy("pairflip(eta=0.1)", federation=once, seed=3)
    assert (twice.true == federation.given).all()  # of the first noise, not of the second


def mine(ground, *, share=0.5):
    """A model of the user's."""
    return Corruption((ground.labels + (ground.rng().random(len(ground.labels)) < share)) % ground.classes)


def wrong(ground):
    return ground.labels


def zeros(ground):
    """A model that changes labels in place."""
    ground.labels[:] = 0
    return Corruption(ground.labels)


@pytest.mark.parametrize(
    "change", [lambda y: y[:3], lambda y: y + 99, lambda y: y - 99, lambda y: y + 0.5, lambda y: y[:, None]]
)
def test_labels_of_a_users_model_are_checked(change, monkeypatch):
    name, before = "tests.simulate.noise.test_noise:zeros", fed()
    assert before.given.any() and inject(before, name, seed=0).noise_client_level.mean() == pytest.approx(
        before.given.astype(bool).mean(), abs=0.05
    )
    assert before.given.any()
    monkeypatch.setattr(f"{__name__}.zeros", lambda ground: Corruption(change(ground.labels)))
    refuse_call("returned .*; expected .* whole numbers from 0 to 9", inject, fed(), name, seed=0)


def test_models_of_the_user():
    assert abs((noisy("tests.simulate.noise.test_noise:mine").noise_client_level).mean() - 0.5) < 0.05
    refuse_call("expected fnlkit.simulate.noise.Corruption", noisy, "tests.simulate.noise.test_noise:wrong")
    assert "clients" in MODELS


@pytest.mark.parametrize(("spec", "message"), [
    ("clients(rho=2)", "'rho' is 2.0"),
    ("sparse(level=0.95)", "keeps every class learnable; lower level or sparsity"),
    ("sparse(noisy_share=0.5)", "go with per_client=true"),
    ("labels", "needs 'path'"),
    ('labels(path="nowhere.npy")', "nowhere.npy: no such file"),
])  # fmt: skip
def test_errors_name_a_remedy(spec, message):
    refuse_call(message, noisy, spec)
