"""Audit from sums: a site sends class sums and second moments once, receives a classifier, and sends counts once.

The classifier of a site is linear discriminant analysis with a shrunken covariance, computed from the sums of the other sites.
Sums of few samples reveal these samples.  A class with fewer than LEAST samples is therefore left out everywhere.  Second
moments have at most a quarter as many dimensions as the site has samples.  The counts of the second file are multiples of 5.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from fnlkit.audits import differing, rounding, shifts, site, statistics, verdict
from fnlkit.audits.results import Names, describe_sites
from fnlkit.audits.shifts import LEAST, Change, Compared
from fnlkit.errors import InputError
from fnlkit.estimators import em, federated
from fnlkit.kernels.scores import transition
from fnlkit.kernels.streams import stream

if TYPE_CHECKING:
    from fnlkit.audits.records import ColumnDifference, SiteAudit
    from fnlkit.client.client import Client


# Numbers of features that a site can send; it sends the first ones, at most one for PER_FEATURE samples.
SIZES, PER_FEATURE = (8, 16, 32, 64, 128, 256), 4
# Random rectified features of raw images and sounds, beside their values.
RANDOM = 128
# Features are clipped to norm CLIP * sqrt(number of features), and single columns of a table to FARTHEST standard deviations.
CLIP, FARTHEST = 1.5, 5.0
SHRINKAGE = 0.1
# The number of features of a head is the largest one that sites with this share of the samples have sent.
SHARE = 0.8
# The inputs of two sites are compared by at most this many features of the sums.
COMPARED = 16
# A site with more samples estimates its transitions from this many of them, drawn at random.
MOST_JUDGED = 20_000
# In the coarse description of the inputs, values within this many standard deviations of the agreed scale are not clipped.
UNCLIPPED = 2.0
# Tables of the second file, by predicted (or true) and given class.
TABLES = "predicted", "within", "expected", "doubted"
# Arrays of both files that are whole numbers.
COUNTS = {"counts", "width", "chosen", "supported", "certain", "low", "high", *TABLES, *(f"{name}_wrong" for name in TABLES)}
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


def features(client: "Client", scale: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
    """Return the features (n, D) of a client's samples, of which the first ones are a random rotation or projection.

    Columns of a table are standardized by `scale`.  Features of a backbone and sounds are standardized within each sample.
    Images are averaged to at most 16 pixels a side.  Raw images and sounds have RANDOM rectified random features more.

    Parameters
    ----------
    client : fnlkit.client.client.Client
    scale : (mean (d,), std (d,)), optional
        Of the columns of a table.
    """
    embedded, x = "input/embedding" in client.rows, site.points_of(client)
    raw = not embedded and client.x.ndim > 2
    if client.inputs.image and not embedded:
        x = 2 * x - 1
    elif scale is not None and not embedded:
        x = (x - scale[0]) / scale[1]
    else:
        x = x - x.mean(1, keepdims=True)
        x = x / np.maximum(np.sqrt((x**2).mean(1, keepdims=True)), 1e-9)
    x = np.clip(x, -FARTHEST, FARTHEST)
    width = x.shape[1]
    draws = stream(0, "summaries").standard_normal((width, SIZES[-1] if width > SIZES[-1] else width))
    first = x @ (draws / np.sqrt(width) if width > SIZES[-1] else np.linalg.qr(draws)[0])
    if raw:
        weights = stream(1, "summaries").standard_normal((width, RANDOM)) * 2 / np.sqrt(width)
        first = np.hstack([first, np.maximum(x @ weights, 0)])[:, : SIZES[-1]]
    bound = CLIP * np.sqrt(first.shape[1])
    return first * np.minimum(1, bound / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-12))


def dimensions(samples: int, width: int) -> int:
    """Return how many of `width` features a site with this many samples may send."""
    return max((size for size in {*SIZES, width} if size <= min(width, samples // PER_FEATURE)), default=0)


def sums(points: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return counts (C,), class sums (C, D) and second moments (D, D) of features (n, D)."""
    by_class = np.zeros((classes, points.shape[1]))
    np.add.at(by_class, labels, points)
    return np.bincount(labels, minlength=classes), by_class, points.T @ points


