"""Audit from sums with Gaussian noise: both files of a site together are (epsilon, delta)-differentially private.

Neighboring data sets differ in one record, which is present or absent.  The features of a record are clipped to a norm, and
every record adds one vector to each released table.  The noise of a table has the standard deviation sigma * sensitivity /
sqrt(share), where sigma is that of a single release (analytic Gaussian mechanism: Balle and Wang 2018) and the shares of all
tables sum to 1.  Together, the tables cost as much as this single release.  Simulations (fnlkit.audits.audit) and the files of
real sites (fnlkit.sites.audit) differ only in the source of the draws.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import chdtrc, ndtr

from fnlkit.audits import shifts, summaries
from fnlkit.audits.results import Names, describe_sites
from fnlkit.audits.samples import SIDE, Samples, values_of
from fnlkit.audits.statistics import SIGNIFICANT_CLASS, holm
from fnlkit.audits.verdict import CONTRADICTED, SEPARABLE, SKILL, Assessment, Predictions
from fnlkit.core.declarations import Sent
from fnlkit.core.errors import InputError
from fnlkit.evidence.gaussian import softmax
from fnlkit.kernels.neighbors import on_one_blas_thread
from fnlkit.kernels.scores import transition

if TYPE_CHECKING:
    from fnlkit.audits.records import SiteAudit
    from fnlkit.kernels.streams import HiddenStream


DELTA = 1e-5
# Shares of the budget of the tables; the last two are the second file.
SHARES = {"counts": 0.12, "sums": 0.60, "moments": 0.02, "agreement": 0.20, "predicted": 0.06}
# At most this many features are sent, clipped to norm BOUND * sqrt(number of features).
FEATURES, BOUND = 16, 1.0
# Factor of the frequencies of an image, whose pixels are between -1 and 1: above it, those of digits are clipped.
CONTRAST = 2.0
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

NEIGHBORS = "one record added or removed"
RANGE = (
    "Range: 95 % interval of the share of wrong labels. It allows for the noise, for chance, and for classifiers that fit some "
    "clean sites worse than others. If mistakes of the classifiers cannot be told from wrong labels, no estimate is shown."
)
_NOISY: dict[str, Any] = {"low": -1e30, "high": 1e30}
SENDS = {
    "counts": Sent("numbers of samples by class, with noise", "first file", ("C",), **_NOISY),
    "sums": Sent("sums of clipped features by class, with noise", "first file", ("C", "m"), **_NOISY),
    "moments": Sent("second moments of clipped features over all classes, with noise", "first file", ("m", "m"), **_NOISY),
    "agreement": Sent(
        "numbers of labels that the classifier predicts, and of others, with noise", "second file", (2,), **_NOISY
    ),
    "predicted": Sent("numbers of samples by predicted and given class, with noise", "second file", ("C", "C"), **_NOISY),
}


def _accountant():
    """Return the module dp_accounting."""
    try:
        import dp_accounting
    except ImportError:
        raise InputError(
            "`epsilon` needs an accountant to compute the privacy cost; run: pip install 'fnlkit[privacy]'"
        ) from None
    return dp_accounting


def sigma_of(epsilon: float, delta: float) -> float:
    """Return the standard deviation of the noise of one release with sensitivity 1.

    Raises
    ------
    InputError
        If a value is out of range, or if the extra ``privacy`` is not installed.
    """
    if not 0.01 <= epsilon <= 100:
        raise InputError(f"`epsilon` {epsilon:g}: expected 0.01 to 100")
    if not 0 < delta <= 0.01:
        raise InputError(f"`delta` {delta:g}: expected a number above 0 and at most 0.01")
    return float(_accountant().get_sigma_gaussian(epsilon, delta))


def total_epsilon(releases: Iterable[tuple[float, float]], delta: float) -> float:
    """Return the epsilon at `delta` of several releases together, each a pair (epsilon, delta) of `sigma_of`.

    Gaussian releases add up exactly: their precisions 1 / sigma^2 are added (Dong, Roth and Su 2022, Corollary 2).
    """
    dp_accounting = _accountant()
    precision = sum(1 / sigma_of(*one) ** 2 for one in releases)
    return float(dp_accounting.get_epsilon_gaussian(1 / math.sqrt(precision), delta)) if precision else 0.0


def sensitivity_of(size: int) -> dict[str, float]:
    """Return {table: largest L2 norm of the change if a record is added or removed}, for `size` features."""
    bound = BOUND * math.sqrt(size)
    return {name: {"sums": bound, "moments": bound**2}.get(name, 1.0) for name in SHARES}


def noise_of(epsilon: float, delta: float, size: int) -> dict[str, float]:
    """Return {table: standard deviation of the noise}, for `size` features."""
    sigma, sensitivity = sigma_of(epsilon, delta), sensitivity_of(size)
    return {name: sigma * sensitivity[name] / math.sqrt(share) for name, share in SHARES.items()}


def describe_mode(epsilon: float, delta: float, size: int) -> str:
    """Return a text for the page of an audit: guarantee and noise of the counts, for `size` features."""
    noise = noise_of(epsilon, delta, size)
    return (
        f"Audit from sums with noise: both files of a site together are ({epsilon:g}, {delta:g})-differentially private for "
        f"{NEIGHBORS}. Numbers of samples by class have noise of standard deviation {noise['counts']:.3g}, counts by predicted "
        f"and given class {noise['predicted']:.3g}. Sites whose inputs differ are not judged; class shares are not compared. "
        "Columns, classes and scale of the project are taken as public."
    )


# ---- at the site
def frequencies(samples: Samples) -> np.ndarray:
    """Return the FEATURES lowest frequencies (n, m) of images, of the mean of their channels and without the brightness.

    They tell the classes of images apart better than as many random projections, and depend on no data.
    """
    from scipy.fft import dctn

    height, width = (min(side, SIDE) for side in samples.x.shape[1:3])
    x = (2 * values_of(samples) - 1).reshape(len(samples), -1, height, width).mean(1)
    rows, columns = np.indices((height, width))
    order = np.argsort(rows / height + columns / width, axis=None, kind="stable")
    return dctn(x, axes=(1, 2), norm="ortho").reshape(len(x), -1)[:, order[1 : FEATURES + 1]]


def points_of(samples: Samples, scale: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """Return the clipped features (n, m) of a site's samples: frequencies of raw images, else as in audits from sums."""
    if samples.image and samples.embedding is None:
        points = CONTRAST * frequencies(samples)
    else:
        points = summaries.features(samples, scale)[:, :FEATURES]
    bound = BOUND * math.sqrt(points.shape[1])
    return points * np.minimum(1, bound / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12))


