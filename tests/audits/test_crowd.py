"""Audit of annotators who share samples: no label of a sample reaches the classifier that judges it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from fnlkit.audits import crowd
from fnlkit.audits.audit import audit
from fnlkit.audits.report import describe_shared_samples
from fnlkit.sites.allowed import may_be_named
from tests.methods.test_annotators import crowd as people
from tests.toy import CLASSES, toy


def judged(change=None):
    """Return the clients after a judgment; `change` edits their labels before."""
    fed, model = toy()
    session = SimpleNamespace(ask=lambda *steps, **more: fed.round(range(len(fed)), model, *steps, **more))
    for client in fed.members if change else ():
        change(client)
    crowd.judge_at_clients(session, CLASSES)
    return fed.members


def of_fold(client, fold=0):
    codes = [crowd.zlib.crc32(np.ascontiguousarray(each.numpy()).tobytes()) % crowd.FOLDS for each in client.x]
    return torch.tensor(codes) == fold


def test_labels_of_a_fold_do_not_reach_the_classifier_that_judges_it(monkeypatch):
    """With one pass; further passes share the matrices of the clients, which have few parameters."""

    def rotate(client):
        client.y[of_fold(client)] = (client.y[of_fold(client)] + 1) % CLASSES

    monkeypatch.setattr(crowd, "PASSES", 1)
    monkeypatch.setattr(crowd, "RIDGES", (1.0,))
    before, after = judged(), judged(rotate)
    changed = 0
    for one, two in zip(before, after, strict=True):
        here = of_fold(one)
        assert torch.equal(one.rows["crowd/fold"] == 0, here)
        torch.testing.assert_close(one.rows["audit/tried"][here], two.rows["audit/tried"][here])
        changed += (one.rows["audit/tried"][~here] - two.rows["audit/tried"][~here]).abs().sum().item()
    assert changed > 1


def test_the_judgment_has_a_probability_for_each_class_and_keeps_no_features():
    for client in judged():
        p = client.rows["audit/tried"]
        assert p.shape == (len(client), 1, CLASSES) and torch.allclose(p.sum(-1), torch.ones(1, dtype=p.dtype))
        assert not {"crowd/features", "crowd/probabilities"} & set(client.rows)


@pytest.fixture(scope="module")
def audited():
    data, federation = people(np.random.default_rng(3))
    return federation, audit(federation, data, across=False)


def test_bad_annotators_are_named_and_clean_ones_are_not(audited):
    """Annotators 0 to 2 give 70 % wrong labels, the others 10 %."""
    federation, found = audited
    assert crowd.count_shared(federation)[0] > 100 and describe_shared_samples(federation)
    named = {row.client for row in found.sites if row.noisier}
    assert named == {0, 1, 2}


def test_levels_rank_the_annotators_and_ranges_cover_them(audited):
    federation, found = audited
    truth, rows = federation.wrong_share(), {row.client: row for row in found.sites}
    assert spearmanr(found.judgment.level, truth)[0] > 0.7
    assert np.abs(found.judgment.level - truth).mean() < 0.1
    assert sum(rows[k].low <= truth[k] <= rows[k].high for k in rows) >= 7
    assert not any(row.inputs.differ for row in found.sites)


def test_a_server_cannot_name_the_steps_at_a_real_site():
    steps = [name for name, found in vars(crowd).items() if getattr(found, "__module__", "") == crowd.__name__]
    assert "_infer_across" in steps and not any(may_be_named(crowd.__name__, name) for name in steps)


def test_what_leaves_is_declared(audited):
    _, found = audited
    assert set(crowd.SENDS) <= set(found.traffic.sent)
