"""Runs before and after a review have different held-out labels."""

import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import fnlkit
from fnlkit.artifacts.run import Run
from fnlkit.results import held_out
from fnlkit.results.conventions import conventions_line
from fnlkit.results.plots import curves
from tests.commands import refuse, refuse_call, succeed

QUICK = {"rounds": 2, "fraction": 1, "epochs": 2, "engine": "sequential", "say": None}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return (folder, federation as received, federation as reviewed, runs on both): a fifth of all labels is wrong."""
    folder, rng = tmp_path_factory.mktemp("reviewed"), np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + 2 * (x[:, 1] > 0)
    np.savez(folder / "own.npz", x_train=x, y_train=np.where(rng.random(400) < 0.2, rng.integers(0, 4, 400), y))
    before = fnlkit.partition(str(folder / "own.npz"), clients=4, say=None)
    given = np.where(rng.random(400) < 0.7, y, before.given)  # a review finds most
    after = replace(before, given=given, extra={**before.extra, "received": np.array(before.given)})
    runs = [fnlkit.train(federation, **QUICK) for federation in (before, after)]
    for run, name in zip(runs, ("before.pt", "after.pt"), strict=True):
        run.write(str(folder / name))
    return folder, before, after, runs


def test_runs_before_and_after_a_review_are_not_compared(world):
    folder, _, _, runs = world
    done = succeed("fnlkit evaluate before.pt after.pt", folder)
    assert "different labels" in done.stdout
    refuse_call("held-out labels", curves.accuracy, runs)


def test_runs_before_and_after_a_review_are_compared_where_labels_are_decided(world):
    folder, before, after, runs = world
    done = succeed("fnlkit evaluate before.pt after.pt", folder)
    held = held_out.held_out_positions(before)
    same = before.given[held] == after.given[held]
    right = [(run.predicted["held_out"] == run.labels["given"][held])[same] for run in runs]
    found = held_out.compare_on_decided(*runs)
    assert (found.samples, found.undecided) == (same.sum(), (~same).sum()) and found.samples >= held_out.LEAST
    assert (found.first, found.second) == pytest.approx([one.mean() for one in right])
    # One row per sample: the interval is that of the mean of the paired differences.
    each = right[1].astype(float) - right[0]
    half = 1.959964 * each.std() / np.sqrt(len(each))
    assert (found.low, found.high) == pytest.approx((each.mean() - half, each.mean() + half))
    assert f"{found.samples} samples that have the same label" in re.sub(r"\s+", " ", done.stdout + done.stderr)
    report = succeed("fnlkit report before.pt after.pt -o both.html", folder)
    assert report.returncode == 0 and "Best on average" not in (folder / "both.html").read_text()


def test_reviewed_samples_count_and_few_decided_samples_are_named(world):
    _, before, after, runs = world
    reviewed = np.ones(len(after.given), bool)
    all_decided = fnlkit.train(replace(after, extra={**after.extra, "reviewed": reviewed}), **QUICK)
    found = held_out.compare_on_decided(runs[0], all_decided)
    assert found.undecided == 0 and found.samples == len(held_out.held_out_positions(before))
    held = held_out.held_out_positions(after)
    assert found.second == pytest.approx((all_decided.predicted["held_out"] == after.given[held]).mean())
    few = replace(found, samples=held_out.LEAST - 12, undecided=40)
    assert "at least 12 of the 40 others" in few.describe()
    assert held_out.compare_on_decided(runs[0], replace(runs[1], predicted={})) is None


def test_runs_of_one_review_or_of_other_seeds_are_compared_as_ever(world):
    folder, before, after, runs = world
    again = [fnlkit.train(after, **{**QUICK, "seed": 1}), fnlkit.train(after, **{**QUICK, "method": "flr"})]
    assert not held_out.differing([runs[1], *again])
    assert [*held_out.differing([runs[1], again[0], runs[0]]).values()] == [(1, 2)]  # the first two have equal labels
    elsewhere = fnlkit.partition(str(folder / "own.npz"), clients=4, seed=1, say=None)
    assert not held_out.differing([runs[0], fnlkit.train(elsewhere, **QUICK)])
    assert "agreement_last" in fnlkit.evaluate(runs[1], *again).rows[0]


@pytest.fixture(scope="module")
def own_models(tmp_path_factory):
    """A folder with runs whose clients keep models."""
    folder = tmp_path_factory.mktemp("own")
    train = "fnlkit train fed.npz --fraction 1 --rounds 2 --epochs 1 --batch-size 60 --engine sequential --model"
    line = "fnlkit partition --clients 4 --scheme 'dirichlet(alpha=0.2)' --holdout 0.2 -o fed.npz"
    line += f" && {train} 'mlp(hidden=[16])' --optimizer ditto -o ditto.pt"
    line += f" && {train} 'mlp(hidden=[16])' --method local -o local.pt"
    line += f" && {train} 'mlp(hidden=[16])' -o fedavg.pt"
    succeed(line, folder)
    return folder


def test_own_models_are_tested_on_the_held_out_samples_of_their_clients(own_models):
    (local,) = fnlkit.evaluate(own_models / "local.pt", personal=True, cross_site=True).rows
    expected = local["cross_site"]
    assert local["personal"]["own"] == [expected["own"][i][i] for i in range(4)] and "common" not in local["personal"]
    (ditto,) = fnlkit.evaluate(own_models / "ditto.pt", personal=True).rows
    found = ditto["personal"]
    run = Run.read(str(own_models / "ditto.pt"))
    names = ("own", "common")
    for name in names:
        shares = np.average(found[name], weights=found["samples"])
        assert found[f"{name}_share"] == pytest.approx(shares)
    # The common model on all held-out samples is what the run measured; a client knows its classes better.
    assert found["common_share"] == pytest.approx(ditto["measured"]["held_out"]["share"])
    assert found["own_share"] > found["common_share"] + 0.05
    assert sum(found["samples"]) == len(run.labels["holdout_client"][run.labels["holdout_client"] >= 0])


def test_personal_scores_are_printed_and_refused_without_own_models(own_models):
    done = succeed("fnlkit evaluate ditto.pt --personal", own_models)
    assert re.search(r"^client +samples +own model +common model$", done.stdout, re.MULTILINE)
    done = succeed("fnlkit evaluate ditto.pt local.pt --personal", own_models)
    assert re.search(r"^run +method +own model +common model$", done.stdout, re.MULTILINE)
    refuse("fnlkit evaluate fedavg.pt --personal", own_models, "--personal needs a run whose clients keep models")
    refuse("fnlkit evaluate ditto.pt local.pt --cross-site", own_models, "--cross-site is of one run")


# ---- sites are compared by models on what the run was trained on
@pytest.mark.slow
def test_sites_are_compared_on_the_features_of_the_backbone(tmp_path):
    rng = np.random.default_rng(0)
    for site in "abc":
        for name, high in (("x", 256), ("y", 90)):
            (tmp_path / site / name).mkdir(parents=True)
            for i in range(10):
                Image.fromarray(rng.integers(0, high, (32, 32, 3)).astype(np.uint8)).save(tmp_path / site / name / f"{i}.png")
    fed = fnlkit.partition(f'folder(path="{tmp_path}", label=2)', "sites", say=None)
    run = fnlkit.train(fed, rounds=2, fraction=1.0, output=tmp_path / "run.pt", say=None)
    found = fnlkit.evaluate(run, cross_site=True).rows[0]["cross_site"]
    assert run.meta["features"]["backbone"] and np.mean(found["own"]) > 0.8 and np.mean(found["federated"]) > 0.8


# ---- the line of conventions names what differs between two runs, and `fnlkit info` prints it
def trained(noise_first=False, method="fedavg", **options):
    steps = [lambda fed: fnlkit.partition(fed, "dirichlet(alpha=5)", clients=4, say=None)]
    steps.insert(0 if noise_first else 1, lambda fed: fnlkit.inject_noise(fed, "symmetric(eta=0.4)"))
    federation = "digits"
    for step in steps:
        federation = step(federation)
    options |= {"model": "mlp", "rounds": 1, "epochs": 1, "batch_size": 40, "engine": "sequential"}
    return fnlkit.train(federation, method, say=None, **options)


def line(run):
    wrong = float(np.mean(run.labels["given"] != run.labels["true"]))
    return conventions_line(run.meta["provenance"], wrong_share=wrong, tested="test" in run.predicted)


def test_runs_that_differ_in_a_convention_have_different_lines_and_info_prints_them(tmp_path):
    run = trained()
    changes = (
        {"noise_first": True},
        {"method": "flr"},
        {"aggregator": "median"},
        {"mixup": 1.0},
        {"select": "label-wave"},
        {"seed": 1},
    )
    lines = [line(run), *(line(trained(**change)) for change in changes)]
    assert len(set(lines)) == len(lines)
    assert all("\n" not in text for text in lines)
    wrong = np.mean(run.labels["given"] != run.labels["true"])
    assert f"{wrong:.3f} of the labels wrong" in lines[0]
    relabel = {"command": "estimate-noise", "parameters": {"estimator": "knn", "apply": "relabel"}}
    steps = run.meta["provenance"][:-1] + [relabel] + run.meta["provenance"][-1:]
    changed = conventions_line(steps, wrong_share=0.1)
    assert "; labels changed by estimate-noise (0.100 of the labels wrong); " in changed
    fnlkit.save(run, tmp_path / "run.pt")
    assert f"conventions: {lines[0]}\n" in succeed("fnlkit info run.pt", tmp_path).stdout
    run.predicted.clear()  # as after an interruption
    fnlkit.save(run, tmp_path / "interrupted.pt")
    assert "; accuracy on the test split, true labels" in succeed("fnlkit info interrupted.pt", tmp_path).stdout
    x, y = np.random.default_rng(0).normal(size=(80, 3)), np.arange(80) % 2
    np.savez(tmp_path / "own.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    observed = fnlkit.partition(tmp_path / "own.npz", clients=2, say=None)
    fnlkit.save(fnlkit.train(observed, "ridge", say=None), tmp_path / "observed.pt")
    assert "; agreement with the given labels of the test split, " in succeed("fnlkit info observed.pt", tmp_path).stdout
