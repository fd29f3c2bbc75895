"""Noise estimators on digits with known noise, on ugly federations, against naive twins and outputs of public code."""

from functools import cache

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets, partition
from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import InputError
from fnlkit.estimators import ESTIMATORS, aum, estimate
from fnlkit.estimators.anchor import true_posterior
from fnlkit.estimators.confident import judge_probabilities
from fnlkit.estimators.folds import fold_of, without
from fnlkit.estimators.intervals import bootstrap, wilson
from fnlkit.estimators.judgment import add_judgment, compare
from fnlkit.estimators.knn import neighbors_for, share_by_order
from fnlkit.estimators.loss import upper_probability
from fnlkit.kernels.scores import anchor_transition, auc
from fnlkit.pipeline.inputs import read_inputs
from fnlkit.simulate import noise, partitioning
from tests import naive
from tests.commands import refuse_call

CLIENTS = 12


@cache
def digits():
    return datasets.load("digits")


@cache
def noisy(model="clients(rho=0.6, tau=0.4)"):
    return noise.inject(partitioning.federation(digits(), clients=CLIENTS, seed=0), model, seed=0)


def found(federation, spec, rounds=1, **options):
    warm_up = {"rounds": rounds, "epochs": 3, "lr": 0.1}
    return estimate(federation, digits(), spec, seed=0, warm_up=warm_up, engine="fused", **options)


@cache
def on_digits(spec, model="clients(rho=0.6, tau=0.4)"):
    federation = add_judgment(noisy(model), found(noisy(model), spec, rounds=8))
    return federation, compare(federation)


def check(federation, arrays):
    """Hold the promises that every estimator makes."""
    n, clients, classes = len(federation.given), len(federation), federation.classes
    for name in ("level", "level_low", "level_high", "score"):
        values = arrays[f"estimate_client_{name}"]
        assert values.shape == (clients,) and values.dtype == float
    low, level, high = (arrays[f"estimate_client_level{name}"] for name in ("_low", "", "_high"))
    assert (0 <= low).all() and (low <= level).all() and (level <= high).all() and (high <= 1).all()
    for name, shape in (("transition", (classes, classes)), ("client_transition", (clients, classes, classes))):
        T = arrays.get(f"estimate_{name}", np.ones((1, 1)))
        assert T.shape in (shape, (1, 1)) and (T >= 0).all() and np.allclose(T.sum(-1), 1)
    issue, flagged = arrays["estimate_issue_score"], arrays["estimate_flagged"]
    assert issue.shape == (n,) and flagged.dtype == bool and (0 <= issue).all() and (issue <= 1).all()
    suggested = arrays["estimate_suggested_label"]
    assert suggested.dtype == np.int64 and (0 <= suggested).all() and (suggested < classes).all()
    assert (suggested == federation.given)[~flagged].all()
    outside = np.setdiff1d(np.arange(n), federation.client_indices)
    assert not issue[outside].any() and not flagged[outside].any()
    assert all(np.isfinite(values).all() for values in arrays.values())
    Federation.from_artifact(add_judgment(federation, arrays).to_artifact())


# What these runs reach with some room; energy judges clients, not samples (FedLN, Section 4.2).
BOUNDS = {
    "knn": (0.90, 0.99, 0.20),
    "knn(across=true)": (0.98, 0.99, 0.10),
    "confident": (0.97, 0.99, 0.06),
    "confident(by=sample)": (0.97, 0.99, 0.06),
    "lid": (0.93, 0.95, 0.15),
    "loss": (0.97, 0.99, 0.15),
    "energy": (0.60, 0.90, 0.40),
    "anchor": (0.95, 0.99, 0.25),
    "aum": (0.78, 0.95, 0.25),
    "fedsums": (0.90, 0.95, 0.10),
}


