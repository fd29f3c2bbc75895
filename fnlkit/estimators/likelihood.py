"""Likelihood of labels under a model's predictions: expectation maximization of a transition matrix, in numpy alone.

The model of a given label g of sample x is: draw t ~ p(. | x), then draw g from T[t].
"""

from typing import Any

import numpy as np

from fnlkit.estimators.intervals import wilson
from fnlkit.evidence.gaussian import softmax
from fnlkit.kernels.scores import allot, effective_size, transition

# Candidate factors on the logits: below 1 if the classifier was overconfident, above 1 if it was underconfident.
TEMPERS = np.array([0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0])
DRAWS = 100
# Numbers that fits of one piece need together.
AT_ONCE = 1 << 21
# Divisor of the log odds of a suggested label: the likelihood of right and wrong suggestions of two audits of digits is largest
# near it: 2.05 on seed 100, measured by benchmarks/confidence.py of commit 4d89694f. Probabilities are kept away from 0 and 1.
TOO_CERTAIN, SURELY = 2.0, 1e-3
# Beta distribution of the share of wrong labels at a site, before its labels are seen.
WRONG, RIGHT, STEPS = 2.0, 38.0, 100
# Quantile of the normal distribution for the ends of a 95 % interval.
NORMAL = 1.96


def in_whole_numbers(estimates: dict[str, Any], labels: np.ndarray, classes: int) -> dict[str, Any]:
    """Select the part of a `fit` that a client replies: low, high, and counts (C, C) by true and given class, int64.

    The ends of the interval are rounded outward.  The expected counts of a given class are rounded to whole numbers with the
    same sum (largest remainders).
    """
    totals = np.bincount(labels, minlength=classes)
    counts = np.stack([allot(number, column) for number, column in zip(totals, estimates["counts"].T, strict=True)], 1)
    low, high = (np.round(estimates[name] * len(labels), 9) for name in ("low", "high"))
    return {"low": np.int64(np.floor(low)), "high": np.int64(np.ceil(high)), "counts": counts}


