"""Plan of a review with a guarantee, fixed before the first decision, and the list that follows from the decisions."""

import hashlib
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, logit

from fnlkit.artifacts.federation import Federation
from fnlkit.audits.guarantees import find_guaranteed_list, right_on_average, right_with_confidence, shortest_list
from fnlkit.audits.reviews import Guarantee, ListTerms, read_guaranteed_reviews
from fnlkit.core.errors import InputError
from fnlkit.estimators.judgment import PREFIX

# Default number of candidates: this multiple of the reviews, at most this share of the samples. Chosen on four of the nine
# projects of JIRA (benchmarks/guarantee.py of commit a3bcb566).
MULTIPLE, MOST = 10, 0.5
SURE = 1e-3  # probabilities of wrong labels are kept this far from 0 and 1


@dataclass(frozen=True)
class Design:
    """Plan of a review, which the table of decisions contains as text in the column `design`.

    Attributes
    ----------
    q : float
        Largest share of right labels in the list.
    candidates : int
        Number of samples with the highest scores, from which the list is made.
    reviews : int
        Number of candidates to review, drawn at random.
    random : int
        Number of other samples to review, drawn at random.
    confidence : float or None
        As in fnlkit.audits.guarantees.find_guaranteed_list.
    errors : float
        As in fnlkit.audits.guarantees.find_guaranteed_list.
    given : int or None
        Class of the candidates; None: all classes.
    check : str
        Digest of the candidates in their order.
    """

    q: float
    candidates: int
    reviews: int
    random: int
    confidence: float | None = None
    errors: float = 0.0
    given: int | None = None
    check: str = ""

    def text(self) -> str:
        """Write the plan as text, which `read` reads."""
        return " ".join(f"{name}={value}" for name, value in asdict(self).items() if value not in (None, ""))

    @classmethod
    def read(cls, text: str, source: str) -> "Design":
        """Read the plan in a text.

        Raises
        ------
        InputError
            If the text is not a plan.
        """
        try:
            values = dict(part.split("=") for part in text.split())
            kinds = {"q": float, "confidence": float, "errors": float, "check": str}
            design = cls(**{name: kinds.get(name, int)(value) for name, value in values.items()})
            shares = 0 < design.q < 1 and 0 <= design.errors < 1 and (design.confidence is None or 0 < design.confidence < 1)
            if not (shares and 0 <= design.reviews <= design.candidates and design.random >= 0):
                raise ValueError
        except (TypeError, ValueError):
            raise InputError(f"{source}: the column design is {text[:60]!r}; export the review again") from None
        return design

    def bounds(self) -> np.ndarray:
        """Estimate the unreviewed right labels of a prefix (reviews + 1,) by its number of reviewed right labels."""
        if self.confidence is not None:
            return right_with_confidence(self.candidates, self.reviews, 1 - self.confidence).astype(float)
        return right_on_average(np.arange(self.reviews + 1), self.candidates, self.reviews) / (1 - self.errors)


def rank_samples(federation: Federation, client: int, given: int | None = None) -> np.ndarray:
    """Rank samples of a client, or of a class of it, from which a list can be made, highest issue scores first.

    Reviewed samples, samples of earlier lists and held-out samples are omitted.
    """
    held = np.asarray(federation.clients[client])
    done = np.asarray(federation.extra.get("reviewed", np.zeros(len(federation.given), bool))).astype(bool).copy()
    for record in read_guaranteed_reviews(federation):
        if record.guarantee:
            done[record.guarantee.listed] = True
    held = held[~done[held]]
    held = held if given is None else held[np.asarray(federation.given)[held] == given]
    return held[np.argsort(-np.asarray(federation.extra[f"{PREFIX}issue_score"])[held], kind="stable")]


def plan_design(
    federation: Federation,
    client: int,
    reviews: int,
    *,
    q: float,
    candidates: int | None = None,
    confidence: float | None = None,
    errors: float = 0.0,
    random: int = 0,
    given: int | None = None,
) -> tuple[Design, np.ndarray]:
    """Plan a review: (Design, positions of the candidates in the order of the scores).

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    client : int
    reviews : int
    q : float
    candidates : int, optional
        Default: 10 times `reviews`, or the estimated number of wrong labels if it is larger; at most half of the samples.
    confidence, errors
        As in `Design`.
    random : int
    given : int, optional
        As in `Design`.

    Raises
    ------
    InputError
        If a number is out of range.
    """
    if not (isinstance(q, (int, float)) and 0 < q < 1):
        raise InputError(f"{q}: expected a share between 0 and 1, such as 0.2", parameter="guarantee")
    if confidence is not None and not 0 < confidence < 1:
        raise InputError(f"{confidence}: expected a probability between 0 and 1, such as 0.95", parameter="confidence")
    if not 0 <= errors < 1:
        raise InputError(f"{errors}: expected a rate from 0 to below 1, such as 0.05", parameter="reviewer_errors")
    if errors and confidence is not None:
        raise InputError(": is for a guarantee on average; omit `confidence`", parameter="reviewer_errors")
    order = rank_samples(federation, client, given)
    if candidates is None:
        levels = federation.extra.get(f"{PREFIX}client_level")
        level = 0.0 if levels is None else float(np.nan_to_num(levels[client]))
        candidates = min(max(MULTIPLE * reviews, round(level * len(order))), math.ceil(MOST * len(order)))
    candidates = min(max(candidates, reviews), len(order))
    top = order[:candidates]
    design = Design(float(q), len(top), min(reviews, len(top)), int(random), confidence, float(errors), given)
    return replace(design, check=_check(top)), top


