"""Two groups of losses: early in training wrong labels still have a large loss, right ones a small one.

Arpit et al. 2017 (memorization); Li, Socher, Hoi. DivideMix. ICLR 2020; Xu et al. FedCorr. CVPR 2022, Section 3.2.
"""

from typing import Literal

import numpy as np

from fnlkit.estimators.intervals import wilson
from fnlkit.estimators.judgement import Judgement, sums, transitions
from fnlkit.mixture import two_components
from fnlkit.parameters import checked

# Gaussians far narrower than the data make every posterior 0 or 1.
_LEAST_VARIANCE = 1e-12


@checked
def loss(evidence, *, scope: Literal["pooled", "client"] = "pooled"):
    """Judge labels by a mixture of two Gaussians on their cross entropies.

    The level is the share in the component with the larger mean, the issue score the probability of belonging to it.
    A mixture always splits, and a federation without any noise in two groups as well.

    Parameters
    ----------
    evidence : fnlkit.estimators.evidence.Evidence
        Uses given probabilities, a given run, or a short warm-up on all clients (in sample, as in DivideMix).
    scope : "pooled" or "client"
        One mixture for all clients, as DivideMix has it for its whole data set: it needs the losses, or the sums of
        expectation maximisation, in one place.  Or one for each client, as FedCorr has it for clients that it found noisy
        before: alone it splits clean clients in two as well, and their larger half ranks above a noisy client's smaller.
    """
    evidence.refuse("loss", embeddings="write --probs, or nothing for a warm-up")
    offsets, labels = evidence.offsets, evidence.labels
    probabilities = evidence.predicted()
    evidence.weigh(probabilities.argmax(1), "predictions")
    losses = cross_entropies(probabilities, labels)
    groups = offsets if scope == "client" else np.array([0, len(labels)])
    issue, flagged = split(losses, groups, evidence.seed)
    sizes, guess = np.diff(offsets), probabilities.argmax(1)
    wrong = sums(flagged, offsets)
    T, client_T = transitions(np.where(flagged, guess, labels), labels, offsets, evidence.classes)
    level = wrong / sizes
    return Judgement(level, *wilson(wrong, sizes), sums(losses, offsets) / sizes, issue, flagged, guess, T, client_T)


def cross_entropies(probabilities, labels):
    """Return -log of the probability of each label (m,), in nats; at most 69 where the probability is 0."""
    return -np.log(np.maximum(probabilities[np.arange(len(labels)), labels].astype(np.float64), 1e-30))


def split(values, offsets, seed):
    """Return (probability (m,), mask (m,)) of the upper of two Gaussians, fitted to each group's values."""
    probability, mask = np.zeros(len(values)), np.zeros(len(values), bool)
    for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        mask[a:b], means, variances, shares = two_components(values[a:b], seed=seed)
        probability[a:b] = upper_probability(values[a:b], means, variances, shares)
    return probability, mask


def upper_probability(values, means, variances, shares):
    """Return the posterior (m,) of the component with the larger mean.

    It never falls as a value grows: outside of the two means, where the wider Gaussian takes over on both sides, the
    value of the nearer mean is kept.
    """
    if means[0] == means[1]:
        return np.zeros(len(values))
    values = np.clip(np.asarray(values, np.float64), *means)
    variances = np.maximum(variances, _LEAST_VARIANCE)
    with np.errstate(divide="ignore"):
        logs = np.log(shares) - np.log(variances) / 2 - (values[:, None] - means) ** 2 / (2 * variances)
    return 1 / (1 + np.exp(np.clip(logs[:, 0] - logs[:, 1], -700, 700)))
