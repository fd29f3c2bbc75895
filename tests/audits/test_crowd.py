"""Audit of annotators who share samples: no label of a sample reaches the classifier that judges it."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from fnlkit.audits import crowd
from fnlkit.audits.audit import audit
from fnlkit.audits.report import describe_shared_samples
from fnlkit.audits.site.samples import Samples
from tests.methods.test_annotators import crowd as people
from tests.toy import CLASSES, toy


def judged(change=None):
    """Return (Samples of the clients, probabilities of each); `change` edits their labels before."""
    sites = [Samples.of(client) for client in toy()[0].members]
    for site in sites:
        site.y = site.y.copy()
        if change:
            change(site)
    return sites, crowd.judge_together(sites)


def of_fold(site, fold=0):
    codes = [crowd.zlib.crc32(np.ascontiguousarray(each).tobytes()) % crowd.FOLDS for each in site.x]
    return np.array(codes) == fold


def test_labels_of_a_fold_do_not_reach_the_classifier_that_judges_it(monkeypatch):
    """With one pass; further passes share the matrices of the clients, which have few parameters."""

    def rotate(site):
        site.y[of_fold(site)] = (site.y[of_fold(site)] + 1) % CLASSES

    monkeypatch.setattr(crowd, "PASSES", 1)
    monkeypatch.setattr(crowd, "RIDGES", (1.0,))
    (sites, before), (_, after) = judged(), judged(rotate)
    changed = 0
    for site, one, two in zip(sites, before, after, strict=True):
        here = of_fold(site)
        np.testing.assert_allclose(one[here], two[here], atol=1e-9)
        changed += np.abs(one[~here] - two[~here]).sum()
    assert changed > 1


def test_the_judgment_has_a_probability_for_each_class():
    for site, p in zip(*judged(), strict=True):
        assert p.shape == (len(site), CLASSES) and np.allclose(p.sum(-1), 1)


@pytest.fixture(scope="module")
def audited():
    data, federation = people(np.random.default_rng(3))
    return federation, audit(federation, data)


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
