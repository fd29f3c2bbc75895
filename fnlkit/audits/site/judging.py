"""Second message of a site: counts by the classifier of the other sites.  Results by sample stay at the site."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fnlkit.audits import rounding
from fnlkit.audits.changes import Change
from fnlkit.audits.messages import FARTHEST, PER_FEATURE, TABLES, described_features, widen
from fnlkit.audits.records import SKILL, skill_of
from fnlkit.audits.site import copies, inputs, own_model
from fnlkit.audits.site.samples import Samples, large_classes, table_of, values_of
from fnlkit.audits.site.summaries import features
from fnlkit.estimators import likelihood
from fnlkit.evidence.gaussian import softmax
from fnlkit.kernels.neighbors import on_one_blas_thread
from fnlkit.kernels.scores import transition
from fnlkit.kernels.streams import stream

# A site with more samples estimates its transitions from this many of them, drawn at random.
MOST_JUDGED = 20_000
# Share of the samples that count as those of which a model is most certain.
CERTAIN = 1 / 3


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
    """Make the arrays of a site's second file, and store the results by sample.

    Parameters
    ----------
    whole : Samples
        The results are in `kept`.
    heads : dict of arrays
        From `fnlkit.audits.server.heads.make_heads`.
    number : int
        Number of the site among the sites of the heads.
    changes : list of fnlkit.audits.changes.Change
        Changes of the inputs to compare.
    seed : int
    detectors : sequence of str
        Names in fnlkit.estimators.DETECTORS that flag samples next to `em`.

    Returns
    -------
    dict
        predicted, within, expected, doubted (C, C) with ``NAME_wrong`` (C,), from fnlkit.audits.rounding.round_table; chosen
        (number of the change with which the head fits best); supported; certain (2,); class_means, covariances
        (fnlkit.audits.site.inputs); low, high: ends of the range of the number of wrong labels.
    """
    samples, mask = large_classes(whole)
    labels, classes = samples.y, samples.classes
    scale = (heads["mean"], heads["std"]) if len(heads["mean"]) else None
    agreed_scale = {name: heads[name] for name in ("center", "suspects", "tone")} | {"fits": heads["fits"][number]}
    copied = copies.find_copies(whole, scale, wanted=own_model.most_neighbors(len(whole), classes))
    if not len(labels):
        _keep_nothing(whole, copied, detectors)
        reply = _empty_reply(changes, samples, int(heads["compared"]))
    else:
        described = inputs.describe_inputs(samples, agreed_scale, changes=changes, width=int(heads["compared"]), seed=seed)
        if described["covariances"].shape[-1] * PER_FEATURE > len(labels):  # too few samples to send these moments
            described = {name: np.zeros_like(values) for name, values in described.items()}
        head = tuple(heads[name][number] for name in ("coefficients", "offsets", "sizes"))
        points = features(samples, scale)
        chosen, p = _probabilities(samples, points, head, agreed_scale, changes, scale)
        shares = heads["shares"][number] if heads["differ"][number] else None
        predicted, p = adjust(p, labels, heads["known"][number], shares, samples.reviewed)
        own_models = judge_within(samples, points, copied.neighbors if mask.all() else None, seed)
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
        keep_results(whole, mask, [p, *own_models], predicted, estimated["posterior"], copied)
        _detect(whole, mask, detectors, points, p, copied, seed)
    return reply


def _empty_reply(changes, samples, width):
    """Second file of a site without a class of LEAST samples: zeros."""
    size, classes = min(width, described_features(samples.image, int(np.prod(samples.x.shape[1:])))), samples.classes
    none = np.zeros((classes, classes), np.int64)
    reply = {"chosen": np.array(0), "supported": np.array(0), "certain": np.zeros(2, np.int64), "low": np.array(0),
             "high": np.array(0)}  # fmt: skip
    for name in TABLES:
        reply |= {name: none, f"{name}_wrong": np.zeros(classes, np.int64)}
    shape = len(changes), classes, size
    return reply | {"class_means": np.zeros(shape), "covariances": np.zeros((len(changes), size, size))}


def adjust(
    p: np.ndarray, labels: np.ndarray, known: np.ndarray, trained_shares: np.ndarray | None, reviewed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Adapt the classifier's classes to the site: (predicted (C, C), probabilities (n, C)).

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
    """Adapt probabilities (n, C) to the class shares of these samples, which are estimated from the probabilities.

    Parameters
    ----------
    probabilities : (n, C)
    trained_shares : (C,)
        Class shares of the model's training data.
    steps : int
    """
    trained = np.asarray(trained_shares, np.float64)
    trained, seen = np.maximum(trained, 1e-6), trained > 1e-6
    shares, adapted = trained / trained.sum(), probabilities
    for _ in range(steps):
        adapted = probabilities * np.where(seen, shares / trained, 1.0)
        adapted = adapted / np.maximum(adapted.sum(1, keepdims=True), 1e-300)
        shares = np.maximum(adapted.mean(0), 1e-6)
    return adapted


def judge_within(samples: Samples, points: np.ndarray, near: np.ndarray | None, seed: int) -> list[np.ndarray]:
    """Predict probabilities (n, C) by the models of the site itself; see fnlkit.audits.site.own_model.cross_fitted.

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
    """Find the third of the samples of which a model is most certain."""
    ordered = np.sort(p, 1)
    margin = ordered[:, -1] - ordered[:, -2] if p.shape[1] > 1 else ordered[:, -1]
    return np.argsort(-margin, kind="stable")[: max(1, round(CERTAIN * len(p)))]


