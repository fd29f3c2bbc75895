"""An audit names the noisy sites and what they confuse, without the truth; by embeddings, backbones and given probabilities."""

import json
from dataclasses import replace

import numpy as np
import pandas
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits import report
from fnlkit.audits.audit import audit
from fnlkit.audits.messages import SENDS
from fnlkit.audits.records import Confusion
from fnlkit.audits.server.results import confusions_of_mistakes, find_confusions, mark_supported
from fnlkit.audits.server.statistics import noisier_than_others
from fnlkit.audits.server.verdict import AGREES, Assessment
from fnlkit.datasets.array_files import from_arrays
from fnlkit.estimators import DETECTORS, likelihood
from fnlkit.estimators.intervals import wilson
from fnlkit.estimators.judgment import add_judgment
from fnlkit.kernels.scores import auc
from fnlkit.pipeline.inputs import read_inputs
from fnlkit.simulate import partitioning
from tests import commands
from tests.commands import refuse_call


# ---- an audit names the noisy sites and what they confuse, with nobody knowing the truth, and says what left each site
@pytest.fixture(scope="module")
def doubtful():
    """Digits at five sites: site 1 swaps half of its twos and threes, a quarter of site 3's labels are random."""
    data, rng = datasets.load("digits"), np.random.default_rng(0)
    federation = partitioning.federation(data, clients=5, labels="observed", seed=3)
    given, true = federation.given, data.y_train
    one, three = federation.clients[1], federation.clients[3]
    swapped = one[np.isin(true[one], [2, 3]) & (rng.random(len(one)) < 0.5)]
    given[swapped] = 5 - true[swapped]
    random = three[rng.random(len(three)) < 0.25]
    given[random] = (true[random] + rng.integers(1, 10, len(random))) % 10
    federation.meta["client_names"] = ["Aix", "Bonn", "Cork", "Delft", "Essen <b>"]
    return federation, data


@pytest.fixture(scope="module")
def found(doubtful):
    return audit(*doubtful)


def test_noisy_sites_and_swapped_classes_are_named(doubtful, found):
    federation, data = doubtful
    assert {row.site for row in found.sites if row.noisier} == {"Bonn", "Delft"}
    assert [row.finding for row in found.sites if not row.noisier] == [AGREES] * 3
    assert not any(row.inputs.differ or row.shares_differ or row.only_here for row in found.sites)
    rows = {row.site: row for row in found.sites}
    assert {(c.true, c.given) for c in rows["Bonn"].confused[:2]} == {("2", "3"), ("3", "2")}
    for k, name in ((1, "Bonn"), (3, "Delft")):
        held = federation.clients[k]
        level = (federation.given[held] != data.y_train[held]).mean()
        assert rows[name].low <= level <= rows[name].high
    assert all(rows[name].low < 0.01 for name in ("Aix", "Cork", "Essen <b>"))
    mistakes = [Confusion("3", "8", samples=5.0, share=0.14, low=0.06, high=0.29)]  # of an older version
    assert report.describe_confusions(replace(rows["Aix"], confused=mistakes)) == "-"
    assert report.describe_confusions(rows["Bonn"]) != "-"
    assert "Bonn" in report.answer(found.sites) and "Aix" not in report.answer(found.sites)


def test_confusions_that_mistakes_of_the_models_explain_are_marked_and_not_shown(found):
    rows = {row.site: row for row in found.sites}
    marks = {name: {(c.true, c.given): c.supported for c in row.confused} for name, row in rows.items()}
    assert marks["Bonn"]["2", "3"] and marks["Bonn"]["3", "2"]
    assert not any(mark for name in ("Aix", "Cork", "Essen <b>") for mark in marks[name].values())
    for row in rows.values():
        words = report.describe_confusions(row)
        for c in row.confused:
            assert (f"{c.true} given as {c.given} " in words) == c.supported
        assert words == "-" or row.low > 0 or row.classes


