"""Results of an audit for each site: numbers, finding, description and next steps."""

from dataclasses import dataclass, replace

import numpy as np

from fnlkit.audits import shifts, statistics
from fnlkit.audits.confusions import confusions_of_mistakes, errors_by_class, find_confusions, mark_supported
from fnlkit.audits.records import SiteAudit
from fnlkit.audits.verdict import AGREES, WITHIN, Assessment, OwnPredictions, Predictions, find_verdict
from fnlkit.audits.wording import describe_site

AGREEING = (AGREES, WITHIN)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of an audit.

    Attributes
    ----------
    sites, classes : list of str
    columns : list of str or None
        Of a table.
    """

    sites: list[str]
    classes: list[str]
    columns: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Searched:
    """Results of the searches for copies, outliers and suspicious samples at N sites, and of reviews.

    Attributes
    ----------
    copies, near_copies, far, unlabeled : list of N int
        Numbers of samples, as in fnlkit.audits.records.SiteAudit.
    detected : list of N (dict, list) or None
        Number of samples that each detector flags, and numbers of samples by the number of detectors that flag them. None for
        a site that no model judges.
    reviews : list of N str
        The guarantee of the last review as a sentence; "" if there is none.
    """

    copies: list[int]
    near_copies: list[int]
    far: list[int]
    unlabeled: list[int]
    detected: list[tuple[dict[str, int], list[int]] | None]
    reviews: list[str]


def describe_sites(
    named: Names,
    counts: np.ndarray,
    inputs: shifts.Compared,
    others: Predictions,
    own: OwnPredictions,
    expected: np.ndarray,
    assessed: list[Assessment],
    searched: Searched | None = None,
) -> list[SiteAudit]:
    """Return the results of each site, those with wrong labels first.

    Parameters
    ----------
    named : Names
    counts : int (N, C)
        Samples by given class.
    inputs : fnlkit.audits.shifts.Compared
    others : Predictions
    own : OwnPredictions
    expected : (N, C, C)
        Expected numbers of samples by true and given class.
    assessed : list of Assessment
    searched : Searched, optional
        Default: copies, outliers and detectors were not searched.
    """
    classes, rows = named.classes, []
    by_class = statistics.shares_differ(others.predicted.sum(2))
    mistakes = confusions_of_mistakes(np.asarray(expected)[[one.judge == "others" for one in assessed]])
    for k, (held, one) in enumerate(zip(counts, assessed, strict=True)):
        trusted, seen = one.judge == "others", others.predicted[k] * others.known[k]
        confused = mark_supported(find_confusions(expected[k], classes), classes, one, mistakes) if trusted else []
        row = SiteAudit(
            client=k,
            site=named.sites[k],
            samples=int(held.sum()),
            level=one.level,
            low=one.low,
            high=one.high,
            p=one.p,
            judge=one.judge,
            contradicted=one.contradicted,
            separable=one.separable,
            unseen=one.unseen,
            noisier=one.accused,
            skill={"others": statistics.skill_of(seen), "own": statistics.skill_of(own.within[k])},
            skill_by_class=statistics.skill_by_class(others.predicted[k], own.doubted[k], classes),
            inputs=inputs.at(k, others.chosen, named.columns),
            shares_differ=bool(others.shares_differ[k] and (by_class[k] or not trusted)),
            only_here=[classes[c] for c in np.flatnonzero(~others.known[k] & (held >= 5))],
            confused=confused,
            classes=errors_by_class(expected[k], one.cells, classes) if trusted else [],
            matrix=expected[k].tolist() if trusted else None,
            missing=[classes[c] for c in np.flatnonzero(held == 0)],
            balance=float(held.max() / max(1, held.sum())),
            largest=classes[int(held.argmax())],
            **_findings_of_samples(searched, k),
        )
        rows.append(_with_words(row, searched.reviews[k] if searched else ""))
    return sorted(rows, key=lambda row: (-row.noisier, row.finding in AGREEING, -row.low, row.client))


def _findings_of_samples(searched, k):
    """Return the entries of SiteAudit about the samples of site k, by name."""
    if searched is None:
        none = dict.fromkeys(("copies", "near_copies", "far", "unlabeled"))
        return none | {"detectors": {}, "agreed": []}
    detectors, agreed = searched.detected[k] or ({}, [])
    return {
        "detectors": detectors,
        "agreed": agreed,
        **{name: int(getattr(searched, name)[k]) for name in ("copies", "near_copies", "far", "unlabeled")},
    }


def _with_words(row, review):
    """Return the results of a site with the finding, its description and the next steps."""
    row = replace(row, finding=find_verdict(row))
    words, following = describe_site(row)
    return replace(row, words=[*words, review] if review else words, next=following)
