"""`fnlkit.Datalab`: cleanlab's results for labels, tables of sites, refused input."""

import numpy as np
import pytest

import fnlkit
from fnlkit import Datalab
from fnlkit.errors import InputError
from tests.test_filter import made

pandas = pytest.importorskip("pandas", reason="needs pandas (extra `notebook`)")
NAMES = np.array(["ash", "birch", "cedar", "elm"])


def tree_data(n=400):
    labels, probs, sites = made(n, 4, 0)
    return {"tree": NAMES[labels], "park": np.array(["Ulm", "Bonn", "Cork", "Delft"])[sites]}, labels, probs


def test_results_are_those_of_the_filter_and_the_scores():
    data, labels, probs = tree_data()
    for sites in (None, "park"):
        lab = Datalab(pandas.DataFrame(data), label_name="tree", sites=sites, task="classification")
        lab.find_issues(pred_probs=probs, issue_types={"label": {}})
        issues = lab.get_issues("label")
        columns = lab.issues.columns.drop("site", errors="ignore")
        pandas.testing.assert_frame_equal(lab.issues[columns], issues[["is_label_issue", "label_score"]])
        pandas.testing.assert_frame_equal(lab.issue_summary, lab.get_issue_summary("label"))
        groups = None if sites is None else data["park"]
        expected = fnlkit.find_label_issues(labels, probs, sites=groups, min_examples_per_class=10)
        np.testing.assert_array_equal(issues.is_label_issue, expected)
        np.testing.assert_array_equal(issues.label_score, fnlkit.get_label_quality_scores(labels, probs))
        assert issues.given_label.tolist() == data["tree"].tolist()
        assert issues.predicted_label.tolist() == NAMES[probs.argmax(1)].tolist()
        summary = lab.get_issue_summary()
        assert summary.num_issues[0] == expected.sum() > 0 and summary.issue_type[0] == "label"
        confident = fnlkit.find_label_issues(labels, probs, sites=groups, filter_by="confident_learning")
        assert summary.score[0] == pytest.approx(1 - confident.mean())


def test_a_row_per_site_is_that_of_a_call_for_the_site():
    data, _, probs = tree_data()
    lab = Datalab(data, label_name="tree", sites="park")
    lab.find_issues(pred_probs=probs)
    table = lab.get_site_summary()
    assert sorted(table.site) == ["Bonn", "Cork", "Delft", "Ulm"] and table.num_examples.sum() == 400
    assert (np.diff(table.num_issues / table.num_examples) <= 0).all()
    for row in table.itertuples():
        own = data["park"] == row.site
        alone = Datalab({"tree": data["tree"][own]}, label_name="tree")
        alone.find_issues(pred_probs=probs[own])
        summary = alone.get_issue_summary()
        assert (summary.num_issues[0], own.sum()) == (row.num_issues, row.num_examples)
        assert summary.score[0] == pytest.approx(row.score)


@pytest.mark.parametrize(
    "more, message",
    [
        ({"issue_types": {"outlier": {}}}, "'outlier' needs `features`"),
        ({"issue_types": {"outliers": {}}}, "did you mean 'outlier'"),
        ({"issue_types": {"label": {"k": 3}}}, "'label' has no options here"),
        ({"pred_probs": None}, "`pred_probs` and `features` are missing"),
        ({"features": np.ones((3, 2))}, r"must have shape \(400, D\)"),
        ({"features": np.full((400, 2), np.inf)}, "found infinity"),
    ],
)
def test_searches_that_are_not_possible_are_refused(more, message):
    data, _, probs = tree_data()
    with pytest.raises(InputError, match=message):
        Datalab(data, label_name="tree").find_issues(**{"pred_probs": probs} | more)
    with pytest.raises(InputError, match="`task` must be 'classification'"):
        Datalab(data, label_name="tree", task="regression")
    with pytest.raises(InputError, match="'label' needs labels"):
        Datalab(data).find_issues(pred_probs=probs, issue_types={"label": {}})


def test_columns_of_classes_without_labels():
    """Labels 0 and 2 with three columns, and names with `class_names`: the results of `find_label_issues`."""
    labels, probs, _ = made(300, 3, 1)
    labels[labels == 1] = 2
    with pytest.warns(UserWarning, match="classes without labels: 1$"):
        expected = fnlkit.find_label_issues(labels, probs, filter_by="confident_learning")
    for column, options, absent in (
        (labels, {}, "1"),
        (NAMES[labels], {"class_names": NAMES[:3].tolist()}, "birch"),
    ):
        lab = Datalab({"y": column}, "y", **options)
        with pytest.warns(UserWarning) as record:
            lab.find_issues(pred_probs=probs, filter_by="confident_learning", issue_types={"label": {}})
        assert [str(one.message) for one in record] == [f"classes without labels: {absent}"]
        np.testing.assert_array_equal(lab.issues.is_label_issue, expected)
        assert 0 < expected.sum() < 200
    with pytest.raises(InputError, match="name the classes of all columns"):
        Datalab({"y": NAMES[labels]}, "y").find_issues(pred_probs=probs)
    with pytest.raises(InputError, match="lacks the label 'cedar'"):
        Datalab({"y": NAMES[labels]}, "y", class_names=["ash", "birch"])


