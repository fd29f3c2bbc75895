"""Combine several annotators' votes into a label per sample, and measure their agreement."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.provenance import with_record
from fnlkit.artifacts.stored import Rows
from fnlkit.audits.suspects import find_reviewed
from fnlkit.audits.votes import to_votes
from fnlkit.core.errors import InputError
from fnlkit.datasets.votes import count_votes
from fnlkit.kernels.dawid_skene import DawidSkene, dawid_skene

METHODS = ("majority", "dawid-skene", "crowdlab")


def consensus(
    federation: Federation,
    votes: ArrayLike,
    method: str = "dawid-skene",
    *,
    annotators: Sequence[str] | None = None,
    probabilities: np.ndarray | Rows | None = None,
    provenance: dict[str, Any] | None = None,
) -> tuple[Federation, list[dict[str, Any]]]:
    """Replace given labels by the annotators' consensus at each site: (federation, facts).

    The votes are saved in the federation.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    votes : (n, A)
        Labels by sample and annotator, as for `fnlkit.audits.votes.to_votes`; -1 or NaN for no vote.  The label of a sample
        does not change without votes, or after a decision in a review.
    method : str
        A name in METHODS: most votes, ties to the lower class; `dawid_skene` for each site separately; CROWDLAB (Goh 2022)
        by cleanlab, which combines a classifier's probabilities with the votes.  At a site where no sample has two votes,
        CROWDLAB's label is the vote, and its confidence the classifier's probability of this vote.
    annotators : list of A str, optional
    probabilities : (n, C), optional
        For crowdlab: predictions of a model that did not train on the sample.
    provenance : dict, optional

    Returns
    -------
    federation : Federation
        With arrays ``votes`` (n, A), ``consensus_confidence`` (n,) in [0, 1] (0 without votes) and, if labels changed,
        ``received``.
    facts : list of dict
        One per site: site, samples, voted, shared (samples with two or more votes), alpha (Krippendorff's) and kappa
        (Fleiss's), None if they are undefined, changed, votes {annotator: number}, and accuracies {annotator:
        `expected_shares`, None without evidence} of dawid-skene.

    Raises
    ------
    InputError
    """
    if method not in METHODS:
        raise InputError(f"is {method!r}; write one of {', '.join(METHODS)}", parameter="method")
    (votes, names), classes = to_votes(votes, federation), federation.classes
    if annotators:
        names = list(map(str, annotators))
    given, confidence, facts = np.array(federation.given, np.int64), np.zeros(len(votes)), []
    for k, part in enumerate(federation.whole().clients):
        here = part[(votes[part] >= 0).any(1)]
        row = {"site": federation.names[k], "samples": len(part), "voted": len(here), "changed": 0}
        if len(here):
            try:
                posterior = _decide(votes[here], classes, method, None if probabilities is None else probabilities[here])
            except _Unfit as error:
                raise InputError(f"{federation.names[k]}: {error}") from error
            label = posterior.argmax(1)
            keep = find_reviewed(federation)[here]
            row["changed"] = int((label != given[here])[~keep].sum())
            given[here[~keep]], confidence[here] = label[~keep], posterior.max(1)
            row |= _describe(votes[here], classes, names, posterior, method)
        facts.append(row)
    more = {"votes": votes.astype(np.int64), "consensus_confidence": confidence}
    return _add_consensus(federation, given, more, names, method, facts, provenance), facts


def _add_consensus(federation, given, more, names, method, facts, provenance):
    """Add consensus labels, the arrays `more` and a record of the consensus to a federation."""
    extra = {"received": np.array(federation.given), **federation.extra, **more}
    record = {"method": method, "annotators": list(names), "changed": sum(row["changed"] for row in facts)}
    meta = with_record(with_record(federation.meta, record, "consensus"), provenance)
    # Estimates of the previous labels are no longer valid.
    meta.pop("estimate", None)
    extra = {name: values for name, values in extra.items() if not name.startswith("estimate_")}
    agreed = replace(federation, given=given, extra=extra, meta=meta)
    agreed.check()
    return agreed


def own_votes(federation: Federation) -> tuple[Any, list[Any]]:
    """Read (votes (n, A), names of the annotators) that the federation file contains, or raise InputError."""
    votes = federation.extra.get("votes")
    if votes is None:
        raise InputError("the federation contains no votes; name a table or npz of votes after it")
    names = federation.meta.get("annotators")
    right = isinstance(names, list) and len(names) == np.asarray(votes).shape[-1]
    return votes, list(map(str, names or ())) if right else [str(a) for a in range(np.asarray(votes).shape[-1])]


def consensus_of_rows(
    federation: Federation, method: str = "dawid-skene", *, provenance: dict[str, Any] | None = None
) -> tuple[Federation, list[dict[str, Any]]]:
    """Find the consensus as `consensus`, for a federation with a row per vote: all rows of a sample get one label.

    If each client is an annotator, the votes of all clients are combined.  Otherwise each site decides alone.
    """
    if method not in METHODS[:2]:
        raise InputError(f"{method}: a federation with a row per vote supports {' and '.join(METHODS[:2])}", parameter="method")
    names, who = np.unique(federation.extra["annotator"], return_inverse=True)
    sample, whole = np.asarray(federation.extra["sample_of"]), federation.whole().clients
    given, confidence = np.array(federation.given, np.int64), np.zeros(len(federation.given))
    alone = all(len(np.unique(who[part])) == 1 for part in whole)
    groups = [("all clients", np.concatenate(whole))] if alone else list(zip(federation.names, whole, strict=True))
    keep, facts = find_reviewed(federation), []
    for site, rows in groups:
        samples, place = np.unique(sample[rows], return_inverse=True)
        votes = np.full((len(samples), len(names)), -1, np.int64)
        votes[place, who[rows]] = federation.given[rows]
        posterior = _decide(votes, federation.classes, method, None)
        label = posterior.argmax(1)[place]
        row = {"site": site, "samples": len(samples), "voted": len(samples)}
        row["changed"] = int((label != given[rows])[~keep[rows]].sum())
        row |= _describe(votes, federation.classes, names.tolist(), posterior, method)
        given[rows] = np.where(keep[rows], given[rows], label)
        confidence[rows] = posterior.max(1)[place]
        facts.append(row)
    return _add_consensus(
        federation, given, {"consensus_confidence": confidence}, names.tolist(), method, facts, provenance
    ), facts


def _decide(votes, classes, method, probabilities):
    """Compute the posterior (m, C)."""
    if method == "majority":
        return shares(votes, classes)
    if method == "dawid-skene":
        return infer(votes, classes).posterior
    if probabilities is None:
        raise InputError("crowdlab needs a model's probabilities; write `probabilities=FILE`, or `method='dawid-skene'`")
    return _crowdlab(votes, classes, probabilities)


def _describe(votes, classes, names, posterior, method):
    """Describe the annotators of a site."""
    number = (votes >= 0).sum(0)
    facts = {
        "shared": int(((votes >= 0).sum(1) > 1).sum()),
        "alpha": krippendorff(votes, classes),
        "kappa": fleiss(votes, classes),
        "votes": {name: int(n) for name, n in zip(names, number, strict=True) if n},
    }
    if method == "dawid-skene":
        share = expected_shares(votes, posterior)
        known = zip(names, share.tolist(), number, strict=True)
        facts["accuracies"] = {name: None if np.isnan(q) else q for name, q, n in known if n}
    return facts


def expected_shares(votes: np.ndarray, posterior: np.ndarray) -> np.ndarray:
    """Expected share of each annotator's votes (A,) that equal the true label, in [0, 1].

    It is the mean posterior of the annotator's votes on samples with two or more votes.  NaN for an annotator who shares no
    sample with another one.  NaN for all annotators if the votes on shared samples have a single class: these votes contain
    no errors that could be measured.

    Parameters
    ----------
    votes : int (m, A)
        -1 for no vote.
    posterior : (m, C)
    """
    shared = (votes >= 0).sum(1) > 1
    votes, posterior = votes[shared], posterior[shared]
    sample, annotator = np.nonzero(votes >= 0)
    label = votes[sample, annotator]
    number = np.bincount(annotator, minlength=votes.shape[1])
    if len(np.unique(label)) < 2:
        return np.full(votes.shape[1], np.nan)
    right = np.bincount(annotator, posterior[sample, label], votes.shape[1])
    return np.where(number > 0, right / np.maximum(number, 1), np.nan)


def infer(votes: np.ndarray, classes: int) -> DawidSkene:
    """Fit the model of Dawid and Skene to votes (m, A), -1 for no vote; each sample needs a vote."""
    sample, annotator = np.nonzero(votes >= 0)
    sizes = {"size": len(votes), "people": votes.shape[1], "classes": classes}
    return dawid_skene(sample, annotator, votes[sample, annotator], **sizes)


def shares(votes: np.ndarray, classes: int) -> np.ndarray:
    """Share of each class (m, C) among the votes (m, A) of a sample; each sample needs a vote."""
    counts = count_votes(votes, classes)
    return counts / counts.sum(1, keepdims=True)


class _Unfit(ValueError):
    """Votes of one site that cleanlab does not accept."""


def _crowdlab(votes, classes, probabilities):
    import pandas

    try:
        from cleanlab.multiannotator import get_label_quality_multiannotator
    except ImportError as error:
        raise InputError(
            "crowdlab needs cleanlab; run: pip install 'fnlkit[consensus]', or use `method='dawid-skene'`"
        ) from error
    if (votes >= 0).sum(1).max() < 2:  # cleanlab compares votes on one sample
        label = votes.max(1)
        quality = np.asarray(probabilities, np.float64)[np.arange(len(votes)), label]
    else:
        table = pandas.DataFrame(np.where(votes >= 0, votes, np.nan))
        table = table.loc[:, table.notna().any()]  # cleanlab rejects annotators without votes here
        try:
            crowdlab = get_label_quality_multiannotator(table, np.asarray(probabilities), verbose=False)["label_quality"]
        except ValueError as error:
            raise _Unfit(f"`method='crowdlab'` does not accept these votes: {error}; use `method='dawid-skene'`") from error
        label, quality = crowdlab["consensus_label"].to_numpy(int), crowdlab["consensus_quality_score"].to_numpy(float)
    posterior = np.repeat((1 - quality)[:, None] / max(1, classes - 1), classes, 1)
    # Use the consensus label even if its quality is low.
    posterior[np.arange(len(posterior)), label] = np.maximum(quality, posterior.max(1) + 1e-9)
    return posterior / posterior.sum(1, keepdims=True)


def krippendorff(votes: np.ndarray, classes: int) -> float | None:
    """Krippendorff's alpha of nominal labels: 1 for full agreement, 0 for agreement by chance.

    None if it is undefined: no sample has two votes, or all votes on such samples are of one class, so that agreement by
    chance is full agreement, too.

    Parameters
    ----------
    votes : int (m, A)
        -1 for no vote.
    classes : int

    Notes
    -----
    Krippendorff 2011, Computing Krippendorff's alpha-reliability, section C.  The result does not depend on the order of
    samples and annotators.
    """
    counts = count_votes(votes, classes)
    counts = counts[counts.sum(1) > 1]
    many = counts.sum(1)
    total = int(many.sum())
    among = counts.sum(0)
    chance = int((among * (total - among)).sum())
    if not chance:
        return None
    # Whole numbers are summed before the division, so that the order of the samples has no effect.
    differing = np.bincount(many, (counts * (many[:, None] - counts)).sum(1))
    seen = sum(differing[size] / (size - 1) for size in range(2, len(differing)))
    return float(1 - seen * (total - 1) / chance)


def fleiss(votes: np.ndarray, classes: int) -> float | None:
    """Fleiss's kappa (Fleiss 1971), or None if it is undefined.

    It requires the same number of votes for each sample, two or more, and votes of two classes.
    """
    counts = count_votes(votes, classes)
    many = counts.sum(1)
    if not len(many) or many.min() != many.max() or many[0] < 2 or (counts.sum(0) > 0).sum() < 2:
        return None
    chance = float(((counts.sum(0) / counts.sum()) ** 2).sum())
    seen = int((counts * (counts - 1)).sum()) / (len(many) * int(many[0]) * (int(many[0]) - 1))
    return float((seen - chance) / (1 - chance))