# Cross-validation trains five models: without --slow, it runs once on digits and otherwise on a few samples.
@pytest.mark.parametrize(
    "spec", [pytest.param(spec, marks=pytest.mark.slow if spec == "confident(by=sample)" else ()) for spec in BOUNDS]
)
def test_finds_noise_on_digits(spec):
    federation, facts = on_digits(spec)
    check(federation, {name: values for name, values in federation.extra.items() if name.startswith("estimate_")})
    samples, clients, level = BOUNDS[spec]
    assert facts["sample_auc"] > samples and facts["client_auc"] > clients and facts["level_error"] < level, facts
    assert facts["transition_cosine"] > 0.9


@pytest.mark.parametrize(("spec", "most"), [
    ("knn(across=true)", 0.1), ("loss", 0.1), ("anchor", 0.02), pytest.param("confident", 0.04, marks=pytest.mark.slow),
])  # fmt: skip
def test_without_noise_the_level_is_low(spec, most):
    federation, facts = on_digits(spec, "none")
    assert facts["level_estimated"] < most and facts["sample_auc"] is None and facts["flag_recall"] is None
    assert facts["suggested_accuracy"] > 0.9


def test_true_labels_are_never_looked_at():
    blind = Federation(**{**noisy().__dict__, "true": None, "noise_client_level": None})
    for name in ("knn", "loss"):
        assert (found(blind, name, rounds=8)["estimate_issue_score"] == on_digits(name)[0].extra["estimate_issue_score"]).all()


# ---- ugly federations
def federation_of(parts, given=None):
    given = digits().y_train.copy() if given is None else given
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts])])
    return Federation("digits", 10, offsets, np.concatenate(parts), given, true=digits().y_train.copy())


def ugly():
    """One sample, two samples, one class, fewer than k, and one ordinary client; most samples belong to nobody."""
    zeros = np.flatnonzero(digits().y_train == 0)
    rest = np.setdiff1d(np.arange(len(digits().y_train)), zeros)
    return federation_of([rest[:1], rest[1:3], zeros[:30], rest[3:10], rest[10:120]])


@pytest.mark.parametrize("spec", [*ESTIMATORS, "knn(k=109)", "confident(folds=50)", "confident(by=sample)"])
def test_small_and_one_sided_clients(spec):
    """Also, the same seed gives the same bytes."""
    once = found(ugly(), spec)
    check(ugly(), once)
    if spec in ESTIMATORS:
        for key, values in found(ugly(), spec).items():
            assert values.tobytes() == once[key].tobytes(), key


@pytest.mark.parametrize("spec", ["knn", "confident", "loss", "energy", "anchor", "lid"])
def test_a_single_client_and_equal_labels(spec):
    one = federation_of([np.arange(40)])
    check(one, found(one, spec))
    same = federation_of([np.arange(20), np.arange(20, 50)], np.zeros_like(digits().y_train))
    check(same, found(same, spec))


def test_one_sample_in_all_cannot_be_cross_validated():
    refuse_call("at least 2 samples", found, federation_of([np.arange(1)]), "confident")


# ---- knn


@pytest.mark.parametrize("k", [1, 7, 32])
def test_knn_equals_its_naive_twin(k):
    rng = np.random.default_rng(0)
    given, points = rng.integers(0, 3, 60), rng.normal(size=(60, 4))
    parts = np.split(rng.permutation(60)[:55], [1, 3, 20, 22])
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts])])
    federation = Federation("toy", 3, offsets, np.concatenate(parts), given)
    out = estimate(federation, None, f"knn(k={k}, ties=lowest)", embeddings=points)
    flagged = np.zeros(60, bool)
    for client, part in enumerate(parts):
        votes, shares = naive.knn(points[part], given[part], 3, k, False, np.full(len(part), -1.0))
        np.testing.assert_allclose(out["estimate_issue_score"][part], shares, atol=1e-12)
        assert (out["estimate_suggested_label"][part] == votes).all()
        flagged[part] = votes != given[part]
        assert out["estimate_client_level"][client] == pytest.approx(flagged[part].mean())
    assert (out["estimate_flagged"] == flagged).all()