def test_a_site_with_one_class_has_scores_and_no_issues():
    labels, probs, sites = made(300, 3, 2)
    labels[sites == 0] = 1
    lab = Datalab({"y": labels, "s": sites}, "y", sites="s")
    with pytest.warns(UserWarning, match=r"\(`min_examples_per_class`\): 0: 0, 2$"):
        lab.find_issues(pred_probs=probs)
    issues = lab.get_issues("label")
    assert not issues.is_label_issue[sites == 0].any() and issues.is_label_issue.any()
    assert np.ptp(issues.label_score[sites == 0]) > 0.5
    assert not issues.isna().any(axis=None)


def groups(n=300, seed=0):
    """Return features of three groups, their labels with 5 % wrong ones, and which labels are wrong."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    features = rng.standard_normal((n, 6)) + 6 * np.eye(3, 6)[labels]
    wrong = rng.permutation(n)[: n // 20]
    labels[wrong] = (labels[wrong] + 1) % 3
    return features, labels, wrong


def test_kinds_of_issues_from_features():
    features, labels, wrong = groups()
    features[7], features[8] = features[9], 100  # a copy, and a sample far from all others
    features[10] = np.nan
    features[11, 0] = np.nan
    lab = Datalab({"y": labels}, "y")
    lab.find_issues(features=features)
    issues, rest = lab.issues, np.delete(np.arange(300), [8, 10, 11])
    assert {*lab.issue_summary.issue_type} == {"null", "label", "outlier", "near_duplicate", "non_iid", "class_imbalance"}
    assert np.isin(wrong, np.flatnonzero(issues.is_label_issue)).mean() > 0.6
    assert issues.is_label_issue.sum() < 2 * len(wrong)
    assert np.flatnonzero(issues.is_outlier_issue).tolist() == [8] and issues.outlier_score.idxmin() == 8
    assert np.flatnonzero(issues.is_near_duplicate_issue).tolist() == [7, 9]
    assert issues.near_duplicate_score[[7, 9]].tolist() == [0, 0]
    assert lab.get_issues("near_duplicate").nearest_neighbor[[7, 9]].tolist() == [9, 7]
    assert np.flatnonzero(issues.is_null_issue).tolist() == [10] and issues.null_score[11] == pytest.approx(5 / 6)
    assert issues.outlier_score.isna().sum() == 2 and not issues.outlier_score[rest].isna().any()
    assert not issues.is_class_imbalance_issue.any()
    assert set(lab.get_issues("class_imbalance")) == {"is_class_imbalance_issue", "class_imbalance_score", "given_label"}


def test_rare_classes():
    """3 of 203 labels: below 0.1 / 3; the score is the share."""
    lab = Datalab({"y": ["a"] * 100 + ["b"] * 100 + ["c"] * 3}, "y")
    lab.find_issues(issue_types={"class_imbalance": {}})
    assert np.flatnonzero(lab.issues.is_class_imbalance_issue).tolist() == [200, 201, 202]
    assert lab.issue_summary.score[0] == pytest.approx(3 / 203) == lab.issues.class_imbalance_score[202]


def test_samples_that_depend_on_their_order():
    features, labels, _ = groups()
    order = np.argsort(features[:, 0])
    lab = Datalab({"y": labels[order]}, "y")
    lab.find_issues(features=features[order], issue_types={"non_iid": {}})
    assert lab.issue_summary.score[0] < 1e-6 and lab.issues.is_non_iid_issue.sum() == 1
    p = []
    for seed in range(30):  # random order: small p-values are rare
        lab = Datalab({"y": labels}, "y")
        lab.find_issues(features=groups(seed=seed)[0], issue_types={"non_iid": {}})
        p.append(lab.issue_summary.score[0])
    assert np.mean(np.array(p) < 0.05) < 0.2 and np.median(p) > 0.2


def test_features_of_sites_are_judged_alone():
    features, labels, _ = groups(400)
    sites = np.random.default_rng(1).choice(["Bonn", "Cork"], 400)
    lab = Datalab({"y": labels, "s": sites}, "y", sites="s")
    lab.find_issues(features=features)
    table = lab.get_site_summary().set_index("site")
    for site in ("Bonn", "Cork"):
        here = sites == site
        alone = Datalab({"y": labels[here]}, "y")
        alone.find_issues(features=features[here])
        pandas.testing.assert_frame_equal(lab.issues[here].drop(columns="site").reset_index(drop=True), alone.issues)
        numbers = alone.issue_summary.set_index("issue_type").num_issues
        assert table.num_issues[site] == numbers["label"] > 0 and table.num_outlier_issues[site] == numbers["outlier"]
        nearest = lab.get_issues("near_duplicate").nearest_neighbor[here]
        assert (sites[nearest] == site).all()


@pytest.mark.filterwarnings("ignore:no issues in classes")
def test_degenerate_features():
    for features in (np.zeros((30, 2)), np.full((30, 2), np.nan), np.zeros((1, 2))):
        lab = Datalab({"y": [0, 1] * (len(features) // 2) or [0]}, "y")
        lab.find_issues(features=features)
        lab.report()
        assert not lab.issues.is_outlier_issue.any()
        assert lab.issues.is_near_duplicate_issue.sum() == (30 if len(features) == 30 and features[0, 0] == 0 else 0)
    without = Datalab({"id": list(range(30))})
    without.find_issues(features=np.random.default_rng(0).normal(size=(30, 2)))
    assert "is_label_issue" not in without.issues and "is_outlier_issue" in without.issues


def test_no_kinds_are_named():
    with pytest.warns(UserWarning, match="nothing is searched"):
        Datalab({"y": [0, 1]}, "y").find_issues(issue_types={})


def test_later_searches_add_to_earlier_ones():
    features, labels, _ = groups()
    lab = Datalab({"y": labels}, "y")
    assert lab.issues.empty and lab.issue_summary.empty
    lab.find_issues(features=features, issue_types={"outlier": {}})
    lab.find_issues(features=features, issue_types={"near_duplicate": {}})
    both = Datalab({"y": labels}, "y")
    both.find_issues(features=features, issue_types={"outlier": {}, "near_duplicate": {}})
    pandas.testing.assert_frame_equal(lab.issues, both.issues)


def test_numbers_in_columns_of_objects_keep_their_order():
    """As texts, 10 would come before 2, and each column of `pred_probs` would belong to another class."""
    labels = np.array([0, 2, 10, 2, 0, 10], object)
    lab = Datalab({"grade": labels}, "grade")
    assert lab.class_names == [0, 2, 10] and lab.labels.tolist() == [0, 1, 2, 1, 0, 2]
    assert Datalab(pandas.DataFrame({"grade": pandas.array(labels, dtype="Int64")}), "grade").class_names == [0, 2, 10]


@pytest.mark.parametrize("kind", ["string", "Int64", "object"])
def test_a_missing_label_of_pandas_is_named(kind):
    values = ["a", None, "b"] if kind == "string" else [1, pandas.NA, 2]
    with pytest.raises(InputError, match="the value of sample 1 is missing"):
        Datalab(pandas.DataFrame({"grade": pandas.array(values, dtype=kind)}), "grade")


def test_the_report_has_the_sites_and_the_lowest_scores(capsys):
    data, _, probs = tree_data()
    lab = Datalab({"tree": data["tree"]}, "tree", sites=data["park"].tolist())
    assert repr(lab) == "Datalab: 400 samples, 4 classes; call find_issues"
    lab.find_issues(pred_probs=probs)
    lab.report(num_examples=2)
    out = capsys.readouterr().out
    issues = lab.get_issues()
    lowest = issues[issues.is_label_issue].label_score.nsmallest(2)
    assert out.splitlines()[0] == f"{issues.is_label_issue.sum()} label issues in 400 samples of 4 classes"
    assert all(name in out for name in ("Ulm", "Bonn", "Cork", "Delft"))
    assert [int(line.split()[0]) for line in out.splitlines()[-2:]] == lowest.index.tolist()
    lab.find_issues(pred_probs=np.eye(4)[lab.labels])  # no issue: a report without samples
    lab.report()
    assert capsys.readouterr().out.startswith("0 label issues in 400 samples")


def searched():
    lab = Datalab({"y": [0, 1] * 11}, "y")
    lab.find_issues(pred_probs=np.eye(2)[[0, 1] * 11])
    return lab


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Datalab([1, 2], "y"), "must be a DataFrame or a dict"),
        (lambda: Datalab({"label": [1, 2]}, "lable"), "did you mean 'label'"),
        (lambda: Datalab({"y": [1, 2]}, "y", sites="park"), "`sites`: no column 'park'"),
        (lambda: Datalab({"y": [1, 2]}, "y", sites=[1]), r"must have shape \(2,\)"),
        (lambda: Datalab({"y": [1.0, np.nan]}, "y"), "value of sample 1 is missing"),
        (lambda: Datalab({"y": []}, "y"), "a value per sample"),
        (lambda: Datalab({"y": [1, 2]}, "y").get_issues(), "call find_issues"),
        (lambda: searched().get_site_summary(), "`sites` was not given"),
        (lambda: Datalab({"y": [1, 2]}, "y").get_issues("outlier"), "no outlier issues yet"),
        (lambda: Datalab({"y": ["a", "b"]}, "y").find_issues(pred_probs=np.eye(3)[:2]), "3 columns, but 2 classes"),
        (lambda: Datalab({"y": [1, 2]}, "y").get_issues("labels"), "did you mean 'label'"),
        (lambda: Datalab({"y": [1, 2]}, "y", class_names=[1, 2, 2]), "a name twice"),
    ],
)
def test_input_that_does_not_fit_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
