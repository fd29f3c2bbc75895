"""Plan of the next reviews: how many decisions at which site, of which class, and for which purpose.

The plan uses estimates of an audit, which depend on the assumptions of the audit.  Lists and ranges of the reviews do not
depend on these assumptions.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit

from fnlkit.audits.designs import MOST, MULTIPLE
from fnlkit.audits.guarantees import right_on_average
from fnlkit.errors import InputError
from fnlkit.kernels.streams import stream

# Numbers of reviews of a site that are compared, as parts of the budget; probabilities are kept away from 0 and 1.
PARTS, LEAST = 20, 1e-3
# Simulated reviews of which `expected_list` is the mean.
DRAWS = 64


@dataclass(frozen=True)
class Row:
    """Part of a plan.

    Attributes
    ----------
    site : int
    given : int
        Class of the given labels.
    purpose : "find", "certify" or "range"
        Review the most suspicious labels; review random candidates and list the others; narrow the range of the site.
    reviews : float
        Expected number of decisions; whole for the site.
    found : float
        Expected number of wrong labels that the decisions find.
    listed : float
        Expected number of wrong labels in the list.
    """

    site: int
    given: int
    purpose: str
    reviews: float
    found: float
    listed: float


def calibrate(scores: np.ndarray, level: float | None) -> np.ndarray:
    """Return probabilities (n,) that labels are wrong, whose mean is the level.

    All log odds of the scores are shifted by the same number.

    Parameters
    ----------
    scores : (n,) in [0, 1]
    level : float or None
        Estimated share of wrong labels; None returns the scores.
    """
    odds = logit(np.clip(np.asarray(scores, np.float64), LEAST, 1 - LEAST))
    if level is None or not len(odds):
        return expit(odds)
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expit(odds + middle).mean() < level else (low, middle)
    return expit(odds + low)


def expected_list(p: np.ndarray, reviews: int, q: float, candidates: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return (chances (K,) that a candidate is listed, chances (K,) that it is listed and wrong) of a review with a guarantee.

    Means over `DRAWS` simulated reviews, in which labels are wrong with the given probabilities.

    Parameters
    ----------
    p : (n,)
        Probabilities in descending order.
    reviews : int
    q : float
    candidates : int, optional
        As in fnlkit.audits.designs.plan_design.
    """
    size = min(max(MULTIPLE * reviews, round(p.sum())), math.ceil(MOST * len(p))) if candidates is None else candidates
    size = min(max(size, reviews), len(p))
    if not 0 < reviews < size:
        return np.zeros(size), np.zeros(size)
    rng = stream(0, "expected list", reviews)
    wrong, places = rng.random((DRAWS, size)) < p[:size], rng.random((DRAWS, size))
    reviewed = places <= np.partition(places, reviews - 1, 1)[:, reviews - 1 : reviews]
    most = right_on_average(np.cumsum(reviewed & ~wrong, 1), size, reviews)
    good = most <= q * np.cumsum(~reviewed, 1)
    length = np.where(good.any(1), size - good[:, ::-1].argmax(1), 0)
    listed = ~reviewed & (np.arange(size) < length[:, None])
    return listed.mean(0), (listed & wrong).mean(0)


def count_removed(p: np.ndarray, reviews: int, q: float) -> tuple[float, str]:
    """Return (expected number of wrong labels found or listed, better purpose) of a number of reviews at a site."""
    find = float(p[:reviews].sum())
    listed, wrong = expected_list(p, reviews, q)
    certify = float(reviews / max(1, len(wrong)) * p[: len(wrong)].sum() + wrong.sum())
    return (certify, "certify") if listed.any() and certify > find else (find, "find")


def divide(sites: list[tuple[np.ndarray, np.ndarray]], budget: int, *, q: float = 0.2, ranges: float = 0.0) -> list[Row]:
    """Return the Rows of a plan that removes most wrong labels, as expected.

    Parameters
    ----------
    sites : list of (p, given)
        Probabilities (n,) that the open labels of a site are wrong, and their classes (n,).
    budget : int
    q : float
        Share of right labels that lists may contain.
    ranges : float in [0, 1]
        Share of the budget for the ranges of all sites: numbers proportional to n sqrt(level (1 - level)).

    Raises
    ------
    InputError

    Notes
    -----
    A dynamic program over the sites compares all divisions of the budget into `PARTS` parts.

    Examples
    --------
    >>> import numpy as np
    >>> from fnlkit.audits.planning import divide
    >>> plan = divide([(np.full(50, 0.9), np.zeros(50, int)), (np.full(50, 0.1), np.zeros(50, int))], 20)
    >>> plan[0].site, plan[0].purpose, plan[0].reviews > 15
    (0, 'certify', True)
    """
    if budget < 1 or not 0 <= ranges <= 1 or not 0 < q < 1:
        raise InputError("a plan needs a budget of at least 1, a share for ranges from 0 to 1, and a guarantee between 0 and 1")
    sites = [(np.asarray(p, np.float64), np.asarray(given)) for p, given in sites]
    sizes = np.array([len(p) for p, _ in sites])
    budget = min(budget, int(sizes.sum()))
    for_ranges = round(ranges * budget)
    orders = [np.argsort(-p, kind="stable") for p, _ in sites]
    ordered = [p[order] for (p, _), order in zip(sites, orders, strict=True)]
    numbers = _division(ordered, budget - for_ranges, q)
    rows = []
    for k, ((p, given), order, number) in enumerate(zip(sites, orders, numbers, strict=True)):
        _, purpose = count_removed(ordered[k], number, q)
        chances, listed = np.zeros(len(p)), np.zeros(len(p))
        if purpose == "find":
            chances[order[:number]] = 1.0
        else:
            _, wrong = expected_list(ordered[k], number, q)
            chances[order[: len(wrong)]], listed[order[: len(wrong)]] = number / len(wrong), wrong
        rows += _rows(k, given, purpose, p, chances, listed)
    spread = np.array([len(p) * np.sqrt(max(p.mean() * (1 - p.mean()), LEAST)) if len(p) else 0.0 for p, _ in sites])
    for k, number in enumerate(_whole(spread / max(spread.sum(), 1e-12) * for_ranges, for_ranges)):
        p, given = sites[k]
        rows += _rows(k, given, "range", p, np.full(len(p), number / max(1, len(p))), np.zeros(len(p)))
    return rows


