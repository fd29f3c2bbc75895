"""AUC, calibration error and likelihood: compared with scikit-learn, numbers by hand, and labels without some classes."""

import json

import numpy as np
import pytest
from sklearn.metrics import classification_report, log_loss, roc_auc_score

import fnlkit
from fnlkit.results.calibration import BINS, probability_scores
from fnlkit.results.true_accuracy import figures
from tests.commands import succeed


@pytest.mark.parametrize(("classes", "absent"), [(2, []), (5, []), (5, [1, 4])], ids=str)
def test_measures_equal_those_of_scikit_learn(classes, absent):
    rng = np.random.default_rng(0)
    labels = rng.choice(np.setdiff1d(np.arange(classes), absent), 200)
    logits = 2 * rng.normal(size=(200, classes)) + np.eye(classes)[labels]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = probability_scores(logits, labels)
    assert found["nll"] == pytest.approx(log_loss(labels, p, labels=range(classes)))
    areas = {c: roc_auc_score(labels == c, p[:, c]) for c in np.unique(labels)}
    assert found["per_class_auc"] == [pytest.approx(areas[c]) if c in areas else None for c in range(classes)]
    assert found["auc"] == pytest.approx(np.mean(list(areas.values())))
    if not absent:
        together = p[:, 1] if classes == 2 else p
        assert found["auc"] == pytest.approx(roc_auc_score(labels, together, multi_class="ovr"))
    ours = figures(np.histogram2d(labels, p.argmax(1), np.arange(classes + 1))[0])
    theirs = classification_report(labels, p.argmax(1), output_dict=True, zero_division=0)
    assert [ours["per_class_f1"][c] for c in areas] == pytest.approx([theirs[str(c)]["f1-score"] for c in areas])
    assert [ours["per_class"][c] for c in areas] == pytest.approx([theirs[str(c)]["recall"] for c in areas])
    assert np.isnan(ours["per_class_f1"][absent]).all()


def test_calibration_error_by_hand():
    """Bins of 1/15: 0.6 lies in (8/15, 9/15], twice, one right: |1 - 1.2|; 0.7 in (10/15, 11/15], wrong: 0.7; 0.9 of 4."""
    p = np.array([[0.6, 0.4], [0.6, 0.4], [0.3, 0.7], [0.9, 0.1]])
    found = probability_scores(np.log(p), np.array([0, 1, 0, 0]))
    assert found["ece"] == pytest.approx((0.2 + 0.7 + 0.1) / 4) and BINS == 15
    assert np.array(found["reliability"]) == pytest.approx(np.array([[2, 0.6, 0.5], [1, 0.7, 0], [1, 0.9, 1]]))
    uniform = probability_scores(np.zeros((3, 15)), np.array([0, 1, 2]))  # a confidence on a border, one prediction right
    assert uniform["ece"] == pytest.approx(1 / 3 - 1 / 15) and uniform["nll"] == pytest.approx(np.log(15))
    assert uniform["auc"] == 0.5


def test_measures_of_labels_that_do_not_define_them():
    one = probability_scores(np.array([[800.0, 0], [0, 800]]), np.array([0, 0]))
    assert "auc" not in one and one["per_class_auc"] == [None, None] and one["nll"] == 400 and one["ece"] == 0.5
    assert probability_scores(np.zeros((2, 3)), np.array([-1, -1])) == {} == probability_scores(np.zeros((0, 3)), np.zeros(0))
    assert probability_scores(np.array([[np.nan, 0]]), np.array([0])) == {}
    known = probability_scores(np.array([[1.0, 0], [9, 0]]), np.array([1, -1]))
    assert known == probability_scores(np.array([[1.0, 0]]), np.array([1]))


def test_a_run_has_them_in_json_tables_and_pages(tmp_path):
    fed = fnlkit.partition("digits", clients=3, holdout=0.2, say=None)
    fnlkit.inject_noise(fed, say=None).write(tmp_path / "noisy.npz")
    succeed("fnlkit train noisy.npz --rounds 2 --epochs 1 --fraction 1 -o run.pt", tmp_path)
    row = json.loads(succeed("fnlkit evaluate run.pt --json --tidy a.csv", tmp_path).stdout)
    test, held = row["measured"]["test"], row["measured"]["held_out_true"]
    assert [row[name] for name in ("auc", "ece", "nll")] == [test[name] for name in ("auc", "ece", "nll")]
    assert row["class_f1"] == test["per_class_f1"] and np.mean(row["class_f1"]) == pytest.approx(row["macro_f1"])
    history = [json.loads(line) for line in (tmp_path / "run.metrics.jsonl").read_text().splitlines()]
    assert row["nll"] == pytest.approx(history[-1]["loss"], rel=1e-5)
    assert len(held["sites"]) == 3 and all({"auc", "ece", "nll", "macro_f1"} <= site.keys() for site in held["sites"])
    # Sites of equal size: the likelihood of all samples is the mean of the sites'.
    weights = [site["samples"] for site in held["sites"]]
    assert np.average([site["nll"] for site in held["sites"]], weights=weights) == pytest.approx(held["nll"])
    assert "auc_percent" in (tmp_path / "a.csv").read_text() and "nll_nats" in (tmp_path / "a.csv").read_text()
    shown = succeed("fnlkit evaluate run.pt", tmp_path).stdout
    assert "AUC" in shown and f"{100 * row['auc']:.1f} %" in shown
    assert f"F1 {100 * row['class_f1'][9]:.1f} %" in succeed("fnlkit evaluate run.pt -v", tmp_path).stdout
    found = fnlkit.evaluate(tmp_path / "run.pt", tmp_path / "run.pt", test=True, say=None).rows[0]
    assert found["ece"] == row["ece"]
    succeed("fnlkit report run.pt -o report.html", tmp_path)
    assert f"{100 * row['ece']:.1f} %" in (tmp_path / "report.html").read_text()