@on_one_blas_thread
def summarize_with_noise(
    samples: Samples, scale: tuple[np.ndarray, np.ndarray] | None, *, epsilon: float, delta: float, draws: Any
) -> dict[str, np.ndarray]:
    """Return the arrays of a site's first file with noise.

    Parameters
    ----------
    samples : Samples
    scale : (mean (d,), std (d,)), optional
        Of the columns of a table; it must not depend on the samples of the site.
    epsilon, delta : float
        Of both files together.
    draws : numpy.random.Generator or fnlkit.kernels.streams.HiddenStream
        A Generator with a known seed only simulates protection.

    Returns
    -------
    dict
        counts (C,), sums (C, m), moments (m, m).
    """
    points = points_of(samples, scale)
    noise, m = noise_of(epsilon, delta, points.shape[1]), points.shape[1]
    counts, by_class, moments = summaries.sums(points, samples.y, samples.classes)
    counts = counts + noise["counts"] * draws.standard_normal(counts.shape)
    by_class = by_class + noise["sums"] * draws.standard_normal(by_class.shape)
    # A record adds x x^T, whose Frobenius norm counts each entry beside the diagonal twice.
    upper = np.triu(draws.standard_normal((m, m)))
    moments = moments + noise["moments"] * (np.diag(np.diag(upper)) + (np.triu(upper, 1) + np.triu(upper, 1).T) / math.sqrt(2))
    return {"counts": counts, "sums": by_class, "moments": (moments + moments.T) / 2}


