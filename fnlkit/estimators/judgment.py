"""The result of every estimator and its conversion to arrays of a federation."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.kernels.scores import transition

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation


PREFIX = "estimate_"


@dataclass
class Judgment:
    """An estimator's findings on N clients with m samples in total, stored client by client.

    Attributes
    ----------
    level, low, high : (N,)
        Share of wrong labels and its interval, in [0, 1].
    score : (N,)
        Higher is noisier.
    issue : (m,)
        In [0, 1], higher is more likely wrong.
    flagged : bool (m,)
    guess : int (m,)
        The label that a flagged sample should have.
    transition : (C, C), client_transition : (N, C, C) or None
        T[true, given], rows sum to 1.
    confidence : (m,) or None
        Probability that the guess of a flagged sample, or the given label of another sample, is right; None if the estimator
        has none.
    """

    level: np.ndarray
    low: np.ndarray
    high: np.ndarray
    score: np.ndarray
    issue: np.ndarray
    flagged: np.ndarray
    guess: np.ndarray
    transition: np.ndarray
    client_transition: np.ndarray | None = None
    confidence: np.ndarray | None = None

    def arrays(self, federation: "Federation") -> dict[str, Any]:
        """Collect the arrays by name; arrays of samples cover the whole training set (n,)."""
        held, size = federation.client_indices, len(federation.given)
        issue, flagged = np.zeros(size), np.zeros(size, bool)
        suggested = np.array(federation.given, np.int64)
        issue[held] = np.clip(self.issue, 0, 1)
        flagged[held] = self.flagged
        suggested[held] = np.where(self.flagged, self.guess, suggested[held])
        named_arrays = {
            "client_level": np.asarray(self.level, np.float64),
            # Ensure that the interval contains the estimate for every bootstrap draw.
            "client_level_low": np.minimum(self.low, self.level),
            "client_level_high": np.maximum(self.high, self.level),
            "client_score": np.asarray(self.score, np.float64),
            "transition": self.transition,
            "issue_score": issue,
            "flagged": flagged,
            "suggested_label": suggested,
        }
        if self.confidence is not None:
            named_arrays["confidence"] = np.zeros(size)
            named_arrays["confidence"][held] = np.clip(self.confidence, 0, 1)
        if self.client_transition is not None:
            named_arrays["client_transition"] = self.client_transition
        return {f"{PREFIX}{name}": values for name, values in named_arrays.items()}


def sums(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sum each client's values (N,) from values (m,) stored client by client."""
    total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return total[offsets[1:]] - total[offsets[:-1]]


def owners(offsets: np.ndarray) -> np.ndarray:
    """Client of each of the m samples (m,)."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def transitions(true: np.ndarray, given: np.ndarray, offsets: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Estimate (T (C, C), T of each client (N, C, C)) from guessed true labels and given labels, both (m,)."""
    clients = len(offsets) - 1
    cell = (owners(offsets) * classes + true) * classes + given
    counts = np.bincount(cell, minlength=clients * classes**2).reshape(clients, classes, classes)
    return transition(counts.sum(0)), transition(counts)
