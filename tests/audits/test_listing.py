"""Suspects, suggested labels with their confidence, and cleaned labels: as tables, from Python and from commands alike."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fnlkit
from benchmarks.audit import simulated
from fnlkit import datasets
from fnlkit.audits import decisions, page
from fnlkit.audits.audit import audit, supported_share
from fnlkit.audits.server.verdict import AGREES, UNKNOWN, WITHIN, WRONG
from fnlkit.audits.suspects import choose
from fnlkit.cli.audit import results
from fnlkit.estimators import likelihood
from tests.commands import fnlkit as command
from tests.commands import refuse_call, succeed
from tests.tables import edit_csv, parse_csv


# ---- the review from Python is that of the commands; suspects and cleaned labels come as tables
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


# ---- suggested labels: as many as the estimated level of a site supports, none for decided labels, each with a confidence
@pytest.fixture(scope="module")
def noisy():
    """Return (federation, data set): five sites of digits, of which the second and fourth have 25 % wrong labels."""
    data, rng = datasets.load("digits"), np.random.default_rng(3)
    parts, given = np.array_split(rng.permutation(len(data.y_train)), 5), np.array(data.y_train)
    for part in parts[1::2]:
        chosen = part[rng.random(len(part)) < 0.25]
        given[chosen] = (given[chosen] + rng.integers(1, 10, len(chosen))) % 10
    return simulated(np.asarray(data.x_train), np.array(data.y_train), given, parts)


@pytest.fixture(scope="module")
def audited(noisy):
    return audit(*noisy)


def test_clean_sites_get_no_suggestions_and_most_suggestions_at_noisy_sites_are_right(noisy, audited):
    (federation, data), found = noisy, audited.judgment
    true = data.y_train[federation.client_indices]
    for client in range(5):
        here = slice(*federation.client_offsets[client : client + 2])
        flagged, guess, right = (values[here] for values in (found.flagged, found.guess, true))
        if client % 2:
            assert flagged.sum() >= 40 and (guess == right)[flagged].mean() >= 0.9
        else:
            assert not flagged.any()


def test_the_models_mistakes_at_a_site_with_other_inputs_are_no_suggestions(few_trees):
    """Classes overlap, so that a right model contradicts 16 % of right labels, and the sites' columns differ."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    x = (rng.normal(size=(600, 6)) + np.outer(2 * y - 1, [1, 0, 0, 0, 0, 0])).astype(np.float32)
    parts = np.array_split(np.arange(600), 3)
    for k, part in enumerate(parts):
        x[part] = x[part] * rng.uniform(0.5, 2, 6) + 3 * k * rng.normal(size=6)
    found = audit(*simulated(x, y, y.copy(), parts))
    assert {row.finding for row in found.sites} <= {UNKNOWN, WITHIN, AGREES} and not found.judgment.flagged.any()


def test_supported_share_by_finding(audited):
    row = replace(audited.sites[0], high=0.3, level=0.2, contradicted=False)
    assert row.judge == "others"
    cases = {WRONG: 0.3, UNKNOWN: 0.3, WITHIN: 0.0, AGREES: pytest.approx(0.15)}  # of AGREES: 0.2 - 0.05
    assert {finding: supported_share(replace(row, finding=finding), 0.05) for finding in cases} == cases
    assert supported_share(replace(row, finding=AGREES, level=None), 0.05) == 0
    for judge in ("own", None):
        assert supported_share(replace(row, finding=UNKNOWN, judge=judge), 0.05) == 0
    assert supported_share(replace(row, finding=UNKNOWN, contradicted=True), 0.05) == 0


def test_reviewed_labels_count_as_right(noisy, audited):
    (federation, data), before = noisy, audited
    decided = federation.client_indices[np.flatnonzero(before.judgment.flagged)[::2]]
    given, reviewed = np.array(federation.given), np.zeros(len(federation.given), bool)
    given[decided], reviewed[decided] = data.y_train[decided], True
    corrected = replace(federation, given=given, extra={**federation.extra, "reviewed": reviewed})
    after = audit(corrected, data)
    held = reviewed[federation.client_indices]
    assert not after.judgment.flagged[held].any() and not after.judgment.issue[held].any()
    assert after.judgment.flagged.sum() <= before.judgment.flagged.sum() - len(decided)
    assert all(np.array(after.judgment.level) <= np.array(before.judgment.level) + 0.02)


