"""estimate-noise, audit, review, correct and demo as a person at a shell uses them."""

import json
import re

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.estimators import estimate
from fnlkit.estimators.judgment import add_judgment, compare
from tests.commands import refuse, refuse_call, succeed
from tests.tables import edit_csv


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    succeed("fnlkit partition --clients 8 | fnlkit inject-noise -o noisy.npz", folder)
    return folder


def test_unknown_arrays_are_passed_on(folder):
    before = Federation.read(str(folder / "noisy.npz"))
    before.extra["color_of_the_sky"] = np.arange(3)
    before.write(folder / "more.npz")
    done = succeed("fnlkit estimate-noise more.npz | fnlkit estimate-noise --estimator 'knn(k=3)' -o judged.npz", folder)
    assert "against the truth" in done.stderr
    after = Federation.read(str(folder / "judged.npz"))
    assert (after.given == before.given).all() and (after.extra["color_of_the_sky"] == np.arange(3)).all()
    assert after.extra["estimate_client_transition"].shape == (8, 10, 10)
    commands = [step["command"] for step in after.meta["provenance"]]
    assert commands == ["partition", "inject-noise", "estimate-noise", "estimate-noise"]
    assert after.meta["provenance"][-1]["parameters"]["estimator"] == "knn(k=3)"


def test_probabilities_and_embeddings_from_files(folder):
    given = Federation.read(str(folder / "noisy.npz")).given
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(10), len(given))
    np.save(folder / "p.npy", probs)
    np.savez(folder / "emb.npz", embeddings=rng.normal(size=(len(given), 8)))
    np.savez(folder / "p.npz", probs=probs, index=np.arange(len(given)))
    done = succeed(
        "fnlkit estimate-noise noisy.npz --embeddings emb.npz -o knn.npz && "
        "fnlkit estimate-noise noisy.npz --estimator confident --probs p.npy --json -o a.npz && "
        "fnlkit estimate-noise noisy.npz --estimator confident --probs p.npz --json -o b.npz",
        folder,
    )
    assert "neighbors are searched" not in done.stderr
    a, b = (Federation.read(str(folder / name)).extra for name in ("a.npz", "b.npz"))
    assert (a["estimate_issue_score"] == b["estimate_issue_score"]).all()


def test_a_run_replaces_the_warm_up(folder):
    succeed("fnlkit train noisy.npz --rounds 8 --fraction 0.5 --epochs 2 -o run.pt", folder)
    done = succeed("fnlkit estimate-noise noisy.npz --estimator anchor --run run.pt --json -o out.npz", folder)
    assert json.loads(done.stdout)["sample_auc"] > 0.9
    federation, run = Federation.read(str(folder / "noisy.npz")), Run.read(str(folder / "run.pt"))
    found = estimate(federation, datasets.load("digits"), "lid(iterations=1)", run=run)
    assert compare(add_judgment(federation, found))["sample_auc"] > 0.6
    run.weights[:] = float("nan")
    refuse_call("not finite: training diverged", estimate, federation, datasets.load("digits"), "loss", run=run)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--estimator 'knn(k=5000)'", "the largest client has 180 samples; write k from 1 to 179"),
        ("--estimator 'knn(k=5000, across=true)'", "all clients together have 1,438 samples; write k from 1 to 1,437"),
        ("--estimator confident --probs short.npy", "short.npy: array 'array' has shape (5, 10); expected 1,438 rows"),
        ("--estimator confident --probs narrow.npy", "narrow.npy has 3 columns, but the federation has labels of 10 classes"),
        ("--estimator confident --probs other.npz", "`index` is int64 (5,) for 'probs'"),
        ("--embeddings -", "cannot come from the pipe"),
        ("--embeddings foreign.npz", "the checksums differ"),
        ("--apply drop", "--apply"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(options, says, folder):
    np.save(folder / "short.npy", np.full((5, 10), 0.1))
    np.save(folder / "narrow.npy", np.full((1438, 3), 1 / 3))
    np.savez(folder / "other.npz", probs=np.full((5, 10), 0.1), index=np.array([0, 1, 2, 3, 5000]))
    meta = {"dataset": "mnist", "checksum": "0" * 64}
    foreign = files.Artifact("fnlkit.embeddings/1", {"embeddings": np.zeros((1438, 2))}, meta)
    files.write(foreign, folder / "foreign.npz")
    done = refuse(f"fnlkit estimate-noise noisy.npz -o never.npz {options}", folder, says)
    assert done.stderr.count("\n") == 1 and not (folder / "never.npz").exists()


# ---- from doubtful labels to reviewed ones, as a person at a shell does it
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


# ---- the demo prints the commands that it runs, and they find the noisy sites and train
def test_the_demo_runs_five_commands_and_overwrites_nothing(tmp_path):
    done = succeed("fnlkit demo -o 'my files'", tmp_path)
    ran = re.findall(r"(?m)^\$ fnlkit (\S+)", done.stdout)
    assert ran == ["partition", "inject-noise", "audit", "train", "evaluate"]
    assert float(re.search(r"accuracy last +(\S+)", done.stdout)[1]) > 0.9
    assert "3 of 6 sites have more wrong labels" in done.stderr and "my files/audit.html in a browser" in done.stderr
    assert (tmp_path / "my files/audit.html").stat().st_size > 10_000
    refuse("fnlkit demo -o 'my files'", tmp_path, "exists")
