"""A site with fewer than five samples replies zeros where an audit judges its labels, and no other values are accepted."""

from functools import partial

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits import site, verdict
from fnlkit.audits.audit import audit
from fnlkit.client.client import Client
from fnlkit.client.inputs import Inputs
from fnlkit.server.replies import Malformed, admit

CLASSES, WIDTH = 3, 4


def client(size):
    rng = np.random.default_rng(size)
    x = torch.from_numpy(rng.normal(size=(size, WIDTH)).astype(np.float32))
    y = torch.arange(size) % CLASSES
    rows = {"audit/tried": torch.from_numpy(rng.dirichlet(np.ones(CLASSES), (size, 1)))}
    return Client(0, x, y.clone(), y, CLASSES, Inputs(False), rows=rows)


def replies_of(member):
    """Return all replies of the steps that judge the labels of a site."""
    received = {"chosen": torch.tensor(0), "known": torch.ones(CLASSES, dtype=torch.bool), "adapt": torch.tensor(False)}
    steps = [
        site.choose_change,
        partial(site.judge_within, seed=0),
        partial(site.judge_labels, prior=1.0, seed=0),
        partial(site.detect, detectors=("confident", "knn"), seed=0),
    ]
    return {name: values for step in steps for name, values in step(member, None, received).items()}


@pytest.mark.parametrize("size", [1, 4, 5])
def test_sites_with_few_samples_reply_zeros(size):
    """The table of predictions of one sample is its label, and a threshold on its values."""
    member = client(size)
    replies = replies_of(member)
    assert {"predicted", "within", "doubted", "supported", "certain", "low", "high", "counts", "detected"} <= set(replies)
    assert any(values.any() for values in replies.values()) == (size == 5)
    assert len(member.rows["estimate/issue"]) == size  # the judgment of each sample stays at the site
    known = {"classes": CLASSES, "samples": size, "detectors": 3, "numbers": 4}
    admit(replies, frozenset(replies), site.SENDS, None, **known)
    if size < 5:
        with pytest.raises(Malformed, match="'predicted' has entries"):
            wrong = replies | {"predicted": torch.eye(CLASSES, dtype=torch.int64)}
            admit(wrong, frozenset(wrong), site.SENDS, None, **known)


def test_an_audit_with_small_sites_judges_the_others_as_before():
    """The noisy site is named; the small ones cannot be judged, and have no level."""
    rng = np.random.default_rng(3)
    sizes = [60, 60, 60, 4, 1]
    y = rng.integers(0, CLASSES, sum(sizes))
    x = (rng.normal(size=(len(y), WIDTH)) + 4 * np.eye(CLASSES, WIDTH)[y]).astype(np.float32)
    data = datasets.Dataset("simulated", "vector", y, y[:0], list("abc"), lambda: (x, x[:0]), observed=True)
    given = y.copy()
    given[5:20] = (given[5:20] + 1) % CLASSES
    made = Federation("simulated", CLASSES, np.cumsum([0, *sizes]), np.arange(len(y)), given)
    rows = {row.client: row for row in audit(made, data, warm_up={"rounds": 8, "fraction": 1.0}, seed=0).sites}
    assert rows[0].finding == verdict.WRONG and rows[1].finding != verdict.WRONG
    for k in (3, 4):
        assert rows[k].finding == verdict.UNKNOWN and rows[k].judge is None and rows[k].matrix is None
        assert (rows[k].low, rows[k].high, rows[k].level) == (0, 1, None)
        assert "fewer than 5 samples" in " ".join(rows[k].words)
