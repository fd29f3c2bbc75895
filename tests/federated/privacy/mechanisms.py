"""Audit the epsilon of a mechanism from its outputs."""

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