def estimates_of(low: np.ndarray, high: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Read the estimates of clients from their replies: level, low, high, deviation (N,) and counts (N, C, C), float64.

    The level is that of the counts, within the interval.  The deviation is that of a normal estimate with this interval.

    Parameters
    ----------
    low, high : int (N,)
        Ends of the intervals of the numbers of wrong labels.
    counts : int (N, C, C)
        Numbers of samples by true and given class. A client without samples has the level 0.
    """
    counts = np.asarray(counts, np.float64)
    n = np.maximum(counts.sum((1, 2)), 1)
    low, high = (np.minimum(ends, n) / n for ends in (low, high))
    level = np.clip((n - counts.trace(axis1=1, axis2=2)) / n * counts.any((1, 2)), low, high)
    return {"level": level, "low": low, "high": high, "deviation": (high - low) / (2 * NORMAL), "counts": counts}


def scores_of(probabilities: np.ndarray) -> np.ndarray:
    """Compute log-probabilities (n, C), bounded from below."""
    return np.log(np.clip(probabilities, 1e-12, None))


def best_temper(logits: np.ndarray, labels: np.ndarray, *, prior: float = 1.0) -> float:
    """Find the factor on the logits (n, C) that explains the labels (n,) best."""
    return float(TEMPERS[np.argmax(log_likelihoods(logits, labels, prior=prior))])


def temper(p: np.ndarray, labels: np.ndarray, most: int) -> np.ndarray:
    """Multiply the logits of probabilities (n, C) by the factor that explains the labels (n,) best.

    Of more than `most` samples, every k-th chooses the factor.
    """
    logits, part = scores_of(p), slice(None, None, -(-len(p) // most))
    return softmax(best_temper(logits[part], labels[part]) * logits)


def allowing_for_mistakes(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Subtract the model's mistakes from the lower ends (N,) of the intervals.

    The level of a clean client consists of the model's mistakes only.  The smallest upper end of all intervals therefore
    bounds the share of mistakes, and is subtracted.
    """
    return np.maximum(0, np.asarray(low) - np.min(high))


def log_likelihoods(logits: np.ndarray, labels: np.ndarray, *, prior: float = 1.0) -> np.ndarray:
    """Compute the log-likelihood (len(TEMPERS),) of a client's labels at the best T, for each factor on the logits.

    Parameters
    ----------
    logits : (n, C)
    labels : int (n,)
    prior : float >= 0
    """
    likelihoods = []
    for tempers in _pieces(TEMPERS, logits.size):
        parts = _split(softmax(tempers[:, None, None] * logits), labels, np.ones(len(labels)))
        T = _maximize(parts, _start(logits.shape[1], len(tempers)), prior, 40)
        likelihoods.append(sum((np.log(_likelihoods(part, T)).sum(1) for part in parts), np.zeros(len(T))))
    return np.concatenate(likelihoods)


def fit(
    logits: np.ndarray,
    labels: np.ndarray,
    temper: float | None = None,
    *,
    prior: float = 1.0,
    rng: np.random.Generator,
    groups: np.ndarray | None = None,
) -> dict[str, Any]:
    """Estimate a client's noise level with a bootstrap interval, expected counts and posterior.

    Parameters
    ----------
    logits : (n, C)
    labels : int (n,)
    temper : float, optional
        Factor on the logits. Default: `best_temper`.
    prior : float >= 0
    rng : numpy.random.Generator
    groups : int (n,), optional
        The bootstrap draws groups instead of samples, and the interval contains Wilson's interval of as many observations as
        there are groups (fnlkit.kernels.scores.effective_size).

    Returns
    -------
    dict
        level, low, high; counts (C, C), expected numbers of samples by true and given class; posterior (n, C),
        p(true | sample, given label); draws (DRAWS,), the levels of the bootstrap.
    """
    temper = best_temper(logits, labels, prior=prior) if temper is None else temper
    p, one_hot = softmax(temper * logits), np.eye(logits.shape[1])[labels]
    T = _maximize(_split(p, labels, np.ones(len(p))), _start(p.shape[1]), prior, 300)
    posterior = posterior_of(p, labels, T[0])
    group = np.arange(len(p)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(group.max()) + 1
    levels = []
    for drawn in _pieces(rng.multinomial(count, np.full(count, 1 / count), DRAWS), len(p) + T.size):
        weights = drawn[:, group].astype(np.float64)
        parts = _split(p, labels, weights)
        again = _expected(parts, _maximize(parts, np.repeat(T, len(drawn), 0), prior, 15))
        levels.append(1 - again.trace(axis1=1, axis2=2) / weights.sum(1))
    draws = np.concatenate(levels)
    low, high = np.percentile(draws, [2.5, 97.5])
    level = float(1 - (posterior * one_hot).sum() / len(p))
    if groups is not None:  # few groups have few wrong labels, and often none, of which a bootstrap has no spread
        count = effective_size(groups)
        ends = wilson(np.array(level * count), np.array(count))
        low, high = min(low, float(ends[0])), max(high, float(ends[1]))
    return {"level": level, "low": low, "high": high, "counts": posterior.T @ one_hot, "posterior": posterior, "draws": draws}


def _start(classes, fits=1):
    return np.broadcast_to(np.where(np.eye(classes), 0.9, 0.1 / (classes - 1)), (fits, classes, classes))


def _pieces(fits, size):
    """Divide fits, of which each needs `size` numbers, so that a piece needs a few megabytes, or is one fit."""
    return np.array_split(fits, min(len(fits), 1 + len(fits) * size // AT_ONCE))


def _split(p, labels, weights):
    """Split p ([D,] n, C) and weights ([D,] n) of D fits by given class: rows (class, p, weights)."""
    return [(given, p[..., labels == given, :], weights[..., labels == given]) for given in np.unique(labels)]


def _likelihoods(part, T):
    """Compute p(given | sample) (D, n) of samples of one given class."""
    given, p, _ = part
    return np.maximum((p @ T[:, :, given, None])[..., 0], 1e-300)


def _expected(parts, T):
    """Compute expected numbers of samples by true and given class (D, C, C)."""
    counts = np.zeros(T.shape)
    for part in parts:
        given, p, weights = part
        counts[:, given] = T[..., given] * ((weights / _likelihoods(part, T))[:, None] @ p)[:, 0]
    return counts.swapaxes(1, 2)


def _maximize(parts, T, prior, most):
    """Maximize the likelihoods of D fits over T (D, C, C) together; a fit that has converged no longer changes."""
    moves = np.ones((len(T), 1, 1), bool)
    for _ in range(most):
        new = transition(_expected(parts, T) + prior * np.eye(T.shape[1]))
        change = np.abs(new - T).max((1, 2), keepdims=True)
        T = np.where(moves, new, T)
        moves &= change >= 1e-5
        if not moves.any():
            break
    return T


def posterior_of(p: np.ndarray, labels: np.ndarray, T: np.ndarray) -> np.ndarray:
    """Compute p(true | sample, given label) (n, C) from p(true | sample) (n, C), labels (n,) and T[true, given]."""
    joint = p * T.T[labels]
    return joint / np.maximum(joint.sum(1, keepdims=True), 1e-300)


def wrong_probabilities(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Estimate the probability (n,) that each label is wrong, if labels become any other class with one unknown probability.

    This probability has the distribution Beta(WRONG, RIGHT) and its most likely value, by expectation maximization.  The order
    is that of p(label | sample): only the scores of different sites become comparable.  If `p` was fitted to the labels
    themselves, it explains wrong labels, too; the results then order samples, but are far below the share of wrong labels.

    Parameters
    ----------
    p : (n, C)
        p(true | sample).
    labels : int (n,)

    Examples
    --------
    >>> import numpy as np
    >>> from fnlkit.estimators.likelihood import wrong_probabilities
    >>> p = np.repeat([[0.9, 0.1]], 100, 0)
    >>> [float(wrong_probabilities(p, 1 * (np.arange(100) < number))[0].round(2)) for number in (10, 40)]
    [0.24, 0.74]
    """
    right, share = p[np.arange(len(p)), labels], WRONG / (WRONG + RIGHT)
    others = (1 - right) / max(1, p.shape[1] - 1)
    wrong = np.zeros(len(p))
    for _ in range(STEPS):
        wrong = share * others / np.maximum(share * others + (1 - share) * right, 1e-300)
        share = (wrong.sum() + WRONG) / (len(wrong) + WRONG + RIGHT)
    return wrong


def confidence_of(posterior: np.ndarray) -> np.ndarray:
    """Probability (n,) that the most probable true label is right, from the posterior (n, C).

    The posterior is too certain, because the models have learned wrong labels too. Its log odds are therefore divided by
    `TOO_CERTAIN`, which is temperature scaling (Guo 2017).
    """
    odds = np.clip(posterior.max(1), SURELY, 1 - SURELY)
    odds = np.log(odds / (1 - odds)) / TOO_CERTAIN
    return 1 / (1 + np.exp(-odds))
