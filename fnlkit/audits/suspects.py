"""Select and order the samples of a site that a person should review."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import class_names
from fnlkit.audits.designs import Design, plan_design
from fnlkit.audits.guarantees import draw_reviews
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.core.parameters import Count, Share, check_arguments
from fnlkit.datasets.dataset import Dataset
from fnlkit.estimators.judgment import PREFIX
from fnlkit.kernels.streams import stream

# Smallest resemblance of a displayed neighbor: 1 for a copy, 0 on average for two random samples.
ALIKE = 0.6
# Parts of a review, without and with a guarantee: chosen by score or from the candidates, and drawn from all others.
PARTS = ("suspect", "random"), ("candidate", "random")


@dataclass
class Selection:
    """Samples of one client to review.

    Attributes
    ----------
    positions : int64 (b,)
        In the training set, in the order in which they should be reviewed.
    suspect : bool (b,)
        True for the most suspicious samples of the client, False for the random sample of all others.
    others : int
        Number of the client's samples outside the most suspicious, which the random samples represent.
    design : fnlkit.audits.designs.Design or None
        Plan of a review with a guarantee; `suspect` is True for candidates.
    candidates : int64 (K,) or None
        Positions of the candidates in the order of their scores.
    """

    positions: np.ndarray
    suspect: np.ndarray
    others: int
    design: Design | None = None
    candidates: np.ndarray | None = None

    def part(self, i: int) -> str:
        """Name the part of the review to which sample `i` belongs."""
        return PARTS[self.design is not None][0 if self.suspect[i] else 1]


@check_arguments
def choose(federation: Federation, client: int, *, budget: Count = 200, at_random: Share = 0.2, seed: int = 0) -> Selection:
    """Choose samples of a client: the highest issue scores and a random sample of the others.

    Samples with the highest scores reveal wrong labels fastest, but they do not show how many wrong labels are left. The
    noise level is estimated from the random sample of the others, which is mixed into the order.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
        As `estimate-noise` or `audit` writes it.
    client : int
    budget : int >= 1
        Samples to review, at most the number of the client's samples.
    at_random : float in [0, 1]
        Share of the budget that is drawn from the client's other samples.
    seed : int

    Raises
    ------
    InputError
        If the client does not exist, or the federation has no issue scores.
    """
    _must_be_scored(federation, client)
    held = np.asarray(federation.whole().clients[client])
    open_ones = held[~find_reviewed(federation)[held]]
    budget = min(budget, len(open_ones))
    order = open_ones[np.argsort(-np.asarray(federation.extra[f"{PREFIX}issue_score"])[open_ones], kind="stable")]
    random_ones = min(round(at_random * budget), len(order) - (budget - round(at_random * budget)))
    top, rest = order[: budget - random_ones], order[budget - random_ones :]
    rng = stream(seed, "review", client=client)
    drawn = rng.permutation(rest)[:random_ones]
    # Random samples are spread evenly between the suspects, so that a review that ends early includes both kinds. Each random
    # sample has a random place within its section, so that the order does not reveal it.
    among = (np.arange(len(drawn)) + rng.random(len(drawn))) / max(1, len(drawn))
    places = np.concatenate([(np.arange(len(top)) + 0.5) / max(1, len(top)), among])
    mixed = np.argsort(places, kind="stable")
    suspect = np.concatenate([np.ones(len(top), bool), np.zeros(len(drawn), bool)])
    return Selection(np.concatenate([top, drawn])[mixed], suspect[mixed], len(rest))


def _must_be_scored(federation, client):
    if not 0 <= client < len(federation):
        raise InputError(f"{client}: expected a client from 0 to {len(federation) - 1}", parameter="client")
    if any(PREFIX + name not in federation.extra for name in ("issue_score", "suggested_label")):
        raise InputError("the federation has no issue scores and suggestions; run `fnlkit audit` or `estimate-noise`")


@check_arguments
def choose_guaranteed(
    federation: Federation,
    client: int,
    *,
    guarantee: float,
    budget: Count = 200,
    at_random: Share = 0.2,
    candidates: int | None = None,
    confidence: float | None = None,
    errors: float = 0.0,
    given: int | None = None,
    seed: int = 0,
) -> Selection:
    """Choose samples of a review with a guarantee: random candidates and random other samples.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
        As `estimate-noise` or `audit` writes it.
    client : int
    guarantee : float in (0, 1)
        Largest share of right labels in the list.
    budget : int >= 1
    at_random : float in [0, 1]
        Share of the budget that is drawn from the samples that are not candidates. They show how many wrong labels are outside.
    candidates, confidence, errors, given
        As in fnlkit.audits.designs.plan_design.
    seed : int

    Raises
    ------
    InputError
    """
    _must_be_scored(federation, client)
    held = np.asarray(federation.whole().clients[client])
    open_ones = held[~find_reviewed(federation)[held]]
    budget = min(budget, len(open_ones))
    random_ones = round(at_random * budget)
    design, top = plan_design(
        federation, client, budget - random_ones, random=random_ones,
        q=guarantee, candidates=candidates, confidence=confidence, errors=errors, given=given,
    )  # fmt: skip
    rest = open_ones[~np.isin(open_ones, top)]
    design = replace(design, random=min(random_ones, len(rest)))
    if not design.reviews:
        raise InputError(": no candidate can be reviewed; lower `at_random`, or raise `budget`", parameter="guarantee")
    rng = stream(seed, "guarantee", len(federation.meta.get("reviews", [])), client)
    positions = np.concatenate([top[draw_reviews(len(top), design.reviews, rng)], rng.permutation(rest)[: design.random]])
    order = rng.permutation(len(positions))
    return Selection(positions[order], np.isin(positions[order], top), len(rest), design, top)


def find_reviewed(federation: Federation) -> np.ndarray:
    """Mask (n,) of samples whose label a person decided."""
    return np.asarray(federation.extra.get("reviewed", np.zeros(len(federation.given), bool))).astype(bool)


def client_of(federation: Federation, name: str) -> int:
    """Find the number of a client from its name or number.

    Raises
    ------
    InputError
    """
    names = federation.names
    if name in names:
        return names.index(name)
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    if names == [f"client {k}" for k in range(len(names))]:
        raise InputError(f"{name}: expected a client from 0 to {len(names) - 1}", parameter="client")
    raise InputError(f"{name}: is no site{nearest(name, names)}; the sites are {list_names(names)}", parameter="client")


def class_of(federation: Federation, name: str) -> int:
    """Find the number of a class from its name.

    Raises
    ------
    InputError
    """
    names = class_names(federation.meta, federation.classes)
    if name not in names:
        raise InputError(
            f"{name}: is no class{nearest(name, names)}; the classes are {list_names(names)}", parameter="of_class"
        )
    return names.index(name)


def points_of(dataset: Dataset, held: np.ndarray) -> np.ndarray:
    """Select the samples at some positions (m, D), with features of vectors scaled to standard deviation 1."""
    x = np.asarray(dataset.x_train[held]).reshape(len(held), -1)
    return x / np.maximum(x.std(0), 1e-12) if dataset.kind == "vector" else x


def neighbors_of(points: np.ndarray, positions: np.ndarray, held: np.ndarray, count: int = 3) -> list[Any]:
    """Find the nearest similar samples of each position, as a list of arrays of at most `count` positions.

    Two samples are similar if their squared distance is at most 1 - `ALIKE` times the squared distance of two random samples
    of the client.  Neighbors that are farther away are omitted.

    Parameters
    ----------
    points : (n, D)
    positions : int (b,)
    held : int (m,)
        Positions of the client's samples.
    count : int
    """
    from sklearn.neighbors import NearestNeighbors

    if len(held) < 2:
        return [np.empty(0, np.int64) for _ in positions]
    mine = np.asarray(points[held], np.float64)
    limit = (1 - ALIKE) * 2 * mine.var(0).sum()
    index = NearestNeighbors(n_neighbors=min(count + 1, len(held))).fit(mine)
    away, places = index.kneighbors(np.asarray(points[positions], np.float64))
    neighbors = []
    for own, near, distance in zip(positions, held[places], away, strict=True):
        # A sample is its own nearest neighbor, but copies can precede it.
        neighbors.append(near[(near != own) & (distance**2 <= limit)][:count])
    return neighbors
