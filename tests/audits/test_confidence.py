"""Each suggested label has a confidence, which is written to every table and page."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.audits import decisions, page
from fnlkit.audits.suspects import choose
from fnlkit.cli.audit import results
from fnlkit.estimators import likelihood
from tests.tables import parse_csv


@pytest.fixture(scope="module")
def found():
    clean = fnlkit.partition("digits", clients=3, labels="observed", say=None)
    fed = fnlkit.inject_noise(clean, "symmetric(eta=0.3)", seed=1)
    return fnlkit.audit(fed, detectors=(), say=None), np.asarray(clean.given)


@pytest.fixture(scope="module")
def audited(found):
    return found[0].federation, found[1]


def test_confidence_is_the_tempered_posterior_of_the_suggestion():
    posterior = np.array([[0.9, 0.1], [0.2, 0.8], [1.0, 0.0], [0.5, 0.5]])
    odds = np.array([9, 4, 999, 1]) ** (1 / likelihood.TOO_CERTAIN)
    assert np.allclose(likelihood.confidence_of(posterior), odds / (1 + odds))


def test_more_confident_suggestions_are_more_often_right(audited):
    federation, true = audited
    sure, flagged = federation.extra["estimate_confidence"], federation.extra["estimate_flagged"]
    right = (federation.extra["estimate_suggested_label"] == true)[flagged]
    order = np.argsort(-sure[flagged], kind="stable")
    half = len(order) // 2
    assert right[order[:half]].mean() > right[order[half:]].mean() + 0.05
    assert ((sure >= 0) & (sure <= 1)).all() and len(np.unique(sure[flagged])) > 20


def test_a_file_with_another_number_of_confidences_is_refused(audited, tmp_path):
    federation, _ = audited
    extra = federation.extra | {"estimate_confidence": np.zeros(3)}
    with pytest.raises(fnlkit.InputError, match="estimate_confidence"):
        replace(federation, extra=extra).write(tmp_path / "f.npz")
        fnlkit.load(tmp_path / "f.npz")


def test_the_audit_counts_confident_suggestions(found):
    extra, facts = found[0].federation.extra, found[0].facts
    flagged, sure = extra["estimate_flagged"], extra["estimate_confidence"]
    assert facts["suggestions"] == {"all": int(flagged.sum()), "confident": int((flagged & (sure >= 0.8)).sum())}
    assert any(str(part).startswith(f"{flagged.sum():,} labels have a suggestion") for part in results(facts))


def test_the_confidence_is_in_tables_and_on_the_page(audited):
    federation, _ = audited
    data, sure = datasets.load("digits"), federation.extra["estimate_confidence"]
    rows = parse_csv(fnlkit.suspects(federation).csv())
    assert all(np.isclose(float(row["confidence"]), sure[int(row["sample"])]) for row in rows) and rows
    chosen = choose(federation, 0, budget=12)
    near = [np.zeros(0, np.int64)] * 12
    table = parse_csv(decisions.decision_template(federation, data, 0, chosen, near))
    assert [row["confidence"] for row in table] == [f"{sure[int(row['position'])]:.4f}" for row in table]
    text = page.page(federation, data, 0, chosen, near, "site")
    body = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert [item["confidence"] for item in body["items"]] == [round(float(sure[i]), 4) for i in chosen.positions]
