"""Records of reviews in the metadata of a federation: decisions, shares of wrong labels and lists with a guarantee.

All shares are fractions from 0 to 1, and all ranges are 95 % intervals. Positions are those of the training set.
"""

from dataclasses import dataclass, field
from typing import Any

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.records import OMIT_NONE, from_json
from fnlkit.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Share:
    """Share of wrong labels with its range.

    Attributes
    ----------
    level : float or None
        None if no random sample was decided, or if a listed sample stayed open.
    low, high : float
    """

    level: float | None
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ClassShare:
    """Share of wrong labels of a given class.

    Attributes
    ----------
    given : str
        Class.
    decided : int
        Number of decided samples.
    level, low, high : float
        As in `Share`.
    """

    given: str
    decided: int
    level: float | None
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairShare:
    """Share of the labels of a given class that are samples of a true class.

    Attributes
    ----------
    given, true : str
        Classes.
    decided : int
        Number of decided samples of the given class.
    level, low, high : float
        As in `Share`.
    """

    given: str
    true: str
    decided: int
    level: float | None
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ListTerms:
    """Guarantee of several lists together.

    Attributes
    ----------
    labels : int
        Number of listed labels.
    q : float
        Largest share of right labels.
    confidence : float or None
        Probability of the guarantee. None: it holds on average.
    """

    labels: int
    q: float
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Guarantee:
    """List of wrong labels of a review with a guarantee.

    Attributes
    ----------
    q, confidence, reviewer_errors : float
        As q, confidence and errors in fnlkit.audits.designs.Design.
    given : int or None
        Class of the candidates. None: all classes.
    candidates, reviews, wrong : int
        Numbers of candidates, of reviewed candidates, and of wrong labels among these.
    right_at_most : float
        As in fnlkit.audits.guarantees.GuaranteedList.
    listed : list of int
        Positions of the listed labels.
    together : ListTerms
        Of all lists of the client.
    """

    q: float
    confidence: float | None
    reviewer_errors: float
    given: int | None
    candidates: int
    reviews: int
    wrong: int
    right_at_most: float
    listed: list[int]
    together: ListTerms


@dataclass(frozen=True, slots=True)
class Review:
    """A review of samples of a client.

    Attributes
    ----------
    client : int
    when : str
        Date.
    who : list of str
        Reviewers.
    sha256 : str
        Of the table of decisions.
    decided : int
        Number of decided samples.
    changed : list of [position, label before, label after]
    dropped, unsure : list of int
        Positions of samples that were left out, and that stay open.
    level, after : Share
        Before and after the review.
    basis : str
        Method of the ranges.
    guarantee : Guarantee or None
    classes : list of ClassShare
    pairs : list of PairShare
    """

    client: int
    when: str = ""
    who: list[str] = field(default_factory=list)
    sha256: str = ""
    decided: int = 0
    changed: list[list[Any]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    unsure: list[int] = field(default_factory=list)
    level: Share = Share(None, 0.0, 1.0)
    after: Share = Share(None, 0.0, 1.0)
    basis: str = ""
    guarantee: Guarantee | None = field(default=None, metadata=OMIT_NONE)
    classes: list[ClassShare] = field(default_factory=list)
    pairs: list[PairShare] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AppliedList:
    """List of a review with a guarantee that `fnlkit correct --list` applied.

    Attributes
    ----------
    q, confidence, reviews, listed
        As in `Guarantee`.
    sha256, when : str
        As in `Review`.
    """

    q: float
    confidence: float | None
    reviews: int
    listed: list[int]
    sha256: str
    when: str


def read_reviews(federation: Federation) -> list[Review]:
    """Read the records of all reviews of a federation, oldest first.

    Raises
    ------
    InputError
        If a record is damaged, or if it names samples or clients that are not in the federation.
    """
    values, size = federation.meta.get("reviews", []), len(federation.given)
    try:
        reviews = [from_json(Review, record, f"review {k}") for k, record in enumerate(values)]
        for k, record in enumerate(reviews):
            listed = record.guarantee.listed if record.guarantee else []
            _must_be_positions(
                [*(row[0] for row in record.changed if row), *record.dropped, *record.unsure, *listed], size, f"review {k}"
            )
            if not 0 <= record.client < len(federation):
                raise InputError(f"review {k}: client is {record.client}; the federation has {len(federation)} clients")
    except InputError as error:
        raise InputError(f"`reviews` is damaged: {error}; import the review again") from None
    return reviews


def read_guaranteed_reviews(federation: Federation) -> list[Review]:
    """Read the records of reviews with a guarantee; see `read_reviews`."""
    return [review for review in read_reviews(federation) if review.guarantee is not None]


def read_applied_lists(federation: Federation) -> list[AppliedList]:
    """Read the records of the lists that `fnlkit correct --list` applied.

    Raises
    ------
    InputError
        If a record is damaged.
    """
    values = [one.get("lists", []) for one in federation.meta.get("corrections", [])]
    try:
        lists = [from_json(list[AppliedList], one, f"lists of correction {k}") for k, one in enumerate(values)]
        for k, one in enumerate(lists):
            _must_be_positions([i for done in one for i in done.listed], len(federation.given), f"lists of correction {k}")
    except InputError as error:
        raise InputError(f"`corrections` is damaged: {error}; apply `fnlkit.correct(listed=True)` again") from None
    return [one for done in lists for one in done]


def _must_be_positions(positions, size, where):
    for position in positions:
        if type(position) is not int or not 0 <= position < size:
            raise InputError(f"{where} names sample {position}; the federation has {size:,} samples")
