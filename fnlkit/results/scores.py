"""Test a model on samples outside training: two kinds of agreement, and accuracy.

The three measures must not be confused.  *Agreement* counts predictions equal to labels that can be wrong.  An
*agreement with the other sites' labels* is agreement corrected by an estimate of the label noise, which cannot see errors that
most sites share.  *Accuracy* requires verified
labels: a data set's declared truth, simulated noise, or gold samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset, must_be
from fnlkit.estimators.intervals import clopper_pearson, share_range, wilson
from fnlkit.experiment.evaluation_set import gold_positions, held_out_positions, tested_samples
from fnlkit.kernels.scores import confusion, effective_size
from fnlkit.results.calibration import TITLES, probability_scores
from fnlkit.results.true_accuracy import ASSUMES, MEASURES, correct_scores, figures

# End of the name of an interval of samples with groups.
COUNTED = ", a group counts as one observation"


def measure_run(run: Run, dataset: Dataset) -> dict[str, dict[str, Any]]:
    """Score a run's model on test, held-out and verified samples, as plain values by name.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    dataset : fnlkit.datasets.Dataset

    Returns
    -------
    dict
        If there are such samples: ``test``; ``held_out``, by given labels, and ``held_out_true``; ``gold``.  Each is a dict
        of ``measures`` ("accuracy" or "agreement"), samples, share, low, high, interval, macro_f1, balanced, per_class (the
        share of each class), per_class_f1, sites, confusion (C, C) by label and prediction, and the measures of
        `fnlkit.results.calibration.probability_scores`, unless an earlier version stored the run.
        ``estimate_agreement`` is the agreement with labels corrected by the models of the other sites, with its assumptions.
        ``reviewed`` is the accuracy on true labels by random reviews of held-out samples.

    Raises
    ------
    InputError
        If the data set differs from the training data set of the run.
    """
    must_be(dataset, run.meta, len(run.labels["given"]), what="the run")
    classes_of, federation = RunPredictions(run, dataset), run.federation()
    classes, names, groups = int(run.meta["classes"]), federation.names, federation.extra.get("group")
    measured = {}

    def test(labels: np.ndarray, positions: np.ndarray, kind: str, interval: Any = wilson, called: str = "Wilson") -> Any:
        """Return (scores, counts (N, C, C), owner, Independence) of the samples `kind` at clients, by their labels."""
        owner = federation.extra["holdout_client"][positions]
        counts = by_site(labels[positions], classes_of(kind, len(positions)), owner, len(federation), classes)
        share = Independence.of(groups if groups is None else groups[positions], owner, len(federation))
        scores = summarize_counts(counts, interval, called, names, share)
        _score_probabilities(scores, classes_of.logits.get(kind), labels[positions], owner, names)
        return scores, counts, owner, share

    if len(dataset.y_test):
        verified = federation.true is not None or dataset.test_verified
        counts = confusion(dataset.y_test, classes_of("test", len(dataset.y_test)), classes)
        scores = summarize_counts(counts[None], wilson, "Wilson", independence=Independence.of(dataset.groups_test))
        measured["test"] = {"measures": "accuracy" if verified else "agreement", **scores}
        _score_probabilities(measured["test"], classes_of.logits.get("test"), dataset.y_test)
    positions = held_out_positions(federation)
    if len(positions):
        scores, counts, owner, share = test(federation.given, positions, "held_out")
        measured["held_out"] = {"measures": "agreement", **scores}
        if (estimated := estimate_agreement(run, counts, names, share)) is not None:
            measured["estimated"] = estimated
        predicted = classes_of("held_out", len(positions))
        if (reviewed := by_reviews(federation, positions, predicted, owner)) is not None:
            measured["reviewed"] = reviewed
        if federation.true is not None:
            measured["held_out_true"] = {"measures": "accuracy", **test(federation.true, positions, "held_out")[0]}
    positions = gold_positions(federation)
    if len(positions):
        called = "Clopper-Pearson, exact" if groups is None else "Clopper-Pearson"
        scores = test(federation.extra["gold_label"], positions, "gold", clopper_pearson, called)[0]
        measured["gold"] = {"measures": "accuracy", **scores}
    return measured


def _score_probabilities(scores, logits, labels, owner=None, names=None):
    """Add the measures of probabilities to the scores of a kind of samples, and AUC, ECE and NLL to those of each site."""
    if logits is None:
        return
    scores |= probability_scores(logits, labels)
    for site in scores["sites"]:
        here = owner == names.index(site["site"])
        part = probability_scores(logits[here], labels[here])
        site |= {name: part[name] for name in TITLES if name in part}


@dataclass(frozen=True)
class Independence:
    """Independent observations per sample, above 0 to 1: all samples of a group, such as a patient, count as one.

    Attributes
    ----------
    total : float
    sites : float (N,)
    groups : int or None
        Number of groups; None if no samples belong together.
    """

    total: float = 1.0
    sites: np.ndarray | None = None
    groups: int | None = None

    @classmethod
    def of(cls, groups: np.ndarray | None, owner: np.ndarray | None = None, clients: int = 1) -> "Independence":
        """Measure how many independent observations samples are, from their groups (n,) and sites (n,)."""
        if groups is None:
            return cls()
        parts = [groups if owner is None else groups[owner == k] for k in range(clients)]
        sites = np.array([effective_size(part) / max(1, len(part)) for part in parts])
        return cls(effective_size(groups) / max(1, len(groups)), np.where(sites > 0, sites, 1.0), len(np.unique(groups)))

    def of_site(self, k: int) -> float:
        """Observations per sample of a site."""
        return 1.0 if self.sites is None else float(self.sites[k])


def summarize_counts(
    counts: np.ndarray,
    interval: Callable[..., Any],
    called: str,
    names: list[str] | None = None,
    independence: Independence | None = None,
) -> dict[str, Any]:
    """Compute shares of counts (N, C, C) by label and prediction, as plain values.

    Parameters
    ----------
    counts : int (N, C, C)
    interval : (count, total) -> (low, high)
    called : str
        The interval's name.
    names : list of str, optional
        Names of the sites. Default: no results by site.
    independence : Independence, optional
        Default: samples are independent.
    """
    total, per = counts.sum(0), independence or Independence()
    scores, hits = figures(total), np.trace(counts, axis1=1, axis2=2)
    low, high = interval(hits.sum() * per.total, counts.sum() * per.total)
    sites = []
    for k, site_counts in enumerate(counts if names else []):
        if names and site_counts.sum():
            a, b = interval(hits[k] * per.of_site(k), site_counts.sum() * per.of_site(k))
            scored = figures(site_counts)
            sites.append({
                "site": names[k], "samples": int(site_counts.sum()), "share": float(scored["share"]),
                "low": float(a), "high": float(b), "macro_f1": float(scored["macro_f1"]), "balanced": float(scored["balanced"]),
            })  # fmt: skip
    grouped = {} if per.groups is None else {"groups": per.groups}
    return {
        "samples": int(total.sum()), **grouped, "share": float(scores["share"]), "low": float(low), "high": float(high),
        "interval": f"95 %, {called}{per.groups and COUNTED or ''}", "macro_f1": float(scores["macro_f1"]),
        "balanced": float(scores["balanced"]), "per_class": _without_nan(scores["per_class"]),
        "per_class_f1": _without_nan(scores["per_class_f1"]), "sites": sites, "confusion": total,
    }  # fmt: skip


def _without_nan(values):
    return [None if np.isnan(v) else float(v) for v in values]


def estimate_agreement(
    run: Run, counts: np.ndarray, names: Sequence[str], independence: Independence | None = None
) -> dict[str, Any] | None:
    """Estimate the agreement with the other sites' labels from that with given labels; None without a transition."""
    needed = [f"estimate_{name}" for name in ("client_transition", "client_level", "client_level_low", "client_level_high")]
    if not all(name in run.truth for name in needed):
        return None
    per = independence or Independence()
    shares = np.array([per.of_site(k) for k in range(len(counts))])
    evidence = [run.truth[name] for name in needed]
    scores = correct_scores(counts, *evidence, seed=run.settings["seed"], independence=shares, together=per.total)
    if scores is None:
        return None
    sites = [{"site": name, **_to_range(part)} for name, part in zip(names, scores["sites"], strict=True) if part]
    grouped = {} if per.groups is None else {"groups": per.groups}
    estimates = {"measures": MEASURES, "samples": int(counts.sum()), **grouped, **_to_range(scores["share"])}
    for name in ("macro_f1", "balanced"):
        estimates[name], estimates[f"{name}_low"], estimates[f"{name}_high"] = scores[name]
    estimates["per_class"] = [part and _to_range(part) for part in scores["per_class"]]
    return estimates | {
        "interval": f"95 %, bootstrap over samples and noise levels, not below Clopper-Pearson{per.groups and COUNTED or ''}",
        "sites": sites,
        "assumes": list(ASSUMES),
    }


