"""Linear head that makes given labels most likely, from sums over samples."""

import numpy as np

# Samples whose probabilities stay in the processor's cache.
BLOCK = 4096


def logits_by_class(x: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Compute the logits (C, n) of samples (n, d) float32 under a head (d, C)."""
    return np.ascontiguousarray((x @ np.asarray(head, x.dtype)).T)


def softmax_by_class(logits: np.ndarray) -> np.ndarray:
    """Replace logits (C, n) by probabilities, and return them."""
    # NumPy reduces the first axis much faster than a last axis of a few classes.
    logits -= logits.max(0)
    np.exp(logits, out=logits)
    logits /= logits.sum(0)
    return logits


def gradient(x: np.ndarray, head: np.ndarray, labels: np.ndarray, likely: np.ndarray | None = None) -> np.ndarray:
    """Compute the gradient (d, C) of -log sum_z softmax(W x)_z P(label | z) over samples.

    Parameters
    ----------
    x : float32 (n, d)
    head : (d, C)
    labels : int (n,)
    likely : (C, n), optional
        P(given label | true class).  Default: all labels are right.
    """
    total = np.zeros(head.shape)
    for start in range(0, len(x), BLOCK):
        block = slice(start, start + BLOCK)
        p = softmax_by_class(logits_by_class(x[block], head))
        if likely is None:
            p[labels[block], np.arange(p.shape[1])] -= 1
        else:
            q = p * likely[:, block]
            q /= q.sum(0)
            p -= q
        total += (p @ x[block]).T
    return total


class Ascent:
    """Nesterov's method with one matrix for all steps.

    The curvature of the log-likelihood is at most X'X / 2.  Source: Boehning 1992, Multinomial logistic regression algorithm.

    Parameters
    ----------
    products : (d, d)
        Sum of x x'.
    classes : int
    ridge : float > 0
    """

    def __init__(self, products, classes, ridge):
        self.ridge = ridge
        self.inverse = np.linalg.inv(0.5 * products + ridge * np.eye(len(products)))
        self.head = self.point = np.zeros((len(products), classes))
        self._momentum = 1.0

    def step(self, gradient: np.ndarray) -> None:
        """Move by the gradient (d, C) at `point`."""
        new = self.point - self.inverse @ (gradient + self.ridge * self.point)
        momentum = (1 + np.sqrt(1 + 4 * self._momentum**2)) / 2
        self.head, self.point = new, new + (self._momentum - 1) / momentum * (new - self.head)
        self._momentum = momentum
