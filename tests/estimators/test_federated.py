"""The federated form of every estimator gives the pooled form's numbers, sends what it declares, and no sample."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.core.declarations import declaration
from fnlkit.core.spec import bind, find, parse
from fnlkit.estimators import ESTIMATORS, federated, folds, intervals, likelihood, run_estimator, warmup
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.judgment import add_judgment, compare
from fnlkit.experiment import Experiment, Settings
from fnlkit.kernels.scores import auc
from fnlkit.methods.fedsums import SENDS
from fnlkit.simulate import noise, partitioning
from tests.commands import fnlkit, refuse_call, succeed

WARM_UP = {"rounds": 2, "epochs": 2, "batch_size": 30, "lr": 0.1, "precision": "fp64", "model": "mlp(hidden=8)"}
# EstimatorInputs beside the labels: none (a warm-up where one is needed), rows of a file, a run.
CASES = [
    ("knn", ""), ("knn(k=7, ties=lowest)", "embeddings"), ("knn(include_self=true)", ""),
    ("confident", ""), ("confident(by=sample, folds=2, thresholds=pooled)", ""),
    ("confident", "probabilities"), ("confident", "run"),
    ("loss", ""), ("loss(scope=client)", "probabilities"), ("loss", "run"),
    ("energy", ""), ("energy(side=above, score=softmax)", "run"),
    ("lid", ""),
    ("anchor", ""), ("anchor(average=true)", "probabilities"), ("anchor(percentile=100)", "probabilities"), ("anchor", "run"),
    ("em(folds=2)", ""), ("em(by=sample, folds=2)", ""), ("em", "probabilities"), ("em", "run"),
    ("aum", ""), ("aum(epochs=5)", "embeddings"),
]  # fmt: skip


@cache
def world():
    """Return (federation, digits): six clients of very different size, one of a single sample and one of one class."""
    data = datasets.load("digits")
    held = np.random.default_rng(1).permutation(len(data.y_train))[:300]
    zeros = np.flatnonzero(data.y_train == 0)
    held = np.setdiff1d(held, zeros, assume_unique=True)
    parts = [held[:1], zeros[:20], held[1:31], held[31:80], held[80:180], held[180:240]]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    federation = Federation("digits", 10, offsets, np.concatenate(parts), data.y_train, true=data.y_train)
    return noise.inject(federation, "clients(rho=0.6, tau=0.3)", seed=0), data


@cache
def rows(name):
    """Return evidence: probabilities that lean to the true class, embeddings around it, or a short run."""
    federation, data = world()
    rng, size = np.random.default_rng(0), len(data.y_train)
    if name == "probabilities":
        found = np.exp(2 * np.eye(10)[data.y_train] + rng.normal(size=(size, 10)))
        return found / found.sum(1, keepdims=True)
    if name == "embeddings":
        return rng.normal(size=(size, 5)) + data.y_train[:, None]
    return Experiment(federation, data, Settings(fraction=1.0, eval_every=99, **WARM_UP), engine="sequential").run()


def same(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_allclose(other[name], values, rtol=0, atol=1e-9, err_msg=name)


@cache
def pooled(spec, given):
    options = {given: rows(given)} if given else {}
    return run_estimator(*world(), spec, warm_up=WARM_UP, engine="sequential", **options)


def in_both_forms(*world, **options):
    """Return the arrays of the pooled form, which equal those of the federated form, whose facts are returned too."""
    (arrays, _), (asked, facts) = (
        run_estimator(*world, form=form, engine="sequential", **options) for form in ("pooled", "federated")
    )
    same(arrays, asked)
    return arrays, facts


@pytest.mark.parametrize(("spec", "given"), CASES)
def test_both_forms_give_the_same_numbers(spec, given):
    arrays, facts = pooled(spec, given)
    same(arrays, asked(spec, given)[0])
    assert {"estimator": facts["estimator"], "form": facts["form"]} == {"estimator": str(parse(spec)), "form": "pooled"}
    assert arrays["estimate_flagged"].any()  # else there would be little to compare


@pytest.mark.parametrize("spec", ["loss", "knn(k=9)"])
def test_held_out_samples_are_judged_in_both_forms(spec):
    data = world()[1]
    federation = noise.inject(partitioning.federation(data, clients=3, holdout=0.3, seed=0), "symmetric(eta=0.4)", seed=0)
    out, _ = in_both_forms(federation, data, spec, warm_up=WARM_UP | {"rounds": 1, "epochs": 1})
    apart = np.concatenate(federation.held_out)
    assert (out["estimate_issue_score"][apart] > 0).mean() > 0.9 and out["estimate_flagged"][apart].any()
    relabeled = add_judgment(federation, out, relabel=True)
    assert (relabeled.given[apart] == federation.given[apart]).all()  # a model is not measured on suggestions
    assert (relabeled.given != federation.given).any()
    facts = compare(add_judgment(federation, out))
    assert facts["level_true"] == pytest.approx((federation.given != federation.true).mean())  # of all, not of 70 %
    if spec.startswith("knn"):  # the neighbors know better than chance, of held-out samples too
        assert auc(out["estimate_issue_score"][apart], (federation.given != federation.true)[apart]) > 0.8


def with_groups(size=7):
    """Return (federation, digits) of `world` with groups of `size` samples of a client, the last one smaller."""
    federation, data = world()
    group = np.arange(len(data.y_train)) + 10_000
    for k, part in enumerate(federation.clients):
        group[part] = 100 * k + np.arange(len(part)) // size
    return replace(federation, extra={**federation.extra, "group": group}), data


@pytest.mark.parametrize(
    ("spec", "given"),
    [("knn", ""), ("confident(by=sample, folds=2)", ""), ("em", "probabilities"), ("aum", ""), ("anchor", "probabilities"),
     ("loss", "probabilities")],
)  # fmt: skip
def test_groups_are_used_in_both_forms_and_widen_the_intervals(spec, given):
    together, _ = in_both_forms(*with_groups(), spec, warm_up=WARM_UP, **({given: rows(given)} if given else {}))
    width, before = (
        np.mean(each["estimate_client_level_high"][3:] - each["estimate_client_level_low"][3:])
        for each in (together, pooled(spec, given)[0])
    )
    assert width > 1.3 * before or spec.startswith("em")  # seven samples count as one; `em` draws groups, which differ here


def test_the_interval_is_that_of_the_groups_as_samples():
    size = 7
    evidence = EstimatorInputs(*with_groups(size))
    sizes = np.diff(evidence.offsets)
    whole, rest = np.divmod(sizes, size)
    assert evidence.independence * sizes == pytest.approx(sizes**2 / (whole * size**2 + rest**2))
    low, high = evidence.interval(np.round(sizes / 3))
    share = np.round(sizes / 3) / sizes
    expected = intervals.wilson(share[4] * evidence.independence[4] * 100, evidence.independence[4] * 100)
    assert np.allclose((low[4], high[4]), expected)


@pytest.fixture(params=["heads", "networks"])
def trained_on(request, monkeypatch):
    """Return a function that returns the positions of the samples that each model of an estimator learns from."""

    def judge(federation, data, spec):
        positions, networks, heads = [], warmup.train_warmup, folds.compute_head

        def train(evidence, **how):
            positions.append(how["federation"].client_indices)
            return networks(evidence, **how)

        def solve(method, session, model):
            positions.append(np.concatenate([block.positions for block in session.blocks]))
            return heads(method, session, model)

        monkeypatch.setattr(*((folds, "compute_head", solve) if request.param == "heads" else (warmup, "train_warmup", train)))
        options = {} if request.param == "heads" else {"warm_up": WARM_UP | {"rounds": 1, "epochs": 1}, "engine": "sequential"}
        run_estimator(federation, data, spec, **options)
        assert positions
        return positions

    return judge


@pytest.mark.parametrize("spec", ["confident(by=sample, folds=2)", "em(by=sample, folds=2)", "confident(folds=2)"])
def test_no_cross_validated_model_trains_on_a_group_that_it_judges(spec, trained_on):
    federation, data = with_groups()
    group = federation.extra["group"]
    for positions in trained_on(federation, data, spec):
        judged = np.setdiff1d(federation.client_indices, positions)
        assert len(judged) and not np.intersect1d(group[judged], group[positions]).size


def test_the_votes_of_a_group_do_not_hide_its_wrong_labels():
    """Four copies of each sample with equal labels: without groups, wrong labels confirm each other."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, 60)
    given = np.where(rng.random(60) < 0.2, 1 - true, true)
    points = np.repeat(np.stack([true + 0.4 * rng.normal(size=60), rng.normal(size=60)], 1), 4, 0)
    points += 0.01 * rng.normal(size=points.shape)
    labels, groups, every = np.repeat(given, 4), np.repeat(np.arange(60), 4), np.arange(240)
    plain = Federation("x", 2, np.array([0, 240]), every, labels)
    levels = []
    for extra in ({}, {"group": groups}):
        judged, _ = run_estimator(replace(plain, extra=extra), None, "knn(k=3)", embeddings=points)
        levels.append(judged["estimate_client_level"][0])
    wrong = np.mean(given != true)
    assert levels[0] == 0 and abs(levels[1] - wrong) < 0.15


