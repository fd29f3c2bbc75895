"""A custom estimator: find wrong labels.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise -o noisy.npz
    fnlkit estimate-noise noisy.npz --estimator 'mine.py:part(below=0.2)' --rounds 3 -o judged.npz
"""

import numpy as np

from fnlkit.estimators.intervals import wilson
from fnlkit.estimators.judgment import Judgment, sums, transitions


def part(evidence, *, below=0.1):
    """Return a Judgment; labels with a probability below `below` count as wrong.

    evidence has labels (m,) and offsets (N + 1,) of N clients, predicted() with probabilities (m, C), and embedded() with
    an embedding (m, d); both are computed at the first call.
    """
    probabilities, labels, offsets = evidence.predicted(), evidence.labels, evidence.offsets
    of_given = probabilities[np.arange(len(labels)), labels]
    flagged, guess = of_given < below, probabilities.argmax(1)
    sizes = np.diff(offsets)
    wrong = sums(flagged, offsets)
    T, client_T = transitions(np.where(flagged, guess, labels), labels, offsets, evidence.classes)
    return Judgment(wrong / sizes, *wilson(wrong, sizes), wrong / sizes, 1 - of_given, flagged, guess, T, client_T)