@pytest.mark.parametrize(
    ("wrong", "accused", "low", "cell", "supported"),
    [(4, True, 0.05, False, False), (20, True, 0.05, False, True), (20, True, 0.0, False, False),
     (20, False, 0.0, False, False),
     (4, True, 0.0, True, True)],
)  # fmt: skip
def test_a_confusion_is_compared_with_the_mistakes_at_the_cleanest_site(wrong, accused, low, cell, supported):
    """By hand, Wilson at 95 %: 3 of 30 elsewhere is at most 25.6 %; 4 of 30 is at least 5.3 %, 20 of 30 at least 48.8 %."""
    expected = np.array([[[30 - n, n], [0, 30]] for n in (wrong, 3, 5)], float)
    mistakes = confusions_of_mistakes(expected)
    assert abs(mistakes[0, 1] - 0.256) < 1e-3 and confusions_of_mistakes(expected[:0]).tolist() == [[1, 1], [1, 1]]
    one = Assessment(np.array([[False, cell], [False, False]]), noisier=accused, low=low)
    (marked,) = mark_supported(find_confusions(expected[0], ["a", "b"]), ["a", "b"], one, mistakes)
    assert marked.supported == supported and abs(marked.low - {4: 0.053, 20: 0.488}[wrong]) < 1e-3


def test_only_declared_arrays_leave_a_site(doubtful, found):
    federation, _ = doubtful
    assert set(found.traffic.sent) == set(SENDS) - {"known", "total", "squares"}  # images have no scale
    sides = {"columns": 1, "changes": 18, "features": 34, "summed": 64}  # 287 samples allow 64 of 192 features
    for name, what in SENDS.items():
        if name in found.traffic.sent:
            shape = [sides.get(side, side) for side in what.sides(classes=10)]
            item = 1 if name == "withheld" else 8
            expected = 0 if name == "class_columns" else int(np.prod(shape, dtype=int)) * item
            assert found.traffic.sent[name] == 5 * expected, name


def test_page_and_facts(doubtful, found):
    facts = report.facts(found, *doubtful)
    json.dumps(facts)
    text = report.page(facts)
    assert "2 of 5 sites have more wrong labels" in facts["words"]
    assert text.index("2 of 5 sites have more") < text.index("review export") < text.index("<table")
    sites = report.sites_of(facts)
    assert sites == found.sites
    assert report.following(sites, "my file.npz")[0].split()[:4] == ["fnlkit", "review", "export", "'my"]
    assert report.following([replace(sites[0], site="Łódź/1")], "j.npz")[0].endswith(" -o 'review-Łódź-1'")
    assert report.following([replace(row, noisier=False) for row in sites], "j.npz") == ["fnlkit train j.npz -o run.pt"]
    assert facts["basis"] in text and {row["basis"] for row in facts["sites"]} == {"assumptions"}
    federation, data = doubtful
    named = replace(federation, dataset='folder(path="/data/hospital sites", label=2)')
    assert "<title>Audit of hospital sites</title>" in report.page(report.facts(found, named, data))
    assert "Essen &lt;b&gt;" in text and "<b>" not in text.replace('<b style="left', "") and "http" not in text


def test_which_samples_are_copies_stays_with_the_samples(doubtful):
    """A copy at a site is written beside the site's samples, held-out ones among them; nothing about it leaves."""
    data = datasets.load("digits")
    x = data.x_train.copy()
    split = {"clients": 3, "labels": "observed", "holdout": 0.2, "seed": 3}
    federation = partitioning.federation(data, **split)
    a, b = federation.clients[1][4], federation.held_out[1][2]
    x[b] = x[a]
    near = federation.clients[2][:2]
    x[near[1]] = np.clip(x[near[0]].astype(int) + (x[near[0]] > 100), 0, 255)
    planted = replace(data, samples=lambda: (x, data.x_test))
    federation = partitioning.federation(planted, **split)
    said = audit(federation, planted)
    of = said.arrays(federation)["estimate_copy_of"]
    assert {(min(j, of[j]), max(j, of[j])) for j in np.flatnonzero(of >= 0)} == {tuple(sorted((a, b))), tuple(sorted(near))}
    assert {row.client: (row.copies, row.near_copies) for row in said.sites} == {0: (0, 0), 1: (1, 0), 2: (0, 1)}
    assert add_judgment(federation, said.arrays(federation)).extra["estimate_far"].sum() == sum(row.far for row in said.sites)
    assert not {"copy_of", "far", "copies"} & set(said.traffic.sent)