def test_neighbors_grow_with_the_client():
    # FedLN's 100 at its 1,667 samples in ten classes; never fewer than 5, never more than 100.
    assert neighbors_for([1667, 72, 500, 10**6], 10).tolist() == [100, 5, 30, 100]


def test_knn_equals_the_authors_code():
    golden = naive.golden("fedln")
    points, labels = golden["knn_features"], golden["knn_labels"]
    federation = Federation("toy", 10, np.array([0, len(labels)]), np.arange(len(labels)), labels)
    for k in (1, 5, 10, 100):
        out = estimate(federation, None, f"knn(k={k}, include_self=true, ties=lowest)", embeddings=points)
        assert (out["estimate_suggested_label"] == golden[f"knn_k{k}_pred"]).all()
        assert out["estimate_client_level"][0] == pytest.approx(golden[f"knn_k{k}_est"])


# ---- confident learning
def naive_level(probabilities, labels):
    """Return the off-diagonal share of the joint of one client, in plain loops (Northcutt 2021, eqs. 1 to 3)."""
    counts = naive.count_matrix(probabilities, labels, naive.class_thresholds(probabilities, labels), least_diagonal=0)
    overall = 1 - counts.trace() / max(counts.sum(), 1)
    wrong = 0.0
    for j in range(len(counts)):
        column = counts[:, j].sum()
        wrong += np.sum(labels == j) * (1 - counts[j, j] / column if column else overall)
    return wrong / len(labels)


def test_confident_equals_its_naive_twin():
    rng = np.random.default_rng(1)
    sizes = [1, 4, 40, 70]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    probabilities, labels = rng.dirichlet(np.ones(4), sum(sizes)), rng.integers(0, 4, sum(sizes))
    out = judge_probabilities(probabilities, labels, offsets)
    for k, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        assert out.level[k] == pytest.approx(naive_level(probabilities[a:b], labels[a:b])), k


def test_confident_recovers_a_known_transition():
    """Probabilities that name the true class: counts are the true joint, so that T is the achieved one exactly."""
    rng = np.random.default_rng(2)
    true = rng.integers(0, 3, 900)
    given = np.where(rng.random(900) < 0.3, rng.integers(0, 3, 900), true)
    probabilities = np.eye(3)[true] * 0.94 + 0.02
    offsets = np.array([0, 400, 900])
    out = judge_probabilities(probabilities, given, offsets)
    counts = np.array([[np.sum((true == i) & (given == j)) for j in range(3)] for i in range(3)])
    np.testing.assert_allclose(out.transition, counts / counts.sum(1, keepdims=True), atol=1e-12)
    wrong = [np.mean((true != given)[a:b]) for a, b in ((0, 400), (400, 900))]
    np.testing.assert_allclose(out.level, wrong, atol=1e-12)
    assert ((out.guess == true) & (out.flagged == (true != given))).all()


@pytest.mark.parametrize("by", ["client", "sample"])
@pytest.mark.parametrize("sizes", [[5], [1, 1], [3, 40, 1, 7]])
def test_every_fold_leaves_something_to_train_on(by, sizes):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    fold = fold_of(offsets, 4, by, seed=0)
    assert set(fold) == set(range(fold.max() + 1)) and fold.max() >= 1
    whole = federation_of(np.split(np.arange(sum(sizes)), offsets[1:-1]))
    for each in set(fold):
        part = without(whole, fold == each)
        part.check()
        assert sorted(part.client_indices) == np.flatnonzero(fold != each).tolist()


# ---- loss, anchor, intervals
def test_the_posterior_never_falls_with_the_loss():
    values = np.linspace(-5, 10, 200)
    p = upper_probability(values, np.array([0.0, 3.0]), np.array([0.01, 4.0]), np.array([0.7, 0.3]))
    assert (np.diff(p) >= 0).all() and p[0] < 0.1 and p[-1] > 0.9