def _division(ordered, budget, q):
    """Return the number of reviews of each site, by a dynamic program over parts of the budget."""
    steps = np.unique(np.linspace(0, budget, min(PARTS, max(1, budget)) + 1).round().astype(int))
    best = np.full(len(steps), -np.inf)
    best[0], choices = 0.0, []
    for p in ordered:
        gains = np.array([count_removed(p, int(step), q)[0] if step <= len(p) else -np.inf for step in steps])
        # Numbers of reviews that are not a difference of two steps do not occur: the steps are equal up to rounding.
        table = np.array(
            [[best[i - j] + gains[j] if j <= i else -np.inf for j in range(len(steps))] for i in range(len(steps))]
        )
        choices.append(table.argmax(1))
        best = table.max(1)
    left, out = int(np.argmax(best)), []
    for choice in reversed(choices):
        out.append(int(steps[choice[left]]))
        left -= int(choice[left])
    return _whole_at_most(out[::-1], budget)


def _whole_at_most(numbers, budget):
    """Return numbers whose sum is at most the budget: rounded steps can exceed it by a few."""
    out = list(numbers)
    while sum(out) > budget:
        out[int(np.argmax(out))] -= 1
    return out


def _whole(numbers, total):
    """Return whole numbers that sum to `total`, by largest remainders."""
    out = np.floor(numbers).astype(int)
    out[np.argsort(out - numbers, kind="stable")[: total - out.sum()]] += 1
    return out.tolist()


def _rows(site, given, purpose, p, chances, listed):
    """Return a Row per class with a chance of a review or of a list."""
    out = []
    for code in np.unique(given[(chances > 0) | (listed > 0)]).tolist():
        one = given == code
        out.append(
            Row(site, code, purpose, float(chances[one].sum()), float((chances * p)[one].sum()), float(listed[one].sum()))
        )
    return out


def expected_gain(
    points: np.ndarray,
    given: np.ndarray,
    suggested: np.ndarray,
    p: np.ndarray,
    treated: np.ndarray,
    *,
    classes: int,
    rng: np.random.Generator,
    most: int = 4000,
    groups: np.ndarray | None = None,
) -> float:
    """Return the expected gain of accuracy of logistic regression if the treated labels become right.

    One half of the samples trains with the given labels and with the corrected labels; the other half tests.  The true label is
    the suggested one with probability p, otherwise the given one.  This is an estimate, not a bound.

    Parameters
    ----------
    points : (n, D)
    given, suggested : int (n,)
    p : (n,)
        Probability that the given label is wrong.
    treated : (n,)
        Probability that a label is reviewed or listed.
    classes : int
    rng : numpy.random.Generator
    most : int
        Largest number of samples used.
    groups : int (n,), optional
        The halves consist of whole groups.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    chosen = rng.permutation(len(given))[:most]
    x, given, suggested, p, treated = (np.asarray(values)[chosen] for values in (points, given, suggested, p, treated))
    p, first = np.where(suggested == given, 0.0, p), np.arange(len(chosen)) < len(chosen) // 2
    if groups is not None:  # groups in the order of their first sample, which is random
        _, at, group = np.unique(groups[chosen], return_index=True, return_inverse=True)
        first = (np.argsort(np.argsort(at)) < len(at) // 2)[group]
    spread = x.std(0)
    x = (x - x.mean(0)) / np.where(spread > 1e-12, spread, 1.0)
    gains = []
    for train, test in ((first, ~first), (~first, first)):
        accuracy = []
        for fixed in (np.zeros(len(p)), treated * p):
            labels = np.concatenate([given[train], suggested[train]])
            weights = np.concatenate([1 - fixed[train], fixed[train]]) + 1e-9
            if len(np.unique(labels[weights > 1e-6])) < 2:
                return 0.0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                made = LogisticRegression(C=0.1, max_iter=100).fit(np.concatenate([x[train]] * 2), labels, weights)
            guess = made.predict(x[test])
            accuracy.append(
                np.where(guess == given[test], 1 - p[test], np.where(guess == suggested[test], p[test], 0.0)).mean()
            )
        gains.append(accuracy[1] - accuracy[0])
    return float(np.mean(gains))
