"""Audit from sums with noise: the noise covers one record, and the verdicts allow for it."""

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits import private
from fnlkit.audits.audit import audit
from fnlkit.audits.server.private import discriminant, make_head
from fnlkit.audits.site.private import frequencies, judge_with_noise, summarize_with_noise
from fnlkit.audits.site.samples import Samples

pytest.importorskip("dp_accounting", reason="needs dp-accounting (extra `privacy`)")
TERMS = {"epsilon": 1.0, "delta": 1e-5}


class Constant:
    """Draws that are all equal: 0 gives the sums without noise, 1 the noise of each entry."""

    def __init__(self, value):
        self.value = value

    def standard_normal(self, size):
        return np.full(size, self.value)


def released(x, y, head, value):
    """Return the released numbers of both files as one vector (each entry of the moments once)."""
    client = Samples(x, y, 3)
    scale = np.zeros(x.shape[1]), np.ones(x.shape[1])
    first = summarize_with_noise(client, scale, **TERMS, draws=Constant(value))
    second, _ = judge_with_noise(client, head, scale, **TERMS, draws=Constant(value))
    upper = first["moments"][np.triu_indices(len(first["moments"]))]
    return np.concatenate([*(part.reshape(-1) for part in (first["counts"], first["sums"], *second.values())), upper])


@pytest.mark.parametrize("far", [0.3, 1.0, 1e6])
def test_one_record_changes_the_sums_by_at_most_the_noise_of_a_single_release(far):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 20)).astype(np.float32)
    x[-1] = far * rng.normal(size=20)
    y = np.arange(40) % 3
    head = {"coefficients": rng.normal(size=(3, 16)), "offsets": np.zeros(3)}
    with_it, without = released(x, y, head, 0.0), released(x[:-1], y[:-1], head, 0.0)
    noise = released(x, y, head, 1.0) - with_it
    distance = np.linalg.norm((with_it - without) / noise)
    most = 1 / private.sigma_of(**TERMS)
    assert distance <= most * (1 + 1e-9)
    assert far < 10 or distance > 0.9 * most  # no more noise than the budget needs


def test_images_are_described_by_their_lowest_frequencies():
    x = np.random.default_rng(2).integers(0, 256, (6, 8, 8, 1)).astype(np.uint8)
    y = np.arange(6) % 3
    points = frequencies(Samples(x, y, 3, True))
    # The first ones are half a wave along an axis; a constant image has none, and inverted images have the opposite ones.
    half = np.cos(np.pi * (np.arange(8) + 0.5) / 8)
    pixels = x[..., 0] / 127.5 - 1
    by_hand = np.stack([pixels.sum(1) @ half, pixels.sum(2) @ half], 1) * np.sqrt(2) / 8
    np.testing.assert_allclose(points[:, :2], by_hand, atol=1e-6)
    flat = frequencies(Samples(np.full_like(x, 9), y, 3, True))
    np.testing.assert_allclose(flat, 0, atol=1e-6)
    np.testing.assert_allclose(frequencies(Samples(255 - x, y, 3, True)), -points, atol=1e-6)


def test_all_sites_without_other_inputs_have_one_classifier():
    rng = np.random.default_rng(3)
    scale, firsts = (np.zeros(4), np.ones(4)), []
    for k in range(5):
        y = rng.integers(0, 2, 3000)
        x = (3 * (y[:, None] - 0.5) + rng.normal(size=(3000, 4)) + (4 if k == 2 else 0)).astype(np.float32)
        firsts.append(summarize_with_noise(Samples(x, y, 2, number=k), scale, **TERMS, draws=rng))
    head = make_head(firsts, **TERMS)
    same = discriminant([*firsts[:2], *firsts[3:]], private.noise_of(**TERMS, size=firsts[0]["sums"].shape[1]))
    np.testing.assert_array_equal(head["coefficients"], same[0])
    np.testing.assert_array_equal(head["offsets"], same[1])


def test_noise_hides_neither_wrong_labels_nor_other_inputs_of_large_sites(few_trees):
    rng = np.random.default_rng(1)
    centers = 2.5 * rng.normal(size=(3, 8)) / np.sqrt(2)
    y = rng.integers(0, 3, 5000)
    x, given = (centers[y] + rng.normal(size=(5000, 8))).astype(np.float32), y.copy()
    x[1000:2000] += 3
    given[3000:3300] = (given[3000:3300] + 1) % 3
    data = datasets.Dataset("simulated", "vector", y, y[:0], list("abc"), lambda: (x, x[:0]), observed=True)
    made = Federation("simulated", 3, np.arange(6) * 1000, np.arange(5000), given)
    found = audit(made, data, epsilon=2.0, scale=(np.zeros(8), 2 * np.ones(8)))
    rows = {row.client: row for row in found.sites}
    assert [k for k in range(5) if rows[k].noisier] == [3] and 0.2 < rows[3].level < 0.4
    assert [k for k in range(5) if rows[k].inputs.differ] == [1] and rows[1].judge is None
    wrong = given[3000:4000] != y[3000:4000]
    score = found.judgment.issue[3000:4000]
    assert (score[wrong][:, None] > score[~wrong]).mean() > 0.95  # the area under the ROC curve
