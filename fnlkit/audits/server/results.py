"""Results of an audit for each site: numbers, finding, description and next steps."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.audits.records import ClassErrors, Confusion, SiteAudit, skill_of
from fnlkit.audits.server import statistics
from fnlkit.audits.server.input_differences import Compared
from fnlkit.audits.server.statistics import LEAST_SAMPLES, LEAST_SHARE
from fnlkit.audits.server.verdict import AGREES, WITHIN, Assessment, Predictions, find_verdict
from fnlkit.audits.server.wording import describe_site
from fnlkit.estimators.intervals import wilson

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
    predictions: Predictions,
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
    predictions : Predictions
    expected : (N, C, C)
        Expected numbers of samples by true and given class.
    assessed : list of Assessment
    searched : list of dict, optional
        Entries of SiteAudit about the samples of each site. Default: copies, outliers and detectors were not searched.
    """
    classes, rows = named.classes, []
    by_class = statistics.shares_differ(predictions.predicted.sum(2))
    mistakes = confusions_of_mistakes(np.asarray(expected)[[one.judge == "others" for one in assessed]])
    for k, (held, one) in enumerate(zip(counts, assessed, strict=True)):
        trusted, seen = one.judge == "others", predictions.predicted[k] * predictions.known[k]
        confused = mark_supported(find_confusions(expected[k], classes), classes, one, mistakes) if trusted else []
        row = SiteAudit(
            client=k,
            site=named.sites[k],
            samples=int(held.sum()),
            **{name: getattr(one, name) for name in _ASSESSED},
            skill={"others": skill_of(seen), "own": skill_of(predictions.within[k])},
            skill_by_class=statistics.skill_by_class(predictions.predicted[k], predictions.doubted[k], classes),
            inputs=inputs.at(k, predictions.chosen, named.columns),
            shares_differ=bool(predictions.shares_differ[k] and (by_class[k] or not trusted)),
            only_here=[classes[c] for c in np.flatnonzero(~predictions.known[k] & (held >= 5))],
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


def confusions_of_mistakes(expected: ArrayLike) -> np.ndarray:
    """Bound (C, C) the shares of each true class that mistakes of the models assign to each given class.

    The bound is the smallest upper end of Wilson's intervals at the sites, as `allowing_for_mistakes` has it for levels: at
    the cleanest site, all confusions are mistakes.

    Parameters
    ----------
    expected : (N, C, C)
        Expected numbers of samples by true and given class at the sites that the models of the others judge. 0 sites bound
        nothing (1).
    """
    counts = np.maximum(expected, 0)
    _, high = wilson(counts, counts.sum(2, keepdims=True))
    return high.min(0, initial=1.0)


def mark_supported(confused: list[Confusion], classes: list[str], verdict: Assessment, mistakes: np.ndarray) -> list[Confusion]:
    """Mark the confusions of a site as `supported` if mistakes of the models cannot explain them.

    A confusion is supported if the site has wrong labels and either more of this confusion than the others (`cells`), or an
    interval of the level above 0 and an interval of this confusion above the bound of the mistakes.

    Parameters
    ----------
    confused : list of Confusion
    classes : list of str
    verdict : Assessment
    mistakes : (C, C)
        From `confusions_of_mistakes`.
    """
    marked = []
    for row in confused:
        cell = classes.index(row.true), classes.index(row.given)
        supported = verdict.noisier and (verdict.cells[cell] or verdict.low > 0 and row.low > mistakes[cell])
        marked.append(replace(row, supported=bool(supported)))
    return marked


def find_confusions(counts: np.ndarray, classes: list[str]) -> list[Confusion]:
    """Find at most five confusions of classes, most samples first.

    Parameters
    ----------
    counts : (C, C)
        Expected numbers of samples by true and given class.
    classes : list of str
    """
    totals, confusions = counts.sum(1), []
    for flat in np.argsort(-counts, axis=None, kind="stable"):
        true, given = divmod(int(flat), len(counts))
        number = counts[true, given]
        if true != given and number >= LEAST_SAMPLES and number >= LEAST_SHARE * totals[true]:
            low, high = wilson(number, totals[true])
            share = float(number / totals[true])
            confusions.append(Confusion(classes[true], classes[given], float(number), share, float(low), float(high)))
    return confusions[:5]


def errors_by_class(counts: np.ndarray, cells: np.ndarray, classes: list[str]) -> list[ClassErrors]:
    """Find the wrong labels of the classes with more confusions than elsewhere, most samples first.

    Parameters
    ----------
    counts : (C, C)
        Expected numbers of samples by true and given class.
    cells : bool (C, C)
        From `confuses_beyond_chance`.
    classes : list of str
    """
    errors = []
    for true in np.flatnonzero(cells.any(1)):
        total = counts[true].sum()
        number = float(total - counts[true, true])
        low, high = wilson(min(number, total), total)
        given = [classes[g] for g in np.flatnonzero(cells[true])]
        errors.append(ClassErrors(classes[true], given, number, float(number / max(total, 1e-9)), float(low), float(high)))
    return sorted(errors, key=lambda row: -row.samples)
