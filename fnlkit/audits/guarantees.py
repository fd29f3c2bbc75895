"""A list of wrong labels with a bounded share of right labels, from random reviews of the most suspicious ones.

Before the review, the `candidates` with the highest scores are fixed, and `reviews` candidates are drawn at random without
replacement.  A right label is reviewed or not by chance alone, for any noise, model and scores.  The
reviewed right labels therefore count the unreviewed right labels.  docs/guarantees.md has the proof.

Barber, Candès. Controlling the false discovery rate via knockoffs. Annals of Statistics 2015 (selective sequential testing).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, ndtri

from fnlkit.core.errors import InputError

# Precision of the prior on the weights of `update_scores`, chosen on four of the nine projects of JIRA (benchmarks/guarantee.py
# of commit a3bcb566).
PRIOR, STEPS = 5.0, 8


@dataclass(frozen=True)
class GuaranteedList:
    """Labels of the candidates that are listed as wrong without a review.

    Attributes
    ----------
    listed : bool (K,)
        Unreviewed candidates in the list.
    order : int64 (K,)
        Candidates in the order of the list.
    right_at_most : float
        Estimate of the number of right labels in the list: at most q times the length of the list.
    reviews : int
        Number of reviewed candidates.
    q : float
    confidence : float or None
        None: at most a share q is right on average. Otherwise: with this probability.
    """

    listed: np.ndarray
    order: np.ndarray
    right_at_most: float
    reviews: int
    q: float
    confidence: float | None


def draw_reviews(candidates: int, reviews: int, rng: np.random.Generator) -> np.ndarray:
    """Draw `reviews` candidates at random without replacement: a mask (K,)."""
    mask = np.zeros(candidates, bool)
    mask[rng.permutation(candidates)[:reviews]] = True
    return mask


def find_guaranteed_list(
    scores: ArrayLike,
    reviewed: ArrayLike,
    wrong: ArrayLike,
    *,
    q: float = 0.2,
    confidence: float | None = None,
    errors: float = 0.0,
    groups: ArrayLike | None = None,
) -> GuaranteedList:
    """Find the longest list of candidates of which at most a share `q` is right.

    Parameters
    ----------
    scores : float (K,)
        Fixed before the review; a higher score is more suspicious.
    reviewed : bool (K,)
        From `draw_reviews`.
    wrong : bool (K,)
        Decisions of the reviewer; read only where `reviewed`. A sample without a decision counts as right.
    q : float in (0, 1)
    confidence : float in (0, 1), optional
        Bound the share with this probability instead of on average.
    errors : float in [0, 1)
        Largest probability with which the reviewer calls a right label wrong, independently of other labels.
    groups : int (K,), optional
        Given classes. The order of the list is updated by the reviewed wrong labels: see `update_scores`.

    Raises
    ------
    InputError

    Examples
    --------
    >>> import numpy as np
    >>> from fnlkit.audits.guarantees import draw_reviews, find_guaranteed_list
    >>> reviewed = draw_reviews(100, 40, np.random.default_rng(0))
    >>> found = find_guaranteed_list(np.arange(100, 0, -1), reviewed, np.arange(100) < 50, q=0.2)
    >>> int(found.listed.sum()), found.reviews
    (40, 40)
    """
    if not 0 < q < 1:
        raise InputError(f"the guarantee is {q}; expected a share between 0 and 1, such as 0.2")
    if not 0 <= errors < 1:
        raise InputError(f"the reviewer's error rate is {errors}; expected a number from 0 to below 1")
    if confidence is not None and (errors or not 0 < confidence < 1):
        raise InputError(f"the confidence is {confidence}; expected a number between 0 and 1, and a reviewer without errors")
    reviewed, errors_found = np.asarray(reviewed, bool), np.asarray(reviewed & wrong, bool)
    size, reviews = len(reviewed), int(reviewed.sum())
    order = np.argsort(-update_scores(scores, errors_found, groups), kind="stable")
    right, unreviewed = np.cumsum((reviewed & ~errors_found)[order]), np.cumsum(~reviewed[order])
    if confidence is None:
        most = right_on_average(right, size, reviews) / (1 - errors)
    else:
        most = right_with_confidence(size, reviews, 1 - confidence)[right]
    good = np.flatnonzero((most <= q * unreviewed) & (unreviewed > 0))
    listed, last = np.zeros(size, bool), good[-1] if len(good) else -1
    listed[order[: last + 1]] = True
    return GuaranteedList(listed & ~reviewed, order, float(most[last]) if len(good) else 0.0, reviews, q, confidence)


def shortest_list(
    candidates: int, reviews: int, q: float, *, confidence: float | None = None, errors: float = 0.0
) -> int | None:
    """Number of unreviewed labels in the shortest possible list; None if every list is empty.

    A list of this length needs a prefix of the candidates in which no reviewed label is right.  Parameters as in
    `find_guaranteed_list`.

    Examples
    --------
    >>> from fnlkit.audits.guarantees import shortest_list
    >>> shortest_list(1000, 100, 0.2), shortest_list(200, 100, 0.2), shortest_list(50, 40, 0.01)
    (45, 5, None)
    """
    if confidence is None:
        most = float(right_on_average(np.zeros(1), candidates, reviews)[0]) / (1 - errors)
    else:
        most = float(right_with_confidence(candidates, reviews, 1 - confidence)[0])
    length = max(1, math.ceil(most / q - 1e-9))
    return length if length <= candidates - reviews else None


def right_on_average(right: np.ndarray, candidates: int, reviews: int) -> np.ndarray:
    """Estimate the unreviewed right labels among the first k candidates, from the reviewed right ones.

    The number of unreviewed right labels divided by this estimate has a mean of at most 1, for the k at which a search from the
    last candidate backwards stops.

    Parameters
    ----------
    right : int (k,)
        Reviewed right labels among the first k.
    candidates, reviews : int
    """
    return (candidates - reviews) / (reviews + 1) * (1 + right)


@lru_cache(maxsize=64)
def right_with_confidence(candidates: int, reviews: int, error: float) -> np.ndarray:
    """Bound (b + 1,) the unreviewed right labels of a prefix by its number of reviewed right labels.

    The bound holds for all prefixes at once with a probability of at least 1 - `error`.

    Notes
    -----
    In the order of the list, the right labels are reviewed as balls are drawn from an urn.  The bound for c reviewed labels is
    exceeded if too many unreviewed ones come before the (c + 1)-th reviewed one.  It is the quantile of this number at one
    level for all c.  The level is the largest at which the probability of any excess, computed exactly, is at most `error`.
    """
    numbers, walk = np.arange(reviews + 1), np.zeros((candidates + 1, reviews + 1))
    walk[0, 0] = 1.0  # walk[j, c]: probability that c of the first j right labels are reviewed
    for j in range(candidates):
        walk[j + 1] = _step(walk[j], numbers, reviews, candidates - j)
    below = np.cumsum(walk, 1)

    def bound(level: float) -> np.ndarray:
        rare = below <= level + 1e-15
        first = np.where(rare.any(0), rare.argmax(0), candidates + 1)  # so many right labels with at most c reviewed are rare
        return np.minimum(np.maximum.accumulate(first - 1 - numbers), candidates - reviews)

    low, high = 0.0, error
    for _ in range(12):
        level = (low + high) / 2
        low, high = (level, high) if _excess(bound(level), candidates, reviews) <= error else (low, level)
    return bound(low)


def _step(state, numbers, reviews, left):
    """Update the distribution of the number of reviewed labels after one more label."""
    hit = state * np.maximum(reviews - numbers, 0) / left
    return state - hit + np.concatenate([[0.0], hit[:-1]])


def _excess(bound, candidates, reviews):
    """Probability that the unreviewed labels of any prefix exceed the bound."""
    numbers, state, lost = np.arange(reviews + 1), np.zeros(reviews + 1), 0.0
    state[0] = 1.0
    for j in range(candidates):
        state = _step(state, numbers, reviews, candidates - j)
        over = j + 1 - numbers > bound
        lost += state[over].sum()
        state[over] = 0.0
    return lost


def update_scores(scores: ArrayLike, found: np.ndarray, groups: ArrayLike | None) -> np.ndarray:
    """Raise scores (K,) of classes with many reviewed wrong labels.

    Logistic regression of `found` on the normal scores of the ranks and on the groups, with a Gaussian prior: weight 1 for the
    score, 0 for a group.  Reviewed right labels and unreviewed labels are equal for it, so that a right label is still reviewed
    by chance given the new order.  Therefore the guarantee does not change (the masking of AdaPT: Lei, Fithian 2018).

    Parameters
    ----------
    scores : float (K,)
    found : bool (K,)
        Reviewed wrong labels.
    groups : int (K,) or None
        None keeps the order of the scores.
    """
    from scipy.stats import rankdata

    scores = np.asarray(scores, np.float64)
    if groups is None or len(scores) < 2 or not found.any():
        return scores
    place = ndtri((rankdata(scores, "ordinal") - 0.5) / len(scores))
    codes = np.unique(groups, return_inverse=True)[1]
    member = np.eye(codes.max() + 1)[codes]
    x = np.column_stack([np.ones(len(place)), place, member - member.mean(0)])
    prior, penalty = np.zeros(x.shape[1]), np.full(x.shape[1], PRIOR)
    share = (found.sum() + 0.5) / (len(found) + 1)
    prior[:2], penalty[0] = (np.log(share / (1 - share)), 1.0), 1e-6
    weights = prior.copy()
    for _ in range(STEPS):
        p = expit(x @ weights)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        weights = weights + np.clip(np.linalg.solve(curvature, x.T @ (found - p) - penalty * (weights - prior)), -2, 2)
    return x @ weights
