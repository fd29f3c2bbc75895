"""Compare the labels of a site with those of the other sites: skill of models, tests of levels, confusions and class shares."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, chdtrc, gammaln, ndtr

from fnlkit.audits.records import ClassSkill
from fnlkit.estimators.intervals import wilson

# Largest p-value after Holm's correction of the test that a site has more wrong labels than the others.
SIGNIFICANT = 0.05
# The same for single confusions, for samples that both models contradict, and without the support of the site's own model.
SIGNIFICANT_CLASS = 0.01
# Fewer samples of the other sites give no reference, and fewer samples of a site are not judged.
LEAST_REFERENCE = 5
# A confusion is reported if it has at least this many expected samples and at least this share of the true class.
LEAST_SAMPLES, LEAST_SHARE = 3, 0.02
# Class shares differ if their total variation is larger, or the share of one class by this factor.
SHARES, RATIO = 0.15, 2.0
RARE = 1e-4  # p-value of the tests of class shares


def skill_by_class(predicted: np.ndarray, doubted: np.ndarray, classes: list[str]) -> list[ClassSkill]:
    """Share of each class that the models of the others predict, among labels that not both models contradict.

    Classes without samples are left out.

    Parameters
    ----------
    predicted, doubted : int (C, C)
        Counts by predicted class and given label, of all samples and of those for which both models predict the same other
        class.
    classes : list of str
    """
    rows = []
    for c, total in enumerate(predicted.sum(0) - doubted.sum(0)):
        if total > 0:
            right = min(predicted[c, c], total)
            low, high = wilson(right, total)
            rows.append(ClassSkill(classes[c], int(total), float(right / total), float(low), float(high)))
    return rows


def holm(p: ArrayLike) -> np.ndarray:
    """Correct p-values by Holm's procedure, in the same shape."""
    flat = np.asarray(p, np.float64).reshape(-1)
    order = np.argsort(flat, kind="stable")
    corrected = np.maximum.accumulate(flat[order] * (len(flat) - np.arange(len(flat))))
    adjusted = np.empty(len(flat))
    adjusted[order] = np.minimum(1, corrected)
    return adjusted.reshape(np.shape(p))


def noisier_than_others(level: ArrayLike, deviation: ArrayLike) -> np.ndarray:
    """One-sided p-values (N,) that a site is noisier than the median of the others.

    Holm's correction is applied. The reference is the median, so that a site with mostly wrong labels does not hide another
    noisy site.

    Parameters
    ----------
    level, deviation : (N,)
        Estimated levels and their standard deviations.

    Source: Holm 1979. Each test is of a normal difference; the variance of the median is pi / 2 times that of the mean.
    """
    level, variance, count = np.asarray(level), np.maximum(np.asarray(deviation), 1e-3) ** 2, len(level)
    if count < 2:
        return np.ones(count)
    others = np.array([np.median(np.delete(level, k)) for k in range(count)])
    of_median = np.pi / 2 * np.array([np.median(np.delete(variance, k)) for k in range(count)]) / (count - 1)
    spread = np.sqrt(variance + of_median)
    return holm(ndtr((others - level) / spread))


