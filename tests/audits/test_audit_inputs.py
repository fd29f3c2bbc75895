"""An audit by embeddings, by a backbone or by the user's probabilities, and further detectors."""

import json
from dataclasses import replace

import numpy as np
import pandas
import pytest

import fnlkit
from fnlkit.estimators import DETECTORS
from fnlkit.kernels.scores import auc
from fnlkit.pipeline.inputs import read_inputs
from fnlkit.simulate import partitioning
from tests import commands
from tests.commands import refuse_call


def noisy(data, sites=5, share=0.25):
    """Return a federation in which a quarter of the labels of site 1 are random."""
    federation, rng = partitioning.federation(data, clients=sites, labels="observed", seed=3), np.random.default_rng(0)
    one = federation.clients[1]
    wrong = one[rng.random(len(one)) < share]
    federation.given[wrong] = (federation.given[wrong] + rng.integers(1, data.classes, len(wrong))) % data.classes
    return federation


@pytest.fixture(scope="module")
def few(digits):
    """The first 250 digits and 20 test samples."""
    samples = digits.x_train[:250], digits.x_test[:20]
    return replace(digits, samples=lambda: samples, y_train=digits.y_train[:250], y_test=digits.y_test[:20])


@pytest.fixture(scope="module")
def vectors(digits):
    """Well separated classes, with a constant and 30 uninformative values."""
    rng = np.random.default_rng(0)
    centers = 4 * rng.standard_normal((10, 12))
    parts = centers[digits.y_train] + rng.standard_normal((len(digits.y_train), 12))
    return np.column_stack([parts, rng.standard_normal((len(parts), 30)), np.ones(len(parts))]).astype(np.float32)


@pytest.fixture(scope="module")
def probabilities(digits):
    rng = np.random.default_rng(1)
    found = np.exp(5 * np.eye(10)[digits.y_train] + rng.standard_normal((len(digits.y_train), 10)))
    return found / found.sum(1, keepdims=True)


def row_of(found, client):
    return next(row for row in found.facts["sites"] if row["client"] == client)


def test_models_judge_by_embeddings(digits, vectors):
    """The samples are useless pixels, so that only the embeddings can show which labels are wrong."""
    rng = np.random.default_rng(2)
    blank = rng.integers(0, 255, digits.x_train.shape).astype(np.uint8)
    data = replace(digits, samples=lambda: (blank, blank[:0]), y_test=digits.y_test[:0])
    federation = noisy(data)
    found = fnlkit.audit(federation, embeddings=vectors, dataset=data, say=None)
    held, wrong = federation.client_indices, federation.given != digits.y_train
    assert auc(found.federation.extra["estimate_issue_score"][held], wrong[held]) > 0.97
    assert [row["client"] for row in found.facts["sites"] if row["noisier"]] == [1]
    assert row_of(found, 0)["skill"]["others"]["kappa"] > 0.7


def test_a_site_with_other_embeddings_is_not_accused(digits, vectors):
    federation = partitioning.federation(digits, clients=5, labels="observed", seed=3)
    moved = vectors.copy()
    moved[federation.clients[2]] = -vectors[federation.clients[2]]
    found = fnlkit.audit(federation, embeddings=moved, say=None)
    row = row_of(found, 2)
    assert not any(each["noisier"] for each in found.facts["sites"])
    assert row["inputs"]["differ"] and not row["inputs"]["undone"] and row["judge"] != "others"
    assert [each["client"] for each in found.facts["sites"] if each["inputs"]["differ"]] == [2]


def test_inverted_samples_with_equal_embeddings_are_named_and_judged(digits, vectors):
    federation = noisy(digits)
    x = digits.x_train.copy()
    x[federation.clients[3]] = 255 - x[federation.clients[3]]
    data = replace(digits, samples=lambda: (x, digits.x_test))
    federation.meta.pop("dataset_checksum", None)
    found = fnlkit.audit(federation, embeddings=vectors, dataset=data, say=None)
    row = row_of(found, 3)
    assert row["inputs"]["words"] == ["intensities look inverted"] and row["inputs"]["equal_features"]
    assert row["judge"] == "others" and not row["noisier"] and row_of(found, 1)["noisier"]


