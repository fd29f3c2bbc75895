"""Anchor points: the prediction on the most typical sample of a class is that class's row of the transition.

Patrini, Rozza, Menon, Nock, Qu. Making deep neural networks robust to label noise: A loss correction approach.
CVPR 2017, Section 4.3, eqs. 12 and 13.
"""

import numpy as np

from fnlkit.estimators.intervals import bootstrap
from fnlkit.estimators.judgement import Judgement, sums, transitions
from fnlkit.kernels import apply_inverse, project_to_simplex
from fnlkit.parameters import Percentile, checked
from fnlkit.scores import anchor_transition

# Keeps the inverse of a nearly singular transition from blowing up rounding errors of softmax.
RIDGE = 1e-3
BINS = 64


@checked
def anchor(evidence, *, percentile: Percentile = 97.0, average=False):
    """Estimate the transition from anchor points, then the chance of every label to be wrong by Bayes' rule.

    With p(given | x) and T, the true class is distributed as p(given | x) T^-1, projected to the simplex; the issue
    score is 1 - P(true = given | x, given), the level its mean over a client.  A client's own transition counts its
    samples' most probable true classes: its samples are too few for anchors of their own.

    Parameters
    ----------
    evidence : fnlkit.estimators.evidence.Evidence
        Uses given probabilities, a given run, or a short warm-up on all clients.
    percentile, average : float in [0, 100], bool
        As in `fnlkit.scores.anchor_transition`.
    """
    evidence.refuse("anchor", embeddings="write --probs, or nothing for a warm-up")
    probabilities, labels, offsets = evidence.predicted().astype(np.float64), evidence.labels, evidence.offsets
    evidence.weigh(probabilities.argmax(1), "predictions")
    T = anchor_transition(probabilities, percentile=percentile, average=average)
    true = true_posterior(probabilities, labels, T)
    issue, guess = 1 - true[np.arange(len(labels)), labels], true.argmax(1)
    level = sums(issue, offsets) / np.diff(offsets)
    _, client_T = transitions(guess, labels, offsets, evidence.classes)
    return Judgement(level, *mean_interval(issue, offsets, evidence.seed), level, issue, guess != labels, guess, T, client_T)


def true_posterior(probabilities, labels, T):
    """Return P(true | x, given) (m, C) by Bayes' rule; where the label is impossible under T, P(true | x)."""
    true = project_to_simplex(apply_inverse(T, probabilities, ridge=RIDGE))
    weighted = true * T[:, labels].T
    total = weighted.sum(1, keepdims=True)
    return np.where(total > 1e-12, weighted / np.maximum(total, 1e-12), true)


def mean_interval(values, offsets, seed):
    """Return the bootstrap interval of each client's mean of values in [0, 1], counted in bins of 1/64."""
    of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    place = np.minimum((values * BINS).astype(np.int64), BINS - 1)
    cells = np.bincount(of * BINS + place, minlength=(len(offsets) - 1) * BINS).reshape(-1, BINS)
    centres = np.bincount(place, values, BINS) / np.maximum(np.bincount(place, minlength=BINS), 1)
    return bootstrap(cells, lambda counts: counts @ centres / counts.sum(-1), seed=seed)
