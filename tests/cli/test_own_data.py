"""Data as people have it, through the commands: names stay names, ids and files stay at home."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from tests.commands import fnlkit, refuse, succeed
from tests.tables import parse_csv

CANARY = "Kanarienvogel"
CASES = "'manifest(file=cases.csv, label=diagnosis, id=case)'"
SITES = ("Basel", "Bern", "Zürich")


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """A folder with cases.csv: digits 0 and 1 as images of three sites, some without a label; ids and files hold the canary."""
    folder, digits = tmp_path_factory.mktemp("scans"), datasets.load("digits")
    chosen = np.flatnonzero(digits.y_train < 2)[:120]
    lines = ["file,diagnosis,site,case"]
    for i, position in enumerate(chosen.tolist()):
        name = f"{SITES[i % 3]}/{CANARY} {i}.png"
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(digits.x_train[position, ..., 0]).save(folder / name)
        label = "" if i % 20 < 2 else ("gesund", "krank")[digits.y_train[position]]
        lines.append(f"{name},{label},{SITES[i % 3]},{CANARY}-{i}")
    (folder / "cases.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = succeed(f"fnlkit partition --dataset {CASES} --scheme sites -o fed.npz", folder)
    assert "12 samples without a label (Basel 4, Bern 4, Zürich 4) belong to no client" in done.stderr
    return folder


@pytest.fixture(scope="module")
def trained(scans):
    line = "fnlkit train fed.npz --method 'feddpcont(epsilon=2)' --rounds 2 --fraction 1 --ledger spent.ledger -o run.pt"
    return scans, succeed(line, scans)


def test_ids_and_files_are_in_the_federation_and_nowhere_else(trained):
    folder, done = trained
    fed = Federation.read(folder / "fed.npz")
    assert all(CANARY in text for name in ("sample_id", "sample_path") for text in fed.extra[name])
    assert (folder / "spent.ledger").stat().st_size > 0
    secret = [CANARY.encode(coding) for coding in ("utf-8", "utf-16-le", "utf-32-le")]
    for name in ("run.pt", "run.metrics.jsonl", "spent.ledger"):
        assert not any(text in (folder / name).read_bytes() for text in secret), name
    judged = succeed("fnlkit audit fed.npz --json --html audit.html -o judged.npz", folder)
    evaluated = succeed("fnlkit evaluate run.pt", folder)
    for text in (done.stdout, done.stderr, judged.stdout, judged.stderr, evaluated.stdout, (folder / "audit.html").read_text()):
        assert CANARY not in text


def test_unreadable_files_of_a_client_are_not_named(scans, monkeypatch):
    from fnlkit.artifacts import large

    monkeypatch.setattr("fnlkit.datasets.places._SETTLED", 0)  # as of files that nobody just wrote
    monkeypatch.setattr(large, "SMALL", 10)  # images are decoded when their client is visited
    broken = next((scans / "Bern").glob("* 4.png"))
    whole = broken.read_bytes()
    try:
        succeed(f"fnlkit partition --dataset {CASES} --scheme sites -o f.npz", scans)
        data = datasets.load(Federation.read(scans / "f.npz").dataset)
        data.checksum, data.mean  # noqa: B018 - computed before the file breaks
        stat = broken.stat()
        broken.write_bytes(b"x" * len(whole))
        os.utime(broken, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        done = fnlkit("fnlkit train f.npz --rounds 1 --fraction 1 --min-replies 0.1 -o r.pt", scans)
    finally:
        broken.write_bytes(whole)
    assert CANARY not in done.stderr + done.stdout, done.stderr
    assert "failed: SampleError" in (scans / "r.metrics.jsonl").read_text(), done.stderr


def test_site_names_are_printed(trained):
    folder, _ = trained
    facts = json.loads(succeed("fnlkit audit fed.npz --json -o judged.npz", folder).stdout)
    assert {row["site"] for row in facts["sites"]} == set(SITES) and {row["unlabeled"] for row in facts["sites"]} == {4}
    assert facts["classes"] == ["gesund", "krank"]
    shown = succeed("fnlkit audit fed.npz -v -o judged.npz", folder).stderr
    assert "4 without a label" in shown
    shown = succeed("fnlkit info fed.npz", folder).stdout
    assert all(name in shown for name in SITES) and "without a label" in shown
    succeed("fnlkit review export judged.npz --client Zürich --budget 6 -o review", folder)
    page = (folder / "review/review.html").read_text(encoding="utf-8")
    assert "Review of Zürich" in page
    rows = parse_csv(folder / "review/decisions.csv")
    assert len(rows) == 6 and all(row["sample"].startswith(CANARY) and row["given"] in ("gesund", "krank") for row in rows)
    assert rows[0]["sample"] in page
    refuse("fnlkit review export judged.npz --client Zurich -o r2", folder, "is no site; did you mean 'Zürich'?")


def test_samples_without_a_label_are_predicted_by_their_names(trained):
    folder, _ = trained
    rows = parse_csv(succeed("fnlkit predict run.pt --unlabeled", folder).stdout)
    assert [row["sample"] for row in rows] == [f"{CANARY}-{i}" for i in range(120) if i % 20 < 2]
    assert {row["name"] for row in rows} <= {"gesund", "krank"}
    everything = parse_csv(succeed("fnlkit predict run.pt cases.csv", folder).stdout)
    assert len(everything) == 120 and everything[0]["sample"] == f"{CANARY}-0"  # the column that names the training samples
    assert [row["probability"] for row in everything if row["sample"].endswith("-20")] == [rows[2]["probability"]]
    shown = parse_csv(succeed("fnlkit predict run.pt Bern", folder).stdout)
    assert len(shown) == 40 and shown[0]["sample"] == f"{CANARY} 1.png"
    refuse("fnlkit predict run.pt", folder, "name DATA, or --unlabeled")


def table(path, count, seed, header="age;ward;label;site"):
    rng = np.random.default_rng(seed)
    lines = [header]
    for i in range(count):
        ill = rng.random() < 0.5
        age = "" if i % 9 == 0 else f"{60 + 20 * ill + rng.normal():.1f}".replace(".", ",")
        lines.append(f"{age};{'AB'[int(rng.random() < 0.5)]};{'krank' if ill else 'gesund'};{SITES[i % 3]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_tables_are_scaled_by_federated_moments_and_new_rows_alike(tmp_path):
    table(tmp_path / "t.csv", 150, 0)
    said = succeed("fnlkit partition --dataset t.csv --scheme sites -o fed.npz", tmp_path).stderr
    assert "numbers: age" in said and "categories, one-hot: ward" in said and "values are missing in age" in said
    succeed("fnlkit train fed.npz --rounds 8 --fraction 1 --lr 0.1 -o run.pt", tmp_path)
    run, data = Run.read(tmp_path / "run.pt"), datasets.load(tmp_path / "t.csv")
    assert "moments" in run.traffic.sent
    about = run.meta["samples"]
    used = data.x_train[run.client_indices]  # a share of each site is held out
    np.testing.assert_allclose(about["mean"], used.mean(0), rtol=1e-5)
    np.testing.assert_allclose(about["std"], used.std(0), rtol=1e-4)
    assert [column["name"] for column in about["columns"]] == ["age", "ward"]
    table(tmp_path / "new.csv", 40, 1)
    # Other columns, another order, a level that nobody knew, no label: what the model knows is found by its names.
    text = (tmp_path / "new.csv").read_text(encoding="utf-8").splitlines()
    rows = [line.split(";") for line in text[1:]]
    rows[3][1] = "C"
    lines = ["id,ward,comment,age", *(f"n{i},{row[1]},x,{row[0].replace(',', '.')}" for i, row in enumerate(rows))]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = parse_csv(succeed("fnlkit predict run.pt new.csv --all", tmp_path).stdout)
    known = [i for i in range(40) if i % 9]
    right = np.mean([found[i]["name"] == rows[i][2] for i in known])
    assert found[3]["sample"] == "n3" and right > 0.95
    assert set(found[0]) == {"sample", "class", "name", "probability", "gesund", "krank"}
    (tmp_path / "new.csv").write_text("ward\nA\n")
    refuse("fnlkit predict run.pt new.csv", tmp_path, "the model's columns: no column 'age'")
    measured = json.loads(succeed("fnlkit evaluate run.pt --json", tmp_path).stdout)["measured"]
    assert "held_out" in measured and "test" not in measured


# ---- labels that nobody verified, from the split to the figure: nothing measured on them is called accuracy
@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Digits without test samples at three sites, a third of b's labels random; 30 samples verified; a run on them."""
    folder, digits, rng = tmp_path_factory.mktemp("own"), datasets.load("digits"), np.random.default_rng(0)
    site, y = rng.integers(0, 3, len(digits.y_train)), digits.y_train.copy()
    wrong = (site == 1) & (rng.random(len(y)) < 1 / 3)
    y[wrong] = (y[wrong] + rng.integers(1, 10, wrong.sum())) % 10
    np.savez(folder / "own.npz", x_train=digits.x_train, y_train=y, site_train=np.array(["Aix", "Bonn", "Cork"])[site])
    chosen = rng.permutation(len(y))[:30]
    (folder / "gold.csv").write_text("id,label\n" + "".join(f"{i},{digits.y_train[i]}\n" for i in chosen))
    succeed("fnlkit partition --dataset own.npz --scheme 'field(name=site)' --gold gold.csv -o fed.npz", folder)
    succeed("fnlkit audit fed.npz -o judged.npz", folder)
    succeed("fnlkit train judged.npz --rounds 4 --fraction 1 -o run.pt", folder)
    return folder


