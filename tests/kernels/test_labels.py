"""Labels beside predicted classes: the compiled passes against loops, on ties, zeros, one class and sizes around a vector."""

import numpy as np
import pytest

from fnlkit.errors import InputError
from fnlkit.kernels.labels import confident_classes, entropy_scores, largest_margins, own_and_other


def rows(n, classes, kind):
    rng = np.random.default_rng(classes)
    probs = rng.dirichlet(np.ones(classes), n)
    if kind == "ties":
        probs = rng.integers(0, 3, (n, classes)) + 1e-3
        probs /= probs.sum(1, keepdims=True)
    elif kind == "certain":
        probs = np.eye(classes)[rng.integers(0, classes, n)]
    return probs, rng.integers(0, classes, n)


# In float64, which commands pass: float32 has the same source and would be compiled once more.
@pytest.mark.parametrize("kind", ["random", "ties", "certain"])
@pytest.mark.parametrize("classes", [1, 2, 7, 8, 9, 17])
def test_passes_equal_loops(classes, kind):
    n = 200
    probs, labels = rows(n, classes, kind)
    limits = np.stack([probs.mean(0), np.full(classes, 0.4)])
    offsets = np.array([0, 120, n])
    for threads in (1, 2):
        own, other, agrees = own_and_other(probs, labels, threads=threads)
        confident = confident_classes(probs, np.arange(n), limits, offsets, threads=threads)
        np.testing.assert_array_equal(confident_classes(probs, np.arange(1, n, 3), limits, offsets), confident[1::3])
        for i, (row, y) in enumerate(zip(probs, labels, strict=True)):
            assert own[i] == row[y] and other[i] == max(np.delete(row, y), default=-1e-6)
            raised = row.copy()
            raised[y] += 1e-6
            assert agrees[i] == (raised.argmax() == y)
            reached = np.flatnonzero(row >= limits[int(i >= 120)] - 1e-6)
            assert confident[i] == (classes if not len(reached) else reached[0] if len(reached) == 1 else row.argmax())
    if classes > 1:
        own = np.maximum(probs[np.arange(n), labels], 0.1)
        ratio = [-sum(v * np.log(v) for v in row if v > 0) / np.log(classes) for row in probs] / own
        expected = np.log(ratio + 1) / np.maximum(ratio, 1e-6)
        np.testing.assert_allclose(entropy_scores(probs, own, 1e-6), expected, rtol=0, atol=1e-12)
        shift = np.linspace(0, 0.5, classes)
        shifted = (probs + shift) / (probs + shift).sum(1, keepdims=True)
        own, other, _ = own_and_other(probs, labels, shift=shift)
        np.testing.assert_allclose(own, shifted[np.arange(n), labels], rtol=1e-12)
        np.testing.assert_allclose(other, [np.delete(row, y).max() for row, y in zip(shifted, labels, strict=True)], rtol=1e-12)


@pytest.mark.parametrize(("most", "kind", "threads"), [(3, "random", 1), (60, "ties", 1), (3, "ties", 2)])
def test_largest_margins_equal_sorted_lists(kind, most, threads):
    """Numbers below and above the number of margins above 0; of equal margins, the first samples."""
    n, classes, sites = 50_000 if threads == 2 else 600, 9, 2
    probs, labels = rows(n, classes, kind)
    groups = np.repeat(np.arange(sites), n // sites) * classes + labels
    sizes = np.bincount(groups, minlength=sites * classes)
    numbers = np.random.default_rng(1).integers(0, most, (sites * classes, classes))
    own, other, _ = own_and_other(probs, labels)
    found = largest_margins(probs, groups, sizes, numbers, own, other, threads=threads)
    expected = np.zeros(n, bool)
    for group in range(sites * classes):
        here = np.flatnonzero(groups == group)
        for c in range(classes):
            if c != group % classes:
                margins = probs[here, c] - probs[here, group % classes]
                expected[here[np.argsort(-margins, kind="stable")[: numbers[group, c]]]] = True
    np.testing.assert_array_equal(found, expected & (other > own))


@pytest.mark.parametrize("value, message", [(np.nan, "must be finite"), (2.0, "must sum to 1"), (-0.5, "must hold prob")])
@pytest.mark.parametrize("classes", [2, 8, 11])
def test_rows_that_are_no_probabilities_are_refused(classes, value, message):
    probs = np.full((50, classes), 1 / classes)
    probs[-1, -1] = value
    if value < 0:
        probs[-1, 0] += 1 / classes - value
    with pytest.raises(InputError, match=message):
        own_and_other(probs, np.zeros(50, np.int64))
