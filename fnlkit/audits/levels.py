"""Shares of wrong labels of a site, a class or a pair of classes after a review, with ranges that hold for finite samples.

The ranges use only the random draw of the reviewed samples. The ranges are valid for any noise and any scores.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.audits.designs import Design
from fnlkit.audits.reviews import ClassShare, PairShare, Share
from fnlkit.estimators.intervals import share_range

# A table of classes or of pairs has at most this many rows.
MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class Decisions:
    """A review of one client's samples.

    Attributes
    ----------
    client : int
    positions : int64 (d,)
        Decided samples.
    label : int (d,)
        Their new labels; -1 for a sample to drop.
    suspect : bool (d,)
        Whether a decided sample belongs to the most suspicious samples and not to the random sample.
    who : list of str
        Reviewers.
    digest : str
        SHA-256 of the table.
    unsure : int64 (u,)
        Samples that a reviewer viewed without a decision; they keep their labels and stay open.
    rows : int64 (l,)
        Positions of all samples in the table.
    rows_suspect : bool (l,)
        As `suspect`.
    strata : pair of int64 arrays
        Samples that the suspects of the table represent, and all other samples of the client without an earlier decision.
    design : fnlkit.audits.designs.Design or None
        Plan of a review with a guarantee: the suspects were drawn at random from the candidates.
    """

    client: int
    positions: np.ndarray
    label: np.ndarray
    suspect: np.ndarray
    who: list[str]
    digest: str
    unsure: np.ndarray
    rows: np.ndarray
    rows_suspect: np.ndarray
    strata: tuple[np.ndarray, np.ndarray]
    design: Design | None = None


def level(federation: Federation, decisions: Decisions) -> Share:
    """Estimate the client's share of wrong labels before the review, with a 95 % range.

    If all suspects were listed, they are counted one by one, and the random samples represent all other samples.  In a review
    with a guarantee, random candidates represent the candidates.  Samples without a decision can be right or wrong.  A dropped
    sample counts as wrong.
    """
    return Share(**_range(*_counts(federation, decisions)))


def level_after_review(federation: Federation, decisions: Decisions) -> Share:
    """Estimate the client's share of wrong labels after the review, with a 95 % range, as `level` does.

    Decided labels count as right.
    """
    hits, unknown, drawn, sizes = _counts(federation, decisions)
    found, size = sum(hits), sum(sizes)
    total = max(1, len(federation.whole().clients[decisions.client]) - int((decisions.label < 0).sum()))
    before: dict[str, Any] = _range(hits, unknown, drawn, sizes)
    after: dict[str, Any] = {
        name: None if share is None else max(0.0, share * size - found) / total for name, share in before.items()
    }
    return Share(**after)


def by_class(federation: Federation, decisions: Decisions, names: list[str]) -> tuple[list[ClassShare], list[PairShare]]:
    """Estimate shares of wrong labels by given class, and of the pairs of a given and a true class that the review found."""
    if not len(decisions.positions):
        return [], []
    given = np.asarray(federation.given)[decisions.positions]
    classes, pairs = [], []
    for code in np.unique(given).tolist():
        inside = given == code
        decided = int(inside.sum())
        classes.append(ClassShare(names[code], decided, **_range(*_counts(federation, decisions, code))))
        for true in np.unique(decisions.label[inside]).tolist():
            if true not in (code, -1):
                counts = _counts(federation, decisions, code, true)
                pairs.append(PairShare(names[code], names[true], decided, **_range(*counts)))
    pairs.sort(key=lambda row: -row.low)
    return classes[:MOST_ROWS], pairs[:MOST_ROWS]


def _range(hits, unknown, drawn, sizes):
    """Bound {level, low, high}; each unknown sample can have the property or not."""
    least, most = (share_range([x + u * k for x, u in zip(hits, unknown, strict=True)], drawn, sizes) for k in (0, 1))
    return {"level": None if any(unknown) else least.share, "low": least.low, "high": most.high}


def _counts(federation, decisions, given=None, true=None):
    """Count (strata,) samples with the property, those that can have it, drawn samples and all samples.

    Parameters
    ----------
    federation, decisions
    given : int, optional
        Count samples with this given label only.
    true : int, optional
        The property is this label, instead of any other label.
    """
    now, counts = np.asarray(federation.given), ([], [], [], [])

    def of_class(positions: np.ndarray) -> np.ndarray:
        return positions if given is None else positions[now[positions] == given]

    property_ = decisions.label != now[decisions.positions] if true is None else decisions.label == true
    for k, members in enumerate(decisions.strata):
        inside, decided = of_class(members), decisions.suspect == (k == 0)
        listed = of_class(decisions.rows[decisions.rows_suspect == (k == 0)])
        if k and decisions.design is None:
            # In a random order, the first samples are a random draw: those without a decision are not part of it.
            listed = listed[np.isin(listed, np.concatenate([decisions.positions, decisions.unsure]))]
        answered = np.isin(listed, decisions.positions)
        hits = np.isin(decisions.positions[decided & property_], inside).sum()
        for values, value in zip(counts, (hits, (~answered).sum(), len(listed), len(inside)), strict=True):
            values.append(int(value))
    return counts
