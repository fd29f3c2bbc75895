"""Audit by two files per site: equal to the audit in one place, small cells withheld, bad files and messages refused."""

import importlib.util
import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fnlkit.artifacts import files
from fnlkit.audits import rounding, shifts, summaries
from fnlkit.audits.samples import Samples
from fnlkit.client.client import Client
from fnlkit.client.inputs import Inputs
from fnlkit.sites import leaving
from tests import commands

SPEC = importlib.util.spec_from_file_location("audit_by_mail", Path(__file__).parents[2] / "examples/audit_by_mail.py")
EXAMPLE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(EXAMPLE)
NAMES, WRONG, SHIFTED = EXAMPLE.NAMES, EXAMPLE.NOISY, EXAMPLE.OTHER_UNIT


def fnlkit(text, folder, ends=0):
    """Return the finished command `fnlkit TEXT`; of a failed one, the only line on stderr."""
    done = commands.fnlkit(f"fnlkit {text}", folder)
    assert done.returncode == ends, done.stderr
    if ends:
        (line,) = done.stderr.splitlines()
        assert line.startswith("fnlkit: error:")
        return line
    return done


@pytest.fixture(scope="module")
def mailed(tmp_path_factory):
    """A folder with all files of an audit by mail."""
    folder = tmp_path_factory.mktemp("mail")
    EXAMPLE.main(folder)
    names = " ".join(f"--name {name}" for name in NAMES)
    fnlkit(f"flower-app project --dataset all.csv --sites 5 {names}", folder)
    for name in NAMES:
        fnlkit(f"site summarize {name}.csv {at(name)} -o {name}-1.npz", folder)
    fnlkit(f"sites audit {several(1)} -o heads.npz", folder)
    for name in NAMES:
        fnlkit(f"site judge {name}.csv heads.npz {at(name)} -o {name}-2.npz", folder)
    fnlkit(f"sites audit {several(1)} {several(2)} --html audit.html -o audit.json", folder)
    return folder


def at(name):
    return f"--project project/pyproject.toml --site {name}"


def several(number):
    return " ".join(f"{name}-{number}.npz" for name in NAMES)


@pytest.fixture
def copy(mailed, tmp_path):
    """A copy of the folder to change."""
    return shutil.copytree(mailed, tmp_path / "copy")


def changed(path, change, target=None):
    """Write a file of fnlkit again after `change(arrays, meta)`."""
    one = files.read(path)
    change(one.arrays, one.meta)
    files.write(one, target or path)


def test_the_files_and_the_audit_in_one_place_give_the_same_result(mailed):
    fnlkit("partition --dataset all.csv --scheme sites --labels observed -o fed.npz", mailed)
    done = fnlkit("audit fed.npz --json -o judged.npz", mailed)
    quick, mail = json.loads(done.stdout), json.loads((mailed / "audit.json").read_text())
    # Counts of single samples stay at a real site.
    single = ("copies", "near_copies", "far", "unlabeled", "detectors", "agreed")
    left, right = ([{name: row[name] for name in row if name not in single} for row in one["sites"]] for one in (quick, mail))
    assert left == right
    rows = {row["site"]: row for row in mail["sites"]}
    assert [name for name in NAMES if rows[name]["noisier"]] == [WRONG] and 0.2 < rows[WRONG]["level"] < 0.4
    assert [name for name in NAMES if rows[name]["inputs"]["differ"]] == [SHIFTED]


def test_small_classes_and_cells_leave_in_no_file(mailed):
    for name in NAMES:
        first = files.read(mailed / f"{name}-1.npz")
        assert first.arrays["counts"].tolist()[3] == 0 and first.arrays["withheld"].tolist() == [False] * 3 + [True]
        assert first.arrays["moments"].shape[0] <= first.arrays["counts"].sum() // 4
        second = files.read(mailed / f"{name}-2.npz").arrays
        for table in summaries.TABLES:
            assert not (second[table] % 5).any() and not (second[f"{table}_wrong"] % 5).any()
            assert not np.diag(second[table]).any()
        for number in (second["supported"], second["certain"][0], second["low"], second["high"]):
            assert number % 5 == 0
        assert (mailed / f"{name}-1.txt").read_text().count("\n") > 4
        text = (mailed / f"{name}-2.txt").read_text()
        assert f"{second['low']} to {second['high']}" in text and "multiple of 5" in text
        left = leaving.read_ledger(str(mailed / f"project/memory-{name}/left.jsonl"))
        assert [set(line["arrays"]) for line in left] == [set(first.arrays), set(second)]


