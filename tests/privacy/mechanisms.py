"""Audit the epsilon of a mechanism from its outputs."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fnlkit.kernels.streams import stream


class Audit(NamedTuple):
    """Bounds on the epsilon of a mechanism, estimated from its outputs.

    Attributes
    ----------
    low, high : float
        All ratios of output probabilities are below e^high, and one ratio is above e^low, except with probability alpha.
    declared : float
    verdict : str
        ``consistent``, ``violated`` (it leaks more than declared) or ``wasteful`` (it protects more than declared).
    """

    low: float
    high: float
    declared: float
    verdict: str


def audit(
    mechanism: Callable[..., Any], classes: int, declared: float, *, samples: int = 100_000, alpha: float = 1e-4, seed: int = 0
) -> Audit:
    """Audit a label mechanism from its outputs.

    The mechanism is called with `samples` labels of each class.  Clopper-Pearson intervals of all output probabilities hold
    simultaneously with probability 1 - alpha (divided equally), and bound the largest log ratio between two inputs.

    Parameters
    ----------
    mechanism : (labels (n,), rng) -> labels (n,)
        For example ``lambda y, rng: randomized_response(y, 10, 1.0, rng)``.
    classes : int
    declared : float
        The declared epsilon of the mechanism.
    samples : int
        Number of samples of each class.
    alpha : float in (0, 1)
        Probability of a false alarm.
    seed : int

    """
    from scipy.stats import beta

    counts = np.empty((classes, classes))
    for label in range(classes):
        out = mechanism(np.full(samples, label), stream(seed, "audit", client=label))
        counts[label] = np.bincount(out, minlength=classes)
    tail = alpha / (2 * classes * classes)
    floor = np.where(counts > 0, beta.ppf(tail, np.maximum(counts, 1), samples - counts + 1), 0.0)
    ceiling = np.where(counts < samples, beta.isf(tail, counts + 1, np.maximum(samples - counts, 1)), 1.0)
    with np.errstate(divide="ignore"):
        low = float(np.max(np.log(floor.max(0)) - np.log(ceiling.min(0))))
        high = float(np.max(np.log(ceiling.max(0)) - np.log(floor.min(0))))
    low = max(low, 0.0)
    verdict = "violated" if low > declared else "wasteful" if high < declared else "consistent"
    return Audit(low, high, declared, verdict)


def audit_pair(
    outputs: np.ndarray, neighbors: np.ndarray, declared: float, *, delta: float = 1e-5, alpha: float = 1e-4
) -> Audit:
    """Audit a mechanism from its numeric outputs on two neighboring inputs.

    Half of the outputs select the threshold (and side) that separates the two inputs best, and the other half are counted.
    (eps, delta)-DP allows P(A) <= e^eps P'(A) + delta for every set A.  Therefore, Clopper-Pearson's lower bound on P and upper
    bound on P' give a lower bound on the epsilon of the mechanism.

    Parameters
    ----------
    outputs, neighbors : float (m,)
        Independent outputs of the mechanism on an input and on its neighbor.
    declared : float
        The declared epsilon of the mechanism at `delta`.
    delta : float in [0, 1)
    alpha : float in (0, 1)
        Probability of a false alarm.

    Returns
    -------
    Audit
        `high` is infinite and the verdict is never ``wasteful``, because a threshold gives only a lower bound on epsilon.
    """
    outputs, neighbors = (np.asarray(values, np.float64).reshape(-1) for values in (outputs, neighbors))
    half = len(outputs) // 2
    seen, counted = (outputs[:half], neighbors[:half]), (outputs[half:], neighbors[half:])
    low = 0.0
    for one, other, seen_one, seen_other in ((*counted, *seen), (*counted[::-1], *seen[::-1])):
        for sign in (1, -1):
            cut = _best_cut(sign * seen_one, sign * seen_other, delta)
            hits, false = (int(np.sum(sign * values > cut)) for values in (one, other))
            low = max(low, float(_least_epsilon(np.array([hits]), np.array([false]), len(one), delta, alpha / 8)[0]))
    return Audit(low, math.inf, declared, "violated" if low > declared else "consistent")


def _best_cut(one, other, delta):
    """Return the threshold that best separates larger values in `one` from `other`."""
    cuts = np.quantile(np.concatenate([one, other]), np.linspace(0.01, 0.99, 99))
    hits, false = (np.sum(values > cuts[:, None], axis=1) for values in (one, other))
    return cuts[int(np.argmax(_least_epsilon(hits, false, len(one), delta, 1e-3)))]


def _least_epsilon(hits, false, count, delta, tail):
    """Return the smallest epsilon (m,) >= 0 for numbers of hits and false alarms (m,).

    Both are out of `count` outputs.
    """
    from scipy.stats import beta

    least = np.where(hits > 0, beta.ppf(tail, np.maximum(hits, 1), count - hits + 1), 0.0)
    most = np.where(false < count, beta.isf(tail, false + 1, np.maximum(count - false, 1)), 1.0)
    return np.log(np.maximum((least - delta) / most, 1.0))
