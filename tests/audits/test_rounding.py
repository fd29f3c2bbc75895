"""The statistics of an audit: no count of fewer than five samples, no quantile that is a sample, no difference that is one."""

import itertools

import numpy as np
import pytest

from benchmarks import by_mail
from fnlkit.audits import rounding
from fnlkit.audits.messages import LEAST, LEAST_COLUMNS, classes_to_describe
from fnlkit.audits.server import statistics, verdict
from fnlkit.audits.site import inputs, summaries
from fnlkit.audits.site.samples import Samples
from fnlkit.federated.client.scaling import moments_of_known


# ---- rounded counts: no count of fewer than five samples follows from a second file, and sums are kept on average
def send(column, total):
    """Return what a second file states of the counts of one given class, which is the last one of the table."""
    table = np.zeros((len(column) + 1, len(column) + 1), int)
    table[:-1, -1] = column
    cells, wrong = rounding.round_table(table, np.array([0] * len(column) + [total]))
    return *cells[:-1, -1].tolist(), int(wrong[-1])


@pytest.mark.parametrize(("others", "total"), [(1, 12), (2, 6), (2, 9), (2, 40), (3, 9), (3, 14), (4, 12), (4, 16)])
def test_no_cell_follows_exactly_from_cells_and_sums(others, total):
    # All counts of a class by hand: those with the same released numbers leave at least two values of each cell.
    left = {}
    for column in itertools.product(range(total + 1), repeat=others):
        if sum(column) <= total:
            left.setdefault(send(column, total), []).append(column)
    assert (len(left) > 1) == (total > 6)  # a class of 6 samples has no room for a cell
    for columns in left.values():
        for values in np.array(columns).T:
            assert len(set(values.tolist())) > 1


def test_exact_sums_of_withheld_cells_would_state_them():
    # Four cells of 3 samples are sent as 5 each; their sum 12 would be sent as 10, which means at most 12: all are 3.
    assert rounding.round_counts(12) == 10
    assert send((3, 3, 3, 3), 40) == (5, 5, 5, 5, 15)


@pytest.mark.parametrize("total", [7, 8, 11, 12, 41, 500])
def test_a_class_whose_labels_are_all_contradicted_does_not_look_right(total):
    # Exact numbers near the total would state single samples, but no contradiction at all would be a false finding.
    for wrong in (total, total - 1, total - 2):
        table, totals = np.array([[30, wrong], [0, total - wrong]]), np.array([30, total])
        restored = rounding.restore_table(*rounding.round_table(table, totals), totals)
        assert wrong - 6 <= restored[0, 1] <= wrong + 2 and restored[0, 0] == 30


@pytest.mark.parametrize(("classes", "total"), [(2, 5), (2, 6), (2, 7), (3, 6), (3, 7), (4, 5)])
def test_a_class_has_room_if_its_labels_can_be_sent_as_wrong(classes, total):
    table = np.zeros((classes, classes), int)
    table[1:, 0] = [total // (classes - 1) + (i < total % (classes - 1)) for i in range(classes - 1)]
    _, wrong = rounding.round_table(table, np.array([total] + [0] * (classes - 1)))
    assert rounding.have_room(np.array([total] * classes))[0] == (wrong[0] > 0)


def test_restored_tables_have_the_totals_and_the_rounded_sums():
    rng = np.random.default_rng(0)
    away = []
    for _ in range(200):
        classes = rng.integers(2, 11)
        table = rng.poisson(rng.choice([0.5, 2, 4]), (classes, classes)) + np.diag(rng.integers(5, 60, classes))
        totals = table.sum(0)
        cells, wrong = rounding.round_table(table, totals)
        again = rounding.restore_table(cells, wrong, totals)
        assert (again.sum(0) == totals).all() and (again >= 0).all()
        assert not np.diag(cells).any() and not (cells % 5).any() and not (wrong % 5).any()
        roomy = (cells == np.where(np.eye(classes, dtype=bool), 0, rounding.round_counts(table))).all(0)
        assert (wrong >= rounding.sums_of(cells)[0]).all() and (
            np.abs(cells - table)[:, roomy] * ~np.eye(classes, dtype=bool)[:, roomy] <= 2
        ).all()
        away += ((again.trace() - table.trace()) / classes,)
    assert abs(np.mean(away)) < 0.5  # the number of contradicted labels is hardly biased


def test_of_two_classes_the_supported_labels_state_nothing_more():
    # Contradicted labels are either supported or doubted by the own model: the released difference follows from other numbers.
    for supported in range(12):
        assert rounding.round_supported(supported, np.array([10, 5]), np.array([5, 0])) == 10
    assert rounding.round_supported(13, np.array([10, 5, 5]), np.array([5, 0, 0])) == 15
    assert rounding.round_supported(23, np.array([10, 5, 5]), np.array([5, 0, 0])) == 15


def test_a_confusion_that_rounding_can_explain_is_not_reported():
    totals = np.array([38, 42, 29, 37, 33])
    for count, away, reported in ((5, 0, True), (5, rounding.ALLOWANCE, False), (10, rounding.ALLOWANCE, True)):
        predicted = np.array([[[n, 0], [0, 400]] for n in totals])
        predicted[4, :, 0] = totals[4] - count, count
        cells, p = statistics.confuses_beyond_chance(predicted, predicted.astype(float), away)
        assert cells[4, 1, 0] == reported and not cells[:4].any()
        assert (p[4] < statistics.SIGNIFICANT_CLASS) == reported


@pytest.mark.parametrize("skill", [0.0, 0.5, 0.95])
def test_the_bounds_of_the_attack_contain_the_counts(skill):
    # benchmarks.by_mail attacks a second file by these bounds; a bound that excludes the truth would hide a leak.
    rng, classes = np.random.default_rng(1), by_mail.CLASSES
    given = rng.integers(0, classes, 150)
    head, own = (np.where(rng.random(150) < skill, given, rng.integers(0, 2, 150)) for _ in range(2))
    counts, second = np.bincount(given, minlength=classes), {}
    for name, guess in {"predicted": head, "within": own, "doubted": np.where(head == own, head, given)}.items():
        table = np.zeros((classes, classes), int)
        np.add.at(table, (guess, given), 1)
        second[name], second[f"{name}_wrong"] = rounding.round_table(table, counts)
    supported = ((head != given) & (own == given)).sum()
    second["supported"] = rounding.round_supported(supported, second["predicted_wrong"], second["doubted_wrong"])
    true = np.zeros((classes,) * 3, int)
    np.add.at(true, (head, own, given), 1)
    for which, low, high in by_mail.windows_of(second, counts):
        assert low <= true[which].sum() <= high


@pytest.mark.parametrize("judge", ["own", "others"])
def test_labels_of_a_class_without_room_can_all_be_wrong(judge):
    counts = np.array([[60, 6], [60, 60], [60, 60]])
    tables = np.stack([np.diag(row) for row in counts])
    found = verdict.Predictions(np.zeros(3, int), np.ones((3, 2), bool), np.zeros(3, bool), tables, tables, 0 * tables,
                                np.zeros(3, int), np.tile([0, 20], (3, 1)))  # fmt: skip
    none = np.zeros(3)
    estimates = {"level": none, "low": none, "high": none + 0.02, "deviation": none + 0.01, "counts": tables.astype(float)}
    rows = verdict.assess([judge] * 3, estimates, counts, found)
    assert rows[0].unseen == pytest.approx(6 / 66) and rows[0].high > 6 / 66
    assert rows[1].unseen == 0 and rows[1].high < 0.06


# ---- the statistics of an audit do not reveal a sample: not their differences either, and no quantile is a sample
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