def test_no_cross_validated_model_trains_on_samples_that_are_held_out(trained_on):
    federation = partitioning.federation(world()[1], clients=3, holdout=0.3, seed=0)
    seen = trained_on(federation, world()[1], "confident(folds=3)")
    apart = np.concatenate(federation.held_out)
    assert len(seen) == 3 and not any(np.isin(apart, positions).any() for positions in seen)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Return (federation, data set) of vectors whose features have different scales, and differ from client to client."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("vectors") / "v.npz"
    y = np.repeat(np.arange(3), 40)
    x = rng.normal(size=(120, 4)) * [1, 10, 100, 0.1] + y[:, None] * [3, 0, 200, 0] + 5
    np.savez(path, x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    data = datasets.load(str(path))
    return noise.inject(partitioning.federation(data, clients=4, seed=0), "symmetric(eta=0.3)", seed=0), data


@pytest.mark.parametrize("spec", ["em(folds=2)", "confident(by=sample, folds=2)"])
def test_vectors_are_scaled_in_each_fold_as_its_model_was_trained(spec, vectors):
    _, facts = in_both_forms(*vectors, spec, warm_up=WARM_UP)
    assert facts["form"] == "federated" and facts["bytes_down"] > 0
    assert facts["sent"]["moments"]["bytes"] % (8 + 16 * 4) == 0


@pytest.mark.parametrize("spec", ["em", "em(by=sample, folds=2)", "confident", "confident(folds=2, thresholds=pooled)"])
@pytest.mark.parametrize("of", ["vectors", "digits"])
def test_heads_give_the_same_numbers_in_both_forms_and_send_sums(spec, of, vectors):
    arrays, facts = {}, {}
    for form in ("pooled", "federated"):
        arrays[form], facts[form] = run_estimator(*(vectors if of == "vectors" else world()), spec, form=form)
    same(arrays["pooled"], arrays["federated"])
    sent, names = facts["federated"]["sent"], {f"head_{name}" for name in SENDS}
    assert facts["pooled"]["training"] == {"method": "fedsums"}
    assert (
        names <= sent.keys() <= names | declaration(find(parse(spec).name, ESTIMATORS, "estimator")).sends.keys() | {"moments"}
    )
    assert all("a single reply reveals samples" in sent[name]["what"] for name in names)
    if of == "vectors":  # clients that keep samples, over all folds
        replies = {"em": 12, "em(by=sample, folds=2)": 8, "confident": 12}.get(spec, 4)
        assert sent["moments"]["bytes"] == replies * (8 + 16 * 4)
        assert sent["head_wide_products"]["bytes"] == replies * 8 * (5 * 6 // 2 + 305 * 306 // 2)


def test_an_option_of_a_training_an_engine_or_a_large_image_trains_networks(vectors):
    federation, data = vectors
    federation = replace(federation, meta={})
    large = replace(data, kind="image", samples=lambda: (np.zeros((120, 17, 17, 1), np.uint8), data.x_test))
    wide = replace(data, samples=lambda: (np.zeros((120, 2049), np.float32), data.x_test))
    known = [folds.heads_predict(EstimatorInputs(federation, each)) for each in (data, large, wide)]
    assert known == [True, False, False]
    for options in ({"warm_up": {"model": "auto"}}, {"engine": "sequential"}, {"device": "cpu"}):
        assert not folds.heads_predict(EstimatorInputs(federation, data, **options))


# ---- what leaves
def sends_of(name):
    return declaration(find(name, ESTIMATORS, "estimator")).sends


@cache
def asked(spec, given):
    """Return the arrays of the federated form, and its EstimatorInputs: their `replies` and `traffic`."""
    options = {given: rows(given)} if given else {}
    evidence = EstimatorInputs(*world(), form="federated", warm_up=WARM_UP, engine="sequential", **options)
    evidence.sends = sends_of(parse(spec).name)
    judgment = bind(parse(spec), find(parse(spec).name, ESTIMATORS, "estimator"), "estimator")(evidence)
    return judgment.arrays(world()[0]), evidence


@pytest.mark.parametrize(("spec", "given"), CASES)
def test_replies_have_the_declared_shape_and_the_meter_counts_them(spec, given):
    federation, data = world()
    sends, sizes = sends_of(parse(spec).name), np.diff(federation.client_offsets).tolist()
    _, evidence = asked(spec, given)
    counted = dict.fromkeys((name for said in evidence.replies for name in said), 0)
    for said in evidence.replies:
        for name, values in said.items():
            what = sends[name]
            for k, value in enumerate(values):
                value = torch.as_tensor(value)
                counted[name] += value.numel() * value.element_size()
                if "top" not in what.shape and len(values) == len(federation):
                    assert tuple(value.shape) == what.sides(classes=10, samples=sizes[k]), name
                assert str(value.dtype) == f"torch.{what.dtype}", name
    assert counted.items() <= evidence.traffic.sent.items()
    left = set(evidence.traffic.sent) - set(counted)
    assert left <= {"weights", "moments"} | {"scores_global", "scores_local", "lid", "noise_level", "left_out"} & set(sends)


@pytest.mark.parametrize(("spec", "given"), [case for case in CASES if case[1] in ("embeddings", "probabilities")])
def test_no_value_of_a_sample_leaves(spec, given):
    """Every number of every sample is a canary: none is among the replies but those that say that they are some.

    `anchor` sends its largest probabilities and, by the paper's definition, the prediction of one sample a class.
    """
    canaries = np.unique(rows(given)[world()[0].client_indices])
    for said in asked(spec, given)[1].replies:
        for name in set(said) - {"typical", "anchors"}:
            assert not any(np.isin(np.asarray(value), canaries).any() for value in said[name]), name


@pytest.mark.parametrize("name", ESTIMATORS)
def test_only_loss_and_energy_reply_a_number_per_sample(name):
    per_sample = {reply for reply, what in (sends_of(name) or {}).items() if "n" in what.shape}
    assert per_sample == {"loss": {"losses"}, "energy": {"scores_global", "scores_local"}}.get(name, set())


def send_a_sample(client, model, received):
    return {"secret": client.rows["input/probabilities"][0]}


def test_a_reply_that_is_not_declared_is_noticed():
    evidence = EstimatorInputs(*world(), form="federated", probabilities=rows("probabilities"))
    federated.with_rows(evidence, probabilities=evidence.predicted()).ask(send_a_sample)
    refuse_call("secret", federated.describe_traffic, evidence.traffic, sends_of("em"), error=AssertionError)


# ---- what has no federated form, and what is said
def test_estimators_without_a_federated_form_are_refused(tmp_path):
    refuse_call("knn.across=true. needs the embeddings", run_estimator, *world(), "knn(across=true)", form="federated")
    (tmp_path / "mine.py").write_text("def judge(evidence):\n    raise AssertionError('asked')\n")
    refuse_call("mine.py:judge.*`form='pooled'.*sends=", run_estimator, *world(), f"{tmp_path}/mine.py:judge", form="federated")
    refuse_call("`form` 'else': write pooled or federated", run_estimator, *world(), "knn", form="else")


def test_principal_components_of_all_clients_are_refused():
    federation, data = world()
    larger = replace(data, samples=lambda: (np.repeat(data.x_train, 2, 1), np.repeat(data.x_test, 2, 1)))
    federation = Federation(**{**federation.__dict__, "meta": {}})
    refuse_call("principal components of digits .*`backbone`", run_estimator, federation, larger, "knn", form="federated")


def test_the_file_records_the_form_and_the_replies(tmp_path):
    line = "fnlkit estimate-noise n.npz --estimator 'loss(scope=client)' --rounds 1 --form federated --json -o j.npz"
    done = succeed(f"fnlkit partition --clients 4 -o n.npz && {line}", tmp_path)
    facts = Federation.read(str(tmp_path / "j.npz")).meta["estimate"]
    assert facts["estimator"] == "loss(scope=client)" and facts["form"] == "federated"
    assert set(facts["sent"]) == {"weights", "moments", *sends_of("loss")} - {"losses"}
    assert facts["sent"]["flagged"]["bytes"] == 4 * 8
    assert f'"weights": {{"bytes": {facts["sent"]["weights"]["bytes"]},' in done.stdout
    shown = fnlkit("fnlkit -v info j.npz", tmp_path).stdout
    assert "loss(scope=client), federated" in shown and "mean_loss" in shown
    again = fnlkit("fnlkit estimate-noise j.npz --top 0 -o k.npz && fnlkit info k.npz --json", tmp_path)
    assert "knn, pooled" in again.stderr and '"form": "pooled"' in again.stdout


def test_an_invalid_record_of_the_form_is_refused():
    federation = Federation(**world()[0].__dict__)
    known = {"estimator": "knn", "form": "federated"}
    for wrong in (3, {}, known, known | {"sent": {"a": 1}}):
        federation.meta = {"estimate": wrong}
        refuse_call("`estimate` does not contain", federation.check)


def test_em_replies_whole_numbers_with_the_sums_of_the_labels():
    """An expected number with all digits would state the score of a sample."""
    labels = np.array([0] * 5 + [1] + [2] * 4)
    expected = np.array([[2.6, 0.3, 0.2], [1.1, 0.6, 1.4], [1.3, 0.1, 2.4]])
    counts = likelihood.in_whole_numbers({"low": 0.11, "high": 0.4, "counts": expected}, labels, 3)
    # Label 0: 2 + 1 + 1 and the largest remainder 0.6; label 1: 0.6; label 2: 0 + 1 + 2 and, of equal remainders, the first.
    np.testing.assert_array_equal(counts["counts"], [[3, 0, 0], [1, 1, 2], [1, 0, 2]])
    assert (counts["low"], counts["high"]) == (1, 4)  # 1.1 and 4.0 of 10 samples, rounded outward
    found = likelihood.estimates_of(np.array([1]), np.array([4]), counts["counts"][None])
    assert found["level"] == pytest.approx(0.4) and found["deviation"] == pytest.approx(0.3 / 3.92)