def by_reviews(
    federation: Federation, positions: np.ndarray, predicted: np.ndarray, owner: np.ndarray
) -> dict[str, Any] | None:
    """Estimate the accuracy on true labels of the held-out samples of reviewed sites from random reviews; can be None.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    positions, predicted, owner : int (h,)
        Held-out samples, their predictions and sites.

    Returns
    -------
    dict
        measures, samples, share (an open sample counts as half right), low, high, interval, sites, per_class. Each site has an
        exact range; the range over S sites holds with 95 % because each site is counted with an error of 5 % / S.
    """
    part = federation.extra.get("review_part")
    if part is None:
        return None
    part, right = np.asarray(part)[positions], predicted == federation.given[positions]
    known = [k for k in np.unique(owner).tolist() if (np.isin(part, (2, 3)) & (owner == k)).any()]
    if not known:
        return None
    sites = [_estimate_reviewed_share(part[owner == k], right[owner == k], 0.95) for k in known]
    sure = [_estimate_reviewed_share(part[owner == k], right[owner == k], 1 - 0.05 / len(known)) for k in known]
    sizes = np.array([(owner == k).sum() for k in known])
    total = {name: float(np.average([row[name] for row in sure], weights=sizes)) for name in ("share", "low", "high")}
    rows = [{"site": federation.names[k], "samples": int(n)} | row for k, n, row in zip(known, sizes, sites, strict=True)]
    accuracy = {"measures": "accuracy", "samples": int(sizes.sum()), **total, "interval": "95 %, random reviews, exact"}
    return accuracy | {"sites": rows, "per_class": [None] * federation.classes}