def test_discriminant_analysis_from_sums_equals_that_of_scikit_learn():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 400)
    x = rng.normal(size=(3, 5))[y] + rng.normal(size=(400, 5)) @ rng.normal(size=(5, 5))
    counts, by_class, moments = summaries.sums(x, y, 4)
    coefficients, offsets = summaries.discriminant(counts, by_class, moments, shrinkage=0.0)
    scores = (x @ coefficients.T + offsets)[:, :3]
    theirs = LinearDiscriminantAnalysis(solver="eigen").fit(x, y).decision_function(x)
    np.testing.assert_allclose(scores - scores.mean(1, keepdims=True), theirs - theirs.mean(1, keepdims=True), atol=1e-6)
    assert offsets[3] < -100


def test_sites_of_different_sizes_send_nested_features():
    rng, clients = np.random.default_rng(2), []
    y = rng.integers(0, 3, 400)
    x = (2 * rng.normal(size=(3, 40))[y] + rng.normal(size=(400, 40))).astype(np.float32)
    for k, part in enumerate(np.split(np.arange(400), [15, 60, 160])):
        labels = torch.from_numpy(y[part])
        clients.append(Client(k, torch.from_numpy(x[part]), labels, labels, 3, Inputs(False)))
    firsts = [summaries.summarize(client, (np.zeros(40), np.ones(40))) for client in clients]
    assert [first["sums"].shape[1] for first in firsts] == [0, 8, 16, 40]
    few = summaries.features(Samples.of(clients[3]))[:, :8]
    np.testing.assert_allclose(sum(few), summaries.summarize(clients[3])["sums"].sum(0)[:8], rtol=1e-9)
    heads = summaries.make_heads(firsts)
    assert heads["sizes"].tolist() == [16, 16, 40, 8]
    second = summaries.judge(clients[2], heads, 2, changes=shifts.possible("vector", (40,)))
    predicted = rounding.restore_table(second["predicted"], second["predicted_wrong"], firsts[2]["counts"])
    assert predicted.trace() > 0.9 * predicted.sum()


def test_a_site_answers_one_message_and_keeps_the_suspects(copy):
    fnlkit(f"site judge aix.csv heads.npz {at('aix')} -o again.npz", copy)  # the same message: the same file
    assert (copy / "again.npz").read_bytes() == (copy / "aix-2.npz").read_bytes()
    changed(copy / "heads.npz", lambda arrays, meta: arrays["coefficients"].__imul__(2), copy / "other.npz")
    line = fnlkit(f"site judge aix.csv other.npz {at('aix')} -o second.npz", copy, ends=2)
    assert "other.npz" in line and not (copy / "second.npz").exists()
    assert "refused" in leaving.read_ledger(str(copy / "project/memory-aix/left.jsonl"))[-1]["told"]
    kept = files.read(copy / f"project/memory-{WRONG}/judged.npz").arrays
    flagged, score = kept["estimate_flagged"], kept["estimate_issue_score"]
    assert 40 < flagged.sum() < 90 and score[flagged].mean() > 3 * score[~flagged].mean()
    assert (score[-2:] == 0).all() and not flagged[-2:].any()  # the withheld class


def hostile(name, value):
    def change(arrays, meta):
        arrays[name] = np.asarray(value(arrays[name]))

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (hostile("coefficients", lambda v: v * 1e9), "classifier"),
        (hostile("coefficients", lambda v: np.where(v == v.max(), np.nan, v)), "coefficients"),
        (hostile("coefficients", lambda v: np.zeros((5, 4, 4096))), "classifier"),
        (hostile("offsets", lambda v: v[:, :2]), "offsets"),
        (hostile("compared", lambda v: 10**6), "features"),
        (hostile("mean", lambda v: v + 1), "scale"),
        (hostile("center", lambda v: v * [[1], [0.05]]), "narrower range"),
        (hostile("center", lambda v: v + [[1e3], [0]]), "narrower range"),
        (hostile("fits", lambda v: v + [[[0], [1e3]]]), "column 0"),
        (lambda arrays, meta: meta["firsts"].update(aix="0" * 64), "first file"),
        (lambda arrays, meta: arrays.update(more=np.zeros(3)), "arrays"),
    ],
)
def test_a_hostile_message_is_refused_before_it_is_answered(change, named, copy):
    shutil.rmtree(copy / "project/memory-aix")
    fnlkit(f"site summarize aix.csv {at('aix')} -o aix-1.npz", copy)
    changed(copy / "heads.npz", change)
    line = fnlkit(f"site judge aix.csv heads.npz {at('aix')} -o second.npz", copy, ends=2)
    assert named in line and not (copy / "second.npz").exists()


def test_a_message_of_another_project_does_not_make_a_site_forget_the_first_one(copy):
    """A coordinator could otherwise send a project, another one, and the first one again with other heads."""
    changed(copy / "heads.npz", lambda arrays, meta: arrays["coefficients"].__imul__(2), copy / "other.npz")
    agreed = copy / "project/pyproject.toml"
    first = agreed.read_text()
    assert "\nmax_samples = 10000\n" in first
    agreed.write_text(first.replace("\nmax_samples = 10000\n", "\nmax_samples = 9000\n"))
    fnlkit(f"site summarize aix.csv {at('aix')} -o aix-other.npz", copy)
    agreed.write_text(first)
    fnlkit(f"site summarize aix.csv {at('aix')} -o aix-1.npz", copy)
    line = fnlkit(f"site judge aix.csv other.npz {at('aix')} -o second.npz", copy, ends=2)
    assert "a site answers one" in line and not (copy / "second.npz").exists()


