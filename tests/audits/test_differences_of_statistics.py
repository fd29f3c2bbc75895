"""The statistics of an audit do not reveal a sample: not their differences either, and no quantile is a sample."""

import numpy as np
import pytest

from fnlkit.audits.messages import LEAST, LEAST_COLUMNS, classes_to_describe
from fnlkit.audits.site import inputs, summaries
from fnlkit.audits.site.samples import Samples
from fnlkit.federated.client.scaling import moments_of_known

CLASSES, WIDTH = 4, 6


def client(sizes, seed=0):
    """Return a client with Gaussian samples of classes of these sizes."""
    rng = np.random.default_rng(seed)
    return Samples(rng.normal(size=(sum(sizes), WIDTH)).astype(np.float32), np.repeat(np.arange(CLASSES), sizes), CLASSES)


def remainders(member):
    """Return what totals minus classes reveal: (means (k, d) of the undescribed samples, their number) for each total."""
    y, counts = member.y, np.bincount(member.y, minlength=CLASSES)
    reply = inputs.describe_columns(member)
    means = reply["class_columns"][0]
    described = np.abs(reply["class_columns"]).sum((0, 2)) > 0  # zeros are sent for the others
    parts = (means * np.where(described, counts, 0)[:, None]).sum(0)
    left = int(counts[~described].sum())
    totals = [moments_of_known(member.x).total, reply["columns"][0] * len(y)]
    return [(total - parts) / max(1, left) for total in totals if total.any()], left


@pytest.mark.parametrize("rare", [1, 2, 4])
def test_totals_minus_classes_are_no_record(rare):
    """The attacker subtracts the classes from each total; the record of a rare class must not remain."""
    member = client([30, 25, 8, rare])
    record = member.x[member.y == 3].mean(0)
    found, left = remainders(member)
    assert left >= LEAST and len(found) == 2
    for mean in found:
        assert np.abs(mean - record).max() > 0.05
    assert all(np.abs(mean - member.x[member.y >= 2].mean(0)).max() < 1e-4 for mean in found)  # of all who remain


def test_the_columns_of_a_file_contain_no_sample_of_a_class_that_is_left_out():
    """The totals of a file are those of its classes, so that nothing remains."""
    first = summaries.summarize(client([60, 50, 8, 2]))
    total = (first["class_columns"][0] * first["counts"][:, None]).sum(0)
    np.testing.assert_allclose(total, first["columns"][0] * first["counts"].sum(), atol=1e-6)


@pytest.mark.parametrize("n", [5, 11, 19, 20, 21, 31, 41, 101])
def test_no_quantile_is_a_sample(n):
    """With n = 11, 21, ... the 10, 50 and 90 % quantiles were samples."""
    member = client([n, 0, 0, 0], seed=n)
    quantiles = inputs.describe_columns(member)["columns"][2:]
    if n < LEAST_COLUMNS:
        assert not quantiles.any()
        return
    assert np.abs(quantiles[:, None] - member.x).min() > 1e-6
    for j in range(WIDTH):
        for q, exact in zip(quantiles[:, j], np.percentile(member.x[:, j], [10, 50, 90]), strict=True):
            assert abs(q - exact) < 0.6


def test_described_classes_leave_none_or_five_samples():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (500, 5))
    described = classes_to_describe(counts)
    rest = np.where(described, 0, counts).sum(1)
    assert (counts[described] >= LEAST).all() and ((rest == 0) | (rest >= LEAST) | ~(counts >= LEAST).any(1)).all()