def keep_results(
    whole: Samples,
    mask: np.ndarray,
    models: list[np.ndarray],
    predicted: np.ndarray,
    posterior: np.ndarray,
    copied: copies.Found,
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
    copied : fnlkit.audits.site.copies.Found
    """
    labels = whole.y[mask]
    guess = posterior.argmax(1)
    unsupported = own_model.best_of(models[1:], labels).argmax(1) != labels
    if skill_of(predicted).kappa < SKILL:
        unsupported[:] = False
    guess = np.where(unsupported, guess, labels)
    results = {"issue": np.zeros(len(mask)), "guess": whole.y.copy(), "confidence": np.zeros(len(mask)), **_copied(copied)}
    calibrated = np.mean([likelihood.temper(model, labels, most=MOST_JUDGED) for model in models], 0)
    results["issue"][mask] = likelihood.wrong_probabilities(calibrated, labels)
    results["guess"][mask], results["confidence"][mask] = guess, likelihood.confidence_of(posterior)
    if whole.reviewed is not None:
        results["issue"][whole.reviewed], results["guess"][whole.reviewed] = 0, whole.y[whole.reviewed]
    results["flagged"] = results["guess"] != whole.y
    results["by_em"] = results["flagged"]
    whole.kept.update(results)


def _detect(whole, mask, detectors, points, p, copied, seed):
    """Keep which samples each detector flags."""
    samples = whole.take(mask)
    for name in detectors:
        whole.kept[f"by_{name}"] = np.zeros(len(mask), bool)
        flags = own_model.detect(name, samples, points, p, copied.neighbors if mask.all() else None, seed)
        whole.kept[f"by_{name}"][mask] = flags if samples.reviewed is None else flags & ~samples.reviewed


def _keep_nothing(whole, copied, detectors=()):
    """Keep that no sample is suspicious."""
    none = np.zeros(len(whole), bool)
    results = {"issue": np.zeros(len(whole)), "guess": whole.y.copy(), "confidence": np.zeros(len(whole)), "flagged": none}
    whole.kept.update(results | _copied(copied) | {f"by_{name}": none for name in ("em", *detectors)})


def _copied(copied):
    return {"copy_of": copied.copy_of, "near": copied.near, "far": copied.far}


def keep_suspects(whole: Samples, p: np.ndarray, *, seed: int = 0) -> None:
    """Keep the results of each sample, from probabilities (n, C) of a classifier of other sites."""
    samples, mask = large_classes(whole)
    copied = copies.find_copies(whole, wanted=own_model.most_neighbors(len(whole), whole.classes))
    if not len(samples):
        _keep_nothing(whole, copied)
    else:
        predicted, p = adjust(p[mask], samples.y, np.ones(samples.classes, bool), None, samples.reviewed)
        points = values_of(samples) if samples.x.ndim == 2 else features(samples)
        models = judge_within(samples, points, copied.neighbors if mask.all() else None, seed)
        posterior = estimate(p, samples.y, samples.number, seed, samples.groups)["posterior"]
        keep_results(whole, mask, [p, *models], predicted, posterior, copied)


def _probabilities(samples, points, head, agreed_scale, changes, scale):
    """Choose a change and predict probabilities (n, C) of the head under it: (number of the change, probabilities).

    Columns are changed if the message states how.  Another change of images must raise the agreement with the labels by a tenth
    of the samples.
    """
    if samples.probabilities is not None:
        return 0, samples.probabilities.astype(np.float64)
    coefficients, offsets, size = head
    size = int(size)
    fits, embedded = agreed_scale["fits"], samples.embedding is not None
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
            points = features(replace(samples, x=inputs.apply_change(samples, change, agreed_scale)), scale)
        p = softmax(points[:, :size] @ coefficients[:, :size].T + offsets)
        agreeing = int((p.argmax(1) == samples.y).sum())
        # A change with fewer parts comes first, and another one must be better by more than chance.
        if best is None or agreeing > best[0] + (0.1 if best[1] == 0 else 0.02) * len(p):
            best = agreeing, number, p
        if best[1] == 0 and best[0] >= 0.9 * len(p):  # no change can raise the agreement by a tenth
            break
    return best[1:]


def estimate(p: np.ndarray, labels: np.ndarray, number: int, seed: int, groups: np.ndarray | None = None) -> dict[str, Any]:
    """Estimate as fnlkit.estimators.likelihood, with the tempering that fits the labels best.

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
    fitted = likelihood.fit(logits[used], labels[used], temper, rng=rng, groups=None if groups is None else groups[used])
    posterior = fitted["posterior"]
    if len(used) < len(labels):
        T = transition(fitted["counts"] + np.eye(p.shape[1]))
        posterior = likelihood.posterior_of(softmax(temper * logits), labels, T)
    counts = posterior.T @ np.eye(p.shape[1])[labels]
    return {**fitted, "deviation": float(fitted["draws"].std()), "counts": counts, "posterior": posterior}


def narrow(heads: dict[str, np.ndarray], number: int, samples: Samples, scale: tuple[np.ndarray, np.ndarray]) -> str:
    """Explain why the description of the inputs by a message could single out samples; "" if it cannot.

    Parameters
    ----------
    heads : dict of arrays
        From `fnlkit.audits.server.heads.make_heads`.
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
