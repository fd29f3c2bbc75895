"""The review from Python is that of the commands; suspects and cleaned labels come as tables."""

from dataclasses import replace

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets
from tests.commands import fnlkit as command
from tests.commands import refuse_call, succeed
from tests.tables import edit_csv, parse_csv


@pytest.fixture(scope="module")
def judged():
    """Digits over three named sites with a fifth of the samples held out and a quarter of all labels wrong."""
    clean = fnlkit.partition("digits", clients=3, labels="observed", holdout=0.2, say=None)
    rng, given = np.random.default_rng(0), clean.given.copy()
    wrong = rng.random(len(given)) < 0.25
    given[wrong] = (given[wrong] + 1) % 10
    clean.meta["client_names"] = ["Aix", "=Bonn", "Cork"]
    arrays = {"issue_score": np.where(wrong, 0.9, 0.2) + rng.random(len(given)) / 20, "flagged": wrong}
    arrays["suggested_label"] = np.where(wrong, clean.given, given)
    return replace(clean, given=given, extra=clean.extra | {f"estimate_{name}": values for name, values in arrays.items()})


def test_all_suspects_are_listed_by_score(judged, tmp_path):
    judged.write(tmp_path / "judged.npz")
    assert command("fnlkit review suspects judged.npz -o s.csv", tmp_path).returncode == 0
    shown = parse_csv(command("fnlkit review suspects judged.npz", tmp_path).stdout)
    rows, flagged = parse_csv(tmp_path / "s.csv"), judged.extra["estimate_flagged"]
    assert rows == shown and {int(row["sample"]) for row in rows} == set(np.flatnonzero(flagged).tolist())
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True) and {row["site"] for row in rows} == {"Aix", "'=Bonn", "Cork"}
    out = judged.extra["holdout_client"] >= 0
    for row in rows:
        i = int(row["sample"])
        assert (row["given"], row["suggested"]) == (str(judged.given[i]), str(judged.extra["estimate_suggested_label"][i]))
        assert row["held_out"] == ("yes" if out[i] else "no") and row["reviewed"] == "no"
    assert command("fnlkit review suspects judged.npz --all -o all.csv", tmp_path).returncode == 0
    every = parse_csv(tmp_path / "all.csv")
    assert {int(row["sample"]) for row in every} == set(judged.whole().client_indices.tolist())
    assert [row["sample"] for row in every if row["flagged"] == "yes"] == [row["sample"] for row in rows]
    assert fnlkit.suspects(judged).to_pandas()["site"].isin(judged.names).all()
    refuse_call("no noise estimate", fnlkit.suspects, fnlkit.partition("digits"))


@pytest.mark.parametrize("drop", ["", "--drop"])
def test_cleaned_labels_are_a_table(judged, drop, tmp_path):
    judged.write(tmp_path / "judged.npz")
    assert command(f"fnlkit correct judged.npz --above 0.5 {drop} --csv cleaned.csv -o out.npz", tmp_path).returncode == 0
    rows, out = parse_csv(tmp_path / "cleaned.csv"), fnlkit.load(tmp_path / "out.npz")
    ours = fnlkit.correct(judged, above=0.5, drop=bool(drop))
    assert np.array_equal(ours.given, out.given) and fnlkit.cleaned(ours).csv() == (tmp_path / "cleaned.csv").read_text()
    whole, before = out.whole(), judged.whole()
    assert sorted(int(row["sample"]) for row in rows) == sorted(before.client_indices.tolist())
    held = set(whole.client_indices.tolist())
    for row in rows:
        i = int(row["sample"])
        assert row["received"] == str(judged.given[i])
        if i not in held:
            assert drop and (row["label"], row["action"]) == ("", "left out")
        else:
            assert row["label"] == str(out.given[i]) and row["action"] == (
                "changed" if out.given[i] != judged.given[i] else "kept"
            )
        score = f"issue score {judged.extra['estimate_issue_score'][i]:.3f}"
        assert row["reason"] == ("" if row["action"] == "kept" else score)
    assert {"left out" if drop else "changed", "kept"} == {row["action"] for row in rows}


def test_records_that_name_no_sample_are_refused(judged):
    for record in ({"dropped": [10**6], "client": 0}, {"dropped": "all", "client": 0}, {"dropped": [1], "client": 7}):
        refuse_call("reviews", fnlkit.cleaned, replace(judged, meta={**judged.meta, "reviews": [record]}))


