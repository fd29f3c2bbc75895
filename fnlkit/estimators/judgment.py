"""The result of every estimator: arrays of a federation, relabeling of flagged samples, and comparison with the truth."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.provenance import with_record
from fnlkit.core.errors import InputError
from fnlkit.kernels.scores import auc, confusion, transition, transition_errors

PREFIX = "estimate_"


@dataclass
class Judgment:
    """An estimator's findings on N clients with m samples in total, stored client by client.

    Attributes
    ----------
    level, low, high : (N,)
        Share of wrong labels and its interval, in [0, 1].
    score : (N,)
        Higher is noisier.
    issue : (m,)
        In [0, 1], higher is more likely wrong.
    flagged : bool (m,)
    guess : int (m,)
        The label that a flagged sample should have.
    transition : (C, C), client_transition : (N, C, C) or None
        T[true, given], rows sum to 1.
    confidence : (m,) or None
        Probability that the guess of a flagged sample, or the given label of another sample, is right; None if the estimator
        has none.
    """

    level: np.ndarray
    low: np.ndarray
    high: np.ndarray
    score: np.ndarray
    issue: np.ndarray
    flagged: np.ndarray
    guess: np.ndarray
    transition: np.ndarray
    client_transition: np.ndarray | None = None
    confidence: np.ndarray | None = None

    def arrays(self, federation: Federation) -> dict[str, Any]:
        """Collect the arrays by name; arrays of samples cover the whole training set (n,)."""
        held, size = federation.client_indices, len(federation.given)
        issue, flagged = np.zeros(size), np.zeros(size, bool)
        suggested = np.array(federation.given, np.int64)
        issue[held] = np.clip(self.issue, 0, 1)
        flagged[held] = self.flagged
        suggested[held] = np.where(self.flagged, self.guess, suggested[held])
        named_arrays = {
            "client_level": np.asarray(self.level, np.float64),
            # Ensure that the interval contains the estimate for every bootstrap draw.
            "client_level_low": np.minimum(self.low, self.level),
            "client_level_high": np.maximum(self.high, self.level),
            "client_score": np.asarray(self.score, np.float64),
            "transition": self.transition,
            "issue_score": issue,
            "flagged": flagged,
            "suggested_label": suggested,
        }
        if self.confidence is not None:
            named_arrays["confidence"] = np.zeros(size)
            named_arrays["confidence"][held] = np.clip(self.confidence, 0, 1)
        if self.client_transition is not None:
            named_arrays["client_transition"] = self.client_transition
        return {f"{PREFIX}{name}": values for name, values in named_arrays.items()}


def sums(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sum each client's values (N,) from values (m,) stored client by client."""
    total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return total[offsets[1:]] - total[offsets[:-1]]


def owners(offsets: np.ndarray) -> np.ndarray:
    """Client of each of the m samples (m,)."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def transitions(true: np.ndarray, given: np.ndarray, offsets: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Estimate (T (C, C), T of each client (N, C, C)) from guessed true labels and given labels, both (m,)."""
    clients = len(offsets) - 1
    cell = (owners(offsets) * classes + true) * classes + given
    counts = np.bincount(cell, minlength=clients * classes**2).reshape(clients, classes, classes)
    return transition(counts.sum(0)), transition(counts)


