"""Results of an audit for each site: numbers, finding, description and next steps."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fnlkit.audits.records import SiteAudit, skill_of
from fnlkit.audits.server import statistics
from fnlkit.audits.server.confusions import confusions_of_mistakes, errors_by_class, find_confusions, mark_supported
from fnlkit.audits.server.input_differences import Compared
from fnlkit.audits.server.verdict import AGREES, WITHIN, Assessment, Predictions, find_verdict
from fnlkit.audits.server.wording import describe_site

AGREEING = (AGREES, WITHIN)
_ASSESSED = [one.name for one in fields(Assessment) if one.name != "cells"]


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


def describe_sites(
    named: Names,
    counts: np.ndarray,
    inputs: Compared,
    found: Predictions,
    expected: np.ndarray,
    assessed: list[Assessment],
    searched: Sequence[dict[str, Any]] = (),
) -> list[SiteAudit]:
    """Describe the results of each site, those with wrong labels first.

    Parameters
    ----------
    named : Names
    counts : int (N, C)
        Samples by given class.
    inputs : Compared
    found : Predictions
    expected : (N, C, C)
        Expected numbers of samples by true and given class.
    assessed : list of Assessment
    searched : list of dict, optional
        Entries of SiteAudit about the samples of each site. Default: copies, outliers and detectors were not searched.
    """
    classes, rows = named.classes, []
    by_class = statistics.shares_differ(found.predicted.sum(2))
    mistakes = confusions_of_mistakes(np.asarray(expected)[[one.judge == "others" for one in assessed]])
    for k, (held, one) in enumerate(zip(counts, assessed, strict=True)):
        trusted, seen = one.judge == "others", found.predicted[k] * found.known[k]
        confused = mark_supported(find_confusions(expected[k], classes), classes, one, mistakes) if trusted else []
        row = SiteAudit(
            client=k,
            site=named.sites[k],
            samples=int(held.sum()),
            **{name: getattr(one, name) for name in _ASSESSED},
            skill={"others": skill_of(seen), "own": skill_of(found.within[k])},
            skill_by_class=statistics.skill_by_class(found.predicted[k], found.doubted[k], classes),
            inputs=inputs.at(k, found.chosen, named.columns),
            shares_differ=bool(found.shares_differ[k] and (by_class[k] or not trusted)),
            only_here=[classes[c] for c in np.flatnonzero(~found.known[k] & (held >= 5))],
            confused=confused,
            classes=errors_by_class(expected[k], one.cells, classes) if trusted else [],
            matrix=expected[k].tolist() if trusted else None,
            missing=[classes[c] for c in np.flatnonzero(held == 0)],
            balance=float(held.max() / max(1, held.sum())),
            largest=classes[int(held.argmax())],
            **(searched[k] if searched else {}),
        )
        rows.append(_with_words(row))
    return sorted(rows, key=lambda row: (-row.noisier, row.finding in AGREEING, -row.low, row.client))


def _with_words(row):
    """Add the finding, its description and the next steps to the results of a site."""
    row = replace(row, finding=find_verdict(row))
    words, following = describe_site(row)
    return replace(row, words=[*words, *row.words], next=following)