@on_one_blas_thread
def judge_with_noise(
    samples: Samples,
    head: dict[str, np.ndarray],
    scale: tuple[np.ndarray, np.ndarray] | None,
    *,
    epsilon: float,
    delta: float,
    draws: "np.random.Generator | HiddenStream",
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return (arrays of a site's second file with noise, probabilities (n, C), which stay at the site).

    Returns
    -------
    dict
        agreement (2,): labels that the classifier predicts, and others; predicted (C, C): counts by predicted and given class.
    """
    points, labels, classes = points_of(samples, scale), samples.y, samples.classes
    p = softmax(points @ head["coefficients"].T + head["offsets"])
    noise, guess = noise_of(epsilon, delta, points.shape[1]), p.argmax(1)
    right = int((guess == labels).sum())
    table = np.zeros((classes, classes))
    np.add.at(table, (guess, labels), 1)
    agreement = np.array([right, len(labels) - right]) + noise["agreement"] * draws.standard_normal(2)
    return {"agreement": agreement, "predicted": table + noise["predicted"] * draws.standard_normal(table.shape)}, p


# ---- the coordinator
def impossible(first: dict[str, np.ndarray], classes: int, most: int, *, epsilon: float, delta: float) -> str:
    """Return why no data can have the sums of a first file with noise, as a text; "" if some can.

    Parameters
    ----------
    first : dict of arrays
        From `summarize_with_noise`.
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
    """Return why no data can have a second file with noise, as a text; "" if some can.  See `impossible`."""
    noise = noise_of(epsilon, delta, size)
    for name, shape in {"agreement": (2,), "predicted": (classes, classes)}.items():
        if second[name].shape != shape:
            return f"{name} has the shape {second[name].shape} instead of {shape}"
        if second[name].min() < -FAR * noise[name] or second[name].max() > most + FAR * noise[name]:
            return f"{name} has counts that no site of at most {most:,} samples has"
    return ""


def _within(parts, noise):
    """Return (class means (C, m), their noise variance (C,), covariance within (m, m), variance of the entries, n)."""
    counts = np.maximum(sum(part["counts"] for part in parts), 1.0)
    by_class, moments = sum(part["sums"] for part in parts), sum(part["moments"] for part in parts)
    total, added = counts.sum(), noise["sums"] ** 2 * len(parts)
    # Squared noise of the sums is subtracted from its expectation.
    between = (by_class.T / counts) @ by_class - np.eye(by_class.shape[1]) * (added / counts).sum()
    entry = noise["moments"] ** 2 * len(parts) / total**2
    return by_class / counts[:, None], added / counts**2, (moments - between) / total, entry, total


def discriminant(parts: list[dict[str, np.ndarray]], noise: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return (coefficients (C, m), offsets (C,)) of linear discriminant analysis from sums with noise.

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
    known = np.asarray(counts) > max(summaries.LEAST, 2 * noise["counts"] * math.sqrt(len(parts)))
    return np.where(known[:, None], coefficients, 0), np.where(known, offsets, -1e3)


def different(firsts: list[dict[str, np.ndarray]], noise: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return (mask (N,) of sites whose features differ, AUC (N,) with which the means separate a site); none if most differ.

    The mean of a site is compared with the class means of the other sites, weighted by the class shares of the site.  Wrong
    labels and other class shares therefore have little effect.  The variance is compared with the variance of the other sites.
    Both comparisons allow for the noise.
    """
    away, spread, added, traces = [], [], [], []
    for k, first in enumerate(firsts):
        means, *_, within, _, total = _within([one for j, one in enumerate(firsts) if j != k], noise)
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
    found = (chdtrc(away.shape[1], length / added) < RARE) & (excess > APART**2)
    usual = max(float(np.median(traces[:, 0])), 1e-3)
    beyond = np.abs(traces[:, 0] - usual) > 4 * traces[:, 1] + 0.05 * usual
    found |= beyond & ((traces[:, 0] > FACTOR * usual) | (traces[:, 0] < usual / FACTOR))
    found = found if found.sum() <= (len(found) - 1) / 2 else np.zeros(len(found), bool)
    # At least the AUC from which inputs count as different.
    auc = ndtr(np.sqrt(excess / 2))
    return found, np.where(found, np.maximum(auc, shifts.DIFFERENT), np.minimum(auc, shifts.DIFFERENT - 1e-3))


def make_head(
    firsts: list[dict[str, np.ndarray]], *, epsilon: float, delta: float, scale: tuple[np.ndarray, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Return the message to all sites: one classifier from the sums of all sites whose inputs do not differ.

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
    """Return the numbers of each site on which the report rests, as fnlkit.audits.verdict.assess does.

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
    """Return expected counts (N, C, C) by true and given class: confusions beyond those of the other sites and the noise."""
    tables = np.stack([second["predicted"] for second in seconds])
    out = []
    for k, first in enumerate(firsts):
        held = np.maximum(np.round(first["counts"]), 0)
        others = np.delete(tables, k, 0).sum(0)
        rates = np.maximum(others, 0) / np.maximum(others.sum(0), 1)
        more = tables[k] - rates * held
        more[(more < 3 * noise["predicted"]) | np.eye(len(held), dtype=bool)] = 0
        more *= np.minimum(1, held / np.maximum(more.sum(0), 1e-9))
        out.append(more + np.diag(held - more.sum(0)))
    return np.stack(out)


@on_one_blas_thread
def conclude(
    firsts: list[dict[str, np.ndarray]],
    seconds: list[dict[str, np.ndarray]],
    *,
    epsilon: float,
    delta: float,
    named: Names,
) -> "tuple[list[SiteAudit], np.ndarray, np.ndarray]":
    """Return (rows of the sites, T[true, given], expected counts (N, C, C)); see fnlkit.audits.summaries.conclude."""
    noise = noise_of(epsilon, delta, firsts[0]["sums"].shape[1])
    apart, auc = different(firsts, noise)
    assessed = assess(seconds, apart, noise)
    counts = np.maximum(np.round([first["counts"] for first in firsts]), 0).astype(np.int64)
    counts[counts.sum(1) == 0, 0] = 1
    sites, classes = len(firsts), len(named.classes)
    none = np.zeros((sites, classes, classes), np.int64)
    inputs = shifts.Compared([shifts.Change()], auc[:, None], [[] for _ in firsts])
    predicted = np.maximum(np.round([second["predicted"] for second in seconds]), 0).astype(np.int64)
    nothing = none, none, np.zeros(sites, np.int64), np.zeros((sites, 2), np.int64)
    found = Predictions(np.zeros(sites, int), np.ones(counts.shape, bool), np.zeros(sites, bool), predicted, *nothing)
    expected = expected_counts(firsts, seconds, noise)
    rows = []
    for row in describe_sites(named, counts, inputs, found, expected, assessed):
        # Noise can hide a small class, and no counts of the site's own model are released.
        rows.append(replace(row, withheld=[], missing=[], skill={"others": row.skill["others"]}))
    return rows, transition(expected.sum(0)), expected