def test_levels_that_an_audit_withholds_are_printed_nowhere(noisy, audited, tmp_path):
    from fnlkit.cli.tables import estimate_facts, estimate_line
    from fnlkit.results.plots import clients, labels

    federation, _ = noisy
    rows = sorted(audited.sites, key=lambda row: row.client)
    some = replace(audited, sites=[replace(row, level=None) if row.client < 3 else row for row in rows])
    judged = replace(federation, extra=some.arrays(federation))
    facts = estimate_facts(judged)
    assert [row["level"] is None for row in facts["by_client"]] == [True] * 3 + [False] * 2
    assert facts["level_lowest"] == min(audited.judgment.level[3:]) and facts["judged"] == 2
    assert judged.to_pandas()["estimated_level"].isna().tolist() == [True] * 3 + [False] * 2
    none = replace(federation, extra=replace(audited, sites=[replace(row, level=None) for row in rows]).arrays(federation))
    assert "0." not in estimate_line(none)
    for draw in (clients.estimates, labels.transition):
        refuse_call("could not judge", draw, none)


# ---- the confidence of a suggested label, in every table and page
@pytest.fixture(scope="module")
def suggested():
    clean = fnlkit.partition("digits", clients=3, labels="observed", say=None)
    fed = fnlkit.inject_noise(clean, "symmetric(eta=0.3)", seed=1)
    return fnlkit.audit(fed, detectors=(), say=None), np.asarray(clean.given)


@pytest.fixture(scope="module")
def confident(suggested):
    return suggested[0].federation, suggested[1]


def test_confidence_is_the_tempered_posterior_of_the_suggestion():
    posterior = np.array([[0.9, 0.1], [0.2, 0.8], [1.0, 0.0], [0.5, 0.5]])
    odds = np.array([9, 4, 999, 1]) ** (1 / likelihood.TOO_CERTAIN)
    assert np.allclose(likelihood.confidence_of(posterior), odds / (1 + odds))


def test_more_confident_suggestions_are_more_often_right(confident):
    federation, true = confident
    sure, flagged = federation.extra["estimate_confidence"], federation.extra["estimate_flagged"]
    right = (federation.extra["estimate_suggested_label"] == true)[flagged]
    order = np.argsort(-sure[flagged], kind="stable")
    half = len(order) // 2
    assert right[order[:half]].mean() > right[order[half:]].mean() + 0.05
    assert ((sure >= 0) & (sure <= 1)).all() and len(np.unique(sure[flagged])) > 20


def test_a_file_with_another_number_of_confidences_is_refused(confident, tmp_path):
    federation, _ = confident
    extra = federation.extra | {"estimate_confidence": np.zeros(3)}
    with pytest.raises(fnlkit.InputError, match="estimate_confidence"):
        replace(federation, extra=extra).write(tmp_path / "f.npz")
        fnlkit.load(tmp_path / "f.npz")


def test_the_audit_counts_confident_suggestions(suggested):
    extra, facts = suggested[0].federation.extra, suggested[0].facts
    flagged, sure = extra["estimate_flagged"], extra["estimate_confidence"]
    assert facts["suggestions"] == {"all": int(flagged.sum()), "confident": int((flagged & (sure >= 0.8)).sum())}
    assert any(str(part).startswith(f"{flagged.sum():,} labels have a suggestion") for part in results(facts))


def test_the_confidence_is_in_tables_and_on_the_page(confident):
    federation, _ = confident
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


def test_a_correction_of_nothing_shows_a_confidence_below_its_limit(judged, tmp_path):
    extra = judged.extra | {"estimate_confidence": np.full(len(judged.given), 0.8996)}
    replace(judged, extra=extra).write(tmp_path / "judged.npz")
    assert "the highest confidence is 0.8996" in succeed("fnlkit correct judged.npz -o c.npz", tmp_path).stderr