def test_review_from_python_is_that_of_the_commands(judged, tmp_path):
    judged.write(tmp_path / "judged.npz")
    line = "fnlkit review export judged.npz --client Cork --budget 10 -o theirs"
    assert command(line, tmp_path).returncode == 0
    chosen = fnlkit.export_review(judged, "Cork", tmp_path / "ours", budget=10)
    for name in ("review.html", "decisions.csv"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    refuse_call("may hold decisions", fnlkit.export_review, judged, 2, tmp_path / "ours")
    table = tmp_path / "ours" / "decisions.csv"
    refuse_call("no row is decided", fnlkit.import_review, judged, table)
    said = iter(["keep", "drop", *["keep"] * 8])
    rows = edit_csv(table, lambda row: {"decision": next(said)})
    succeed(f"fnlkit review import judged.npz {table} --csv cleaned.csv -o reviewed.npz", tmp_path)
    refuse_call("an earlier import has all", fnlkit.import_review, tmp_path / "reviewed.npz", table)
    reviewed = fnlkit.import_review(tmp_path / "judged.npz", table)
    reviewed.write(tmp_path / "ours.npz")
    assert (tmp_path / "ours.npz").read_bytes() == (tmp_path / "reviewed.npz").read_bytes()
    shown = {int(row["sample"]): row for row in parse_csv(tmp_path / "cleaned.csv")}
    assert shown[int(rows[1]["position"])]["action"] == "left out" and shown[int(rows[1]["position"])]["reason"].startswith(
        "review"
    )
    assert shown[chosen.positions[0]]["reviewed"] == "yes"


def test_audit_from_python_is_the_command(tmp_path):
    fed = fnlkit.partition("digits", clients=3, labels="observed")
    fed.meta["client_names"] = ["Aix", "Bonn", "Cork"]
    fed.write(tmp_path / "fed.npz")
    found = fnlkit.audit(fed)
    line = "fnlkit audit fed.npz --html theirs.html -o judged.npz"
    assert command(line, tmp_path).returncode == 0
    found.write_html(tmp_path / "ours.html")
    found.federation.write(tmp_path / "ours.npz")
    assert (tmp_path / "ours.npz").read_bytes() == (tmp_path / "judged.npz").read_bytes()
    assert (tmp_path / "ours.html").read_bytes() == (tmp_path / "theirs.html").read_bytes()
    assert sorted(found.to_pandas()["site"]) == ["Aix", "Bonn", "Cork"]
    assert found.federation.to_pandas().index.tolist() == ["Aix", "Bonn", "Cork"]
    assert fnlkit.partition("digits", clients=2).to_pandas().index.tolist() == [0, 1]
    refuse_call("no option `round`", fnlkit.audit, fed, round=3)


def test_predict_and_export_from_python_are_the_commands(tmp_path):
    run = fnlkit.train(fnlkit.partition("digits", clients=2), rounds=1, engine="sequential", say=None)
    run.write(tmp_path / "run.pt")
    np.save(tmp_path / "new.npy", datasets.load("digits").x_test[:7])
    assert command("fnlkit predict run.pt new.npy --all -o p.csv", tmp_path).returncode == 0
    found = fnlkit.predict(run, tmp_path / "new.npy", every=True)
    assert found.csv() == (tmp_path / "p.csv").read_text() and len(found.to_pandas()) == 7
    for row in found.rows:
        assert row[2] == str(row[1]) and row[3] == max(row[4:]) and sum(row[4:]) == pytest.approx(1)
    refuse_call("DATA", fnlkit.predict, run)
    refuse_call("`data` is ndarray; save it", fnlkit.predict, run, np.zeros((3, 8, 8, 1), np.uint8))
    assert fnlkit.export(tmp_path / "run.pt", tmp_path / "model.pt") is None and (tmp_path / "model.pt").exists()
    refuse_call("model.txt", fnlkit.export, run, tmp_path / "model.txt")

    run.meta["samples"]["class_names"] = [f"=class{c}" for c in range(10)]  # names that are formulas are text
    rows = parse_csv(fnlkit.predict(run, tmp_path / "new.npy", every=True).csv())
    assert all(row["name"].startswith("'=") for row in rows) and not any(name.startswith("=") for name in rows[0])
