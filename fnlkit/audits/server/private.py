"""Audit from sums with noise at the server: checks, the classifier, and the results of each site."""

import math
from dataclasses import replace

import numpy as np
from scipy.special import chdtrc, ndtr

from fnlkit.audits.changes import Change
from fnlkit.audits.messages import LEAST
from fnlkit.audits.private import BOUND, FEATURES, noise_of
from fnlkit.audits.records import SKILL, SiteAudit
from fnlkit.audits.server.input_differences import DIFFERENT, Compared
from fnlkit.audits.server.results import Names, describe_sites
from fnlkit.audits.server.statistics import SIGNIFICANT_CLASS, holm
from fnlkit.audits.server.verdict import CONTRADICTED, SEPARABLE, Assessment, Predictions
from fnlkit.kernels.neighbors import on_one_blas_thread
from fnlkit.kernels.scores import transition

# Shrinkage of the covariance without noise, and smallest eigenvalue as a share of the mean variance.
LEAST_SHRINKAGE, FLOOR = 0.1, 0.2
# Sites are accused if their level exceeds NOISY, by more than chance (SIGNIFICANT_CLASS).
NOISY = 0.1
# Accuracies of the classifiers of clean sites differ by about this standard deviation beyond chance.
UNEVEN = 0.03
# Noise of more standard deviations is taken for a damaged file.
FAR = 10.0
# Inputs differ if the means are further apart than this many standard deviations, or the variances by this factor.
APART, FACTOR, RARE = 0.7, 1.8, 1e-4


def impossible(first: dict[str, np.ndarray], classes: int, most: int, *, epsilon: float, delta: float) -> str:
    """Explain why no data can have the sums of a first file with noise; "" if some can.

    Parameters
    ----------
    first : dict of arrays
        From `fnlkit.audits.site.private.summarize_with_noise`.
    classes, most : int
        Number of classes, and the largest number of samples of a site.
    epsilon, delta : float
        Of both files together.
    """
    size = first["sums"].shape[-1] if first["sums"].ndim else 0
    shapes = {"counts": (classes,), "sums": (classes, size), "moments": (size, size)}
    for name, shape in shapes.items():
        if first[name].shape != shape or not 0 < size <= FEATURES:
            return f"{name} has the shape {first[name].shape}, and a file has at most {FEATURES} features of {classes} classes"
    noise, bound = noise_of(epsilon, delta, size), BOUND * math.sqrt(size)
    if (first["counts"] < -FAR * noise["counts"]).any() or first["counts"].sum() > most + FAR * classes * noise["counts"]:
        return f"the counts sum to {first['counts'].sum():,.0f}, and a site of this project has at most {most:,} samples"
    if np.abs(first["sums"]).max() > most * bound + FAR * noise["sums"]:
        return "a class sum is larger than that of clipped samples with noise"
    if np.trace(first["moments"]) > most * bound**2 + FAR * size * noise["moments"]:
        return "the second moments are larger than those of clipped samples with noise"
    return "" if np.allclose(first["moments"], first["moments"].T) else "the second moments are not symmetric"


def implausible(second: dict[str, np.ndarray], classes: int, most: int, size: int, *, epsilon: float, delta: float) -> str:
    """Explain why no data can have a second file with noise; "" if some can.  See `impossible`."""
    noise = noise_of(epsilon, delta, size)
    for name, shape in {"agreement": (2,), "predicted": (classes, classes)}.items():
        if second[name].shape != shape:
            return f"{name} has the shape {second[name].shape} instead of {shape}"
        if second[name].min() < -FAR * noise[name] or second[name].max() > most + FAR * noise[name]:
            return f"{name} has counts that no site of at most {most:,} samples has"
    return ""


def _within(parts, noise):
    """Compute class means (C, m), their noise variance (C,), covariance within (m, m), variance of the entries, and n."""
    counts = np.maximum(sum(part["counts"] for part in parts), 1.0)
    by_class, moments = sum(part["sums"] for part in parts), sum(part["moments"] for part in parts)
    total, added = counts.sum(), noise["sums"] ** 2 * len(parts)
    # Squared noise of the sums is subtracted from its expectation.
    between = (by_class.T / counts) @ by_class - np.eye(by_class.shape[1]) * (added / counts).sum()
    entry = noise["moments"] ** 2 * len(parts) / total**2
    return by_class / counts[:, None], added / counts**2, (moments - between) / total, entry, total