def test_measures_state_their_labels(own):
    row = json.loads(succeed("fnlkit evaluate run.pt --json", own).stdout)
    assert not [name for name in row if name.startswith(("accuracy", "class_accuracy"))] and 0.5 < row["agreement_last"] < 0.95
    assert row["balanced_accuracy"] == row["measured"]["gold"]["balanced"]  # of verified samples
    found = row["measured"]
    kinds = {"held_out": "agreement", "estimated": "agreement with the other sites' labels", "gold": "accuracy"}
    assert {name: part["measures"] for name, part in found.items()} == kinds
    assert found["held_out"]["share"] == pytest.approx(row["agreement_last"])
    assert found["gold"]["samples"] == 30 and "Clopper-Pearson" in found["gold"]["interval"]
    # A third of one site's labels are wrong: agreement there is low, the estimate is not, and its interval says so.
    given, estimated = ({one["site"]: one for one in found[name]["sites"]} for name in ("held_out", "estimated"))
    assert given["Bonn"]["high"] < estimated["Bonn"]["share"] and given["Aix"]["share"] > 0.8
    assert found["estimated"]["low"] <= found["gold"]["high"] and len(found["held_out"]["per_class"]) == 10


def test_the_model_is_not_trained_on_held_out_samples(own):
    run = Run.read(own / "run.pt")
    apart = np.flatnonzero(run.labels["holdout_client"] >= 0)
    assert len(apart) > 280 and not np.isin(apart, run.client_indices).any()
    assert run.traffic.sent["held_out"] == 16 * 3 * len([row for row in run.history if "agreement" in row])


