"""Labels that nobody verified, from the split to the figure: nothing measured on them is called accuracy."""

import json

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.run import Run
from tests.commands import refuse, succeed


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
    assert set(found) == {"held_out", "estimated", "gold"}
    assert [found[name]["measures"] for name in found] == [
        "agreement",
        "agreement with the other sites' labels",
        "accuracy",
    ]
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


def test_words_and_pictures(own):
    done = succeed("fnlkit evaluate run.pt --confusion", own)
    for words in ("agreement with given labels", "not verified", "held-out samples, given label", "verified samples, true"):
        assert words in done.stdout, words
    done = succeed("fnlkit train judged.npz --rounds 1 --fraction 1 -o again.pt", own)
    assert "agreement with given labels" in done.stderr and "accuracy" not in done.stderr
    done = succeed("fnlkit evaluate run.pt again.pt", own)
    assert "best agreement" in done.stdout and "best accuracy" not in done.stdout
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra `plot`)")
    succeed("fnlkit plot run.pt again.pt -o curves.svg", own)
    assert succeed("fnlkit train judged.npz --rounds 4 --fraction 1 --resume again.pt -o again.pt", own).returncode == 0
    first, second = (Run.read(own / name) for name in ("run.pt", "again.pt"))
    assert (first.weights == second.weights).all() and first.traffic == second.traffic


def test_each_sites_model_on_each_sites_samples(own):
    row = json.loads(succeed("fnlkit evaluate run.pt --cross-site --json", own).stdout)["cross_site"]
    assert row["sites"] == ["Aix", "Bonn", "Cork"] and row["measures"] == "agreement" and np.shape(row["own"]) == (3, 3)
    assert sum(row["samples"]) == 281 and np.shape(row["federated"]) == (3,)
    own_models, sizes = np.array(row["own"]), np.array(row["samples"])
    # A third of Bonn's labels are random: no model agrees with them as it does with the other sites'.
    assert (own_models[[0, 2], 1] + 0.15 < own_models[[0, 2], 2]).all()
    held = json.loads(succeed("fnlkit evaluate run.pt --json", own).stdout)["measured"]["held_out"]["share"]
    assert np.dot(row["federated"], sizes) / sizes.sum() == pytest.approx(held)
    # A run of `local` holds these very models.
    succeed("fnlkit train judged.npz --method local --rounds 4 --fraction 1 -o local.pt", own)
    again = json.loads(succeed("fnlkit evaluate local.pt --cross-site --json", own).stdout)["cross_site"]
    assert again["own"] == row["own"] and again["federated"] is None
    assert "all, federated" in succeed("fnlkit evaluate run.pt --cross-site", own).stdout
    refuse("fnlkit evaluate run.pt local.pt --cross-site", own, "--cross-site is of one run")


def test_test_samples_with_given_labels_are_no_truth_either(own):
    digits = datasets.load("digits")
    arrays = {"x_train": digits.x_train, "y_train": digits.y_train, "x_test": digits.x_test, "y_test": digits.y_test}
    np.savez(own / "tested.npz", **arrays)
    np.savez(own / "declared.npz", **arrays, y_test_true=digits.y_test)
    for name, word in (("tested", "agreement"), ("declared", "accuracy")):
        succeed(f"fnlkit partition --dataset {name}.npz --clients 5 | fnlkit train --rounds 1 -o {name}.pt", own)
        row = json.loads(succeed(f"fnlkit evaluate {name}.pt --json", own).stdout)
        assert row["measured"]["test"]["measures"] == word and f"{word}_last" in row and f"class_{word}" in row


@pytest.mark.parametrize("line", ["fnlkit partition --holdout 1.5", "fnlkit partition --gold none.csv"])
def test_mistakes_are_one_line(line, tmp_path):
    refuse(line, tmp_path, "-")
