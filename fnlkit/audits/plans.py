"""Plan of the next reviews of a federation as a table for people."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts.sheets import Sheet
from fnlkit.audits.designs import Design, rank_samples
from fnlkit.audits.guarantees import shortest_list
from fnlkit.audits.planning import calibrate, divide, expected_gain
from fnlkit.audits.suspects import points_of
from fnlkit.datasets.groups import of_federation
from fnlkit.errors import InputError
from fnlkit.estimators.judgment import PREFIX
from fnlkit.kernels.streams import stream

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation
    from fnlkit.datasets.dataset import Dataset


COLUMNS = ("site", "class", "purpose", "reviews", "expected_found", "expected_listed", "expected_wrong", "expected_wrong_after",
           "expected_gain")  # fmt: skip


def describe_achievable(federation: "Federation", client: int, design: Design, candidates: np.ndarray) -> str:
    """Return a note before a review with a guarantee: the shortest possible list, and the expected wrong candidates.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    client : int
    design : fnlkit.audits.designs.Design
    candidates : int (K,)
        Positions of the candidates.
    """
    terms: dict[str, Any] = {"confidence": design.confidence, "errors": design.errors}
    length = shortest_list(len(candidates), design.reviews, design.q, **terms)
    remedy = "raise `budget` or `guarantee`, or omit `guarantee` to review the most suspicious labels"
    if length is None:
        return f"no list is possible with {design.reviews:,} reviews of {len(candidates):,} candidates; {remedy}"
    members, score = rank_samples(federation, client), np.asarray(federation.extra[PREFIX + "issue_score"])
    levels = federation.extra.get(f"{PREFIX}client_level")
    p = calibrate(score[members], None if levels is None else float(np.nan_to_num(levels[client])))
    expected = float(p[np.isin(members, candidates)].sum())
    needed = math.ceil(length * len(candidates) / (len(candidates) - design.reviews))
    text = (
        f"with {design.reviews:,} reviews of {len(candidates):,} candidates, a list has {length:,} labels or more: about "
        f"{needed:,} of the most suspicious labels must be wrong; {expected:,.0f} of all candidates are expected to be wrong"
    )
    return f"{text}: the list will probably be empty; {remedy}" if expected < needed else text


def plan(
    federation: "Federation", dataset: "Dataset", budget: int, *, q: float = 0.2, ranges: float = 0.0, seed: int = 0
) -> Sheet:
    """Return a Sheet with the plan of `budget` reviews; see fnlkit.pipeline.plan_reviews.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
        As `estimate-noise` or `audit` writes it.
    dataset : fnlkit.datasets.Dataset
    budget : int >= 1
    q, ranges : float
        As in fnlkit.audits.planning.divide.
    seed : int

    Raises
    ------
    InputError
        If the federation has no issue scores.
    """
    if any(PREFIX + name not in federation.extra for name in ("issue_score", "suggested_label")):
        raise InputError("the federation has no issue scores; pipe it through `fnlkit audit` or `estimate-noise`")
    score, suggested = (np.asarray(federation.extra[PREFIX + name]) for name in ("issue_score", "suggested_label"))
    levels, given = federation.extra.get(f"{PREFIX}client_level"), np.asarray(federation.given)
    names = federation.meta.get("class_names") or list(map(str, range(federation.classes)))
    members = [rank_samples(federation, k) for k in range(len(federation))]
    p = np.zeros(len(given))
    for k, part in enumerate(members):
        p[part] = calibrate(score[part], None if levels is None else float(np.nan_to_num(levels[k])))
    rows = divide([(p[part], given[part]) for part in members], budget, q=q, ranges=ranges)
    out, treated = [], np.zeros(len(given))
    for k, part in enumerate(members):
        mine, total = [row for row in rows if row.site == k], len(federation.clients[k])
        fixed = sum(row.found + row.listed for row in mine)
        shares = [p[part].sum() / total, (p[part].sum() - fixed) / total] if mine else [None, None]
        for i, row in enumerate(mine):
            numbers = [round(value, 1) for value in (row.reviews, row.found, row.listed)]
            out.append(
                [federation.names[k], names[row.given], row.purpose, *numbers, *(shares if i == 0 else [None, None]), None]
            )
            one = part[given[part] == row.given]
            treated[one[: round(row.reviews + row.listed)]] = 1.0
    held = np.concatenate(federation.clients)
    points = points_of(dataset, held)
    labels = given[held], suggested[held]
    rng = stream(seed, "plan")
    groups = of_federation(federation)
    how: dict[str, Any] = {"classes": federation.classes, "rng": rng, "groups": None if groups is None else groups[held]}
    gain = expected_gain(points, *labels, p[held], treated[held], **how)
    sums = [round(sum(getattr(row, name) for row in rows), 1) for name in ("reviews", "found", "listed")]
    return Sheet(list(COLUMNS), [*out, ["all", None, None, *sums, None, None, gain]])
