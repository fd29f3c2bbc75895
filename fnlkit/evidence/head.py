"""Linear head that makes given labels most likely, from sums over samples."""

import numpy as np

from fnlkit.evidence.gaussian import softmax


def gradient(x: np.ndarray, head: np.ndarray, labels: np.ndarray, likely: np.ndarray | None = None) -> np.ndarray:
    """Return the gradient (d, C) of -log sum_z softmax(W x)_z P(label | z) over samples.

    Parameters
    ----------
    x : float32 (n, d)
    head : (d, C)
    labels : int (n,)
    likely : (n, C), optional
        P(given label | true class).  Default: all labels are right.
    """
    p = softmax(x @ head.astype(x.dtype))
    if likely is None:
        p[np.arange(len(p)), labels] -= 1
        return x.T @ p
    q = p * likely.astype(p.dtype)
    q /= q.sum(1, keepdims=True)
    return x.T @ (p - q)


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