def add_judgment(
    federation: Federation,
    arrays: dict[str, Any],
    *,
    relabel: bool = False,
    provenance: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
) -> Federation:
    """Add an estimate's arrays to a federation; they replace any earlier estimate.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    arrays : dict of str to ndarray
        From `fnlkit.estimators.estimate`.
    relabel : bool
        Give every flagged training sample of a client its suggested label.  Held-out labels do not change, so that no model
        is measured on suggestions.  The judged labels are saved as ``estimate_judged_label``. The first relabeling also
        saves them as ``received``, which later steps pass on: these are the original labels, however often samples are
        relabeled.  The achieved noise in the file is measured again.
    provenance : dict, optional
        The record of the command.
    facts : dict, optional
        Metadata of the estimate (`fnlkit.estimators.run_estimator`), saved as ``estimate`` in the file's metadata.
    """
    extra = {name: values for name, values in federation.extra.items() if not name.startswith(PREFIX)} | arrays
    meta = {name: value for name, value in federation.meta.items() if name != "estimate"}
    if facts is not None:
        meta["estimate"] = facts
    judged = replace(federation, extra=extra, meta=with_record(meta, provenance))
    if relabel:
        before = np.array(federation.given, np.int64)
        extra[f"{PREFIX}judged_label"] = before
        extra.setdefault("received", before)
        wanted = np.array(arrays[f"{PREFIX}flagged"], bool)
        wanted[np.concatenate([np.zeros(0, np.int64), *federation.held_out])] = False
        judged.given = np.where(wanted, arrays[f"{PREFIX}suggested_label"], before)
        if judged.noise_client_level is not None and judged.true is not None:
            judged.noise_client_level = judged.wrong_share()
        if "noise_achieved_transition" in extra and judged.true is not None:
            extra["noise_achieved_transition"] = judged.achieved_transition()
    judged.check()
    return judged


def compare(federation: Federation) -> dict[str, Any]:
    """Measure the quality of a federation's estimates, as a flat dict of numbers.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
        As `estimate-noise` writes it, with true labels.

    Returns
    -------
    dict
        Empty without estimates or true labels. A value is None if the measure is undefined, such as an AUC when every
        client is noisy.

        ==========================  ==========================================================================
        sample_auc                  of the issue scores, wrong labels positive, over all clients' samples, held-out ones too
        client_auc                  of the client scores; noisy clients by the noise model, else level > 0
        level_error, level_bias     mean of |estimated - achieved| and of estimated - achieved level
        level_coverage              share of clients whose interval contains the achieved level
        flag_precision, flag_recall of the flagged samples
        label_accuracy              share of right labels now
        suggested_accuracy          share of right labels after `--apply relabel`
        transition_cosine           cosine of the estimated and the achieved T
        transition_error            sum of |estimated - achieved| over the sum of the achieved T
        ==========================  ==========================================================================

        T is compared on the rows of classes that some client holds.

    Raises
    ------
    InputError
        If the estimates do not fit the federation.
    """
    estimates = {name[len(PREFIX) :]: np.asarray(v) for name, v in federation.extra.items() if name.startswith(PREFIX)}
    if federation.true is None or "issue_score" not in estimates:
        return {}
    classes = federation.classes
    needed = "client_level", "client_level_low", "client_level_high", "client_score", "transition", "flagged", "suggested_label"
    for name in needed:
        if name not in estimates:
            raise InputError(f"`{PREFIX}{name}` is missing; run estimate-noise again")
    federation.check()
    federation = federation.whole()
    held, offsets = np.asarray(federation.client_indices), np.asarray(federation.client_offsets)
    judged = estimates.get("judged_label", np.asarray(federation.given))
    level = np.asarray(federation.wrong_share(judged))
    judged, true = judged[held], np.asarray(federation.true)[held]
    wrong, flagged = judged != true, estimates["flagged"][held].astype(bool)
    noisy = level > 0 if federation.noise_client_noisy is None else np.asarray(federation.noise_client_noisy)
    estimated, error = estimates["client_level"], estimates["client_level"] - level
    hits = int((flagged & wrong).sum())
    inside = (estimates["client_level_low"] <= level + 1e-12) & (level <= estimates["client_level_high"] + 1e-12)
    measures = {
        "sample_auc": auc(estimates["issue_score"][held], wrong),
        "client_auc": auc(estimates["client_score"], noisy),
        "level_true": float(wrong.mean()),
        "level_estimated": float((estimated * np.diff(offsets)).sum() / len(held)),
        "level_error": float(np.abs(error).mean()),
        "level_bias": float(error.mean()),
        "level_coverage": float(inside.mean()),
        "flag_precision": hits / int(flagged.sum()) if flagged.any() else None,
        "flag_recall": hits / int(wrong.sum()) if wrong.any() else None,
        "label_accuracy": float(np.mean(~wrong)),
        "suggested_accuracy": float(np.mean(estimates["suggested_label"][held] == true)),
    }
    return measures | transition_errors(estimates["transition"], confusion(true, judged, classes))
