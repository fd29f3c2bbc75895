"""The commands of docs/clean-your-labels.md in order, with decisions that follow the true labels (15 seconds)."""

import re

import pytest

from fnlkit.artifacts.federation import Federation
from tests.pages.steps import walk
from tests.tables import edit_csv, parse_csv

pytestmark = pytest.mark.slow


def decided(folder):
    """Fill in the exported table as a person does who sees what each image shows."""
    truth = {row["file"]: row["true"] for row in parse_csv(folder / "sites-truth.csv")}
    ids = Federation.read(str(folder / "judged.npz")).extra["sample_id"]

    def decision(row):
        true = truth[str(ids[int(row["position"])])]
        return {"reviewer": "Ada"} | ({"decision": "keep"} if true == row["given"] else {"decision": "relabel", "label": true})

    edit_csv(folder / "review/decisions.csv", decision)


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tutorial")
    done = walk("docs/clean-your-labels.md", folder, before={"fnlkit review import": decided})
    return folder, {" ".join(line.split()[1:3]): " ".join((each.stdout + each.stderr).split()) for line, each in done.items()}


def test_the_audit_names_the_site_whose_errors_depend_on_the_class_only(walked):
    _, said = walked
    assert "1 of 5 sites has more wrong labels than the others, beyond chance: bonn (" in said["audit fed.npz"]


def test_the_review_lowers_the_share_of_wrong_labels(walked):
    folder, said = walked
    assert "6.9 %" in said["review import"]
    levels = Federation.read(str(folder / "reviewed.npz")).meta["reviews"][-1]
    assert levels["after"]["level"] < levels["level"]["level"] and levels["after"]["high"] < levels["level"]["high"]


def test_agreement_with_unverified_labels_is_not_called_accuracy(walked):
    _, said = walked
    for text in said.values():
        rest = re.sub(r"is no accuracy|accuracy, random reviews|accuracy held-out samples, by random reviews", "", text)
        assert "accuracy" not in rest, rest
    assert "agreement with given labels" in said["evaluate run.pt"] and "all, federated" in said["evaluate run.pt"]
