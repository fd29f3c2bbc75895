"""Audit from sums: a site sends class sums and second moments once, receives a classifier, and sends counts once.

The classifier of a site is linear discriminant analysis with a shrunken covariance, computed from the sums of the other sites.
Sums of few samples reveal these samples.  A class with fewer than LEAST samples is therefore left out everywhere.  Second
moments have at most a quarter as many dimensions as the site has samples.  The counts of the second file are multiples of 5.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.audits import column_differences, copies, own_model, rounding, shifts, statistics, verdict
from fnlkit.audits.results import Names, describe_sites
from fnlkit.audits.samples import LEAST, Samples, large_classes, table_of, values_of
from fnlkit.audits.shifts import Change, Compared
from fnlkit.datasets.groups import effective_size
from fnlkit.estimators import likelihood
from fnlkit.evidence.gaussian import discriminant, softmax
from fnlkit.kernels.neighbors import on_one_blas_thread
from fnlkit.kernels.scores import transition
from fnlkit.kernels.streams import stream

if TYPE_CHECKING:
    from fnlkit.audits.records import ColumnDifference, SiteAudit


# Numbers of features that a site can send; it sends the first ones, at most one for PER_FEATURE samples.
SIZES, PER_FEATURE = (8, 16, 32, 64, 128, 256), 4
# Random rectified features of raw images and sounds, beside their values.
RANDOM = 128
# Tables of fewer columns have random Fourier features, for curved borders: their number and inverse length scale.
CURVED = 13, 64, 1.0
# Features are clipped to norm CLIP * sqrt(number of features), and single columns of a table to FARTHEST standard deviations.
CLIP, FARTHEST = 1.5, 5.0
# The number of features of a head is the largest one that sites with this share of the samples have sent.
SHARE = 0.8
# The inputs of two sites are compared by at most this many features of the sums.
COMPARED = 16
# A site with more samples estimates its transitions from this many of them, drawn at random.
MOST_JUDGED = 20_000
# In the coarse description of the inputs, values within this many standard deviations of the agreed scale are not clipped.
UNCLIPPED = 2.0
# Added to the variance of a column, in the units of the agreed scale.
LEAST_VARIANCE = 0.01
# Share of the samples that count as those of which a model is most certain.
CERTAIN = 1 / 3
# Tables of the second file, by predicted (or true) and given class.
TABLES = "predicted", "within", "expected", "doubted"
LARGEST = 1e6  # of an entry of a head or of its message


# ---- at the site
def scale_of(mean: ArrayLike, std: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return (mean, std) of columns, rounded so that sums in another order give the same scale.

    Parameters
    ----------
    mean, std : (d,)
    """
    std = np.array([float(f"{value:.3g}") for value in np.asarray(std, np.float64)])
    return np.round(np.asarray(mean, np.float64) / std, 3) * std, std