def test_anchor_transition_by_hand():
    # Sorted p_0: .1 .2 .6 .9; percentile 60 is at position 1.8, so the next higher, .6, is the anchor of class 0.
    # Sorted p_1: .1 .4 .8 .9; the anchor of class 1 has p_1 = .8.
    p = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.1, 0.9]])
    np.testing.assert_allclose(anchor_transition(p, percentile=60), [[0.6, 0.4], [0.2, 0.8]])
    np.testing.assert_allclose(anchor_transition(p, percentile=60, average=True), [[0.75, 0.25], [0.15, 0.85]])


def test_bayes_rule_by_hand():
    # p(given) = (.8, .2) is the row of true class 0: true = (1, 0), whatever the label says.
    T = np.array([[0.8, 0.2], [0.3, 0.7]])
    np.testing.assert_allclose(true_posterior(np.array([[0.8, 0.2]] * 2), np.array([0, 1]), T), [[1, 0]] * 2, atol=0.01)


def test_wilson_covers_and_stays_inside():
    rng = np.random.default_rng(0)
    for share in (0.0, 0.03, 0.3, 0.97, 1.0):
        low, high = wilson(rng.binomial(40, share, 4000), 40)
        assert (low >= 0).all() and (high <= 1).all()
        assert np.mean((low <= share) & (share <= high)) > 0.92
    assert [float(v) for v in wilson(0, 0)] == [0.0, 1.0]


def test_the_bootstrap_is_the_binomial_one_for_a_share():
    cells = np.array([[70, 30], [1, 0], [0, 0]])
    low, high = bootstrap(cells, lambda c: c[..., 1] / np.maximum(c.sum(-1), 1), seed=0)
    assert abs(low[0] - 0.21) < 0.02 and abs(high[0] - 0.39) < 0.02
    assert (low[1], low[2], high[2]) == (0, 0, 1) and high[1] == wilson(0, 1)[1]  # one right label excludes no wrong one


# ---- against the truth, and applying it
def test_auc_counts_ties_half():
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 5, 80), rng.random(80) < 0.4
    naive = np.mean([(a > b) + 0.5 * (a == b) for a in scores[positive] for b in scores[~positive]])
    assert auc(scores, positive) == pytest.approx(naive)
    assert auc(scores, np.zeros(80, bool)) is None


def test_a_perfect_judgment_has_no_error():
    f, held = noisy(), noisy().client_indices
    wrong, sizes = f.given != f.true, np.diff(f.client_offsets)
    level = f.wrong_share()
    counts = np.bincount(f.true[held] * 10 + f.given[held], minlength=100).reshape(10, 10)
    arrays = {
        "client_level": level, "client_level_low": level, "client_level_high": level, "client_score": level,
        "transition": counts / counts.sum(1, keepdims=True), "issue_score": wrong * 1.0, "flagged": wrong,
        "suggested_label": f.true,
    }  # fmt: skip
    facts = compare(add_judgment(f, {f"estimate_{name}": v for name, v in arrays.items()}))
    for name in ("sample_auc", "client_auc", "level_coverage", "flag_precision", "flag_recall", "suggested_accuracy"):
        assert facts[name] == 1, name
    assert facts["level_error"] == 0 and facts["transition_cosine"] == pytest.approx(1) and sizes.sum() == len(held)
    assert facts["transition_error"] == pytest.approx(0)
    assert compare(f) == {}


def test_relabeling_keeps_received_labels():
    f = noisy()
    before, arrays = f.given.copy(), found(f, "knn")
    out = add_judgment(f, arrays, relabel=True)
    assert (f.given == before).all() and (out.extra["received"] == before).all()
    assert (out.given == arrays["estimate_suggested_label"]).all() and (out.given != before).any()
    assert (out.noise_client_level == out.wrong_share()).all()
    # The errors are those of the labels that were judged, before and after applying.
    assert compare(out) == compare(add_judgment(f, arrays))
    again = add_judgment(out, found(out, "knn"), relabel=True)
    assert (again.extra["received"] == before).all()
    assert (again.extra["estimate_judged_label"] == out.given).all()


