"""Neighbor votes that depend on the order of rows are noted."""

import numpy as np

import fnlkit
from fnlkit.estimators.knn import share_by_order


def test_votes_that_depend_on_the_order_of_rows_are_counted():
    """Binary values have many equal distances; Gaussian values have none."""
    rng = np.random.default_rng(0)
    labels, offsets = rng.integers(0, 3, 300), np.array([0, 100, 300])
    settings = {"classes": 3, "seed": 0, "include_self": False, "ties": "random", "groups": None}
    fine, coarse = rng.normal(size=(300, 6)), rng.integers(0, 2, (300, 6)).astype(float)
    assert share_by_order(fine, labels, offsets, 7, settings) == 0
    share = share_by_order(coarse, labels, offsets, 7, settings)
    assert share > 0.2 and share == share_by_order(coarse, labels, offsets, 7, settings)
    assert share_by_order(coarse, labels, offsets, 7, settings | {"groups": np.arange(300)}) == share


def test_knn_prints_a_note_on_many_equal_samples():
    federation = fnlkit.partition("digits", clients=4, say=None)
    notes = []
    coarse = (federation.true % 2)[:, None].astype(np.float32)
    fnlkit.estimate_noise(federation, "knn(k=9)", embeddings=coarse, say=notes.append)
    assert any("depend on the order" in note for note in notes)
    notes.clear()
    fine = np.random.default_rng(0).random((len(federation.true), 4), np.float32)
    fnlkit.estimate_noise(federation, "knn(k=9)", embeddings=fine, say=notes.append)
    assert not any("depend on the order" in note for note in notes)
