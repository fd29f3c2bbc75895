"""The transition matrix of one annotator, from class probabilities and given labels."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fnlkit._kernels.annotator import expect
from fnlkit.core.errors import InputError
from fnlkit.kernels import checks


class Annotator(NamedTuple):
    """Result of `fit_annotator`, float64.

    Attributes
    ----------
    inferred : (n, C)
        q(z), probabilities of the true class of each sample.
    transition : (C, C)
        ``T[true, given]`` in q.
    before, counts : (C, C)
        Inferred numbers of samples by true and given class: those in T, and those that follow from q.
    """

    inferred: np.ndarray
    transition: np.ndarray
    before: np.ndarray
    counts: np.ndarray


def fit_annotator(
    probabilities: ArrayLike,
    labels: ArrayLike,
    common: ArrayLike,
    *,
    strength: float,
    steps: int,
    counts: ArrayLike | None = None,
) -> Annotator:
    """Infer true classes, q(z) ~ p(z|x) T[z, y], with a matrix T that follows from counts of q.

    T has rows ``counts + strength * common``, scaled to sum to 1: the mean of a Dirichlet distribution.

    Parameters
    ----------
    probabilities : (n, C)
        p(z|x) of a classifier; rows need not sum to 1.
    labels : (n,) int in 0 ... C - 1
    common : (C, C)
        Matrix towards which T is shrunk.
    strength : float > 0
        Number of samples per true class that `common` counts for.
    steps : int >= 0
        Updates of T before the last q.
    counts : (C, C)
        Initial counts. Default: zero.

    Raises
    ------
    InputError
        If the arguments do not fit each other.

    Notes
    -----
    Source: Dawid, Skene 1979, with a classifier in place of the class shares as in Raykar et al. 2010.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.1, 0.9]])
    >>> found = fit_annotator(p, [0, 1, 1, 1], np.full((2, 2), 0.5), strength=0.1, steps=20)
    >>> found.inferred.argmax(1).tolist(), found.transition.round(1).tolist()
    ([0, 0, 1, 1], [[0.5, 0.5], [0.0, 1.0]])
    """
    p = checks.contiguous(checks.array(probabilities, "probabilities"), np.float64)
    labels = checks.integers(labels, "labels", len(p), "row of `probabilities`")
    common = checks.contiguous(checks.array(common, "common"), np.float64)
    before = np.zeros(common.shape) if counts is None else np.asarray(counts, np.float64).copy()
    square = p.shape[-1:] * 2
    if p.ndim != 2 or common.shape != square or before.shape != square:
        shapes = f"{p.shape}, {common.shape} and {before.shape}"
        raise InputError(f"`probabilities`, `common` and `counts` must be (n, C), (C, C) and (C, C), found {shapes}")
    checks.check_range(labels, "labels", len(common))
    after, columns, q = np.zeros_like(before), np.zeros_like(before), np.empty_like(p)
    expect(p, labels, common, float(strength), int(steps), before, after, columns, q)
    return Annotator(q, columns.T.copy(), before, after)
