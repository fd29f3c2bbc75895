"""CrowdTruth from made files in the published format, files that differ from them, and the names of removed readers."""

import csv
import hashlib
import io
import json

import pytest

from fnlkit import datasets
from fnlkit.datasets import crowdtruth, load
from tests.commands import refuse, succeed


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Return a function that writes the file of a relation into the cache folder and declares its checksum."""
    monkeypatch.setenv("FNLKIT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "Medical-Relation-Extraction"
    folder.mkdir(parents=True)

    def write(relation, verdicts):
        names = ("baseline", "crowd", "expert", "test_partition")
        words = {"sentence": "aspirin treats a headache", "term1": "aspirin", "term2": "headache"}
        out = io.StringIO()
        writer = csv.DictWriter(out, ["SID", *words, *names])
        writer.writeheader()
        writer.writerows({"SID": i, **words, **dict(zip(names, row, strict=True))} for i, row in enumerate(verdicts))
        (folder / f"ground_truth_{relation}.csv").write_text(out.getvalue(), encoding="utf-8")
        monkeypatch.setitem(crowdtruth.SHA256, relation, hashlib.sha256(out.getvalue().encode()).hexdigest())
        return folder

    return write


def test_crowdtruth_has_adjudicated_sentences_and_three_labelers(publish):
    """The third adjudicated sentence is tested; sentence 1 is unclear and sentence 3 has no verdict."""
    verdicts = [("1", "-0.8", "-1", "-1"), ("1", "0.9", "1", "0"), ("-1", "0.6", "1", "1"), ("1", "0.7", "NA", "NA"),
                ("1", "-0.9", "1", "-1"), ("-1", "-0.9", "-1", "-1")]  # fmt: skip
    publish("treat", verdicts)
    data = load("crowdtruth(relation=treat)")
    assert data.class_names == ["other", "treat"] and data.ids.tolist() == ["0", "2", "5"]
    assert data.y_train.tolist() == [1, 0, 0] and data.truth.tolist() == [0, 1, 0] and data.y_test.tolist() == [0]
    assert data.annotators == ["baseline", "crowd", "expert"] and data.votes.tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert load("crowdtruth(relation=treat, labels=crowd)").y_train.tolist() == [0, 1, 0]
    rows = load("votes(data=crowdtruth(relation=treat))")
    assert len(rows.y_train) == 9 and rows.truth.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]


def test_missing_and_changed_files_and_unknown_names_are_one_line(publish, tmp_path):
    assert not datasets.present("crowdtruth", cache=tmp_path)
    refuse("fnlkit data get crowdtruth", tmp_path, f"git clone {crowdtruth.URL}", "no ground_truth_cause.csv")
    folder = publish("cause", [("1", "1", "1", "1"), ("-1", "1", "-1", "-1")] * 4)
    assert "0.0 % of the training labels" in succeed("fnlkit -v data get crowdtruth", tmp_path).stdout
    facts = json.loads(succeed("fnlkit data info 'crowdtruth(labels=crowd)' --json", tmp_path).stdout)
    assert (facts["wrong_labels"], facts["annotators"], facts["sites"]) == (0.5, 3, None)
    (folder / "ground_truth_cause.csv").write_text("changed")
    refuse("fnlkit data get crowdtruth", tmp_path, "SHA-256", "checkout")
    refuse(f"fnlkit data get 'crowdtruth(path=\"{tmp_path}/none\")'", tmp_path, "no ground_truth_cause.csv")
    refuse("fnlkit data get 'crowdtruth(relation=cures)'", tmp_path, "cause or treat")
    refuse("fnlkit data get crowdtruht", tmp_path, "did you mean 'crowdtruth'")