def discriminant(parts: list[dict[str, np.ndarray]], noise: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Compute (coefficients (C, m), offsets (C,)) of linear discriminant analysis from sums with noise.

    The covariance is shrunken by the known share of the noise in it, and the noise of the means is subtracted from the
    offsets.  A class whose count is not above the noise has a large negative offset.
    """
    means, added, within, entry, total = _within(parts, noise)
    counts, m = sum(part["counts"] for part in parts), means.shape[1]
    variance = max(np.trace(within) / m, 1e-3)
    distance = ((within - variance * np.eye(m)) ** 2).sum()
    shrinkage = float(np.clip(entry * m * (m + 1) / 2 / max(distance, 1e-12), LEAST_SHRINKAGE, 1))
    values, vectors = np.linalg.eigh(within)
    values = np.maximum((1 - shrinkage) * values + shrinkage * variance, FLOOR * variance)
    coefficients = means @ (vectors / values) @ vectors.T
    added = added + variance / np.maximum(counts, 1)
    offsets = np.log(np.maximum(counts, 1) / total) - 0.5 * ((coefficients * means).sum(1) - added * (1 / values).sum())
    known = np.asarray(counts) > max(LEAST, 2 * noise["counts"] * math.sqrt(len(parts)))
    return np.where(known[:, None], coefficients, 0), np.where(known, offsets, -1e3)


def different(firsts: list[dict[str, np.ndarray]], noise: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Find sites (N,) whose features differ, none if most differ, and the AUC (N,) with which the means separate a site.

    The mean of a site is compared with the class means of the other sites, weighted by the class shares of the site.  Wrong
    labels and other class shares therefore have little effect.  The variance is compared with the variance of the other sites.
    Both comparisons allow for the noise.
    """
    away, spread, added, traces = [], [], [], []
    for k, first in enumerate(firsts):
        means, *_, within, _, total = _within([sums for j, sums in enumerate(firsts) if j != k], noise)
        counts = np.maximum(first["counts"], 1.0)
        m, n = means.shape[1], counts.sum()
        spread.append(max(np.trace(within) / m, 1e-3))
        away.append(first["sums"].sum(0) / n - counts @ means / n)
        own = noise["sums"] ** 2 * len(counts) / n**2 + spread[-1] / n
        counted = (noise["counts"] / n) ** 2 * (means**2).sum() / m
        added.append(own + counted + (noise["sums"] ** 2 * len(counts) * (len(firsts) - 1)) / total**2 + spread[-1] / total)
        traces.append((np.trace(_within([first], noise)[2]) / m, noise["moments"] / n / math.sqrt(m)))
    away, spread, added, traces = map(np.array, (away, spread, added, traces))
    away = away - np.median(away, 0)
    length = (away**2).sum(1)
    excess = np.maximum(length - added * away.shape[1], 0) / spread
    mask = (chdtrc(away.shape[1], length / added) < RARE) & (excess > APART**2)
    usual = max(float(np.median(traces[:, 0])), 1e-3)
    beyond = np.abs(traces[:, 0] - usual) > 4 * traces[:, 1] + 0.05 * usual
    mask |= beyond & ((traces[:, 0] > FACTOR * usual) | (traces[:, 0] < usual / FACTOR))
    mask = mask if mask.sum() <= (len(mask) - 1) / 2 else np.zeros(len(mask), bool)
    # At least the AUC from which inputs count as different.
    auc = ndtr(np.sqrt(excess / 2))
    return mask, np.where(mask, np.maximum(auc, DIFFERENT), np.minimum(auc, DIFFERENT - 1e-3))


def make_head(
    firsts: list[dict[str, np.ndarray]], *, epsilon: float, delta: float, scale: tuple[np.ndarray, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Make the message to all sites: one classifier from the sums of all sites whose inputs do not differ.

    Noise makes classifiers differ: with a separate classifier for each site, from the sums of the other sites, some clean sites
    get the worst classifier and are accused.  A classifier of so few features learns little from the wrong labels of a single
    site.

    Returns
    -------
    dict of arrays
        coefficients (C, m), offsets (C,), mean (d,), std (d,).
    """
    noise = noise_of(epsilon, delta, firsts[0]["sums"].shape[1])
    apart, _ = different(firsts, noise)
    coefficients, offsets = discriminant([first for first, away in zip(firsts, apart, strict=True) if not away], noise)
    mean, std = scale or (np.zeros(0), np.zeros(0))
    scaled = {"mean": np.asarray(mean, np.float64), "std": np.asarray(std, np.float64)}
    return {"coefficients": coefficients, "offsets": offsets, **scaled}


def assess(seconds: list[dict[str, np.ndarray]], apart: np.ndarray, noise: dict[str, float]) -> list[Assessment]:
    """Judge each site from sums with noise, as fnlkit.audits.server.verdict.assess does without noise.

    Sites are tested by 1 - kappa / (median kappa of the others), where kappa is the agreement beyond chance.  The standard
    deviation of this number contains the noise, chance, and UNEVEN.  The level is this number times (1 - chance); the upper end
    is not multiplied, because wrong labels of one class lower kappa less.
    """
    agreement = np.stack([second["agreement"] for second in seconds])
    table = np.maximum(sum(second["predicted"] for second in seconds), 0)
    chance = min(float(table.sum(1) @ table.sum(0)) / max(table.sum(), 1) ** 2, 0.95)
    n = np.maximum(agreement.sum(1), 1.0)
    wrong = np.clip(agreement[:, 1] / n, 0, 1)
    variance = np.maximum(wrong * (1 - wrong), 0.02) / n + noise["agreement"] ** 2 * (wrong**2 + (1 - wrong) ** 2) / n**2
    deviation = np.sqrt(variance + UNEVEN**2)
    kappa, error = (1 - wrong - chance) / (1 - chance), deviation / (1 - chance)
    upper, judged = np.minimum(wrong + 1.96 * deviation, 1), {}
    cleanest = float(upper[~apart].min(initial=1.0))
    separable = cleanest <= SEPARABLE
    for k in range(len(seconds)):
        others = np.flatnonzero(~apart & (np.arange(len(seconds)) != k))
        if len(others) < 2:
            continue
        reference = float(np.median(kappa[others]))
        its_error = 1.25 * float(np.median(error[others])) / math.sqrt(len(others))
        if apart[k] or reference - 1.64 * its_error < SKILL:
            continue
        ratio = kappa[k] / reference
        judged[k] = 1 - ratio, math.hypot(error[k], its_error * min(1, abs(ratio))) / reference
    p = dict(zip(judged, holm([ndtr(-level / spread) for level, spread in judged.values()]), strict=True)) if judged else {}
    none = np.zeros(table.shape, bool)
    rows = [Assessment(none) for _ in seconds]
    for k, (excess, spread) in judged.items():
        accused = bool(p[k] < SIGNIFICANT_CLASS and excess > NOISY)
        # A share of wrong labels lowers kappa by share / (1 - chance) of a classifier without mistakes.
        level = float(np.clip(excess, 0, 1) * (1 - chance))
        high = min(1.0, max(0.0, float(excess)) + 1.96 * spread)
        rows[k] = Assessment(
            none,
            judge="others",
            level=level if separable else None,
            p=float(p[k]),
            low=float(max(0.0, excess - 1.96 * spread) * (1 - chance)) if accused else 0.0,
            high=float(high if separable else max(high, float(upper[k]))),
            # The upper end contains the noise: labels agree if the models surely contradict few of them at some site.
            separable=bool(cleanest <= CONTRADICTED),
            noisier=accused,
        )
    return rows


def expected_counts(
    firsts: list[dict[str, np.ndarray]], seconds: list[dict[str, np.ndarray]], noise: dict[str, float]
) -> np.ndarray:
    """Expected counts (N, C, C) by true and given class: confusions beyond those of the other sites and the noise."""
    tables = np.stack([second["predicted"] for second in seconds])
    expected = []
    for k, first in enumerate(firsts):
        held = np.maximum(np.round(first["counts"]), 0)
        others = np.delete(tables, k, 0).sum(0)
        rates = np.maximum(others, 0) / np.maximum(others.sum(0), 1)
        more = tables[k] - rates * held
        more[(more < 3 * noise["predicted"]) | np.eye(len(held), dtype=bool)] = 0
        more *= np.minimum(1, held / np.maximum(more.sum(0), 1e-9))
        expected.append(more + np.diag(held - more.sum(0)))
    return np.stack(expected)


@on_one_blas_thread
def conclude(
    firsts: list[dict[str, np.ndarray]], seconds: list[dict[str, np.ndarray]], *, epsilon: float, delta: float, named: Names
) -> tuple[list[SiteAudit], np.ndarray, np.ndarray]:
    """Conclude as fnlkit.audits.server.conclusion.conclude: (rows of the sites, T[true, given], expected counts (N, C, C))."""
    noise = noise_of(epsilon, delta, firsts[0]["sums"].shape[1])
    apart, auc = different(firsts, noise)
    assessed = assess(seconds, apart, noise)
    counts = np.maximum(np.round([first["counts"] for first in firsts]), 0).astype(np.int64)
    counts[counts.sum(1) == 0, 0] = 1
    sites, classes = len(firsts), len(named.classes)
    none = np.zeros((sites, classes, classes), np.int64)
    inputs = Compared([Change()], auc[:, None], [[] for _ in firsts])
    predicted = np.maximum(np.round([second["predicted"] for second in seconds]), 0).astype(np.int64)
    nothing = none, none, np.zeros(sites, np.int64), np.zeros((sites, 2), np.int64)
    predictions = Predictions(np.zeros(sites, int), np.ones(counts.shape, bool), np.zeros(sites, bool), predicted, *nothing)
    expected = expected_counts(firsts, seconds, noise)
    rows = []
    for row in describe_sites(named, counts, inputs, predictions, expected, assessed):
        # Noise can hide a small class, and no counts of the site's own model are released.
        rows.append(replace(row, withheld=[], missing=[], skill={"others": row.skill["others"]}))
    return rows, transition(expected.sum(0)), expected