def describe_achievable(federation: "Federation", client: int, design: Design, candidates: np.ndarray) -> str:
    """Note before a review with a guarantee: the shortest possible list, and the expected wrong candidates.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    client : int
    design : Design
    candidates : int (K,)
        Positions of the candidates.
    """
    terms: dict[str, Any] = {"confidence": design.confidence, "errors": design.errors}
    length = shortest_list(len(candidates), design.reviews, design.q, **terms)
    more = "lower `budget`, or raise `candidates`" if design.reviews == len(candidates) else "raise `budget` or `guarantee`"
    remedy = f"{more}, or omit `guarantee` to review the most suspicious labels"
    if length is None:
        return f"no list is possible with {design.reviews:,} reviews of {len(candidates):,} candidates; {remedy}"
    members, score = rank_samples(federation, client), np.asarray(federation.extra[PREFIX + "issue_score"])
    levels = federation.extra.get(f"{PREFIX}client_level")
    p = _calibrate(score[members], None if levels is None else float(np.nan_to_num(levels[client])))
    expected = float(p[np.isin(members, candidates)].sum())
    needed = math.ceil(length * len(candidates) / (len(candidates) - design.reviews))
    text = (
        f"with {design.reviews:,} reviews of {len(candidates):,} candidates, a list has {length:,} labels or more: about "
        f"{needed:,} of the most suspicious labels must be wrong; {expected:,.0f} of all candidates are expected to be wrong"
    )
    return f"{text}: the list will probably be empty; {remedy}" if expected < needed else text


def _calibrate(scores, level):
    """Probabilities (n,) that labels are wrong: log odds of the scores, shifted so that their mean is the level.

    A level of None returns the scores.
    """
    odds = logit(np.clip(np.asarray(scores, np.float64), SURE, 1 - SURE))
    if level is None or not len(odds):
        return expit(odds)
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expit(odds + middle).mean() < level else (low, middle)
    return expit(odds + low)


def _check(positions):
    return hashlib.sha256(np.asarray(positions, np.int64).tobytes()).hexdigest()[:12]


def candidates_of(federation: Federation, client: int, design: Design, source: str) -> np.ndarray:
    """Find the positions of the candidates of a plan.

    Raises
    ------
    InputError
        If the scores differ from the scores of the export.
    """
    top = rank_samples(federation, client, design.given)[: design.candidates]
    if _check(top) != design.check:
        raise InputError(f"{source}: the scores are not those of the export; import into the same file, or export again")
    return top


def make_guarantee(
    federation: Federation, client: int, design: Design, top: np.ndarray, drawn: np.ndarray, wrong: np.ndarray
) -> Guarantee:
    """Make the list of wrong labels of a review with a guarantee.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    client : int
    design : Design
    top : int (K,)
        Candidates in the order of their scores.
    drawn : int (b,)
        Positions of the reviewed candidates.
    wrong : int (w,)
        Positions of reviewed samples whose label is wrong. Reviewed candidates without a decision count as right.
    """
    reviewed = np.isin(top, drawn)
    groups = federation.given[top]
    terms: dict[str, Any] = {"q": design.q, "confidence": design.confidence, "errors": design.errors, "groups": groups}
    guaranteed = find_guaranteed_list(-np.arange(len(top)), reviewed, np.isin(top, wrong), **terms)
    listed = top[guaranteed.listed]
    before = [review.guarantee for review in read_guaranteed_reviews(federation) if review.client == client]
    this = ListTerms(len(listed), design.q, design.confidence)
    return Guarantee(
        q=design.q,
        confidence=design.confidence,
        reviewer_errors=design.errors,
        given=design.given,
        candidates=len(top),
        reviews=int(reviewed.sum()),
        wrong=int((reviewed & np.isin(top, wrong)).sum()),
        right_at_most=guaranteed.right_at_most,
        listed=listed.tolist(),
        together=_together([*(ListTerms(len(past.listed), past.q, past.confidence) for past in before if past), this]),
    )


def _together(lists):
    """Join the ListTerms of several lists of a client: the errors of the single lists add up."""
    sure = [guarantee.confidence for guarantee in lists if guarantee.confidence is not None]
    labels = sum(guarantee.labels for guarantee in lists)
    if len(sure) == len(lists):
        return ListTerms(labels, max(guarantee.q for guarantee in lists), max(0.0, 1 - sum(1 - c for c in sure)))
    return ListTerms(labels, min(1.0, sum(guarantee.q for guarantee in lists)), None)


def describe_last(last: Guarantee) -> str:
    """Write the guarantee of the last review as a sentence for an audit."""
    return f"The last review lists {statement(len(last.listed), last.q, last.confidence)} ({last.reviews} decisions)."


def statement(labels: int, q: float, confidence: float | None) -> str:
    """Write the guarantee of a list as a sentence.

    Parameters
    ----------
    labels : int
        Number of listed labels.
    q : float
        Largest share of right labels.
    confidence : float or None
        Probability of the guarantee. None: it holds on average.
    """
    how = "on average" if confidence is None else f"with a probability of {100 * confidence:g} %"
    return f"{labels:,} labels, of which {how} at most {100 * q:g} % are right"


def statement_on_groups(labels: int, groups: int, q: float, confidence: float | None) -> str:
    """Explain what the guarantee of a list means for the groups of its labels, such as patients.

    The guarantee holds for labels, whatever the labels of a group have in common, because only the draw of the reviews is
    random.  A list with at most a number of right labels has at most as many groups with a right label.

    Parameters
    ----------
    labels, groups : int
        Number of listed labels, and of groups to which they belong.
    q, confidence
        As for `statement`.
    """
    most, how = int(q * labels + 1e-9), "on average" if confidence is None else f"with a probability of {100 * confidence:g} %"
    if most >= groups:
        return f"they belong to {groups:,} groups, each of which can have a right label in the list"
    return f"they belong to {groups:,} groups, of which {how} at most {most:,} have a right label in the list"