def _estimate_reviewed_share(part, right, confidence):
    """Estimate {share, low, high} of right predictions of a site, given the parts of a review."""
    certain, drawn = np.isin(part, (1, 4)), np.isin(part, (2, 3))
    drawn_of, sizes = [int(certain.sum()), int(drawn.sum())], [int(certain.sum()), int((~certain).sum())]
    hits = [int((right & (part == number)).sum()) for number in (1, 2)]
    most = [hits[0] + int((part == 4).sum()), hits[1] + int((part == 3).sum())]
    low, high = (share_range(each, drawn_of, sizes, confidence=confidence) for each in (hits, most))
    return {"share": (low.share + high.share) / 2, "low": low.low, "high": high.high}


def _to_range(ends):
    return dict(zip(("share", "low", "high"), ends, strict=True))


class RunPredictions:
    """Classes that a run's model predicts: as the run stores them, or from its network.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    dataset : fnlkit.datasets.Dataset
        The data set of the run.
    """

    def __init__(self, run: Run, dataset: Dataset):
        self.run, self.dataset = run, dataset
        self.logits = dict(run.logits)  # of the samples so far, by name; missing if the run stores only classes
        self._trained: Any = None

    def __call__(self, name: str, count: int) -> np.ndarray:
        """Predict the classes (count,) of the samples `name` of `fnlkit.experiment.evaluation_set.tested_samples`.

        Raises
        ------
        InputError
            If the run stores another number of predictions.
        """
        if name in self.run.predicted:
            stored = self.run.predicted[name]
            if len(stored) != count:
                raise InputError(f"the run has {len(stored):,} predictions for {count:,} samples ({name}); train it again")
            return stored
        import torch

        from fnlkit.experiment.network import load_trained

        if self._trained is None:
            trained = self._trained = load_trained(self.run, self.dataset)
            self._samples = tested_samples(self.run.federation(), trained.x_train, trained.x_test)
        with torch.inference_mode():
            self.logits[name] = self._trained.logits(self._samples[name]).numpy()
        return self.logits[name].argmax(-1)


def by_site(labels: np.ndarray, predicted: np.ndarray, owner: np.ndarray, sites: int, classes: int) -> np.ndarray:
    """Count samples (N, C, C) by site, label and prediction."""
    cell = (np.asarray(owner) * classes + labels) * classes + predicted
    return np.bincount(cell, minlength=sites * classes**2).reshape(sites, classes, classes)