def more_than_others(counts: ArrayLike, totals: ArrayLike, away: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One-sided p-values (N, ...) that a share is larger at a site than at the others, and the others' shares.

    The other site with the largest share is left out if at least two remain, so that a noisy site does not hide another one.
    The test is Fisher's exact test.

    Parameters
    ----------
    counts, totals : int (N, ...)
    away : int
        The site is tested with a count that is smaller by this number, because counts are rounded.
    """
    counts, totals = np.broadcast_arrays(np.asarray(counts), np.asarray(totals))
    rates = counts / np.maximum(totals, 1)
    p, reference = np.ones(counts.shape), np.zeros(counts.shape)
    for k in range(len(counts)):
        others = np.arange(len(counts)) != k
        x, n, rate = counts[others], totals[others], np.where(totals[others] > 0, rates[others], -1)
        if len(x) > 2:
            worst = np.argmax(rate, 0)[None]
            x, n = x.copy(), n.copy()
            np.put_along_axis(x, worst, 0, 0)
            np.put_along_axis(n, worst, 0, 0)
        x, n = x.sum(0), n.sum(0)
        least = np.maximum(counts[k] - away, 0)
        tail = _at_least(least, totals[k] + n, least + x, totals[k])
        p[k] = np.where((n > 0) & (totals[k] > 0), tail, 1)
        # Half a sample more, because no mistakes among few samples do not mean a share of 0.
        reference[k] = np.where(n >= LEAST_REFERENCE, (x + 0.5) / (n + 1), 0)
    return p, reference


def _at_least(count, size, marked, drawn):
    """Probability (...) of at least `count` marked samples among `drawn` of `size` samples without replacement."""
    parts = [np.asarray(values) for values in np.broadcast_arrays(count, size, marked, drawn)]
    tail = np.ones(parts[0].shape)
    for place in np.argwhere(parts[0]):
        place = tuple(place)
        x, total, good, n = (int(values[place]) for values in parts)
        possible = np.arange(max(x, n + good - total), min(good, n) + 1)
        ways = _choose(good, possible) + _choose(total - good, n - possible) - _choose(total, n)
        tail[place] = min(1.0, np.exp(ways).sum())
    return tail


def _choose(n, k):
    """Logarithm of the binomial coefficient."""
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


def confuses_beyond_chance(predicted: np.ndarray, counts: np.ndarray, away: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Whether a site has more of a confusion than the others, and the p-values of these confusions.

    Either more samples of the given label are predicted as the other class, after Holm's correction for all confusions of
    all sites; shares of predictions within a given label do not depend on the class shares of a site. Or this holds without
    the correction, and more of the expected samples of the true class have the label, with the correction.

    Parameters
    ----------
    predicted : int (N, C, C)
        Counts by predicted class and given label.
    counts : (N, C, C)
        Expected numbers of samples by true and given class.
    away : int
        As for `more_than_others`.

    Returns
    -------
    cells : bool (N, C, C)
        By true and given class.
    p : (N,)
        Smallest p-value of the confusions in `cells` after Holm's correction for all confusions of all sites; 1 for none.
    """
    off = ~np.eye(predicted.shape[1], dtype=bool)
    totals, expected = predicted.sum(1, keepdims=True), np.round(counts).astype(int)
    p, reference = more_than_others(predicted, totals, away)
    by_row, _ = more_than_others(expected, expected.sum(2, keepdims=True), away)
    surely = np.zeros(predicted.shape, bool)
    columns, rows = holm(p[:, off]), holm(by_row[:, off])
    surely[:, off] = columns < SIGNIFICANT_CLASS
    both = np.zeros(predicted.shape, bool)
    both[:, off] = (rows < SIGNIFICANT_CLASS) & (p[:, off] < SIGNIFICANT_CLASS)
    enough = (predicted - totals * reference >= LEAST_SAMPLES) & (counts >= LEAST_SAMPLES)
    cells, smallest = (surely | both) & enough, np.ones(predicted.shape)
    smallest[:, off] = np.minimum(columns, rows)
    return cells, np.where(cells, smallest, 1).min((1, 2))


def shares_differ(counts: ArrayLike) -> np.ndarray:
    """Find sites (N,) whose class shares differ from those of at least half of the other sites.

    Parameters
    ----------
    counts : int (N, C)
    """
    counts = np.asarray(counts, np.float64)
    sites, differs, totals = len(counts), np.zeros(len(counts), bool), np.asarray(counts, np.float64).sum(1, keepdims=True)
    for k in np.flatnonzero(totals[:, 0]):
        others = counts[(np.arange(sites) != k) & (totals[:, 0] > 0)]
        mine, n, m = counts[k], totals[k, 0], others.sum(1, keepdims=True)
        others, m = (values[chi_square(mine, others) <= RARE] for values in (others, m))
        single = chi_square(np.stack(np.broadcast_arrays(mine, n - mine), -1), np.stack([others, m - others], -1)) < RARE
        shares = mine / n, others / m
        ratio = np.maximum(*shares) / np.maximum(np.minimum(*shares), 1e-9)
        far = np.abs(shares[0] - shares[1]).sum(1) / 2 > SHARES
        differs[k] = (far | (single & (ratio > RATIO)).any(1)).sum() >= max(1, (sites - 1) / 2)
    return differs


def chi_square(mine: ArrayLike, others: ArrayLike) -> np.ndarray:
    """P-values (...,) that counts have the same shares, by Pearson's test; 1 for fewer than two classes.

    Tables of two classes have Yates' correction, as in `scipy.stats.chi2_contingency`, which computes one table at a time.

    Parameters
    ----------
    mine, others : (..., C)
        Each with at least one sample; they are broadcast.
    """
    mine, others = np.broadcast_arrays(np.asarray(mine, np.float64), np.asarray(others, np.float64))
    both, n, m = mine + others, mine.sum(-1, keepdims=True), others.sum(-1, keepdims=True)
    expected, expected_others, present = both * n / (n + m), both * m / (n + m), both > 0
    freedom = present.sum(-1) - 1
    away = np.abs(mine - expected)
    away = np.where(freedom[..., None] == 1, away - np.minimum(0.5, away), away)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.where(present, away**2 / expected + away**2 / expected_others, 0.0).sum(-1)
    return np.where(freedom > 0, chdtrc(np.maximum(freedom, 1), statistic), 1.0)


def seen_elsewhere(counts: ArrayLike) -> np.ndarray:
    """Whether the other sites have a class often enough (N, C), also without the site that has it most often."""
    counts = np.asarray(counts)
    if len(counts) <= 2:
        return counts[::-1] >= 5 if len(counts) == 2 else np.zeros(counts.shape, bool)
    ordered = np.sort(counts, 0)
    largest = np.where(counts == ordered[-1], ordered[-2], ordered[-1])  # of the other sites
    return counts.sum(0) - counts - largest >= 5


def excess_of(predicted: np.ndarray) -> np.ndarray:
    """Number of contradicted labels (N,) beyond that of the others for the same labels, in standard deviations."""
    totals = predicted.sum(1)
    wrong = totals - np.einsum("kcc->kc", predicted)
    _, reference = more_than_others(wrong, totals)
    expected = (totals * reference).sum(1)
    return (wrong.sum(1) - expected) / np.sqrt(np.maximum((totals * reference * (1 - reference)).sum(1), 1))


def is_fewer(one: int, other: int) -> bool:
    """Whether a count is smaller than another by more than chance."""
    return bool(other > one and bdtr(one, one + other, 0.5) < SIGNIFICANT_CLASS)
