import numpy as np

from fnlkit.audits.server.heads import LEAST_VARIANCE, make_heads
from fnlkit.audits.site import summaries
from fnlkit.audits.site.samples import Samples
from fnlkit.estimators.likelihood import RIGHT, WRONG, wrong_probabilities


def test_labels_without_evidence_are_wrong_with_the_expected_share():
    # p(label) = p(other class), so that each label is wrong with probability s, and s = (n s + WRONG) / (n + WRONG + RIGHT).
    out = wrong_probabilities(np.full((50, 2), 0.5), np.zeros(50, int))
    np.testing.assert_allclose(out, WRONG / (WRONG + RIGHT))


def test_scores_keep_the_order_and_rise_with_the_share_of_wrong_labels():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(3, 0.3), 300)
    clean = p.argmax(1)
    noisy = np.where(rng.random(300) < 0.3, (clean + 1) % 3, clean)
    out = wrong_probabilities(p, noisy)
    order = np.argsort(out)
    assert (np.diff(p[np.arange(300), noisy][order]) <= 1e-12).all()
    same = noisy == clean
    assert (out[same] > wrong_probabilities(p, clean)[same]).all()


def test_small_sites_of_wide_tables_are_judged_by_all_columns():
    rng, sites = np.random.default_rng(1), []
    for k in range(3):
        y = np.arange(40) % 2
        sites.append(Samples((0.4 * rng.normal(size=(40, 20)) + 0.5 * y[:, None]).astype(np.float32), y, 2, number=k))
    scale = np.full(20, 0.1), np.full(20, 1.5)
    firsts = [summaries.summarize(site, scale) for site in sites]
    assert firsts[0]["sums"].shape[1] == 8
    heads = make_heads(firsts, scale)
    z = [(site.x.astype(np.float64) - scale[0]) / scale[1] for site in sites]
    rows, labels = np.concatenate(z[1:]), np.concatenate([site.y for site in sites[1:]])
    means = np.stack([rows[labels == c].mean(0) for c in range(2)])
    variance = ((rows - means[labels]) ** 2).mean(0) + LEAST_VARIANCE
    expected = -0.5 * ((z[0][:, None] - means) ** 2 / variance).sum(2)
    logits = summaries.features(sites[0], scale) @ heads["coefficients"][0].T + heads["offsets"][0]
    assert heads["sizes"][0] == 20
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], expected[:, 1] - expected[:, 0], rtol=1e-6)
