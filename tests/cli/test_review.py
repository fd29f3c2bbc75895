"""From doubtful labels to reviewed ones, as a person at a shell does it."""

import json

import numpy as np
import pytest

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from tests.commands import refuse, succeed
from tests.tables import edit_csv


def test_audit_review_and_correct(tmp_path):
    succeed("fnlkit partition --clients 3 --labels observed -o fed.npz", tmp_path)
    audit = "fnlkit audit fed.npz --json --html audit.html -o judged.npz"
    facts = json.loads(succeed(audit, tmp_path).stdout)
    assert len(facts["sites"]) == 3 and facts["sent"]["counts"]["bytes"] == 3 * 8 * 10
    page = (tmp_path / "audit.html").read_text()
    assert "Audit of digits" in page and all(row["words"][0] in page for row in facts["sites"])
    passed = succeed("fnlkit audit fed.npz | fnlkit info", tmp_path)  # the federation goes down the pipe
    assert "noise level" in passed.stdout and "audit" in passed.stdout
    shown = " ".join(passed.stderr.split())
    assert "range" in shown and all(row["site"] in shown for row in facts["sites"])
    assert "95 % interval" not in shown and "95&nbsp;%" not in page
    succeed("fnlkit review export judged.npz --client 1 --budget 20 -o review", tmp_path)
    assert "Review of client 1" in (tmp_path / "review/review.html").read_text()
    refuse("fnlkit review export judged.npz --client 1 -o review", tmp_path, "may hold decisions")
    decide = "fnlkit review import judged.npz review/decisions.csv -o reviewed.npz"
    refuse(decide, tmp_path, "no row is decided yet; decide in review.html")
    assert not (tmp_path / "reviewed.npz").exists()
    said = iter([lambda row: {"decision": "7" if row["given"] != "7" else "3"}])
    rows = edit_csv(tmp_path / "review/decisions.csv", lambda row: next(said, lambda row: {"decision": "keep"})(row))
    assert len(rows) == 20
    done = succeed(decide, tmp_path)
    assert "20 decided: 1 changed" in done.stderr
    out = Federation.read(str(tmp_path / "reviewed.npz"))
    mask = out.extra["reviewed"]
    assert mask.sum() == 20 and out.meta["reviews"][0]["changed"][0][0] == int(rows[0]["position"])
    succeed("fnlkit correct reviewed.npz --above 0.5 -o corrected.npz", tmp_path)
    last = Federation.read(str(tmp_path / "corrected.npz"))
    assert (last.given[mask] == out.given[mask]).all() and np.array_equal(last.extra["received"], out.extra["received"])
    train = "fnlkit train corrected.npz --method 'nnc(k=5)' --rounds 1 -o run.pt"
    succeed(train, tmp_path)
    labels = Run.read(tmp_path / "run.pt").labels["corrected"]
    assert (labels[mask] == out.given[mask]).all() and (labels != last.given).any()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("fnlkit review export {noisy} --client 1 -o r", "no issue scores"),
        ("fnlkit review import {noisy} none.csv", "none.csv: no such file"),
        ("fnlkit correct {noisy}", "no noise estimate"),
        ("fnlkit audit none.npz", "none.npz"),
    ],
)
def test_mistakes_are_one_line(line, says, noisy, tmp_path):
    refuse(line.format(noisy=noisy), tmp_path, says)
