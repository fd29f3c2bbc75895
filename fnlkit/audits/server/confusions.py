"""Confusions of classes at a site, and whether mistakes of the models can explain them."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.audits.records import ClassErrors, Confusion
from fnlkit.audits.server.statistics import LEAST_SAMPLES, LEAST_SHARE
from fnlkit.audits.server.verdict import Assessment
from fnlkit.estimators.intervals import wilson


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


def mark_supported(confused: list[Confusion], classes: list[str], one: Assessment, mistakes: np.ndarray) -> list[Confusion]:
    """Mark the confusions of a site as `supported` if mistakes of the models cannot explain them.

    A confusion is supported if the site has wrong labels and either more of this confusion than the others (`cells`), or an
    interval of the level above 0 and an interval of this confusion above the bound of the mistakes.

    Parameters
    ----------
    confused : list of Confusion
    classes : list of str
    one : Assessment
    mistakes : (C, C)
        From `confusions_of_mistakes`.
    """
    marked = []
    for row in confused:
        cell = classes.index(row.true), classes.index(row.given)
        supported = one.noisier and (one.cells[cell] or one.low > 0 and row.low > mistakes[cell])
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