def test_a_new_judgment_replaces_the_old_one():
    arrays = {**found(noisy(), "knn"), "estimate_of_long_ago": np.zeros(3)}
    out = add_judgment(add_judgment(noisy(), arrays), found(noisy(), "knn"))
    assert "estimate_of_long_ago" not in out.extra


# ---- mistakes
@pytest.mark.parametrize(("spec", "options", "says"), [
    ("knn", {"probabilities": np.full((1438, 10), 0.1)}, "`probabilities`: knn does not use it"),
    ("confident", {"embeddings": np.zeros((1438, 2))}, "`embeddings`: confident does not use it"),
    ("knn", {"embeddings": np.zeros((1437, 2))}, "`embeddings` has 1,437 rows, the federation 1,438"),
    ("knn", {"embeddings": np.full((1438, 2), np.nan)}, "no finite row for sample"),
    ("confident", {"probabilities": np.full((1438, 9), 1 / 9)}, "has 9 columns; expected 10"),
    ("loss", {"probabilities": np.full((1438, 10), 0.3)}, "are they logits?"),
])  # fmt: skip
def test_invalid_parameters_are_refused(spec, options, says):
    with pytest.raises(InputError) as error:
        found(noisy(), spec, **options)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_another_data_set_is_refused():
    small = Federation("digits", 10, np.array([0, 3]), np.arange(3), np.arange(3))
    refuse_call("labels 3 samples but digits has 1,438", found, small, "knn")
    refuse_call("no clients yet", found, partitioning.empty(digits()), "knn")


@pytest.mark.parametrize("form", ["pooled", "federated"])
def test_copies_of_samples_decide_no_lid_score(form, tmp_path):
    """30 of 120 samples of the first client are equal, with random labels; they decide the paper's mean over all samples."""
    rng = np.random.default_rng(1)
    x, y = np.array(digits().x_train)[:1200], np.array(digits().y_train)[:1200]
    x[:30], y[:30] = x[0], rng.integers(0, 10, 30)
    site = np.repeat([f"s{i}" for i in range(10)], 120)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=digits().x_test, y_test=digits().y_test, site_train=site)
    federation = fnlkit.partition(str(tmp_path / "d.npz"), "sites", labels="observed", holdout=0, say=None)
    notes, options = [], {"seed": 1, "rounds": 5, "model": "mlp(hidden=[64])", "form": form}
    once = fnlkit.estimate_noise(federation, "lid", say=notes.append, **options).extra["estimate_client_score"]
    each = fnlkit.estimate_noise(federation, "lid(copies=each)", say=None, **options).extra["estimate_client_score"]
    assert each[0] > 1000 * each[1:].max() and once[0] < 3 * once[1:].max() and np.allclose(once[1:], each[1:], rtol=1e-9)
    assert any("lid: 29 predictions of 1 clients" in note for note in notes)


@pytest.mark.parametrize("count", [1, 2, 30])
def test_whole_groups_get_the_additional_class_of_aum(monkeypatch, count):
    seen, rng = [], np.random.default_rng(0)
    groups = np.arange(90) % count
    monkeypatch.setattr(aum, "_train", lambda x, labels, *rest: (seen.append(labels), (np.zeros(90), np.zeros((90, 4))))[1])
    margin, guess, _ = aum.margins(rng.normal(size=(90, 2)), rng.integers(0, 3, 90), 3, np.random.default_rng(1), groups=groups)
    assert len(seen) == (2 if count > 1 else 0) and margin.shape == guess.shape == (90,)
    for labels in seen:
        additional = np.unique(groups[labels == 3])
        assert 1 <= len(additional) < count and (labels[np.isin(groups, additional)] == 3).all()