def test_one_site_cannot_be_compared():
    data = datasets.load("digits")
    refuse_call("at least 2 classes, found 1", audit, replace(partitioning.federation(data, clients=3), classes=1), data)
    refuse_call("at least 2 sites", audit, partitioning.federation(data, clients=1), data)


def test_noisier_needs_more_than_chance():
    p = noisier_than_others([0.02, 0.02, 0.03, 0.2], [0.01] * 4)
    assert p[3] < 1e-6 and (p[:3] > 0.3).all() and (noisier_than_others([0.1] * 5, [0.02] * 5) == 1).all()


def test_confusions_are_ordered_and_small_ones_left_out():
    counts = np.array([[90.0, 10, 0], [1, 99, 0], [30, 0, 70]])
    rows = find_confusions(counts, ["a", "b", "c"])
    assert [(r.true, r.given) for r in rows] == [("c", "a"), ("a", "b")]
    assert rows[0].share == 0.3 and rows[0].low < 0.3 < rows[0].high


def simulated(n=1500, classes=4, sharpness=3.0):
    """Return (scores, true, rng): a calibrated classifier's log-probabilities, and classes drawn from them."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, classes)) * sharpness
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return np.log(p), (rng.random((n, 1)) > np.cumsum(p, 1)).sum(1), rng


def test_em_finds_the_transition_and_its_temper():
    scores, true, rng = simulated()
    T = np.array([[0.7, 0.3, 0, 0], [0, 1, 0, 0], [0, 0, 0.9, 0.1], [0, 0, 0, 1]])
    given = (rng.random((len(true), 1)) > np.cumsum(T[true], 1)).sum(1)
    for factor in (0.5, 1.0, 2.0):  # a classifier that is too timid, right, too sure
        temper = likelihood.best_temper(factor * scores, given)
        assert temper * factor == pytest.approx(1, rel=0.45)
    found = likelihood.fit(scores, given, 1.0, rng=rng)
    level = (given != true).mean()
    assert found["low"] <= level <= found["high"] and abs(found["level"] - level) < 0.03
    np.testing.assert_allclose(found["counts"] / found["counts"].sum(1, keepdims=True), T, atol=0.06)
    assert found["counts"].sum() == pytest.approx(len(true)) and found["posterior"].sum(1) == pytest.approx(1)


def test_an_audit_counts_a_group_as_one_observation(few_trees):
    """Six copies of 60 samples at each site: a clean site has 60 observations without an error, not 360."""
    rng, sites, patients, copies = np.random.default_rng(0), 5, 60, 6
    true = rng.integers(0, 2, sites * patients)
    given = np.where(np.arange(len(true)) < 4, 1 - true, true)
    x = np.stack([8 * true + rng.normal(size=len(true)), rng.normal(size=len(true))], 1)
    x = np.repeat(x, copies, 0) + 0.05 * rng.normal(size=(len(x) * copies, 2))
    y, groups = np.repeat(given, copies), np.repeat(np.arange(len(true)), copies)
    p = 1 / (1 + np.exp(-3 * (x[:, 0] - 4)))
    data = from_arrays("toy", {"x_train": x.astype(np.float32), "y_train": y})
    plain = Federation("toy", 2, np.arange(sites + 1) * patients * copies, np.arange(len(y)), y,
                       meta={"dataset_checksum": data.checksum})  # fmt: skip
    p = np.stack([1 - p, p], 1)
    found = [audit(replace(plain, extra=extra), data, probabilities=p) for extra in ({}, {"group": groups})]
    rows = [{row.client: row for row in each.sites} for each in found]
    for k in (2, 4):
        assert 0 <= rows[0][k].high - float(wilson(0, 360)[1]) <= 5 / 360  # ends are multiples of 5
        assert 0 <= rows[1][k].high - float(wilson(0, 60)[1]) <= 5 / 360
    assert rows[0][0].p < 1e-4 < 0.05 < rows[1][0].p
    assert rows[0][0].level == rows[1][0].level and rows[1][0].high > rows[0][0].high
    assert any("60 of 360 samples" in note for note in found[1].notes) and not any("group" in note for note in found[0].notes)


# ---- an audit by embeddings, by a backbone or by the user's probabilities, and further detectors
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