def features(samples: Samples, scale: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
    """Return the features (n, D) of samples, of which the first ones are a random rotation or projection.

    Columns of a table are standardized by `scale`.  Features of a backbone and sounds are standardized within each sample.
    Images are averaged to at most 16 pixels a side.  Raw images and sounds have RANDOM rectified random features more.

    Parameters
    ----------
    samples : Samples
    scale : (mean (d,), std (d,)), optional
        Of the columns of a table.
    """
    embedded, x = samples.embedding is not None, values_of(samples)
    raw = not embedded and samples.x.ndim > 2
    if samples.image and not embedded:
        x = 2 * x - 1
    elif scale is not None and not embedded:
        x = (x - scale[0]) / scale[1]
    else:
        x = x - x.mean(1, keepdims=True)
        x = x / np.maximum(np.sqrt((x**2).mean(1, keepdims=True)), 1e-9)
    x = np.clip(x, -FARTHEST, FARTHEST)
    width = x.shape[1]
    first = x @ _rotation(width)
    if raw:
        weights = stream(1, "summaries").standard_normal((width, RANDOM)) * 2 / np.sqrt(width)
        first = np.hstack([first, np.maximum(x @ weights, 0)])[:, : SIZES[-1]]
    elif not embedded and samples.x.ndim == 2 and width < CURVED[0]:
        weights = stream(2, "summaries").standard_normal((width, CURVED[1])) * CURVED[2] / np.sqrt(width)
        phases = stream(3, "summaries").uniform(0, 2 * np.pi, CURVED[1])
        first = np.hstack([first, np.sqrt(2) * np.cos(x @ weights + phases)])
    bound = CLIP * np.sqrt(first.shape[1])
    return first * np.minimum(1, bound / np.maximum(np.sqrt((first**2).sum(1, keepdims=True)), 1e-12))


def _rotation(width):
    """Return the random rotation (width, width) of the values of samples, or the projection to SIZES[-1] of more values."""
    draws = stream(0, "summaries").standard_normal((width, min(width, SIZES[-1])))
    return draws / np.sqrt(width) if width > SIZES[-1] else np.linalg.qr(draws)[0]


def dimensions(samples: int, width: int) -> int:
    """Return how many of `width` features a site with this many samples may send."""
    return max((size for size in {*SIZES, width} if size <= min(width, samples // PER_FEATURE)), default=0)


def sums(points: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return counts (C,), class sums (C, D) and second moments (D, D) of features (n, D)."""
    by_class = np.eye(classes)[labels].T @ points
    return np.bincount(labels, minlength=classes), by_class, points.T @ points


@on_one_blas_thread
def summarize(samples: Samples, scale: tuple[np.ndarray, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a site's first file.

    Parameters
    ----------
    samples : Samples
    scale : (mean (d,), std (d,)), optional
        As for `features`.

    Returns
    -------
    dict
        counts (C,) (0 for withheld classes), withheld bool (C,), observations (number of independent samples: a group counts
        as one), width (number of features), sums (C, m), moments (m, m), and columns, class_columns as fnlkit.audits.shifts
        declares them.
    """
    held = np.bincount(samples.y, minlength=samples.classes)
    withheld = (held > 0) & (held < LEAST)
    samples, _ = large_classes(samples)
    labels = samples.y
    points = features(samples, scale) if len(labels) else np.zeros((0, 1))
    counts, by_class, moments = sums(points[:, : dimensions(len(labels), points.shape[1])], labels, samples.classes)
    number = len(labels) if samples.groups is None or not len(labels) else max(1, round(effective_size(samples.groups)))
    first = {"counts": counts, "withheld": withheld, "observations": np.array(number), "width": np.array(points.shape[1])}
    return first | {"sums": by_class, "moments": (moments + moments.T) / 2} | shifts.describe_columns(samples)


@on_one_blas_thread
def judge(
    whole: Samples,
    heads: dict[str, np.ndarray],
    number: int,
    *,
    changes: Sequence[Change],
    seed: int = 0,
    detectors: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Return the arrays of a site's second file, and keep the results by sample.

    Parameters
    ----------
    whole : Samples
        The results are in `kept`.
    heads : dict of arrays
        From `make_heads`.
    number : int
        Number of the site among the sites of the heads.
    changes : list of fnlkit.audits.shifts.Change
        Changes of the inputs to compare.
    seed : int
    detectors : sequence of str
        Names in fnlkit.estimators.DETECTORS that flag samples next to `em`.

    Returns
    -------
    dict
        predicted, within, expected, doubted (C, C) with ``NAME_wrong`` (C,), from fnlkit.audits.rounding.round_table; chosen
        (number of the change with which the head fits best); supported; certain (2,); class_means, covariances
        (fnlkit.audits.shifts); low, high: ends of the range of the number of wrong labels.
    """
    samples, mask = large_classes(whole)
    labels, classes = samples.y, samples.classes
    scale = (heads["mean"], heads["std"]) if len(heads["mean"]) else None
    told = {name: heads[name] for name in ("center", "suspects", "tone")} | {"fits": heads["fits"][number]}
    found = copies.find_copies(whole, scale, wanted=own_model.most_neighbors(len(whole), classes))
    if not len(labels):
        _keep_nothing(whole, found, detectors)
        reply = _empty_reply(changes, classes, samples, int(heads["compared"]), told, seed)
    else:
        described = shifts.describe_inputs(samples, told, changes=changes, width=int(heads["compared"]), seed=seed)
        if described["covariances"].shape[-1] * PER_FEATURE > len(labels):  # too few samples to send these moments
            described = {name: np.zeros_like(values) for name, values in described.items()}
        head = tuple(heads[name][number] for name in ("coefficients", "offsets", "sizes"))
        points = features(samples, scale)
        chosen, p = _probabilities(samples, points, head, told, changes, scale)
        shares = heads["shares"][number] if heads["differ"][number] else None
        predicted, p = adjust(p, labels, heads["known"][number], shares, samples.reviewed)
        own_models = judge_within(samples, points, found.neighbors if mask.all() else None, seed)
        within = own_model.best_of(own_models, labels)
        own = within.argmax(1)
        estimated = estimate(p, labels, samples.number, seed, samples.groups)
        guess = p.argmax(1)
        both = (own == guess) & (own != labels)
        tables = {"predicted": predicted, "within": table_of(own, labels, classes), "expected": estimated["counts"],
                  "doubted": table_of(own[both], labels[both], classes)}  # fmt: skip
        reply = {"chosen": np.array(chosen)} | described
        for name, table in tables.items():
            reply[name], reply[f"{name}_wrong"] = rounding.round_table(table, np.bincount(labels, minlength=classes))
        supported = rounding.round_supported(
            int(((own == labels) & (guess != labels)).sum()), reply["predicted_wrong"], reply["doubted_wrong"]
        )
        reply["supported"] = np.array(supported)
        certain = most_certain(within)
        reply["certain"] = np.array([rounding.round_counts((own != labels)[certain].sum()), len(certain)])
        # The ends of the range are rounded outward: more digits would state a small count of wrong labels.
        for name, outward in (("low", np.floor), ("high", np.ceil)):
            ends = outward(np.round(estimated[name] * len(labels), 9) / rounding.STEP)
            reply[name] = rounding.STEP * ends.astype(np.int64)
        keep_results(whole, mask, [p, *own_models], predicted, estimated["posterior"], found)
        _detect(whole, mask, detectors, points, p, found, seed)
    return reply


def _empty_reply(changes, classes, samples, width, told, seed):
    """Return the second file of a site without a class of LEAST samples: zeros."""
    size = shifts.size_of_description(samples, width)
    none = np.zeros((classes, classes), np.int64)
    reply = {"chosen": np.array(0), "supported": np.array(0), "certain": np.zeros(2, np.int64), "low": np.array(0),
             "high": np.array(0)}  # fmt: skip
    for name in TABLES:
        reply |= {name: none, f"{name}_wrong": np.zeros(classes, np.int64)}
    shape = len(changes), classes, size
    return reply | {"class_means": np.zeros(shape), "covariances": np.zeros((len(changes), size, size))}


def adjust(
    p: np.ndarray,
    labels: np.ndarray,
    known: np.ndarray,
    trained_shares: np.ndarray | None,
    reviewed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (predicted (C, C), probabilities (n, C)) of the classes that the classifier knows, adapted to the site.

    Classes that the other sites have too rarely cannot be judged: their labels count as predicted, as do labels that a person
    decided.  The counts are those before
    the adaptation, because the shares of predictions within a given label can be compared between sites.

    Parameters
    ----------
    p : (n, C)
    labels : int (n,)
    known : bool (C,)
    trained_shares : (C,) or None
        Class shares of the other sites, if those of the site differ (Saerens, Latinne, Decaestecker 2002).
    reviewed : bool (n,), optional
    """
    p, classes = np.array(p), p.shape[1]
    seen = known[labels] if reviewed is None else known[labels] & ~reviewed
    p[seen] = np.where(known, p[seen], 1e-12)
    p[~seen] = np.eye(classes)[labels[~seen]]
    p /= p.sum(1, keepdims=True)
    predicted = table_of(p.argmax(1), labels, classes)
    if trained_shares is not None and seen.any():
        p[seen] = adapt_probabilities(p[seen], trained_shares * known)
    return predicted, p


def adapt_probabilities(probabilities: np.ndarray, trained_shares: np.ndarray, steps: int = 50) -> np.ndarray:
    """Return probabilities (n, C) for the class shares of these samples, which are estimated from the probabilities.

    Parameters
    ----------
    probabilities : (n, C)
    trained_shares : (C,)
        Class shares of the model's training data.
    steps : int
    """
    trained = np.asarray(trained_shares, np.float64)
    trained, seen = np.maximum(trained, 1e-6), trained > 1e-6
    shares, out = trained / trained.sum(), probabilities
    for _ in range(steps):
        out = probabilities * np.where(seen, shares / trained, 1.0)
        out = out / np.maximum(out.sum(1, keepdims=True), 1e-300)
        shares = np.maximum(out.mean(0), 1e-6)
    return out


def judge_within(samples: Samples, points: np.ndarray, near: np.ndarray | None, seed: int) -> list[np.ndarray]:
    """Return the probabilities (n, C) by the models of the site itself; see fnlkit.audits.own_model.cross_fitted.

    Parameters
    ----------
    samples : Samples
    points : (n, D)
        Features of the samples.
    near : int (n, k) or None
        Nearest other samples.
    seed : int
    """
    table = not samples.image and samples.embedding is None and samples.x.ndim == 2
    rng = stream(seed, "within", client=samples.number)
    return own_model.cross_fitted(
        points, samples.y, samples.classes, rng, groups=samples.groups, near=near, table=samples.x if table else None
    )


def most_certain(p: np.ndarray) -> np.ndarray:
    """Return the indices of the third of the samples of which a model is most certain."""
    ordered = np.sort(p, 1)
    margin = ordered[:, -1] - ordered[:, -2] if p.shape[1] > 1 else ordered[:, -1]
    return np.argsort(-margin, kind="stable")[: max(1, round(CERTAIN * len(p)))]


def keep_results(
    whole: Samples,
    mask: np.ndarray,
    models: list[np.ndarray],
    predicted: np.ndarray,
    posterior: np.ndarray,
    found: copies.Found,
) -> None:
    """Keep the results of each sample at the site.

    A suggestion needs both the posterior and the best model of the site itself: if they contradict the label for different
    reasons, for example because the inputs of the site differ, the site's own model supports the label.

    Suspects are ranked by the mean over all models of the probability of the given label, each tempered by the likelihood of
    the labels: the inputs of a site can differ in a way that only its own models allow for.  The issue score is made
    comparable over sites by fnlkit.estimators.likelihood.wrong_probabilities.  Because the models are fitted to
    the given labels, it orders suspects and is no probability: it can stay below 0.1 at a site with 30 % wrong labels.

    Parameters
    ----------
    whole : Samples
    mask : bool (n,)
        Samples of classes with at least LEAST samples; the others have the issue score 0.
    models : list of (m, C)
        Probabilities by the classifier of the other sites and by the models of the site itself, for the samples in `mask`.
    posterior : (m, C)
        Probabilities of the true class.
    predicted : int (C, C)
        Counts by predicted and given class.
    found : fnlkit.audits.copies.Found
    """
    labels = whole.y[mask]
    guess = posterior.argmax(1)
    unsupported = own_model.best_of(models[1:], labels).argmax(1) != labels
    if statistics.skill_of(predicted).kappa < verdict.SKILL:
        unsupported[:] = False
    guess = np.where(unsupported, guess, labels)
    kept = {"issue": np.zeros(len(mask)), "guess": whole.y.copy(), "confidence": np.zeros(len(mask)), **_copied(found)}
    calibrated = np.mean([likelihood.temper(model, labels, most=MOST_JUDGED) for model in models], 0)
    kept["issue"][mask] = likelihood.wrong_probabilities(calibrated, labels)
    kept["guess"][mask], kept["confidence"][mask] = guess, likelihood.confidence_of(posterior)
    if whole.reviewed is not None:
        kept["issue"][whole.reviewed], kept["guess"][whole.reviewed] = 0, whole.y[whole.reviewed]
    kept["flagged"] = kept["guess"] != whole.y
    kept["by_em"] = kept["flagged"]
    whole.kept.update(kept)


def _detect(whole, mask, detectors, points, p, found, seed):
    """Keep which samples each detector flags."""
    samples = whole.take(mask)
    for name in detectors:
        whole.kept[f"by_{name}"] = np.zeros(len(mask), bool)
        flags = own_model.detect(name, samples, points, p, found.neighbors if mask.all() else None, seed)
        whole.kept[f"by_{name}"][mask] = flags if samples.reviewed is None else flags & ~samples.reviewed


def _keep_nothing(whole, found, detectors=()):
    """Keep that no sample is suspicious."""
    none = np.zeros(len(whole), bool)
    kept = {"issue": np.zeros(len(whole)), "guess": whole.y.copy(), "confidence": np.zeros(len(whole)), "flagged": none}
    whole.kept.update(kept | _copied(found) | {f"by_{name}": none for name in ("em", *detectors)})


def _copied(found):
    return {"copy_of": found.copy_of, "near": found.near, "far": found.far}


def keep_suspects(whole: Samples, p: np.ndarray, *, seed: int = 0) -> None:
    """Keep the results of each sample, from probabilities (n, C) of a classifier of other sites."""
    samples, mask = large_classes(whole)
    found = copies.find_copies(whole, wanted=own_model.most_neighbors(len(whole), whole.classes))
    if not len(samples):
        _keep_nothing(whole, found)
    else:
        predicted, p = adjust(p[mask], samples.y, np.ones(samples.classes, bool), None, samples.reviewed)
        points = values_of(samples) if samples.x.ndim == 2 else features(samples)
        models = judge_within(samples, points, found.neighbors if mask.all() else None, seed)
        posterior = estimate(p, samples.y, samples.number, seed, samples.groups)["posterior"]
        keep_results(whole, mask, [p, *models], predicted, posterior, found)


def _probabilities(samples, points, head, told, changes, scale):
    """Return (number of a change, probabilities (n, C) of the head under it).

    Columns are changed if the message states how.  Another change of images must raise the agreement with the labels by a tenth
    of the samples.
    """
    if samples.probabilities is not None:
        return 0, samples.probabilities.astype(np.float64)
    coefficients, offsets, size = head
    size = int(size)
    fits, embedded = told["fits"], samples.embedding is not None
    if embedded or len(changes) == 1:
        tried = [0]
    elif samples.image:
        tried = range(len(changes))
    else:
        tried = [1] if (fits[0] != 1).any() or (fits[1] != 0).any() else [0]
    best = None
    for number in tried:
        change = changes[number]
        if change:
            points = features(replace(samples, x=shifts.apply_change(samples, change, told)), scale)
        p = softmax(points[:, :size] @ coefficients[:, :size].T + offsets)
        agreeing = int((p.argmax(1) == samples.y).sum())
        # A change with fewer parts comes first, and another one must be better by more than chance.
        if best is None or agreeing > best[0] + (0.1 if best[1] == 0 else 0.02) * len(p):
            best = agreeing, number, p
        if best[1] == 0 and best[0] >= 0.9 * len(p):  # no change can raise the agreement by a tenth
            break
    return best[1:]


def estimate(p: np.ndarray, labels: np.ndarray, number: int, seed: int, groups: np.ndarray | None = None) -> dict[str, Any]:
    """Return the estimates of fnlkit.estimators.likelihood, with the tempering that fits the labels best.

    Parameters
    ----------
    p : (n, C)
    labels : int (n,)
    number : int
        Of the site.
    seed : int
    groups : int (n,), optional

    Returns
    -------
    dict
        level, low, high, deviation, counts (C, C) by true and given class, posterior (n, C).
    """
    logits, used = likelihood.scores_of(p), np.arange(len(labels))
    rng = stream(seed, "em", client=number)
    if len(labels) > MOST_JUDGED:
        used = np.sort(rng.permutation(len(labels))[:MOST_JUDGED])
    temper = likelihood.best_temper(logits[used], labels[used])
    found = likelihood.fit(logits[used], labels[used], temper, rng=rng, groups=None if groups is None else groups[used])
    posterior = found["posterior"]
    if len(used) < len(labels):
        T = transition(found["counts"] + np.eye(p.shape[1]))
        posterior = likelihood.posterior_of(softmax(temper * logits), labels, T)
    counts = posterior.T @ np.eye(p.shape[1])[labels]
    return {**found, "deviation": float(found["draws"].std()), "counts": counts, "posterior": posterior}


# ---- the coordinator
def bound_of(width: int) -> float:
    """Return the largest norm of the features of a sample."""
    return CLIP * np.sqrt(width)


def impossible(first: dict[str, np.ndarray], classes: int, most: int) -> str:
    """Return why no data can have the sums of a first file, as a text; "" if some can.

    Parameters
    ----------
    first : dict of arrays
        From `summarize`.
    classes, most : int
        Number of classes, and the largest number of samples of a site.
    """
    counts, n = np.asarray(first["counts"]), int(np.sum(first["counts"]))
    size = first["sums"].shape[1] if first["sums"].ndim == 2 else -1
    d = first["columns"].shape[-1] if first["columns"].ndim else 0
    shapes = {"counts": (classes,), "withheld": (classes,), "sums": (classes, size), "moments": (size, size), "width": (),
              "observations": (),
              "columns": (5, d), "class_columns": (2, classes, *first["class_columns"].shape[2:3])}  # fmt: skip
    for name, shape in shapes.items():
        if first[name].shape != shape:
            return f"{name} has the shape {first[name].shape} instead of {shape}"
    if (counts < 0).any() or not 0 <= n <= most:
        return f"the counts sum to {n:,}, and a site of this project has at most {most:,} samples"
    if ((counts > 0) & (counts < LEAST)).any():
        return f"a class has fewer than {LEAST} samples, and such classes are withheld"
    if not min(n, 1) <= int(first["observations"]) <= n:
        return f"{int(first['observations']):,} of {n:,} samples are independent, which is not possible"
    width = int(first["width"])
    if not 0 < width <= SIZES[-1] or size != dimensions(n, width):
        return f"the sums have {size} features, and {n:,} samples may have {dimensions(n, max(1, min(width, SIZES[-1])))}"
    bound = bound_of(width) * (1 + 1e-9)
    if (np.linalg.norm(first["sums"], axis=1) > counts * bound + 1e-9).any():
        return "a class sum is longer than that many clipped samples can be"
    if np.trace(first["moments"]) > n * bound**2 + 1e-9 or not np.allclose(first["moments"], first["moments"].T):
        return "the second moments are larger than those of clipped samples, or not symmetric"
    if size and np.linalg.eigvalsh(_within(first)).min() < -1e-9 * max(1.0, bound**2):
        return "a variance within the classes is negative"
    if (first["columns"][1] < 0).any() or (first["class_columns"][1] < 0).any():
        return "a standard deviation is negative"
    if (np.diff(first["columns"][2:], axis=0) < 0).any():
        return "the quantiles of a column decrease"
    return ""


def _within(first):
    """Return the covariance (m, m) within the classes."""
    n = np.maximum(first["counts"], 1)[:, None]
    return (first["moments"] - first["sums"].T @ (first["sums"] / n)) / max(1, int(first["counts"].sum()))


def compare_features(firsts: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Return the AUC (N,) with which a linear classifier recognizes each site by the features of the sums."""
    counts = np.stack([first["counts"] for first in firsts])
    sizes = np.array([first["sums"].shape[1] for first in firsts])
    width = min(COMPARED, *sizes[sizes > 0]) if (sizes > 0).any() else 0
    counts = np.where(sizes[:, None] > 0, counts, 0)
    means, within = np.zeros((len(firsts), 1, counts.shape[1], width)), np.zeros((len(firsts), 1, width, width))
    for k in np.flatnonzero(sizes if width else sizes * 0):
        means[k, 0] = firsts[k]["sums"][:, :width] / np.maximum(counts[k], 1)[:, None]
        within[k, 0] = _within(firsts[k])[:width, :width]
    if not width:
        return np.full(len(firsts), 0.5)
    return shifts.compare_inputs({"class_means": means, "covariances": within}, counts, [[0]] * len(firsts))[:, 0]


def different(firsts: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Return the mask (N,) of sites whose features differ from those of most sites, by the sums; none if most differ."""
    found = compare_features(firsts) >= shifts.DIFFERENT
    return found if found.sum() <= (len(found) - 1) / 2 else np.zeros(len(found), bool)


def compare_columns(firsts: list[dict[str, np.ndarray]]) -> "tuple[np.ndarray, list[list[ColumnDifference]], np.ndarray]":
    """Return (columns (N, 5, d), findings and fits of fnlkit.audits.column_differences.differing_columns)."""
    counts = np.stack([first["counts"] for first in firsts])
    columns = shifts.fill_missing(np.stack([first["columns"] for first in firsts]), counts, shifts.LEAST_COLUMNS)
    return columns, *column_differences.differing_columns(
        columns, np.stack([first["class_columns"] for first in firsts]), counts
    )


def widen(center: np.ndarray, scale: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return center and spread (2, d) of columns with spreads that clip no value near the mean of the agreed scale.

    The description of the inputs clips values at 5 spreads from the center.  A narrow range could single out a sample of which
    all others are clipped.  The range therefore contains UNCLIPPED standard deviations around the mean.

    Parameters
    ----------
    center : (2, d)
    scale : (mean (d,), std (d,))
    """
    needed = (np.abs(center[0] - scale[0]) + UNCLIPPED * scale[1]) / shifts.CLIPPED
    return np.stack([center[0], np.maximum(center[1], needed)])


def narrow(heads: dict[str, np.ndarray], number: int, samples: Samples, scale: tuple[np.ndarray, np.ndarray]) -> str:
    """Return why the description of the inputs by a message could single out samples, as a text; "" if it cannot.

    Parameters
    ----------
    heads : dict of arrays
        From `make_heads`.
    number : int
        Number of the site among the sites of the heads.
    samples : Samples
        Of a table.
    scale : (mean (d,), std (d,))
        Agreed scale of the columns.
    """
    if (heads["center"][1] < widen(heads["center"], scale)[1] * (1 - 1e-9)).any():
        return "the inputs would be described by a narrower range than that of the project's scale"
    low, high = np.percentile(samples.x.astype(np.float64), [10, 90], axis=0)
    factor, offset = heads["fits"][number]
    fitted = (factor != 1) | (offset != 0)
    away = np.maximum(*(np.abs(factor * x + offset - scale[0]) for x in (low, high)))
    if (fitted & (away > FARTHEST * scale[1])).any():
        column = int(np.argmax(fitted & (away > FARTHEST * scale[1])))
        return f"column {column} would be moved outside of the project's scale"
    return ""


@on_one_blas_thread
def make_heads(
    firsts: list[dict[str, Any]],
    scale: tuple[np.ndarray, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Return the message to the sites: for each one a classifier from the sums of the others.

    Sites with other inputs than most sites enter no classifier but are judged.

    Parameters
    ----------
    firsts : list of dict
        From `summarize`, in the order of the sites.
    scale : (mean (d,), std (d,)), optional
        As for `summarize`.

    Returns
    -------
    dict of arrays
        coefficients (N, C, M), sizes (N,), offsets (N, C), known (N, C), shares (N, C), differ (N,), center (2, d),
        suspects, tone (2,), fits (N, 2, d), compared, mean (d,), std (d,).
    """
    counts = np.stack([first["counts"] for first in firsts])
    sites, sizes = len(firsts), np.array([first["sums"].shape[1] for first in firsts])
    widths = np.array([int(first["width"]) for first in firsts])
    apart, (columns, found, fits) = different(firsts), compare_columns(firsts)
    apart |= np.array([bool(rows) for rows in found]) if sum(map(bool, found)) <= (sites - 1) / 2 else apart
    parts = []
    for k in range(sites):
        others = (np.arange(sites) != k) & (sizes > 0)
        if (others & ~apart).sum() >= 2:
            others &= ~apart
        held = [counts[others & (sizes >= size)].sum() for size in sizes]
        usable = [size for size, number in zip(sizes, held, strict=True) if number >= SHARE * counts[others].sum()]
        size = int(max(usable, default=0))
        ids = np.flatnonzero(others & (sizes >= size))
        if not size:  # no other site has enough samples for a classifier
            parts.append((0, counts[others].sum(0), np.zeros((counts.shape[1], 0)), np.zeros(counts.shape[1])))
            continue
        total = counts[ids].sum(0)
        by_class = sum(firsts[j]["sums"][:, :size] for j in ids)
        moments = sum(firsts[j]["moments"][:size, :size] for j in ids)
        if scale and size < (width := firsts[k]["class_columns"].shape[-1]) <= SIZES[-1] and widths[k] >= width:
            parts.append((width, total, *classify_columns([firsts[j] for j in np.flatnonzero(others)], scale)))
        else:
            parts.append((size, total, *discriminant(total, by_class, moments)))
    widest = max(1, *(part[0] for part in parts))
    coefficients = np.stack([np.pad(part[2], ((0, 0), (0, widest - part[0]))) for part in parts])
    shares = np.stack([part[1] / max(1, part[1].sum()) for part in parts])
    mean, std = scale or (np.zeros(0), np.ones(0))
    center = column_differences.reference(columns)
    if len(mean) == center.shape[1]:
        center = widen(center, (mean, std))
    return {
        "coefficients": coefficients,
        "sizes": np.array([part[0] for part in parts]),
        "offsets": np.stack([part[3] for part in parts]),
        "known": statistics.seen_elsewhere(counts) & (shares > 0),
        "shares": shares,
        "differ": statistics.shares_differ(counts),
        "center": center,
        "suspects": column_differences.suspects(found),
        "tone": np.median(columns[:, :2, 0], 0),
        "fits": fits,
        "compared": np.array(max(4, int(np.median(counts.sum(1))) // 5)),
        "mean": np.asarray(mean, np.float64),
        "std": np.asarray(std, np.float64),
    }


def classify_columns(firsts: list[dict[str, Any]], scale: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients (C, d) and offsets (C,) of discriminant analysis with independent columns, for rotated columns.

    Small sites send second moments of fewer features than a table has columns, but means and deviations of all columns by
    class.

    Parameters
    ----------
    firsts : list of dict
        From `summarize`.
    scale : (mean (d,), std (d,))
    """
    counts = np.stack([first["counts"] for first in firsts])
    counts = np.where(shifts.classes_to_describe(counts), counts, 0).astype(np.float64)
    mean, deviation = np.stack([first["class_columns"] for first in firsts], 1)
    mean, deviation = (mean - scale[0]) / scale[1], deviation / scale[1]
    total, n = counts.sum(0), np.maximum(counts.sum(0), 1)
    center = np.einsum("kc,kcd->cd", counts, mean) / n[:, None]
    squares = np.einsum("kc,kcd->cd", counts, deviation**2 + (mean - center) ** 2)
    coefficients = center / (squares.sum(0) / max(1.0, total.sum()) + LEAST_VARIANCE)
    offsets = np.log(n / max(1.0, total.sum())) - 0.5 * (coefficients * center).sum(1)
    known = total > 0
    return np.where(known[:, None], coefficients, 0) @ _rotation(len(scale[0])), np.where(known, offsets, -1e3)


def implausible(second: dict[str, np.ndarray], first: dict[str, np.ndarray]) -> str:
    """Return why no data with the sums of a first file can have a second file, as a text; "" if some can."""
    counts, classes = first["counts"], len(first["counts"])
    n, shapes = int(counts.sum()), {name: values.shape for name, values in second.items() if values.shape}
    single = {*TABLES, *(f"{name}_wrong" for name in TABLES), "certain", "class_means", "covariances"}
    changes, side = (second["class_means"].shape + (0, 0, 0))[0:3:2]
    described = shapes.get("class_means"), shapes.get("covariances")
    if set(shapes) != single or described != ((changes, classes, side), (changes, side, side)):
        return "an array has a shape that no second file has"
    for name in TABLES:
        cells, wrong = second[name], second[f"{name}_wrong"]
        if cells.shape != (classes, classes) or wrong.shape != (classes,):
            return f"{name} has no counts of {classes} by {classes} classes"
        if (cells < 0).any() or (wrong < 0).any() or (cells % rounding.STEP).any() or (wrong % rounding.STEP).any():
            return f"{name} has counts that are no multiples of {rounding.STEP}"
        if np.diag(cells).any() or (rounding.bounds_of(cells)[0] > counts).any() or (wrong > counts + rounding.AWAY).any():
            return f"{name} does not fit the class counts of the first file"
    if not 0 <= int(second["chosen"]) < len(second["covariances"]):
        return "the change of the inputs is none of those that were compared"
    if not 0 <= int(second["low"]) <= int(second["high"]) < n + rounding.STEP:
        return "the range of wrong labels is no range within the number of samples"
    if int(second["supported"]) < 0 or not (0 <= second["certain"]).all() or (second["certain"] > n + rounding.AWAY).any():
        return "a number of labels is negative or larger than the number of samples"
    if int(second["doubted_wrong"].sum()) > n + rounding.AWAY * classes or second["certain"].shape != (2,):
        return "more labels are doubted than the first file has samples"
    if any(np.linalg.eigvalsh(part).min() < -1e-6 * max(1e-9, np.trace(part)) for part in second["covariances"]):
        return "a variance of the inputs is negative"
    return ""


def compare_inputs(
    firsts: list[dict[str, np.ndarray]], seconds: list[dict[str, np.ndarray]], changes: Sequence[Change], embedded: bool = False
) -> Compared:
    """Return the fnlkit.audits.shifts.Compared inputs of the sites; `embedded`: labels are judged by embeddings."""
    counts = np.stack([first["counts"] for first in firsts])
    found = compare_columns(firsts)[1]
    replies = {name: np.stack([second[name] for second in seconds]) for name in ("class_means", "covariances")}
    silent = np.array([not second["covariances"].any() for second in seconds])
    held = np.where(silent[:, None], 0, counts)
    auc = shifts.compare_inputs(replies, held, [[0, int(second["chosen"])] for second in seconds])
    found = column_differences.seen(found, auc[:, 0])
    if not embedded:
        return Compared(changes, auc, found)
    every = [range(len(changes)) if value >= shifts.DIFFERENT else [0] for value in auc[:, 0]]
    auc = shifts.compare_inputs(replies, held, every)
    return shifts.Encoded(changes, auc, found, compare_features(firsts))


def range_of(seconds: list[dict[str, np.ndarray]], expected: np.ndarray) -> dict[str, np.ndarray]:
    """Return fnlkit.estimators.likelihood.estimates_of second files of `judge` and restored counts by true and given class."""
    low, high = (np.array([int(second[name]) for second in seconds]) for name in ("low", "high"))
    return likelihood.estimates_of(low, high, expected)


@on_one_blas_thread
def conclude(
    firsts: list[dict[str, Any]],
    heads: dict[str, np.ndarray],
    seconds: list[dict[str, Any]],
    *,
    changes: Sequence[Change],
    named: Names,
    embedded: bool = False,
    shared: bool = False,
    searched: Sequence[dict[str, Any]] = (),
) -> "tuple[list[SiteAudit], np.ndarray]":
    """Return (rows of the sites, T[true, given]).

    Parameters
    ----------
    firsts, seconds : list of dict
        From `summarize` and `judge`, in the order of the sites.
    heads : dict of arrays
        From `make_heads`.
    changes : list of fnlkit.audits.shifts.Change
    named : fnlkit.audits.results.Names
    embedded : bool
        Labels are judged by embeddings.
    shared : bool
        Sites share samples (fnlkit.audits.verdict.assess): their inputs have one origin and are not compared.
    searched : list of dict, optional
        Results by sample, which only a simulation has.
    """
    counts = np.stack([first["counts"] for first in firsts])
    restored = {
        name: np.stack([
            rounding.restore_table(s[name], s[f"{name}_wrong"], c) for s, c in zip(seconds, counts, strict=True)
        ])
        for name in TABLES
    }  # fmt: skip
    predicted, expected = restored["predicted"], restored["expected"]
    doubted = np.minimum(restored["doubted"], predicted) * ~np.eye(counts.shape[1], dtype=bool)
    supported = np.array([int(s["supported"]) for s in seconds])
    certain = np.array([[min(s["certain"]), s["certain"][1]] for s in seconds])
    inputs = compare_inputs(firsts, seconds, changes, embedded)
    if shared:
        inputs = Compared(inputs.changes, np.full_like(inputs.auc, 0.5), [[] for _ in firsts])
    # A difference of columns that no classifier recognizes counts as none.
    chosen = [int(s["chosen"]) for s in seconds]
    chosen = np.array([n if changes[n].tone != "columns" or inputs.columns[k] else 0 for k, n in enumerate(chosen)])
    found = verdict.Predictions(
        chosen, heads["known"], heads["differ"], predicted, restored["within"], doubted, supported, certain
    )
    # Tests need independent samples.
    share = np.minimum(1, np.array([int(first["observations"]) for first in firsts]) / np.maximum(1, counts.sum(1)))
    fewer = found.scaled(share)
    judges = verdict.judges(inputs.after(chosen), fewer)
    estimates = range_of(seconds, expected)
    tested = estimates | {"counts": estimates["counts"] * share[:, None, None]}
    assessed = verdict.assess(judges, tested, counts, fewer, shared=shared, away=rounding.ALLOWANCE)
    rows = []
    for row in describe_sites(named, counts, inputs, found, estimates["counts"], assessed, searched):
        withheld = [named.classes[c] for c in np.flatnonzero(firsts[row.client]["withheld"])]
        rows.append(replace(row, withheld=withheld, missing=[name for name in row.missing if name not in withheld]))
    return rows, transition(estimates["counts"].sum(0))