def test_a_record_of_an_earlier_version_is_read(copy):
    path = copy / "project/memory-aix/mail.json"
    ((project, record),) = json.loads(path.read_text())["projects"].items()
    path.write_text(json.dumps(record | {"project": project}))
    changed(copy / "heads.npz", lambda arrays, meta: arrays["coefficients"].__imul__(2), copy / "other.npz")
    assert "a site answers one" in fnlkit(f"site judge aix.csv other.npz {at('aix')} -o second.npz", copy, ends=2)


def test_a_second_first_file_of_other_data_is_refused(copy):
    lines = (copy / "aix.csv").read_text().splitlines()
    (copy / "aix.csv").write_text("\n".join(lines[:-9]) + "\n")
    before = (copy / "aix-1.npz").read_bytes()
    assert "difference" in fnlkit(f"site summarize aix.csv {at('aix')} -o aix-1.npz", copy, ends=2)
    assert (copy / "aix-1.npz").read_bytes() == before


def put(name, place, value):
    def change(arrays, meta):
        arrays[name][place] = value

    return change


@pytest.mark.parametrize(
    ("path", "change", "named"),
    [
        ("bonn-1.npz", lambda a, m: m.update(project="0" * 64), "project"),
        ("bonn-1.npz", lambda a, m: m.update(features=99), "features"),
        ("bonn-1.npz", lambda a, m: m.update(classes=["a", "b", "c", "e"]), "classes"),
        ("bonn-1.npz", lambda a, m: m["scale"][0].__setitem__(0, 5.0), "scale"),
        ("bonn-1.npz", lambda a, m: m.update(site="nowhere"), "nowhere"),
        ("bonn-1.npz", lambda a, m: m.update(site="aix"), "aix"),
        ("bonn-1.npz", put("moments", (0, 0), np.nan), "moments"),
        ("bonn-1.npz", put("counts", 0, 10**9), "counts"),
        ("bonn-1.npz", put("counts", 0, 3), "fewer than 5"),
        ("bonn-1.npz", put("moments", (0, 0), 0.0), "variance"),
        ("bonn-1.npz", put("sums", 0, 1e7), "class sum"),
        ("bonn-1.npz", put("columns", (1, 0), -1.0), "deviation"),
        ("bonn-1.npz", lambda a, m: a.pop("moments"), "moments"),
        ("bonn-2.npz", put("predicted", (0, 0), 10**6), "predicted"),
        ("bonn-2.npz", put("low", (), 10**6), "range"),
        ("bonn-2.npz", put("expected", (0, 1), 3), "multiples of 5"),
        ("bonn-2.npz", put("within_wrong", 0, 10**6), "within"),
        ("bonn-2.npz", lambda a, m: m.update(heads="0" * 64), "heads"),
        ("bonn-2.npz", lambda a, m: a.update(certain=np.zeros(3, np.int64)), "bonn"),
        ("bonn-2.npz", put("certain", 0, -5), "negative"),
        ("bonn-2.npz", put("certain", 1, 10**6), "larger than the number of samples"),
        ("bonn-2.npz", put("supported", (), -5), "negative"),
        ("aix-1.npz", lambda a, m: m.update(sites=5), "aix-1.npz: the entry sites is int"),
        ("aix-1.npz", lambda a, m: m.update(most="many"), "aix-1.npz: the entry most is str"),
        ("aix-1.npz", lambda a, m: m.update(classes=None), "aix-1.npz: the entry classes is NoneType"),
    ],
)
def test_files_that_do_not_fit_are_named_in_one_line(path, change, named, copy):
    changed(copy / path, change)
    (copy / "audit.json").unlink()
    line = fnlkit(f"sites audit {several(1)} {several(2)} -o audit.json", copy, ends=2)
    assert named in line and not (copy / "audit.json").exists()


@pytest.mark.parametrize(
    ("paths", "named"),
    [
        (f"{several(1)} aix-2.npz", "bonn, cork, dole, evry"),
        (f"{several(1)} aix-2.npz", "all sites need another project"),
        (f"{several(1)} aix-1.npz", "aix"),
        (f"{several(2)}", "first files"),
        ("aix-1.npz bonn-1.npz", "3 sites"),
        ("heads.npz", "heads.npz"),
        ("aix.csv", "aix.csv"),
    ],
)
def test_missing_and_repeated_files_are_named(paths, named, mailed):
    assert named in fnlkit(f"sites audit {paths} -o {shlex.quote('out.npz')}", mailed, ends=2)
    assert not (mailed / "out.npz").exists()
