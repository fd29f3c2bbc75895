"""`fnlkit.Datalab`: cleanlab's results for labels, tables of sites, refused input."""

import pickle

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
        lab = Datalab(pandas.DataFrame(data), label_name="tree", sites=sites)
        lab.find_issues(pred_probs=probs)
        issues = lab.get_issues("label")
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


def test_the_calls_of_cleanlabs_quickstart_run():
    data, labels, probs = tree_data()
    lab = Datalab(data, label_name="tree", task="classification")
    lab.find_issues(pred_probs=probs, issue_types={"label": {}})
    pandas.testing.assert_frame_equal(lab.issues, lab.get_issues("label"))
    pandas.testing.assert_frame_equal(lab.issue_summary, lab.get_issue_summary("label"))


@pytest.mark.parametrize(
    "more, message",
    [
        ({"features": np.ones((400, 2))}, "fnlkit.audit_samples"),
        ({"issue_types": {"outlier": {}}}, "use cleanlab for other kinds"),
        ({"issue_types": {"label": {"k": 3}}}, "`issue_types` must be"),
        ({"pred_probs": None}, "`pred_probs` is missing"),
    ],
)
def test_other_searches_of_cleanlab_are_refused(more, message):
    data, _, probs = tree_data()
    with pytest.raises(InputError, match=message):
        Datalab(data, label_name="tree").find_issues(**{"pred_probs": probs} | more)
    with pytest.raises(InputError, match="`task` must be 'classification'"):
        Datalab(data, label_name="tree", task="regression")


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


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Datalab([1, 2], "y"), "must be a DataFrame or a dict"),
        (lambda: Datalab({"label": [1, 2]}, "lable"), "did you mean 'label'"),
        (lambda: Datalab({"y": [1, 2]}, "y", sites="park"), "`sites`: no column 'park'"),
        (lambda: Datalab({"y": [1, 2]}, "y", sites=[1]), r"must have shape \(2,\)"),
        (lambda: Datalab({"y": ["a", None]}, "y"), "value of sample 1 is missing"),
        (lambda: Datalab({"y": [1.0, np.nan]}, "y"), "value of sample 1 is missing"),
        (lambda: Datalab({"y": []}, "y"), "a value per sample"),
        (lambda: Datalab({"y": [1, 2]}, "y").get_issues(), "call find_issues"),
        (lambda: Datalab({"y": [1, 2]}, "y").get_issues("outlier"), "use cleanlab for other kinds"),
        (lambda: Datalab({"y": [1, 2]}, "y").find_issues(pred_probs=np.eye(3)[:2]), "3 columns, but 2 classes"),
    ],
)
def test_input_that_does_not_fit_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_sites_are_required_for_their_table():
    lab = Datalab({"y": [0, 1] * 11}, "y")
    lab.find_issues(pred_probs=np.eye(2)[[0, 1] * 11])
    with pytest.raises(InputError, match="`sites` was not given"):
        lab.get_site_summary()


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_results_are_those_of_cleanlabs_datalab():
    theirs = pytest.importorskip("cleanlab", reason="needs cleanlab: pip install fnlkit[bench]")
    hub = pytest.importorskip("datasets", reason="cleanlab's Datalab needs datasets: pip install 'datasets<4' 'pyarrow<21'")
    try:
        hub.Dataset.from_dict({"tree": ["ash"]})
    except pickle.PicklingError as error:  # datasets 5.2 with pyarrow 23 and 26
        pytest.skip(f"datasets cannot make a table here: {error}")
    data, _, probs = tree_data()
    lab = theirs.Datalab(data={"tree": data["tree"].tolist()}, label_name="tree", verbosity=0)
    lab.find_issues(pred_probs=probs, issue_types={"label": {}})
    own = Datalab({"tree": data["tree"]}, label_name="tree")
    own.find_issues(pred_probs=probs)
    expected, found = lab.get_issues("label"), own.get_issues("label")
    for name in ("is_label_issue", "given_label", "predicted_label"):
        assert found[name].tolist() == expected[name].tolist()
    np.testing.assert_allclose(found.label_score, expected.label_score, rtol=0, atol=1e-9)
    summary, expected = own.get_issue_summary(), lab.get_issue_summary("label")
    assert summary.num_issues[0] == expected.num_issues[0]
    assert summary.score[0] == pytest.approx(expected.score[0], abs=1e-9)