def large_classes(client: "Client") -> "tuple[Client, np.ndarray]":
    """Return (client with the classes of at least LEAST samples only, mask (n,) of these samples)."""
    counts = torch.bincount(client.y, minlength=client.classes)
    mask = (counts >= LEAST)[client.y]
    rows = {name: values[mask] for name, values in client.rows.items() if name.startswith("input/")}
    return replace(
        client, samples=client.x[mask], y=client.y[mask], given=client.given[mask], rows=rows, parts={}
    ), mask.numpy()


def summarize(client: "Client", scale: tuple[np.ndarray, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a site's first file.

    Parameters
    ----------
    client : fnlkit.client.client.Client
    scale : (mean (d,), std (d,)), optional
        As for `features`.

    Returns
    -------
    dict
        counts (C,) (0 for withheld classes), withheld bool (C,), width (number of features), sums (C, m), moments (m, m),
        and columns, class_columns as fnlkit.audits.shifts declares them.
    """
    held = torch.bincount(client.y, minlength=client.classes).numpy()
    withheld = (held > 0) & (held < LEAST)
    client, _ = large_classes(client)
    labels = client.y.numpy()
    if not len(labels):
        raise InputError(f"no class has {LEAST} samples or more, so that no sum may leave; leave this site out of the audit")
    points = features(client, scale)
    counts, by_class, moments = sums(points[:, : dimensions(len(labels), points.shape[1])], labels, client.classes)
    described = {name: values.numpy() for name, values in shifts.describe_columns(client, None, {}).items()}
    first = {"counts": counts, "withheld": withheld, "width": np.array(points.shape[1]), "sums": by_class}
    return first | {"moments": (moments + moments.T) / 2} | described


def judge(
    client: "Client", heads: dict[str, np.ndarray], number: int, *, changes: list[Change], seed: int = 0
) -> dict[str, np.ndarray]:
    """Return the arrays of a site's second file, and keep the judgment of each sample as an audit does.

    Parameters
    ----------
    client : fnlkit.client.client.Client
    heads : dict of arrays
        From `make_heads`.
    number : int
        Number of the site among the sites of the heads.
    changes : list of fnlkit.audits.shifts.Change
        Changes of the inputs to compare.
    seed : int

    Returns
    -------
    dict
        predicted, within, expected, doubted (C, C) with ``NAME_wrong`` (C,), from fnlkit.audits.rounding.round_table; chosen
        (number of the change with which the head fits best); supported; certain (2,); class_means, covariances
        (fnlkit.audits.shifts); low, high: ends of the range of the number of wrong labels.
    """
    whole, (client, mask) = client, large_classes(client)
    labels, received = client.y.numpy(), {name: torch.from_numpy(np.asarray(heads[name])) for name in heads}
    scale = (heads["mean"], heads["std"]) if len(heads["mean"]) else None
    width = int(heads["compared"])
    told = {name: received[name] for name in ("center", "suspects", "tone")} | {"fits": received["fits"][number]}
    packed = [change.packed for change in changes]
    described = shifts.describe_inputs(client, None, told, changes=packed, width=width, seed=seed)
    described = {name: values.numpy() for name, values in described.items()}
    if described["covariances"].shape[-1] * PER_FEATURE > len(labels):  # too few samples to send these moments
        described = {name: np.zeros_like(values) for name, values in described.items()}
    head = tuple(heads[name][number] for name in ("coefficients", "offsets", "sizes"))
    chosen, p = _probabilities(client, head, told, changes, scale)
    client.rows["input/probabilities"] = torch.from_numpy(p)
    site.use_given_probabilities(client, None, {})
    message: dict[str, Any] = {"chosen": 0, "known": received["known"][number], "adapt": bool(heads["differ"][number])}
    message["trained_shares"] = received["shares"][number]
    predicted = site.choose_change(client, None, message)["predicted"].numpy()
    own = {name: values.numpy() for name, values in site.judge_within(client, None, {}, seed=seed).items()}
    judged = _estimate(client, seed)
    reply = {"chosen": np.array(chosen)}
    totals = np.bincount(labels, minlength=client.classes)
    tables = {"predicted": predicted, "within": own["within"], "expected": judged["counts"], "doubted": own["doubted"]}
    for name, table in tables.items():
        reply[name], reply[f"{name}_wrong"] = rounding.round_table(table, totals)
    supported = rounding.round_supported(own["supported"], reply["predicted_wrong"], reply["doubted_wrong"])
    reply["supported"] = np.array(supported)
    reply["certain"] = np.array([rounding.round_counts(own["certain"][0]), own["certain"][1]])
    # The ends of the range are rounded outward: more digits would state a small count of wrong labels.
    for name, outward in (("low", np.floor), ("high", np.ceil)):
        reply[name] = rounding.STEP * outward(np.round(judged[name] * len(labels), 9) / rounding.STEP).astype(np.int64)
    _keep(whole, client, mask, judged, predicted)
    return reply | described


def keep_suspects(client: "Client", p: np.ndarray, *, seed: int = 0) -> None:
    """Keep the judgment of each sample of a client, from probabilities (n, C) of a classifier of other sites."""
    whole, (client, mask) = client, large_classes(client)
    if not len(client.y):
        federated.keep_judgment(whole, np.zeros(len(mask)), np.zeros(len(mask), bool), whole.y.numpy().copy())
        return
    client.rows["input/probabilities"] = torch.from_numpy(p[mask])
    site.use_given_probabilities(client, None, {})
    message: dict[str, Any] = {"chosen": 0, "known": torch.ones(client.classes, dtype=torch.bool), "adapt": False}
    message["trained_shares"] = torch.full((client.classes,), 1 / client.classes, dtype=torch.float64)
    predicted = site.choose_change(client, None, message)["predicted"].numpy()
    site.judge_within(client, None, {}, seed=seed)
    _keep(whole, client, mask, _estimate(client, seed), predicted)


def _keep(whole, client, mask, judged, predicted):
    """Keep the judgment of each sample: `client` holds those in `mask` (n,) of the `whole` client."""
    # Suspects are ranked by both models: the inputs of a site can differ in a way that only its own model allows for.
    labels = client.y.numpy()
    each = np.arange(len(labels))
    both = [client.rows[name].numpy()[each, labels] for name in ("estimate/probabilities", "audit/within")]
    if statistics.skill_of(predicted).kappa < verdict.SKILL:
        judged["guess"] = labels
    rows = {"issue": np.zeros(len(mask)), "guess": whole.y.numpy().copy()}
    rows["issue"][mask], rows["guess"][mask] = 1 - np.mean(both, 0), judged["guess"]
    federated.keep_judgment(whole, rows["issue"], rows["guess"] != whole.y.numpy(), rows["guess"])


def _probabilities(client, head, told, changes, scale):
    """Return (number of a change, probabilities (n, C) of the head under it).

    Columns are changed if the message states how.  Another change of images must raise the agreement with the labels by a tenth
    of the samples; `fnlkit.audits.shifts.describe_inputs` came before.
    """
    coefficients, offsets, size = head
    embedded, fits = "input/embedding" in client.rows, told["fits"].numpy()
    if embedded or len(changes) == 1:
        tried = [0]
    elif client.inputs.image:
        tried = range(len(changes))
    else:
        tried = [1] if (fits[0] != 1).any() or (fits[1] != 0).any() else [0]
    best = None
    for number in tried:
        change = changes[number]
        x = shifts.apply_change(client, client.x, change, told) if change else client.x
        points = features(replace(client, samples=x), scale)[:, :size]
        p = em.softmax(points @ coefficients[:, :size].T + offsets)
        agreeing = int((p.argmax(1) == client.y.numpy()).sum())
        # A change with fewer parts comes first, and another one must be better by more than chance.
        if best is None or agreeing > best[0] + (0.1 if best[1] == 0 else 0.02) * len(p):
            best = agreeing, number, p
    return best[1:]


def _estimate(client, seed):
    """Return the estimates of fnlkit.estimators.em for a client, with the tempering that fits the client's labels best.

    In addition to level, low, high, deviation and counts (C, C): guess (n,), the most probable true class.
    """
    logits, labels = em.scores_of(federated.predictions(client)), client.y.numpy()
    rng, used = stream(seed, "em", client=client.id), np.arange(len(labels))
    if len(labels) > MOST_JUDGED:
        used = np.sort(rng.permutation(len(labels))[:MOST_JUDGED])
    temper = em.best_temper(logits[used], labels[used])
    groups = federated.groups_of(client)
    found = em.fit(logits[used], labels[used], temper, rng=rng, groups=None if groups is None else groups[used])
    T = transition(found["counts"] + np.eye(client.classes))
    posterior = found["posterior"] if len(used) == len(labels) else em.posterior_of(em.softmax(temper * logits), labels, T)
    counts = posterior.T @ np.eye(client.classes)[labels]
    return {**found, "deviation": float(found["draws"].std()), "counts": counts, "guess": posterior.argmax(1)}


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
              "columns": (5, d), "class_columns": (2, classes, *first["class_columns"].shape[2:3])}  # fmt: skip
    for name, shape in shapes.items():
        if first[name].shape != shape:
            return f"{name} has the shape {first[name].shape} instead of {shape}"
    if (counts < 0).any() or not 0 < n <= most:
        return f"the counts sum to {n:,}, and a site of this project has 1 to {most:,} samples"
    if ((counts > 0) & (counts < LEAST)).any():
        return f"a class has fewer than {LEAST} samples, and such classes are withheld"
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


def discriminant(
    counts: np.ndarray, by_class: np.ndarray, moments: np.ndarray, shrinkage: float = SHRINKAGE
) -> tuple[np.ndarray, np.ndarray]:
    """Return (coefficients (C, D), offsets (C,)) of linear discriminant analysis with a shrunken covariance.

    The covariance within the classes is (1 - s) S + s t I, where t is the mean variance.  A class without samples has a large
    negative offset.

    Source: Friedman 1989, Regularized discriminant analysis, equation 18 with a pooled covariance.
    """
    n, total = np.maximum(counts, 1.0), max(1.0, np.sum(counts))
    means = by_class / n[:, None]
    values, vectors = np.linalg.eigh((moments - (means.T * counts) @ means) / total)
    values = np.maximum(values, 0)
    values = (1 - shrinkage) * values + shrinkage * values.mean() + 1e-9
    coefficients = means @ (vectors / values) @ vectors.T
    offsets = np.log(n / total) - 0.5 * (coefficients * means).sum(1)
    return np.where(counts[:, None] > 0, coefficients, 0), np.where(counts > 0, offsets, -1e3)


def different(firsts: list[dict[str, np.ndarray]]) -> np.ndarray:
    """Return the mask (N,) of sites whose features differ from those of most sites, by the sums; none if most differ."""
    counts = np.stack([first["counts"] for first in firsts])
    sizes = np.array([first["sums"].shape[1] for first in firsts])
    width = min(COMPARED, *sizes[sizes > 0]) if (sizes > 0).any() else 0
    counts = np.where(sizes[:, None] > 0, counts, 0)
    means, within = np.zeros((len(firsts), 1, counts.shape[1], width)), np.zeros((len(firsts), 1, width, width))
    for k in np.flatnonzero(sizes if width else sizes * 0):
        means[k, 0] = firsts[k]["sums"][:, :width] / np.maximum(counts[k], 1)[:, None]
        within[k, 0] = _within(firsts[k])[:width, :width]
    if not width:
        return np.zeros(len(firsts), bool)
    found = shifts.compare_inputs({"class_means": means, "covariances": within}, counts, 1)[:, 0] >= shifts.DIFFERENT
    return found if found.sum() <= (len(found) - 1) / 2 else np.zeros(len(found), bool)


def compare_columns(firsts: list[dict[str, np.ndarray]]) -> "tuple[np.ndarray, list[list[ColumnDifference]], np.ndarray]":
    """Return (columns (N, 5, d), findings and fits of fnlkit.audits.differing.differing_columns)."""
    counts = np.stack([first["counts"] for first in firsts])
    columns = shifts.fill_missing(np.stack([first["columns"] for first in firsts]), counts, shifts.LEAST_COLUMNS)
    return columns, *differing.differing_columns(columns, np.stack([first["class_columns"] for first in firsts]), counts)


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


def narrow(heads: dict[str, np.ndarray], number: int, client: "Client", scale: tuple[np.ndarray, np.ndarray]) -> str:
    """Return why the description of the inputs by a message could single out samples, as a text; "" if it cannot.

    Parameters
    ----------
    heads : dict of arrays
        From `make_heads`.
    number : int
        Number of the site among the sites of the heads.
    client : fnlkit.client.client.Client
        Samples of a table.
    scale : (mean (d,), std (d,))
        Agreed scale of the columns.
    """
    if (heads["center"][1] < widen(heads["center"], scale)[1] * (1 - 1e-9)).any():
        return "the inputs would be described by a narrower range than that of the project's scale"
    low, high = np.percentile(client.x.numpy().astype(np.float64), [10, 90], axis=0)
    factor, offset = heads["fits"][number]
    fitted = (factor != 1) | (offset != 0)
    away = np.maximum(*(np.abs(factor * x + offset - scale[0]) for x in (low, high)))
    if (fitted & (away > FARTHEST * scale[1])).any():
        column = int(np.argmax(fitted & (away > FARTHEST * scale[1])))
        return f"column {column} would be moved outside of the project's scale"
    return ""


def make_heads(
    firsts: list[dict[str, Any]],
    scale: tuple[np.ndarray, np.ndarray] | None = None,
    classify: Callable[..., tuple[np.ndarray, np.ndarray]] = discriminant,
) -> dict[str, np.ndarray]:
    """Return the message to the sites: for each one a classifier from the sums of the others.

    Sites with other inputs than most sites enter no classifier but are judged.

    Parameters
    ----------
    firsts : list of dict
        From `summarize`, in the order of the sites.
    scale : (mean (d,), std (d,)), optional
        As for `summarize`.
    classify : callable
        Returns coefficients and offsets from counts, class sums and second moments, as `discriminant`.

    Returns
    -------
    dict of arrays
        coefficients (N, C, M), sizes (N,), offsets (N, C), known (N, C), shares (N, C), differ (N,), center (2, d),
        suspects, tone (2,), fits (N, 2, d), compared, mean (d,), std (d,).
    """
    counts = np.stack([first["counts"] for first in firsts])
    sites, sizes = len(firsts), np.array([first["sums"].shape[1] for first in firsts])
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
        if not size or not len(ids):
            raise InputError(f"at least two sites need {PER_FEATURE * SIZES[0]} samples or more; found too few")
        total = counts[ids].sum(0)
        by_class = sum(firsts[j]["sums"][:, :size] for j in ids)
        moments = sum(firsts[j]["moments"][:size, :size] for j in ids)
        parts.append((size, total, *classify(total, by_class, moments)))
    widest = max(part[0] for part in parts)
    coefficients = np.stack([np.pad(part[2], ((0, 0), (0, widest - part[0]))) for part in parts])
    shares = np.stack([part[1] / part[1].sum() for part in parts])
    mean, std = scale or (np.zeros(0), np.ones(0))
    center = differing.reference(columns)
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
        "suspects": differing.suspects(found),
        "tone": np.median(columns[:, :2, 0], 0),
        "fits": fits,
        "compared": np.array(max(4, int(np.median(counts.sum(1))) // 5)),
        "mean": np.asarray(mean, np.float64),
        "std": np.asarray(std, np.float64),
    }


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
    firsts: list[dict[str, np.ndarray]], seconds: list[dict[str, np.ndarray]], changes: list[Change]
) -> Compared:
    """Return the fnlkit.audits.shifts.Compared inputs of the sites."""
    counts = np.stack([first["counts"] for first in firsts])
    columns, found, fits = compare_columns(firsts)
    replies = {name: np.stack([second[name] for second in seconds]) for name in ("class_means", "covariances")}
    silent = np.array([not second["covariances"].any() for second in seconds])
    auc = shifts.compare_inputs(replies, np.where(silent[:, None], 0, counts), len(changes))
    found, fits = differing.seen(found, fits, auc[:, 0])
    return shifts.Compared(changes, auc, found, fits, np.median(columns[:, :2, 0], 0))


def range_of(seconds: list[dict[str, np.ndarray]], expected: np.ndarray) -> dict[str, np.ndarray]:
    """Return the fnlkit.estimators.em.estimates_of second files of `judge` and restored counts by true and given class."""
    low, high = (np.array([int(second[name]) for second in seconds]) for name in ("low", "high"))
    return em.estimates_of(low, high, expected)


def conclude(
    firsts: list[dict[str, Any]],
    heads: dict[str, np.ndarray],
    seconds: list[dict[str, Any]],
    *,
    changes: list[Change],
    classes: list[str],
    names: list[str],
    columns: list[str] | None = None,
) -> "tuple[list[SiteAudit], np.ndarray]":
    """Return (rows of the sites, T[true, given]) by the rules of an audit.

    Parameters
    ----------
    firsts, seconds : list of dict
        From `summarize` and `judge`, in the order of the sites.
    heads : dict of arrays
        From `make_heads`.
    changes : list of fnlkit.audits.shifts.Change
    classes, names : list of str
        Names of classes and sites.
    columns : list of str, optional
        Names of the columns of a table.
    """
    counts = np.stack([first["counts"] for first in firsts])
    restored = {
        name: np.stack([
            rounding.restore_table(s[name], s[f"{name}_wrong"], c) for s, c in zip(seconds, counts, strict=True)
        ])
        for name in TABLES
    }  # fmt: skip
    predicted, within, expected = (restored[name] for name in ("predicted", "within", "expected"))
    doubted = np.minimum(restored["doubted"], predicted) * ~np.eye(len(classes), dtype=bool)
    supported = np.array([int(s["supported"]) for s in seconds])
    certain = np.array([[min(s["certain"]), s["certain"][1]] for s in seconds])
    inputs = compare_inputs(firsts, seconds, changes)
    # A difference of columns that no classifier recognizes counts as none.
    chosen = [int(s["chosen"]) for s in seconds]
    chosen = np.array([n if changes[n].tone != "columns" or inputs.columns[k] else 0 for k, n in enumerate(chosen)])
    judges = verdict.judges(inputs.after(chosen), predicted, within, heads["known"])
    estimates = range_of(seconds, expected)
    others = verdict.Predictions(chosen, predicted, heads["known"], heads["differ"])
    own = verdict.OwnPredictions(within, doubted, supported, certain)
    assessed = verdict.assess(judges, estimates, counts, others, own, away=rounding.ALLOWANCE)
    named = Names(names, classes, columns)
    rows = []
    for row in describe_sites(named, counts, inputs, others, own, estimates["counts"], assessed):
        withheld = [classes[c] for c in np.flatnonzero(firsts[row.client]["withheld"])]
        rows.append(replace(row, withheld=withheld, missing=[name for name in row.missing if name not in withheld]))
    return rows, transition(estimates["counts"].sum(0))
