"""Compare estimates with the truth, if the federation has true labels."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.core.errors import InputError
from fnlkit.estimators.judgment import PREFIX
from fnlkit.kernels.scores import auc, confusion, transition_errors

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation


def compare(federation: "Federation") -> dict[str, Any]:
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
