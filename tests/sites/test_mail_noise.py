"""Files with noise of an audit by mail: equal to the simulation, noise as stated, and no release beyond the agreed epsilon."""

import json
import math
import shutil
import tomllib

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.audit import audit, digest
from fnlkit.datasets.loading import to_dataset
from fnlkit.kernels.streams import stream
from fnlkit.sites import leaving, mail_files, mail_noise
from tests.sites.test_mail import EXAMPLE, NAMES, SHIFTED, WRONG, at, changed, fnlkit, hostile, put, several

pytest.importorskip("dp_accounting")


def project(folder, more):
    names = " ".join(f"--name {name}" for name in NAMES)
    fnlkit(f"flower-app project --dataset public.csv --sites 5 {names} {more}", folder)


@pytest.fixture(scope="module")
def mailed(tmp_path_factory):
    """A folder with all files of an audit with noise, which comes from the streams of the simulation."""
    folder = tmp_path_factory.mktemp("mail")
    EXAMPLE.main(folder, 1000)
    project(folder, "--sums-epsilon 1")
    drawn = [stream(0, f"protected {part}", client=k) for part in ("sums", "counts") for k in range(5)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mail_noise, "HiddenStream", lambda secret: drawn.pop(0))
        for name in NAMES:
            fnlkit(f"site summarize {name}.csv {at(name)} --epsilon 1 --delta 1e-5 -o {name}-1.npz", folder)
        fnlkit(f"sites audit {several(1)} -o heads.npz", folder)
        for name in NAMES:
            fnlkit(f"site judge {name}.csv heads.npz {at(name)} -o {name}-2.npz", folder)
    fnlkit(f"sites audit {several(1)} {several(2)} --html audit.html -o audit.json", folder)
    return folder


@pytest.fixture
def copy(mailed, tmp_path):
    """A copy of the folder to change."""
    return shutil.copytree(mailed, tmp_path / "copy")


@pytest.fixture
def fresh(tmp_path):
    """A folder with tables of 200 samples, to which a test adds a project."""
    EXAMPLE.main(tmp_path)
    return tmp_path


def delta_of(epsilon, sigma):
    """Return the delta of a Gaussian release with sensitivity 1 (Balle and Wang 2018, equation 6)."""
    return norm.cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * norm.cdf(-0.5 / sigma - epsilon * sigma)


def sigma_of(epsilon, delta):
    return brentq(lambda sigma: delta_of(epsilon, sigma) - delta, 0.05, 1000)