# ---- neighbor votes that depend on the order of rows are noted
def test_votes_that_depend_on_the_order_of_rows_are_counted():
    """Binary values have many equal distances; Gaussian values have none."""
    rng = np.random.default_rng(0)
    labels, offsets = rng.integers(0, 3, 300), np.array([0, 100, 300])
    settings = {"classes": 3, "seed": 0, "include_self": False, "ties": "random", "groups": None}
    fine, coarse = rng.normal(size=(300, 6)), rng.integers(0, 2, (300, 6)).astype(float)
    assert share_by_order(fine, labels, offsets, 7, settings) == 0
    share = share_by_order(coarse, labels, offsets, 7, settings)
    assert share > 0.2 and share == share_by_order(coarse, labels, offsets, 7, settings)
    assert share_by_order(coarse, labels, offsets, 7, settings | {"groups": np.arange(300)}) == share


# ---- probabilities of a model with more classes than a federation has labels of: arrays, npz, csv, and refused input
@pytest.fixture
def fed(tmp_path):
    """A federation of two sites with 40 labels of the classes 0, 2 and 4."""
    rows = [f"{i},{i % 7},{'ab'[i % 2]},{2 * (i % 3)}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["id,x,site,label", *rows]), encoding="utf-8")
    return partition(tmp_path / "t.csv", scheme="sites", holdout=0, say=None)


def probabilities(n, columns, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(columns), n)


def test_columns_of_classes_without_labels_are_left_out_on_all_routes(fed, tmp_path):
    n, classes = len(fed.given), fed.classes
    wide = probabilities(n, 2 * classes)
    expected = wide[:, ::2] / wide[:, ::2].sum(1, keepdims=True)
    np.save(tmp_path / "p.npy", wide)
    np.savez(tmp_path / "p.npz", probabilities=wide[:, ::-1], class_names=np.arange(2 * classes)[::-1].astype(str))
    header = ",".join(map(str, range(2 * classes)))
    np.savetxt(tmp_path / "p.csv", wide, delimiter=",", header=header, comments="", fmt="%.17g")
    for value in (wide, tmp_path / "p.npy", tmp_path / "p.npz", tmp_path / "p.csv"):
        lines = []
        rows = read_inputs(fed, probabilities=value, say=lines.append).probabilities
        np.testing.assert_allclose(rows, expected, rtol=1e-12)
        (line,) = lines
        assert sorted(line.split("class ")[1].split(";")[0].split(", ")) == [str(2 * k + 1) for k in range(classes)]


def test_a_row_without_probability_for_the_labels_becomes_uniform(fed):
    wide = np.zeros((len(fed.given), 6))
    wide[:, 5] = 1
    rows = read_inputs(fed, probabilities=wide).probabilities
    np.testing.assert_allclose(rows, 1 / fed.classes)


def test_columns_that_cannot_be_assigned_are_refused(fed):
    wide = probabilities(len(fed.given), 6)
    refuse_call("row 1 sums to", lambda: read_inputs(fed, probabilities=2 * wide).probabilities)
    refuse_call("has labels of", lambda: read_inputs(fed, probabilities=wide[:, : fed.classes - 1]).probabilities)
    fed.meta["class_names"] = [f"class {k}" for k in range(fed.classes)]
    refuse_call("name the columns", lambda: read_inputs(fed, probabilities=wide).probabilities)


@pytest.mark.parametrize("spec", ["energy", "lid"])
def test_a_warm_up_does_not_continue_a_run_of_two_networks(spec):
    pair = fnlkit.train(noisy(), method="coteaching", rounds=1, epochs=1, batch_size=100, engine="fused", say=None)
    refuse_call("^`run` is of coteaching, which trains several networks", found, noisy(), spec, run=pair)
