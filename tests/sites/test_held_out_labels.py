"""A review of a site's test samples, of which no audit knows, changes what later runs measure."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fnlkit import datasets
from fnlkit.cli.site import command as site_command
from fnlkit.errors import InputError
from tests.sites import test_site_features as features
from tests.tables import edit_csv

WRONG = [3, 11, 17]


@pytest.fixture
def deployed(tmp_path):
    """Two sites with 100 training and 40 test samples; three test labels of the first site are wrong."""
    digits = datasets.load("digits")
    names = np.array(list(map(str, range(10))))
    for k, name in enumerate(["ours", "site-0", "site-1"]):
        train, test = slice(150 * k, 150 * k + 100), slice(150 * k + 100, 150 * k + 140)
        x, y = digits.x_train, digits.y_train
        y_test = np.array(y[test])
        if name == "site-0":
            y_test[WRONG] = (y_test[WRONG] + 4) % 10
        arrays = {"x_train": x[train], "y_train": y[train], "x_test": x[test], "y_test": y_test, "class_names": names}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    found = features.deploy(tmp_path, datasets.load(str(tmp_path / "ours.npz")), ["site-0.npz", "site-1.npz"])
    found.agree(settings=found.project.settings | {"rounds": 30})
    found.run("train")
    features.hand_over(found, tmp_path)
    found.nodes[100]["memory"] = str(tmp_path / "memory")
    return found


def call(folder, *words):
    output = ["-o", str(folder / "review-test")]
    return CliRunner().invoke(site_command, ["review", str(folder / "site-0.npz"), "--project", str(folder), *output, *words])


def test_reviewed_test_labels_are_those_of_later_runs(deployed, tmp_path, capsys):
    run, right = str(tmp_path / "train.out"), datasets.load("digits").y_train[250:290]
    before = deployed.run("evaluate", run=run)["sites"][0]
    done = call(tmp_path, "--test", run, "--budget", "20")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "review-test/review.html").exists()
    drop = []

    def change(row):
        position = int(row["position"])
        if row["part"] == "random" and not drop and position not in WRONG:
            drop.append(position)
            return {"decision": "drop"}
        wrong = str(right[position]) != row["given"]
        return {"decision": "relabel", "label": str(right[position])} if wrong else {"decision": "keep"}

    rows = edit_csv(tmp_path / "review-test/decisions.csv", change)
    suspects = [int(row["position"]) for row in rows if row["part"] == "suspect"]
    assert set(WRONG) <= set(suspects)  # the model did not learn the wrong labels
    done = call(tmp_path, "--test", run)
    assert done.exit_code == 0, done.output
    (tmp_path / "evaluate.out").unlink()
    after = deployed.run("evaluate", run=run)["sites"][0]
    assert (before["samples"], after["samples"]) == (40, 39)
    wrong = [row["samples"] * (1 - row["agreement"]) for row in (before, after)]  # middle of a range of five numbers
    assert wrong[1] <= wrong[0] + 1e-9
    client = deployed.site().client
    held, labels = client.held_out
    assert len(held.index) == 39 and torch.equal(labels, torch.from_numpy(np.delete(right, drop)))
    done = CliRunner().invoke(
        site_command, ["predict", run, str(tmp_path / "site-0.npz"), "--project", str(tmp_path), "--json"]
    )
    exact = json.loads(done.output)
    assert exact["samples"] == 39 and after["low"] <= exact["agreement"] <= after["high"]
    site = dict(np.load(tmp_path / "site-0.npz"))
    site["y_test"][0] = (site["y_test"][0] + 1) % 10
    np.savez(tmp_path / "site-0.npz", **site)
    with pytest.raises(InputError, match=r"test.reviewed.npz: .*move the file away"):
        deployed.site(task="evaluate")


def test_without_test_samples_there_is_nothing_to_review(deployed, tmp_path, capsys):
    site = dict(np.load(tmp_path / "site-0.npz"))
    np.savez(tmp_path / "site-0.npz", **{name: site[name] for name in ("x_train", "y_train", "class_names")})
    done = call(tmp_path, "--test", str(tmp_path / "train.out"))
    assert isinstance(done.exception, InputError) and "no test samples" in str(done.exception)


images = features.images


def test_images_of_a_project_with_a_backbone_are_reviewed_as_images(images, capsys):
    found = features.of_images(images)
    features.hand_over(found, images)
    found.nodes[100]["memory"] = str(images / "memory")
    found.run("estimate")
    done = call(images, "--budget", "5")
    assert done.exit_code == 0, str(done.exception)
    assert "data:image/" in (images / "review-test/review.html").read_text()
