"""Labels of samples and error rates of annotators from votes."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fnlkit._kernels import dawid_skene as compiled
from fnlkit.core.errors import InputError
from fnlkit.kernels import checks

# Rounds end if no posterior changes by this much.
SETTLED = 1e-6


class DawidSkene(NamedTuple):
    """Result of `dawid_skene`, float64.

    Attributes
    ----------
    posterior : (m, C)
        Probability of each class for each sample, a multiple of 2^-30.
    error : (A, C, C)
        ``error[a, t, l]``: probability that annotator a gives label l to a sample of class t; rows sum to 1.
    share : (C,)
        Shares of the classes; they sum to 1.
    rounds : int
        Rounds until no posterior changed by `SETTLED`, at most the given number.
    """

    posterior: np.ndarray
    error: np.ndarray
    share: np.ndarray
    rounds: int


def dawid_skene(
    samples: ArrayLike,
    annotators: ArrayLike,
    labels: ArrayLike,
    *,
    size: int,
    people: int,
    classes: int,
    rounds: int = 200,
    prior: float = 0.1,
    strength: float = 3.0,
) -> DawidSkene:
    """Fit the model of Dawid and Skene to votes by expectation maximization from the shares of votes.

    An annotator gives label l to a sample of class t with probability error[a, t, l], independently of the others.  The error
    rates of an annotator are shrunk to those of all annotators, so that an annotator with few votes has nearly these.  The
    result does not depend on the order of votes, samples and annotators; equal classes stay equal.

    Parameters
    ----------
    samples, annotators, labels : (v,) int
        A vote each, in 0 ... size - 1, people - 1 and classes - 1.  Each sample needs a vote.
    size, people, classes : int
        Numbers of samples m, annotators A and classes C.  Memory: 8 bytes for each vote, and C (m + 3 A C) numbers.
    rounds : int >= 1
        Largest number of rounds.
    prior : float >= 0
        Right labels of each class that are added to the counts of all annotators.
    strength : float >= 0
        Labels of each class for which the rates of all annotators count at an annotator. 0: no shrinkage, as published.

    Raises
    ------
    InputError
        If a vote is out of range or a sample has no vote.

    Notes
    -----
    Source: Dawid, Skene 1979, Maximum likelihood estimation of observer error-rates using the EM algorithm, eqs. 2.3 to 2.5.
    The shrinkage is an addition.

    Examples
    --------
    >>> found = dawid_skene([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2], [0, 0, 1, 1, 1, 1], size=2, people=3, classes=2, rounds=1,
    ...                     prior=0, strength=0)
    >>> found.posterior.round(2).tolist(), found.share.round(2).tolist()
    ([[0.89, 0.11], [0.0, 1.0]], [0.33, 0.67])
    """
    samples = np.asarray(samples)
    samples = checks.integers(samples, "samples", len(samples), "vote")
    annotators, labels = (checks.integers(each, name, len(samples), "vote")
                          for each, name in ((annotators, "annotators"), (labels, "labels")))  # fmt: skip
    for each, name, below in ((samples, "samples", size), (annotators, "annotators", people), (labels, "labels", classes)):
        checks.check_range(each, name, below)
    rounds = checks.positive(rounds, "rounds")
    number = np.bincount(samples, minlength=size)
    if not len(number) or number.min() < 1:
        raise InputError(f"`samples`: {(number < 1).sum():,} of {size:,} samples have no vote; leave them out")
    offsets = np.concatenate([[0], np.cumsum(number)])
    rows = np.asarray(annotators, np.int64) * classes + labels
    if (samples[1:] < samples[:-1]).any():
        rows = rows[np.argsort(samples, kind="stable")]
    counts, mass = np.zeros((people * classes, classes)), np.zeros(classes)
    error, logs = np.empty((2, people * classes, classes))
    posterior, share_logs = np.empty((size, classes)), np.empty(classes)
    compiled.start(offsets, rows, posterior, counts, mass)
    moved, done = math.inf, 0
    while moved >= SETTLED and done < rounds:
        compiled.maximize(counts, mass, float(prior), float(strength), error, logs, share_logs)
        share = mass / mass.sum()
        counts[:], mass[:] = 0, 0
        moved, done = compiled.expect(offsets, rows, logs, share_logs, posterior, counts, mass), done + 1
    return DawidSkene(posterior, error.reshape(people, classes, classes).swapaxes(1, 2), share, done)