def test_the_files_and_the_simulation_with_the_same_noise_give_the_same_result(mailed):
    fnlkit("partition --dataset all.csv --scheme sites --labels observed -o fed.npz", mailed)
    config = tomllib.loads((mailed / "project/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    scale = tuple(np.array(json.loads(config[name])) for name in ("mean", "std"))
    found = audit(Federation.read(mailed / "fed.npz"), to_dataset(str(mailed / "all.csv")), scale=scale, epsilon=1.0)
    result = json.loads((mailed / "audit.json").read_text())
    assert result["digest"] == digest(found.sites)
    rows = {row["site"]: row for row in result["sites"]}
    assert [name for name in NAMES if rows[name]["noisier"]] == [WRONG] and 0.2 < rows[WRONG]["level"] < 0.4
    assert [name for name in NAMES if rows[name]["inputs"]["differ"]] == [SHIFTED]


def test_the_page_states_the_guarantee_and_lists_only_the_arrays_of_the_files(mailed):
    result, page = json.loads((mailed / "audit.json").read_text()), (mailed / "audit.html").read_text()
    assert result["privacy"] == {"epsilon": 1.0, "delta": 1e-5}
    assert "(1, 1e-05)-differentially private for one record added or removed" in page
    sent = {name for number in (1, 2) for name in files.read(mailed / f"aix-{number}.npz").arrays}
    assert set(result["sent"]) == sent == {"counts", "sums", "moments", "agreement", "predicted"}
    assert all("noise" in row["what"] for row in result["sent"].values())
    assert all(set(row["skill"]) == {"others"} and not row["missing"] for row in result["sites"])


def test_the_suspects_stay_at_the_site(mailed):
    kept = files.read(mailed / f"project/memory-{WRONG}/judged.npz").arrays
    flagged, score = kept["estimate_flagged"], kept["estimate_issue_score"]
    assert 200 < flagged.sum() < 450 and score[flagged].mean() > 3 * score[~flagged].mean()


def test_secret_noise_has_the_stated_deviation_for_the_sensitivity(fresh):
    project(fresh, "--sums-epsilon 50")
    site = mail_files.open_site(str(fresh / "aix.csv"), str(fresh / "project/pyproject.toml"), name="aix")
    points = mail_noise.private.points_of(site.client, site.scale)
    labels, m = site.client.y.numpy(), points.shape[1]
    each = np.eye(4)[labels]
    exact = {"counts": each.sum(0), "sums": each.T @ points, "moments": points.T @ points}
    # The largest change by one record: a class count by 1, a class sum by x, the moments by x x^T.
    norms = np.linalg.norm(points, axis=1)
    largest = {"counts": 1.0, "sums": norms.max(), "moments": (norms**2).max()}
    residuals = {name: [] for name in exact}
    for n in range(40):
        epsilon = 1 + n / 1000
        one, _ = mail_noise.summarize_with_noise(site, epsilon, None)
        most, away = one.meta["privacy"]["sensitivity"], one.meta["privacy"]["deviation"]
        share = sum((most[name] / away[name]) ** 2 for name in most)
        assert share == pytest.approx(1 / sigma_of(epsilon, 1e-5) ** 2, rel=1e-3)
        for name, values in exact.items():
            assert largest[name] <= most[name] * (1 + 1e-9)
            difference = (one.arrays[name] - values) / away[name]
            if name == "moments":  # entries beside the diagonal count twice in the norm
                difference = np.where(np.eye(m, dtype=bool), difference, difference * math.sqrt(2))[np.triu_indices(m)]
            residuals[name].append(difference.reshape(-1))
    for name, values in residuals.items():
        values = np.concatenate(values)
        assert abs(values.std() - 1) < 4 / math.sqrt(2 * len(values)), name
        assert abs(values.mean()) < 4 / math.sqrt(len(values)), name


def test_releases_add_up_in_the_ledger_until_the_agreed_epsilon(fresh):
    project(fresh, "--sums-epsilon 1")
    summarize = f"site summarize aix.csv {at('aix')}"
    assert "--epsilon" in fnlkit(f"{summarize} -o out.npz", fresh, ends=2)
    assert "agreed to 1" in fnlkit(f"{summarize} --epsilon 1.01 -o out.npz", fresh, ends=2)
    printed = fnlkit(f"{summarize} --epsilon 0.5 -o first.npz", fresh).stdout
    assert "(0.5, 1e-05)-differentially private" in printed and (fresh / "first.txt").read_text() == printed
    fnlkit(f"{summarize} --epsilon 0.5 -o again.npz", fresh)
    assert (fresh / "again.npz").read_bytes() == (fresh / "first.npz").read_bytes()
    fnlkit(f"{summarize} --epsilon 0.6 -o second.npz", fresh)
    total = files.read(fresh / "second.npz").meta["privacy"]["total"]
    together = (sigma_of(0.5, 1e-5) ** -2 + sigma_of(0.6, 1e-5) ** -2) ** -0.5
    assert delta_of(total, together) == pytest.approx(1e-5, rel=1e-2) and 0.6 < total < 1.1
    line = fnlkit(f"{summarize} --epsilon 0.9 -o third.npz", fresh, ends=2)
    assert f"{total:.3g}" in line and not (fresh / "third.npz").exists() and not (fresh / "out.npz").exists()
    ledger = leaving.read_ledger(str(fresh / "project/memory-aix/left.jsonl"))
    totals = [one["told"]["total epsilon"] for one in ledger if "total epsilon" in one.get("told", {})]
    assert totals == [pytest.approx(0.5, rel=1e-3), total]
    assert "refused" in ledger[-1]["told"]
    log = fnlkit(f"site log {at('aix')}", fresh).stderr
    assert "total epsilon" in log or "total epsilon" in fnlkit(f"site log {at('aix')} --json", fresh).stdout


def test_other_data_are_another_release(fresh):
    project(fresh, "--sums-epsilon 1")
    fnlkit(f"site summarize aix.csv {at('aix')} --epsilon 1 -o first.npz", fresh)
    lines = (fresh / "aix.csv").read_text().splitlines()
    (fresh / "aix.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert "agreed to 1" in fnlkit(f"site summarize aix.csv {at('aix')} --epsilon 1 -o more.npz", fresh, ends=2)


def test_noise_of_the_same_data_differs_between_folders(fresh):
    project(fresh, "--sums-epsilon 1")
    for n in range(2):
        fnlkit(f"site summarize aix.csv {at('aix')} --epsilon 1 -o {n}.npz", fresh)
        shutil.rmtree(fresh / "project/memory-aix")
    a, b = (files.read(fresh / f"{n}.npz").arrays["sums"] for n in range(2))
    assert (a != b).all()


def test_a_lost_file_is_not_drawn_again(fresh):
    project(fresh, "--sums-epsilon 1")
    fnlkit(f"site summarize aix.csv {at('aix')} --epsilon 1 -o first.npz", fresh)
    (fresh / f"project/memory-aix/{mail_noise.FIRST}").unlink()
    assert "missing" in fnlkit(f"site summarize aix.csv {at('aix')} --epsilon 1 -o again.npz", fresh, ends=2)


def test_noise_and_no_noise_do_not_mix(fresh):
    project(fresh, "")
    assert "--sums-epsilon" in fnlkit(f"site summarize aix.csv {at('aix')} --epsilon 1 -o out.npz", fresh, ends=2)
    fnlkit(f"site summarize aix.csv {at('aix')} -o first.npz", fresh)
    path = fresh / "project/pyproject.toml"
    plain = path.read_text()
    path.write_text(plain + "sums_epsilon = 1.0\nsums_delta = 1e-5\n")
    assert "without noise" in fnlkit(f"site summarize aix.csv {at('aix')} --epsilon 1 -o out.npz", fresh, ends=2)
    shutil.rmtree(fresh / "project/memory-aix")
    fnlkit(f"site summarize aix.csv {at('aix')} --epsilon 1 -o out.npz", fresh)
    path.write_text(plain)
    assert "undo" in fnlkit(f"site summarize aix.csv {at('aix')} -o more.npz", fresh, ends=2)
    path.write_text(plain + 'sums_epsilon = "much"\nsums_delta = 1e-5\n')
    assert "sums_epsilon" in fnlkit(f"site summarize aix.csv {at('aix')} --epsilon 1 -o more.npz", fresh, ends=2)


def test_a_scale_of_the_sites_has_no_noise(fresh):
    line = fnlkit("flower-app project --dataset public.csv --sites 5 --scale sites --sums-epsilon 1", fresh, ends=2)
    assert "--sums-epsilon" in line and not (fresh / "project").exists()


def test_a_site_answers_one_message_with_one_file(copy):
    fnlkit(f"site judge aix.csv heads.npz {at('aix')} -o again.npz", copy)
    assert (copy / "again.npz").read_bytes() == (copy / "aix-2.npz").read_bytes()
    changed(copy / "heads.npz", lambda arrays, meta: arrays["coefficients"].__imul__(2), copy / "other.npz")
    assert "another message" in fnlkit(f"site judge aix.csv other.npz {at('aix')} -o second.npz", copy, ends=2)
    lines = (copy / "aix.csv").read_text().splitlines()
    (copy / "aix.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert "data changed" in fnlkit(f"site judge aix.csv heads.npz {at('aix')} -o second.npz", copy, ends=2)
    assert not (copy / "second.npz").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (hostile("coefficients", lambda v: v * 1e9), "absurd"),
        (hostile("coefficients", lambda v: v[:, :2]), "coefficients"),
        (hostile("mean", lambda v: v + 1), "scale"),
        (lambda arrays, meta: meta["firsts"].update(aix="0" * 64), "first file"),
        (lambda arrays, meta: meta.update(epsilon=0.5), "epsilon"),
        (lambda arrays, meta: [meta.pop(name) for name in ("epsilon", "delta")], "first file"),
    ],
)
def test_a_hostile_message_is_refused(change, named, copy):
    memory = copy / "project/memory-aix"
    record = json.loads((memory / mail_noise.RECORD).read_text())
    for name in ("heads", "second"):
        record["releases"][0].pop(name)
    (memory / mail_noise.RECORD).write_text(json.dumps(record))
    changed(copy / "heads.npz", change)
    assert named in fnlkit(f"site judge aix.csv heads.npz {at('aix')} -o second.npz", copy, ends=2)
    assert not (copy / "second.npz").exists()


@pytest.mark.parametrize(
    ("path", "change", "named"),
    [
        ("bonn-1.npz", lambda a, m: m.update(epsilon=0.5), "epsilon"),
        ("bonn-1.npz", lambda a, m: m.update(delta="much"), "delta"),
        ("bonn-1.npz", put("counts", 0, 1e9), "counts"),
        ("bonn-1.npz", put("sums", (0, 0), np.nan), "sums"),
        ("bonn-1.npz", put("sums", (0, 0), 1e9), "class sum"),
        ("bonn-1.npz", put("moments", (0, 0), 1e9), "moments"),
        ("bonn-1.npz", put("moments", (0, 1), 1e3), "symmetric"),
        ("bonn-2.npz", put("predicted", (0, 0), -1e6), "predicted"),
        ("bonn-2.npz", lambda a, m: a.update(agreement=np.zeros(3)), "agreement"),
    ],
)
def test_files_with_noise_that_do_not_fit_are_named(path, change, named, copy):
    changed(copy / path, change)
    (copy / "audit.json").unlink()
    line = fnlkit(f"sites audit {several(1)} {several(2)} -o audit.json", copy, ends=2)
    assert named in line and not (copy / "audit.json").exists()
