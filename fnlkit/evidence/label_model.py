"""Model of the given labels: a common transition matrix, and one factor per client on the odds of right labels."""

import numpy as np

# Samples with the mean share of right labels, and with the common class shares, that are added to each client.
LEVEL, SHARES = 3.0, 20.0
# Right labels and labels of each kind that are added to the common counts.
RIGHT, ANY = 1.0, 0.01
# Share of right labels that the first matrix assumes.
FIRST = 0.6
# Largest logarithm of a factor, and steps of its bisection.
LARGEST, STEPS = 12.0, 40


def first_matrix(classes: int) -> np.ndarray:
    """Transition matrix (C, C) with which the estimate starts, before any count is known."""
    return FIRST * np.eye(classes) + (1 - FIRST) / classes


def common_matrix(counts: np.ndarray) -> np.ndarray:
    """Estimate the transition matrix (C, C) of all clients from the numbers of labels by true and given class."""
    smoothed = counts + ANY + RIGHT * np.eye(len(counts))
    return smoothed / smoothed.sum(1, keepdims=True)


def fit_odds(counts: np.ndarray, right: np.ndarray, by_class: np.ndarray) -> np.ndarray:
    """Fit the factors (K,) on the odds of right labels under which each client expects its share of right labels.

    The share is shrunk to the share of all clients by `LEVEL` samples.

    Parameters
    ----------
    counts : (C, C)
        Numbers of labels of all clients by true and given class.
    right : (K,)
        Inferred number of right labels.
    by_class : (K, C)
        Inferred number of samples by true class.
    """
    diagonal, total = np.diag(common_matrix(counts)), by_class.sum(1)
    share = (right + LEVEL * np.trace(counts) / max(counts.sum(), 1e-9)) / (total + LEVEL)
    low, high = np.full(len(right), -LARGEST), np.full(len(right), LARGEST)
    for _ in range(STEPS):
        middle = (low + high) / 2
        odds = np.exp(middle)[:, None] * diagonal
        expected = (by_class * (odds / (odds + 1 - diagonal))).sum(1) / np.maximum(total, 1e-9)
        low, high = np.where(expected < share, middle, low), np.where(expected < share, high, middle)
    return np.exp((low + high) / 2)


def class_shares(counts: np.ndarray, by_class: np.ndarray) -> np.ndarray:
    """Compute log(pi_k / pi) (K, C): class shares of each client relative to those of all; parameters as for `fit_odds`."""
    common = (counts.sum(1) + 1) / (counts.sum() + len(counts))
    own = (by_class + SHARES * common) / (by_class.sum(1, keepdims=True) + SHARES)
    return np.log(own / common)


def likelihood(common: np.ndarray, odds: np.ndarray, labels: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Look up P(given label | true class) (n, C) in the transition matrices of the clients.

    Parameters
    ----------
    common : (C, C)
    odds : (K,)
    labels : int (n,)
    owner : int (n,)
        Client of each label.
    """
    scale = 1 / (1 + (odds[:, None] - 1) * np.diag(common))
    p = common.T[labels] * scale[owner]
    p[np.arange(len(labels)), labels] *= odds[owner]
    return p


def matrices(common: np.ndarray, odds: np.ndarray) -> np.ndarray:
    """Derive the transition matrices (K, C, C) of clients from a common matrix and their odds."""
    matrices_of_clients = np.repeat(common[None], len(odds), 0)
    matrices_of_clients[:, range(len(common)), range(len(common))] *= odds[:, None]
    return matrices_of_clients / matrices_of_clients.sum(2, keepdims=True)