def test_each_sites_model_on_each_sites_samples(own):
    row = json.loads(succeed("fnlkit evaluate run.pt --cross-site --json", own).stdout)["cross_site"]
    assert row["sites"] == ["Aix", "Bonn", "Cork"] and row["measures"] == "agreement" and np.shape(row["own"]) == (3, 3)
    assert sum(row["samples"]) == 281 and np.shape(row["federated"]) == (3,)
    own_models, sizes = np.array(row["own"]), np.array(row["samples"])
    # A third of Bonn's labels are random: no model agrees with them as it does with the other sites'.
    assert (own_models[[0, 2], 1] + 0.15 < own_models[[0, 2], 2]).all()
    held = json.loads(succeed("fnlkit evaluate run.pt --json", own).stdout)["measured"]["held_out"]["share"]
    assert np.dot(row["federated"], sizes) / sizes.sum() == pytest.approx(held)
    assert "all, federated" in succeed("fnlkit evaluate run.pt --cross-site", own).stdout


def test_test_samples_with_given_labels_are_no_truth_either(own):
    digits = datasets.load("digits")
    arrays = {"x_train": digits.x_train, "y_train": digits.y_train, "x_test": digits.x_test, "y_test": digits.y_test}
    np.savez(own / "tested.npz", **arrays)
    np.savez(own / "declared.npz", **arrays, y_test_true=digits.y_test)
    for name, word in (("tested", "agreement"), ("declared", "accuracy")):
        succeed(f"fnlkit partition --dataset {name}.npz --clients 5 | fnlkit train --rounds 1 -o {name}.pt", own)
        row = json.loads(succeed(f"fnlkit evaluate {name}.pt --json", own).stdout)
        assert row["measured"]["test"]["measures"] == word and f"{word}_last" in row and f"class_{word}" in row
