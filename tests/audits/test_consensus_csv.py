"""Consensus labels as a table of samples, labels and probabilities."""

import numpy as np
import pandas as pd
import pytest

import fnlkit
from tests.commands import succeed

WORDS = np.array(["cat", "dog"])


@pytest.fixture
def voted(tmp_path):
    rng = np.random.default_rng(0)
    true, rows = rng.integers(0, 2, 30), []
    for i in range(30):
        for name, right in (("ann", 0.95), ("bob", 0.9), ("eve", 0.8)):
            vote = true[i] if rng.random() < right else 1 - true[i]
            rows.append((f"s{i}", name, WORDS[vote], i + 0.5 * true[i], (7 * i) % 11))
    pd.DataFrame(rows, columns=["id", "annotator", "label", "a", "b"]).to_csv(tmp_path / "votes.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("scheme", ["iid", "annotators"])
def test_every_voted_sample_has_a_label_and_a_probability(voted, scheme):
    more = "--scheme annotators" if scheme == "annotators" else "--clients 2"
    succeed(f"fnlkit partition --dataset votes.csv {more} --holdout 0 -o fed.npz", voted)
    succeed("fnlkit consensus fed.npz --csv out.csv -o agreed.npz", voted)
    found, fed = pd.read_csv(voted / "out.csv"), fnlkit.load(str(voted / "agreed.npz"))
    assert found.columns.tolist() == ["sample", "class", "name", "probability"]
    assert sorted(found["sample"]) == sorted(f"s{i}" for i in range(30)) and found["probability"].between(0.5, 1).all()
    assert (found["name"] == WORDS[found["class"]]).all()
    labels = dict(zip(found["sample"], found["class"], strict=True))
    assert all(labels[str(i).split(" by ")[0]] == c for i, c in zip(fed.extra["sample_id"], fed.given, strict=True))