def test_given_probabilities_replace_the_models(digits, probabilities, tmp_path):
    federation = noisy(digits)
    found = fnlkit.audit(federation, probabilities=probabilities, say=None)
    assert [row["client"] for row in found.facts["sites"] if row["noisier"]] == [1]
    names = [f"digit {c}" for c in range(10)]
    federation.meta["class_names"] = names
    frame = pandas.DataFrame(probabilities[:, ::-1], columns=names[::-1])
    frame.to_csv(tmp_path / "p.csv", index=False)
    shuffled = frame.assign(sample=federation.ids_of(np.arange(len(frame)))).sample(frac=1, random_state=0)
    shuffled.to_csv(tmp_path / "ids.csv", index=False)
    np.savez(tmp_path / "p.npz", probabilities=probabilities[:, ::-1], class_names=np.array(names[::-1]))
    for given in (frame, tmp_path / "p.csv", tmp_path / "ids.csv", tmp_path / "p.npz"):
        np.testing.assert_allclose(read_inputs(federation, probabilities=given).probabilities, probabilities, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="3"), "no column of the class '3'"),
        (lambda f: f.assign(more=1.0), "expected 1 over the classes and more"),
        (lambda f: f[:-1], "rows"),
        (lambda f: f.assign(id=["0"] * len(f)), "listed twice"),
        (lambda f: f.assign(id=[f"x{i}" for i in range(len(f))]), "no sample 'x0'"),
        (lambda f: f.assign(**{"3": "many"}), "must be numbers"),
    ],
)
def test_tables_of_probabilities_that_do_not_fit(digits, probabilities, change, message):
    frame = pandas.DataFrame(probabilities, columns=list(map(str, range(10))))
    read = read_inputs(noisy(digits), probabilities=change(frame))
    refuse_call(message, lambda: read.probabilities)


def test_detectors_are_counted_and_compared(digits, vectors):
    federation = noisy(digits)
    found = fnlkit.audit(federation, embeddings=vectors, detectors=DETECTORS, say=None)
    extra, wrong = found.federation.extra, federation.given != digits.y_train
    flags = {name: extra[f"estimate_by_{name}"] for name in ("em", *DETECTORS)}
    for k, held in enumerate(federation.clients):
        row = row_of(found, k)
        assert row["detectors"] == {name: int(each[held].sum()) for name, each in flags.items()}
        numbers = sum(each[held].astype(int) for each in flags.values())
        assert row["agreed"] == np.bincount(numbers, minlength=len(flags) + 1).tolist()
    np.testing.assert_array_equal(flags["em"], extra["estimate_flagged"])
    listed = fnlkit.suspects(found.federation, every=True).to_pandas().set_index("sample").detectors
    for i in federation.clients[1][:50]:
        assert listed[str(i)].split() == [name for name, each in flags.items() if each[i]]
    everyone = np.all(list(flags.values()), 0)
    assert wrong[everyone].mean() > 0.95 and wrong[everyone].sum() > 0.5 * wrong.sum()
    refuse_call("`detectors` oracle", fnlkit.audit, federation, detectors=["oracle"], say=None)


def test_the_backbone_judges_photographs(few, monkeypatch, tmp_path):
    monkeypatch.setenv("FNLKIT_CACHE", str(tmp_path))
    backbone = "torchvision(name=shufflenet_v2_x0_5, weights=random, size=32)"
    federation, progress = noisy(few), ([], [])
    first, again = (
        fnlkit.audit(federation, dataset=few, backbone=backbone, say=None, progress=lambda *row, rows=rows: rows.append(row))
        for rows in progress
    )
    assert first.facts["features"] == backbone and (270, 270, "features") in progress[0]
    assert again.facts["digest"] == first.facts["digest"] and "features" not in [row[2] for row in progress[1]]


