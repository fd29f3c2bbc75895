"""Labels that are no classes: read from tables, audited by sums and counts, reviewed, corrected; refused elsewhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.tasks import audit as tasks
from fnlkit.audits.tasks import confidence, model, regression
from fnlkit.client.client_list import ClientList
from fnlkit.client.inputs import Inputs
from fnlkit.datasets.targets import value_of, words
from fnlkit.errors import InputError
from fnlkit.estimators.federated import ClientSession
from fnlkit.kernels.counting import thresholds_of
from tests.commands import refuse, succeed
from tests.tables import format_csv, parse_csv

SITES, PER_SITE = 4, 200


def write(path, columns):
    """Write columns as a CSV and return the path."""
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def table(path, seed=0, **labels):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(SITES * PER_SITE, 4)).round(4)
    columns = {"site": [f"s{i // PER_SITE}" for i in range(len(x))]} | {f"x{j}": x[:, j] for j in range(4)}
    return write(path, columns | {name: make(x, rng) for name, make in labels.items()})


def at(site):
    return np.arange(SITES * PER_SITE) // PER_SITE == site


def edema(x, rng):
    y = (x[:, 0] + 0.2 * rng.normal(size=len(x)) > 0).astype(int)
    return np.where(at(2) & (rng.random(len(x)) < 0.3), 1 - y, y)


def nodule(x, rng):
    return (x[:, 1] + 0.2 * rng.normal(size=len(x)) > 0.8).astype(int)


def dose(x, rng):
    y = 50 + 10 * x[:, 0] + 5 * np.abs(x[:, 1]) + rng.normal(size=len(x))
    return np.where(at(3) & (rng.random(len(x)) < 0.25), rng.permutation(y), y).round(3)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Federation with two label columns; 30 % of `edema` are wrong at s2."""
    path = table(tmp_path_factory.mktemp("several") / "t.csv", edema=edema, nodule=nodule)
    return fnlkit.partition(str(path), "sites", label="edema,nodule", say=None)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Federation with a number; a quarter is wrong at s3."""
    path = table(tmp_path_factory.mktemp("numbers") / "t.csv", target=dose)
    return fnlkit.partition(str(path), "sites", say=None)


def session_of(targets, predicted, sizes):
    """Return (session, exchange) of clients that hold predictions (n, 2, K)."""
    exchange = tasks.Exchange(0, tasks.SENDS)
    offsets, none = np.concatenate([[0], np.cumsum(sizes)]), np.zeros(len(targets), np.int64)
    rows = {"input/target": targets, "task/predicted": predicted}
    x = np.zeros((len(targets), 1), np.float32)
    return ClientSession(exchange, ClientList(x, offsets, np.arange(len(targets)), none, 2, Inputs(False), rows)), exchange


# ---- reading
@pytest.mark.parametrize(
    ("labels", "task"),
    [
        (np.arange(60) / 7, "regression"),
        (np.arange(60) % 5 / 2, "classification"),
        (np.arange(60) % 20, "classification"),
        (["a|b", "b", "a", "(none)"] * 15, "multilabel"),
        (["a", "b"] * 30, "classification"),
    ],
)
def test_the_kind_of_labels_is_found(tmp_path, labels, task):
    data = datasets.load(write(tmp_path / "t.csv", {"x": np.arange(60) % 7, "label": labels}))
    assert data.task == task and len(data.y_train) == 60
    assert any(task in note for note in data.notes) == (task != "classification")


def test_many_whole_numbers_need_the_users_word(tmp_path):
    path = write(tmp_path / "t.csv", {"x": np.arange(420) % 7, "label": np.arange(420) % 21})
    with pytest.raises(InputError, match="fnlkit.partition.task="):
        datasets.load(path)
    for task, kind in (("regression", "f"), ("classification", "i"), ("ordinal", "i")):
        federation = fnlkit.partition(str(path), task=task, say=None)
        assert (federation.task, federation.given.dtype.kind) == (task, kind)


def test_label_columns_and_joined_labels_are_the_same(tmp_path):
    a, b = np.arange(30) % 2, np.arange(30) % 3 // 2
    joined = ["|".join(n for n, v in (("a", p), ("b", q)) if v) or "(none)" for p, q in zip(a, b, strict=True)]
    path = write(tmp_path / "t.csv", {"x": np.arange(30) % 7, "a": a, "b": b, "both": joined})
    columns = datasets.load(f'manifest(file="{path}", label=[a, b], drop=[both])')
    one = datasets.load(f'manifest(file="{path}", label=both, drop=[a, b])')
    np.testing.assert_array_equal(columns.y_train, one.y_train)
    assert columns.columns == one.columns == ["x"] and columns.class_names == one.class_names == ["a", "b"]
    assert words("multilabel", ["a", "b"], columns.y_train) == joined


def test_rows_without_a_label_are_unlabeled(tmp_path):
    numbers = ["nan", "", *np.arange(30) / 7]
    data = datasets.load(write(tmp_path / "n.csv", {"x": np.arange(32) / 2, "label": numbers}))
    assert len(data.y_train) == 30 and len(data.unlabeled) == 2 and np.isfinite(data.y_train).all()
    path = write(tmp_path / "s.csv", {"x": [1, 2, 3, 4], "a": ["", 0, 1, 1], "b": [1, "", 0, 1]})
    data = datasets.load(f'manifest(file="{path}", label=[a, b])')
    assert data.y_train.tolist() == [[1, 0], [1, 1]] and len(data.unlabeled) == 2


@pytest.mark.parametrize(
    ("labels", "more", "named"),
    [
        ([3.5] * 30, "task=regression", "label"),
        ([*np.arange(29) / 7, "high"], "task=regression", "row 31"),
        (["0", "2"] * 15, "label=[label, x]", "label"),
        (["low", "high"] * 15, "task=ordinal", "levels"),
        (["low", "high"] * 15, "task=ordinal, levels=[low, top]", "levels"),
        (["a", "b"] * 15, "task=detection", "detection"),
        (["a", "b"] * 15, "levels=[a, b]", "levels"),
    ],
)
def test_labels_that_do_not_fit_the_task_are_refused(tmp_path, labels, more, named):
    path = write(tmp_path / "t.csv", {"x": np.arange(30) % 7, "label": labels})
    with pytest.raises(InputError, match=named):
        datasets.load(f'manifest(file="{path}", {more})')


def test_ordinal_levels_have_the_given_order(tmp_path):
    path = write(tmp_path / "t.csv", {"x": np.arange(30) % 7, "label": ["severe", "mild", "moderate"] * 10})
    data = datasets.load(f'manifest(file="{path}", task=ordinal, levels=[mild, moderate, severe])')
    assert data.class_names == ["mild", "moderate", "severe"] and data.y_train[:3].tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("task", "names", "text", "value"),
    [
        ("regression", ["y"], "2.5e1", 25.0),
        ("regression", ["y"], "inf", None),
        ("regression", ["y"], "1_0", None),
        ("multilabel", ["a", "b"], "b|a", [1, 1]),
        ("multilabel", ["a", "b"], "(none)", [0, 0]),
        ("multilabel", ["a", "b"], "c", None),
        ("multilabel", ["a", "b"], "", None),
        ("ordinal", ["1", "2"], "2", 1),
    ],
)
def test_a_typed_label(task, names, text, value):
    found = value_of(task, names, text)
    assert (None if found is None else np.asarray(found).tolist()) == value


# ---- files and refusals
def test_labels_survive_a_file(tmp_path, several, numbers):
    for federation in (several, numbers):
        fnlkit.save(federation, tmp_path / "f.npz")
        back = Federation.read(str(tmp_path / "f.npz"), (federation.task,))
        np.testing.assert_array_equal(back.given, federation.given)
        assert back.task == federation.task and back.given.dtype == federation.given.dtype


def test_commands_for_classes_refuse_other_labels_by_name(tmp_path, several, numbers):
    for federation in (several, numbers):
        fnlkit.save(federation, tmp_path / "f.npz")
        calls = ["train f.npz -o out.pt", "estimate-noise f.npz -o out.npz", "inject-noise f.npz -o out.npz"]
        for call in (*calls, "consensus f.npz v.csv -o out.npz", "plot partition f.npz -o out.png"):
            refuse(f"fnlkit {call}", tmp_path, federation.task)
        for call in (fnlkit.train, fnlkit.estimate_noise, fnlkit.inject_noise):
            with pytest.raises(InputError, match=federation.task):
                call(federation, say=None)
    assert [file.name for file in tmp_path.iterdir()] == ["f.npz"]


@pytest.mark.parametrize(
    "options",
    [{"scheme": "dirichlet(alpha=1)"}, {"labels": "true"}, {"holdout": 0.2}, {"scheme": "iid(balanced=true)"}, {"public": 0.1}],
)
def test_options_for_classes_are_refused(numbers, options):
    with pytest.raises(InputError, match="regression"):
        fnlkit.partition(numbers.dataset, say=None, **options)


def test_wrong_arrays_are_refused(several, numbers):
    for federation, given in ((several, np.full((4, 2), 2, np.int8)), (several, np.zeros(4, np.int64))):
        with pytest.raises(InputError, match="given"):
            Federation("x", 2, np.array([0]), np.array([], np.int64), given, meta=dict(federation.meta)).check()
    with pytest.raises(InputError, match="given"):
        Federation("x", 1, np.array([0]), np.array([], np.int64), np.array([1, np.nan]), meta=dict(numbers.meta)).check()
    with pytest.raises(InputError, match="task"):
        Federation("x", 2, np.array([0]), np.array([], np.int64), np.array([0, 1]), meta={"task": "other"}).check()


# ---- equal to cleanlab on pooled data
def test_multilabel_scores_equal_cleanlab_on_pooled_data():
    cleanlab = pytest.importorskip("cleanlab", reason="the comparison library is not installed")
    from cleanlab.multilabel_classification import filter as theirs
    from cleanlab.multilabel_classification import get_label_quality_scores

    rng = np.random.default_rng(3)
    y = rng.random((200, 3)) < [0.5, 0.2, 0.7]
    p = np.clip(0.6 * y + 0.2 + rng.normal(0, 0.25, y.shape), 0.01, 0.99)
    session, exchange = session_of(y.astype(float), np.stack([p, 1 - p], 1), [50, 30, 120])
    confidence.estimate(session, np.zeros((3, 3), int), "multilabel", 0)
    lists = [np.flatnonzero(row).tolist() for row in y]
    np.testing.assert_allclose(session.kept("quality"), get_label_quality_scores(lists, p), rtol=0, atol=1e-9)
    sums, numbers = (exchange.replies[0][name].sum(0).numpy() for name in ("label_sums", "label_numbers"))
    limits = thresholds_of(sums, numbers)
    issues, labels, probs = [], y.astype(int), np.stack([1 - p, p], -1)
    for j in range(3):
        theirs_of = cleanlab.count.get_confident_thresholds(labels[:, j], probs[:, j])
        np.testing.assert_allclose(limits[j], theirs_of, rtol=0, atol=1e-9)
        issues.append(cleanlab.filter.find_label_issues(labels[:, j], probs[:, j], filter_by="confident_learning"))
    np.testing.assert_array_equal(confidence.judge_labels(labels, probs, limits)[0], np.stack(issues, 1))
    ours = theirs.find_label_issues(lists, p, filter_by="confident_learning")
    np.testing.assert_array_equal(session.kept("flagged"), ours)
    assert issues[0].sum() > 3


def test_regression_scores_equal_cleanlab_on_pooled_data():
    pytest.importorskip("cleanlab", reason="the comparison library is not installed")
    from cleanlab.regression.rank import get_label_quality_scores

    rng = np.random.default_rng(4)
    y = rng.normal(size=150)
    p = y + rng.normal(0, 0.3, 150)
    y[::10] += 5
    wanted = get_label_quality_scores(y, p, method="residual")
    np.testing.assert_allclose(regression.quality(y, p), wanted, rtol=0, atol=1e-9)
    assert set(np.argsort(-regression.robust(y, p))[:15]) == set(range(0, 150, 10))


def test_one_label_is_a_problem_of_two_classes():
    p = np.array([[0.9], [0.2], [0.7]])
    labels, both = confidence.problems("multilabel", p, np.array([[1.0], [1.0], [0.0]]))
    np.testing.assert_allclose(confidence.quality(labels, both), [0.9, 0.2, 0.3])


# ---- models from sums
@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_the_federated_model_is_the_pooled_model(link):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(300, 3)).astype(np.float32) * [1, 100, 1] + [0, 1e4, 0]
    y = (x[:, :1] - (x[:, 1:2] - 1e4) / 100 > 0) * 1.0 if link == "sigmoid" else np.sin(x[:, :1])
    offsets = np.array([0, 40, 180, 300])
    members = ClientList(
        x.astype(np.float32), offsets, np.arange(300), np.zeros(300, int), 2, Inputs(False), {"input/target": y}
    )
    session, groups = ClientSession(tasks.Exchange(0, tasks.SENDS), members), np.array([0, 1, 1])
    weights, spread = model.fit(session, groups, link, 0)
    features, targets = (np.concatenate([c.rows[f"task/{n}"].numpy() for c in members]) for n in ("features", "targets"))
    np.testing.assert_allclose(spread, y.std(0), rtol=1e-9)
    penalty = np.diag([1e-6, *np.ones(features.shape[1] - 1)])
    for fold, part in ((0, slice(40, None)), (1, slice(0, 40))):
        f, t = features[part], targets[part]
        if link == "identity":
            wanted, parts = (
                np.linalg.solve(f.T @ f + penalty, f.T @ t),
                [slice(0, 140), slice(140, 260)] if fold == 0 else [slice(0, 40)],
            )
            for _ in range(model.REWEIGHTED):  # Huber's weights, with the MAD of each client
                away = np.abs(t - f @ wanted)
                mad = np.concatenate([np.full(len(away[p]), np.median(away[p])) for p in parts])[:, None]
                w = np.minimum(1, 1.345 * np.maximum(1.4826 * mad, 0.01) / away)
                wanted = np.linalg.solve((w * f).T @ f + penalty, (w * f).T @ t)
            np.testing.assert_allclose(features @ weights[fold], features @ wanted, atol=1e-9)
        else:  # at the optimum the gradient is zero
            slope = f.T @ (t - model.outputs(f @ weights[fold], link)) - penalty @ weights[fold]
            assert np.abs(slope).max() < 0.05 * np.abs(f.T @ (t - t.mean(0))).max()


def test_a_skill_needs_both_labels_and_more_than_chance():
    rng = np.random.default_rng(6)
    y = (rng.random((400, 2)) < 0.5) * 1.0
    y[:, 1] = 0
    good = np.clip(0.7 * y + 0.3 * rng.random(y.shape), 0, 1)
    counts = model.count_ranks(np.stack([good, rng.random(y.shape)], 1), y)[None]
    import torch

    skill, errors = model.skills({"ranked": torch.from_numpy(counts)}, "sigmoid", np.array([400]))
    assert skill[0, 0, 0] > 0.9 and errors[0, 0, 0] > 3 and abs(errors[0, 1, 0]) < 3
    assert (skill[0, :, 1] == 0).all()


# ---- findings
def test_the_noisy_site_and_label_are_named(several):
    found = fnlkit.audit(several, say=None)
    rows = {row["site"]: row for row in found.facts["sites"]}
    assert [site for site, row in rows.items() if row["noisier"]] == ["s2"]
    labels = {one["label"]: one for one in rows["s2"]["labels"]}
    assert labels["edema"]["noisier"] and not labels["nodule"]["noisier"]
    assert labels["edema"]["low"] < 0.3 < labels["edema"]["high"]
    assert set(found.facts["sent"]) <= set(tasks.SENDS) and len(found.to_pandas()) == SITES


def test_wrong_numbers_are_found(numbers):
    found = fnlkit.audit(numbers, say=None)
    rows = {row["site"]: row for row in found.facts["sites"]}
    assert [site for site, row in rows.items() if row["noisier"]] == ["s3"]
    assert rows["s3"]["low"] < 0.25 < rows["s3"]["high"]
    sheet = fnlkit.suspects(found.federation).to_pandas()
    assert (sheet["site"][:15] == "s3").all() and (sheet["score"][:15] > 0.9).all()


def test_other_units_at_a_site_are_not_called_wrong_numbers(tmp_path):
    path = table(
        tmp_path / "t.csv", target=lambda x, rng: np.where(at(1), 18, 1) * (50 + 10 * x[:, 0] + rng.normal(size=len(x)))
    )
    found = fnlkit.audit(fnlkit.partition(str(path), "sites", say=None), say=None)
    row = next(row for row in found.facts["sites"] if row["site"] == "s1")
    assert not row["noisier"] and row["labels"][0]["differs"] and row["finding"] == "labels relate to the inputs differently"


@pytest.mark.parametrize("kind", ["several", "numbers"])
def test_labels_that_no_model_predicts_are_not_judged(tmp_path, kind):
    labels = {"a": lambda x, rng: (rng.random(len(x)) < 0.5) * 1, "b": lambda x, rng: np.zeros(len(x), int)}
    if kind == "numbers":
        labels = {"target": lambda x, rng: rng.normal(size=len(x)).round(3)}
    path = table(tmp_path / "t.csv", **labels)
    label = "a,b" if kind == "several" else None
    found = fnlkit.audit(fnlkit.partition(str(path), "sites", label=label, say=None), say=None)
    assert all(one["judge"] is None and one["level"] is None for row in found.facts["sites"] for one in row["labels"])
    assert not found.federation.extra["estimate_flagged"].any() and not any(row["noisier"] for row in found.facts["sites"])


@pytest.mark.parametrize("labels", [{"a": [0, 1, 1], "b": [1, 0, 0]}, {"a": [1, 0, 1]}, {"target": [1.5, 2.5, 0.5]}])
def test_sites_with_one_sample(tmp_path, labels):
    path = write(tmp_path / "t.csv", {"site": ["p", "q", "r"], "x": [1, 2, 3], **labels})
    task = "regression" if "target" in labels else "multilabel"
    federation = fnlkit.partition(str(path), "sites", task=task, label=",".join(labels), say=None)
    found = fnlkit.audit(federation, say=None)
    assert [one["judge"] for row in found.facts["sites"] for one in row["labels"]] == [None] * 3 * len(
        federation.meta["class_names"]
    )


def test_a_single_site_is_refused(tmp_path):
    path = table(tmp_path / "t.csv", target=dose)
    with pytest.raises(InputError, match="2 sites"):
        fnlkit.audit(fnlkit.partition(str(path), clients=1, say=None), say=None)


def test_constant_targets_at_a_site(tmp_path):
    path = table(tmp_path / "t.csv", target=lambda x, rng: np.where(at(0), 7.5, 10 * x[:, 0] + rng.normal(size=len(x))))
    found = fnlkit.audit(fnlkit.partition(str(path), "sites", say=None), say=None)
    row = next(row for row in found.facts["sites"] if row["site"] == "s0")
    assert row["level"] is None and not row["noisier"]


def test_the_mixture_finds_the_share_of_wide_residuals():
    rng = np.random.default_rng(7)
    r = rng.normal(0, 0.1, 20_000)
    r[:4000] = rng.normal(0, 1.0, 4000)
    counts = regression.bin_residuals(r)
    share, narrow, wide = regression.mixture(counts, *regression.center_and_scale(counts))
    assert abs(share - 0.2) < 0.02 and abs(narrow - 0.1) < 0.01 and abs(wide - 1.0) < 0.1
    clean = regression.bin_residuals(rng.normal(0, 0.1, 20_000))
    assert regression.mixture(clean, *regression.center_and_scale(clean))[0] < 0.01


# ---- from the table to the cleaned table
@pytest.mark.parametrize("kind", ["several", "numbers"])
def test_from_partition_to_the_cleaned_table(tmp_path, kind, request):
    federation = request.getfixturevalue(kind)
    fnlkit.save(federation, tmp_path / "f.npz")
    site = {"several": "s2", "numbers": "s3"}[kind]
    for call in (
        "audit f.npz -o judged.npz --html audit.html",
        "review suspects judged.npz --all -o suspects.csv",
        f"review export judged.npz --client {site} --budget 10 -o review",
        "correct judged.npz --csv cleaned.csv -o corrected.npz",
        "info judged.npz",
    ):
        succeed(f"fnlkit {call}", tmp_path)
    rows = parse_csv(tmp_path / "suspects.csv")
    assert len(rows) == SITES * PER_SITE and {"quality", "flagged"} <= rows[0].keys()
    changed = [row for row in parse_csv(tmp_path / "cleaned.csv") if row["action"] == "changed"]
    assert len(changed) > 10 and all(row["received"] != row["label"] and row["reason"] for row in changed)
    assert sum(row["site"] == site for row in changed) > 0.7 * len(changed)
    page = (tmp_path / "audit.html").read_text()
    assert site in page and "https://" not in page
    assert '<input id="classes"' in (tmp_path / "review" / "review.html").read_text()


@pytest.mark.parametrize(("kind", "label", "wrong"), [("several", "edema|nodule", "other"), ("numbers", "12.25", "tall")])
def test_a_review_of_other_labels(tmp_path, kind, label, wrong, request):
    found = fnlkit.audit(request.getfixturevalue(kind), say=None).federation
    fnlkit.export_review(found, "s2", tmp_path / "review", budget=5, at_random=0, say=None)
    path = tmp_path / "review" / "decisions.csv"
    rows = parse_csv(path)
    for row, decision in zip(rows, ("relabel", "keep", "drop", "unsure", ""), strict=True):
        row["decision"] = decision
    rows[0]["label"] = wrong
    for attempt in (wrong, label):
        rows[0]["label"] = attempt
        path.write_text(format_csv(rows))
        if attempt == wrong:
            with pytest.raises(InputError, match=wrong):
                fnlkit.import_review(found, path, say=None)
    out = fnlkit.import_review(found, path, say=None)
    places = [int(row["position"]) for row in rows]
    names = found.meta["class_names"]
    assert words(found.task, names, out.given[places[:1]]) == [label]
    np.testing.assert_array_equal(out.given[places[1:]], found.given[places[1:]])
    assert not np.isin(places[2], out.client_indices) and out.extra["reviewed"][places].tolist() == [True] * 3 + [False] * 2
    record = out.meta["reviews"][-1]
    assert record["decided"] == 3 and [row[0] for row in record["changed"]] == [places[0]] and record["dropped"] == [places[2]]
    fnlkit.save(out, tmp_path / "out.npz")
    cleaned = fnlkit.cleaned(str(tmp_path / "out.npz")).to_pandas().set_index("sample")
    one = cleaned.loc[rows[0]["sample"]]
    assert one["label"] == label and one["action"] == "changed" and one["reason"].startswith("review")
    again = fnlkit.correct(out, above=0.0)  # labels that a person decided stay
    assert words(found.task, names, again.given[places[:1]]) == [label]


@pytest.mark.parametrize("labels", [{"edema": edema, "nodule": nodule}, {"target": dose}], ids=["multilabel", "regression"])
def test_groups_widen_the_ranges_of_other_labels(tmp_path, labels):
    """Ten rows of a patient count as one observation."""
    path = table(tmp_path / "t.csv", **labels)
    how = {"label": ",".join(labels)} if len(labels) > 1 else {}
    plain = fnlkit.partition(str(path), "sites", say=None, **how)
    groups = np.arange(SITES * PER_SITE) // 10
    data = datasets.load(plain.dataset)
    widths = []
    for extra in ({}, {"group": groups}):
        federation = replace(plain, extra={**plain.extra, **extra})
        arrays = tasks.audit(federation, data, seed=0)[1]
        widths.append(arrays["estimate_client_level_high"] - arrays["estimate_client_level_low"])
    assert (widths[1] >= widths[0] - 1e-9).all() and widths[1].mean() > 1.5 * widths[0].mean()


def test_no_model_of_a_site_predicts_a_group_that_it_was_fitted_on():
    """Targets are noise that the rows of a patient share: only a model that has seen the patient predicts them."""
    rng = np.random.default_rng(2)
    x = np.repeat(rng.normal(size=(40, 30)), 5, 0)
    y = np.repeat(rng.normal(size=40), 5)[:, None]
    own = []
    for rows in ({}, {"input/group": np.repeat(np.arange(40), 5)}):
        members = ClientList(x.astype(np.float32), np.array([0, 200]), np.arange(200), np.zeros(200, int), 2, Inputs(False),
                             {"input/target": y, **rows})  # fmt: skip
        client = members[0]
        client.arrive()
        client.rows["task/features"] = torch.from_numpy(np.concatenate([np.ones((200, 1)), x], 1))
        client.rows["task/targets"], client.state["task/scale"] = torch.from_numpy(y), torch.tensor([[0.0], [1.0]])
        model.predict(client, None, {"weights": torch.zeros(31, 1, dtype=torch.float64)}, link="identity", seed=0)
        own.append(np.corrcoef(client.rows["task/predicted"][:, 1, 0].numpy(), y[:, 0])[0, 1])
    assert own[0] > 0.7 and own[1] < 0.3
