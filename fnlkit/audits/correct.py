"""Correct labels automatically: relabel or drop samples with a high issue score, and record the changes."""

from dataclasses import replace
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.provenance import with_record
from fnlkit.artifacts.records import to_json
from fnlkit.audits.decisions import without_samples
from fnlkit.audits.reviews import AppliedList, read_applied_lists, read_guaranteed_reviews
from fnlkit.audits.suspects import find_reviewed
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Share, check_arguments
from fnlkit.estimators.judgment import PREFIX


@check_arguments
def correct(
    federation: Federation, *, above: Share = 0.9, drop: bool = False, provenance: dict[str, Any] | None = None
) -> tuple[Federation, dict[str, Any]]:
    """Relabel or drop flagged samples whose suggestion is likely to be right: (federation, facts).

    Labels that a person decided do not change.  ``received`` contains the original labels.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
        As `estimate-noise` or `audit` writes it.
    above : float in [0, 1]
        Smallest confidence of a corrected sample: the estimated probability that the suggestion is right. For estimators
        without confidence, the smallest issue score.
    drop : bool
        Drop the samples instead of relabeling them.

    Returns
    -------
    federation : Federation
    facts : dict
        flagged, changed, dropped, reviewed (numbers), per_client (N,) list, measure ("confidence" or "issue score") and
        highest (of an open suggestion, None without any); with `drop` also left_out, the positions of each client's dropped
        samples.

    Raises
    ------
    InputError
        If there are no issue scores, or if a client would have no sample left.
    """
    missing = [name for name in ("issue_score", "flagged", "suggested_label") if PREFIX + name not in federation.extra]
    if missing:
        raise InputError("the federation has no noise estimate; pipe it through `fnlkit audit` or `estimate-noise`")
    measure = "confidence" if f"{PREFIX}confidence" in federation.extra else "issue score"
    score = np.asarray(federation.extra[PREFIX + measure.replace(" ", "_")])
    flagged = np.asarray(federation.extra[f"{PREFIX}flagged"]).astype(bool)
    held = np.zeros(len(federation.given), bool)
    held[federation.client_indices] = True
    wanted = held & flagged & (score >= above)
    reviewed = find_reviewed(federation)
    chosen, suggestions = np.flatnonzero(wanted & ~reviewed), score[held & flagged & ~reviewed]
    per_client = [int(np.isin(part, chosen).sum()) for part in federation.clients]
    facts = {
        "flagged": int((held & flagged).sum()),
        "reviewed": int((wanted & reviewed).sum()),
        "changed": 0 if drop else len(chosen),
        "dropped": len(chosen) if drop else 0,
        "per_client": per_client,
        "measure": measure,
        "highest": float(suggestions.max()) if len(suggestions) else None,
    }
    if drop:
        facts["left_out"] = [part[np.isin(part, chosen)].tolist() for part in federation.clients]
    return _apply(federation, np.zeros(0, np.int64) if drop else chosen, chosen if drop else np.zeros(0, np.int64),
                  {"above": above, **facts}, provenance), facts  # fmt: skip


def correct_listed(
    federation: Federation, *, drop: bool = False, provenance: dict[str, Any] | None = None
) -> tuple[Federation, dict[str, Any]]:
    """Relabel or drop exactly the labels of the lists with a guarantee: (federation, facts).

    The guarantee is about the given labels: most of the listed labels are wrong.  It does not state that a suggested label is
    right. Samples without a suggestion of another label are dropped.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
        After `review import` of a review with a guarantee.
    drop : bool
        Drop all samples of the lists.

    Returns
    -------
    federation : Federation
    facts : dict
        flagged (labels in the lists), changed, dropped, reviewed (labels decided by people since), per_client, left_out, and
        lists: q, confidence, labels, reviews, sha256 and date of each list.

    Raises
    ------
    InputError
        If there is no list, or if a client would have no sample left.
    """
    done = {applied.sha256 for applied in read_applied_lists(federation)}
    lists = [
        AppliedList(made.q, made.confidence, made.reviews, made.listed, review.sha256, review.when)
        for review in read_guaranteed_reviews(federation)
        if (made := review.guarantee) and made.listed and review.sha256 not in done
    ]
    if not lists:
        raise InputError("no list to apply; `fnlkit.export_review(guarantee=0.2)` and `fnlkit.import_review()` make one")
    suggested = np.asarray(federation.extra[f"{PREFIX}suggested_label"])
    listed = np.array(sorted({i for applied in lists for i in applied.listed}), np.int64)
    chosen = listed[np.isin(listed, federation.client_indices) & ~find_reviewed(federation)[listed]]
    other = (suggested[chosen] != np.asarray(federation.given)[chosen]) & (not drop)
    dropped = chosen[~other]
    facts = {
        "flagged": len(listed),
        "reviewed": int(find_reviewed(federation)[listed].sum()),
        "changed": int(other.sum()),
        "dropped": len(dropped),
        "per_client": [int(np.isin(part, chosen).sum()) for part in federation.clients],
        "left_out": [part[np.isin(part, dropped)].tolist() for part in federation.clients],
        "lists": to_json(lists),
    }
    return _apply(federation, chosen[other], dropped, facts, provenance), facts


def _apply(federation, relabeled, dropped, record, provenance):
    """Set suggested labels at `relabeled`, remove `dropped`, and record the correction."""
    meta = with_record(with_record(federation.meta, record, "corrections"), provenance)
    given, extra = np.array(federation.given), {"received": np.array(federation.given), **federation.extra}
    given[relabeled] = np.asarray(federation.extra[f"{PREFIX}suggested_label"])[relabeled]
    return without_samples(replace(federation, given=given, extra=extra, meta=meta), dropped)
