"""Linear head that makes given labels most likely, from sums over samples."""

import numpy as np

# Samples whose probabilities stay in the processor's cache.
BLOCK = 4096
# Steps whose differences L-BFGS keeps, and their least curvature in units of its bound.
MEMORY, LEAST = 10, 0.1
# A step that changes the log-likelihood by less is rounding.
ROUNDING = 1e-12


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
            q /= np.maximum(q.sum(0), 1e-30)
            p -= q
        total += (p @ x[block]).T
    return total


class Ascent:
    """L-BFGS without a line search.

    The curvature of the log-likelihood is at most X'X / 2 (Boehning 1992, Multinomial logistic regression algorithm), so that a
    step under this bound does not overshoot.  Differences of heads and gradients correct it, with at least `LEAST` of its
    curvature along each of them, because the likelihood of noisy labels is not concave.
    Sources: Liu, Nocedal 1989, On the limited memory BFGS method; Powell 1978 (damped differences).

    Parameters
    ----------
    products : (d, d)
        Sum of x x'.
    classes : int
    ridge : float > 0
    """

    def __init__(self, products, classes, ridge):
        self.ridge = ridge
        self.bound = 0.5 * products + ridge * np.eye(len(products))
        self.inverse = np.linalg.inv(self.bound)
        self.head = np.zeros((len(products), classes))
        self._last = None
        self._pairs = []

    def step(self, gradient: np.ndarray) -> None:
        """Move by the gradient (d, C) at `head`."""
        gradient = gradient + self.ridge * self.head
        if self._last is not None:
            moved, change = self.head - self._last[0], gradient - self._last[1]
            most = self.bound @ moved
            curved, largest = np.vdot(moved, change), np.vdot(moved, most)
            if curved < LEAST * largest:
                keep = (1 - LEAST) * largest / (largest - curved)
                change = keep * change + (1 - keep) * most
            if largest > ROUNDING:
                self._pairs = [*self._pairs, (moved, change)][-MEMORY:]
        self._last = self.head, gradient
        self.head = self.head - self._direction(gradient)

    def _direction(self, gradient):
        """Multiply the gradient by the estimated inverse of the curvature."""
        factors, rest = [], gradient
        for moved, change in reversed(self._pairs):
            factors.append(np.vdot(moved, rest) / np.vdot(moved, change))
            rest = rest - factors[-1] * change
        direction = self.inverse @ rest
        if self._pairs:  # the curvature is usually much smaller than its bound
            moved, change = self._pairs[-1]
            direction *= max(1.0, np.vdot(moved, change) / np.vdot(change, self.inverse @ change))
        for (moved, change), factor in zip(self._pairs, reversed(factors), strict=True):
            direction = direction + (factor - np.vdot(change, direction) / np.vdot(moved, change)) * moved
        return direction