@pytest.mark.parametrize("name", ["rounds", "fraction", "folds", "model", "quick"])
def test_options_of_trained_models_name_what_to_do_instead(digits, name, tmp_path):
    refuse_call(f"audit --{name} was removed: ", fnlkit.audit, noisy(digits), say=None, **{name: 3})
    done = commands.fnlkit(f"fnlkit audit fed.npz --{name} 3", tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and f"audit --{name} was removed: " in done.stderr


def test_two_sources_of_features_are_refused(digits, vectors):
    refuse_call("`backbone`", fnlkit.audit, noisy(digits), embeddings=vectors, backbone="pca", say=None)


def test_command_with_embeddings_and_probabilities(digits, vectors, probabilities, tmp_path):
    noisy(digits).write(str(tmp_path / "fed.npz"))
    np.savez(tmp_path / "emb.npz", embeddings=vectors)
    np.savez(tmp_path / "p.npz", probabilities=probabilities)
    given = "fnlkit audit fed.npz --embeddings emb.npz --probs p.npz"
    done = commands.fnlkit(f"{given} --detectors none --json -o j.npz --html a.html", tmp_path)
    facts = json.loads(done.stdout)
    assert [row["client"] for row in facts["sites"] if row["noisier"]] == [1]
    assert facts["features"].endswith("emb.npz") and facts["probabilities"].endswith("p.npz")
    page = (tmp_path / "a.html").read_text()
    assert page.count('class="matrix"') == 5 and page.count("<figure>") == 6
    assert commands.fnlkit(f"{given} --backbone pca", tmp_path).returncode == 2


# ---- in one call
def test_arrays_with_sites(few_trees, digits):
    federation, names = noisy(digits), np.array(list("abcdefghij"), object)
    labels, sites = names[federation.given], np.full(len(federation.given), "", object)
    for k, held in enumerate(federation.clients):
        sites[held] = f"site {k}"
    labels[7], wrong = None, federation.given != digits.y_train
    found = fnlkit.audit_samples(digits.x_train, labels, sites, say=None)
    assert len(found.issues) == len(labels) - 1 and 7 not in found.issues.index
    assert (found.issues.given == labels[found.issues.index]).all() and (found.issues.site == sites[found.issues.index]).all()
    assert found.sites.site[0] == "site 1" and found.sites.noisier.tolist() == [True] + 4 * [False]
    first = found.issues.sort_values("score", ascending=False).head(20)
    assert wrong[first.index].all() and (first.suggested == names[digits.y_train[first.index]]).mean() > 0.8
    assert (found.issues.suggested == found.issues.given)[~found.issues.flagged].all()


def test_a_frame_with_gaps_and_without_sites(digits, few_trees):
    x = pandas.DataFrame(digits.x_train.reshape(len(digits.x_train), -1)[:200, 10:40].astype(float))
    x.columns = [f"p{i}" for i in x]
    x.iloc[::7, 3] = np.nan
    x["ward"] = np.where(np.arange(len(x)) % 3, "east", None)
    x["finding"], x.index = digits.y_train[:200], [f"case {i}" for i in range(200)]
    found = fnlkit.audit_samples(x, "finding", say=None)
    assert found.sites is None and "site" not in found.issues and list(found.issues.index) == list(x.index)
    assert found.issues.given.tolist() == digits.y_train[:200].astype(str).tolist()
    x["finding"] = pandas.array(["a", "b", None, *["a", "b"] * 98, "a"], dtype="string")
    assert len(fnlkit.audit_samples(x, "finding", say=None).issues) == 199


def test_samples_with_a_copy_in_the_test_set_have_no_row(tmp_path):
    """They are at no site, and were listed at the first one with a score of 0."""
    x, notes = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32), []
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(90) % 3, x_test=x[:9], y_test=np.arange(9) % 3)
    found = fnlkit.audit_samples(str(tmp_path / "own.npz"), say=notes.append)
    assert list(found.issues.index) == list(range(9, 90)) and any("9 samples are not judged" in text for text in notes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: fnlkit.audit_samples(x), "`labels`"),
        (lambda x, y: fnlkit.audit_samples(x, y[:-1]), "`labels` has"),
        (lambda x, y: fnlkit.audit_samples(x, y, ["a"]), "`sites` has 1"),
        (lambda x, y: fnlkit.audit_samples(x, y, classes=["0", "1"]), "not in `classes`"),
        (lambda x, y: fnlkit.audit_samples("digits", y), "`labels` and `sites`"),
        (lambda x, y: fnlkit.audit_samples(pandas.DataFrame({"a": [1.0]}), "b"), "no column 'b'"),
    ],
)
def test_calls_that_do_not_fit(digits, call, message):
    refuse_call(message, call, digits.x_train, digits.y_train)
