"""Neighbor votes: in a good embedding, most neighbors of a sample share its true label.

Tsouvalas, Saeed, Ozcelebi, Meratnia. Labeling chaos to learning harmony: Federated learning with noisy labels. ACM
TIST 2024, Section 4.1 (NNC).
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from fnlkit.core.declarations import Sent, declare
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Automatic, Range, check_arguments
from fnlkit.estimators import federated
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.judgment import Judgment, sums, transitions
from fnlkit.kernels import knn_vote
from fnlkit.kernels.scores import transition
from fnlkit.methods.neighbor_votes import neighbors_for

if TYPE_CHECKING:
    from fnlkit.federated.client.client import Client, LocalModel, Received


# With fewer samples per class than this, votes are wrong on clean labels of even the easiest images.
FEW = 15
_AT_ONCE = 2**26  # bytes of vectors
# Up to this number of samples, votes are repeated with reversed rows; a note is printed if more than this share changes.
_CHECKED, _MOST_BY_ORDER = 10_000, 0.05


@declare(
    sends={
        "votes": Sent.counts("numbers of samples by their neighbors' vote and given label", "once", ("C", "C")),
        "disagreement": Sent("mean share of neighbors with another label", "once", (), low=0),
    },
    cite="Tsouvalas 2024",
)
@check_arguments
def knn(
    evidence: EstimatorInputs,
    *,
    k: Annotated[int, Range(1), Automatic()] = -1,
    across: bool = False,
    include_self: bool = False,
    ties: Literal["random", "lowest"] = "random",
) -> Judgment:
    """Judge labels by the majority label of their nearest neighbors.

    The level is the share of samples with a vote that differs from the label (FedLN). The issue score is the share of
    neighbors with another label, which ranks samples far better than the vote.  Neighbors of the same group (a patient) do not
    vote.  Wrong votes bias the level upward: on a clean client, the level is the error rate of a k-nearest-neighbor classifier
    trained on that client alone.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
        Uses the embeddings.
    k : int >= 1
        Neighbors; at most the number that the largest client can provide. A client with fewer samples uses all samples but the
        judged one.  -1 uses 0.6 times the client's samples per class, from 5 to 100; with 1,667 samples in 10 classes this is
        FedLN's k = 100.
    across : bool
        Search neighbors among all clients' samples instead of within each client. This requires embeddings and labels in one
        place, so there is no federated form.
    include_self : bool
        Count a sample among its neighbors, as FedLN's public code does.
    ties : "random" or "lowest"
        Choose among equal votes at random by the seed (paper), or choose the lowest label (public code).
    """
    evidence.refuse("knn", probabilities="write `embeddings`", run="write `embeddings`")
    offsets, labels, classes = evidence.offsets, evidence.labels, evidence.classes
    groups = np.array([0, len(labels)]) if across else offsets
    most = int(np.diff(groups).max()) - (not include_self)
    if k > most:
        whose = "all clients together have" if across else "the largest client has"
        raise InputError(f"knn(k={k}): {whose} {np.diff(groups).max():,} samples; write k from 1 to {most:,}, or omit k")
    if across and evidence.federated:
        raise InputError(
            "`form='federated'`: knn(across=true) needs the embeddings and labels of all clients in one place; omit across, "
            "or write `form='pooled'` for a simulation"
        )
    settings = {"classes": classes, "seed": evidence.seed, "include_self": include_self, "ties": ties}
    per_class = len(labels) / (classes * (len(groups) - 1))
    if per_class < FEW:
        evidence.say(
            f"knn: {per_class:.0f} samples per class are few for neighbor votes: wrong votes make levels too high, and "
            "suggested labels are often wrong; `estimator='confident'` does not use neighbors"
        )
    if evidence.federated:
        return by_clients(evidence, k, settings)
    settings["groups"] = evidence.groups
    vectors = evidence.embed()
    votes, share = vote_by_client(vectors, labels, groups, k, settings)
    if len(labels) <= _CHECKED:
        changed = share_by_order(vectors, labels, groups, k, settings)
        if changed > _MOST_BY_ORDER:
            evidence.say(
                f"knn: {changed:.0%} of the votes depend on the order of the rows, because many samples are equally far; "
                "use finer embeddings, or leave out copies (`fnlkit audit` lists them)"
            )
    evidence.weigh(votes, "neighbors' votes")
    flagged, sizes = votes != labels, np.diff(offsets)
    wrong = sums(flagged, offsets)
    T, client_T = transitions(votes, labels, offsets, classes)
    score = sums(share, offsets) / sizes
    return Judgment(wrong / sizes, *evidence.interval(wrong), score, share, flagged, votes, T, client_T)


def share_by_order(embeddings: np.ndarray, labels: np.ndarray, offsets: np.ndarray, k: int, settings: dict[str, Any]) -> float:
    """Share of votes that change if the rows of each client are reversed.

    Votes with ties between labels are settled by the lowest label, so that only ties between distances matter.
    """
    settings = settings | {"ties": "lowest"}
    reverse = np.concatenate([np.arange(b - 1, a - 1, -1) for a, b in zip(offsets[:-1], offsets[1:], strict=True)])
    votes, _ = vote_by_client(embeddings, labels, offsets, k, settings)
    if settings["groups"] is not None:
        settings["groups"] = settings["groups"][reverse]
    again, _ = vote_by_client(embeddings[reverse], labels[reverse], offsets, k, settings)
    return float((again != votes[reverse]).mean())


def by_clients(evidence: EstimatorInputs, k: int, settings: dict[str, Any]) -> Judgment:
    """Judge labels in the federated form: each client searches neighbors among its samples."""
    sizes = np.diff(evidence.offsets)
    wanted = _count_neighbors(sizes, k, evidence.classes)
    first = np.zeros(len(sizes), np.int64)  # start of a client's draws in the stream of all clients with the same k
    for each in np.unique(wanted):
        groups = np.flatnonzero(wanted == each)
        first[groups] = np.cumsum(sizes[groups]) - sizes[groups]
    session = federated.with_rows(evidence, embedding=evidence.embed())
    replies = session.ask(partial(vote_at_home, settings=settings), scatter={"k": wanted, "first": first})
    counts, share = replies["votes"].numpy(), replies["disagreement"].numpy()
    evidence.weigh_counts(counts.sum(0), "neighbors' votes")
    wrong = sizes - counts.trace(axis1=1, axis2=2)
    issue, flagged, guess = (session.kept(name) for name in ("issue", "flagged", "guess"))
    T, client_T = transition(counts.sum(0)), transition(counts)
    return Judgment(wrong / sizes, *evidence.interval(wrong), share, issue, flagged, guess, T, client_T)


def vote_at_home(client: "Client", model: "LocalModel", received: "Received", *, settings: dict[str, Any]) -> dict[str, Any]:
    """Reply counts (C, C) of samples by vote and label and the mean disagreement; keep the values per sample."""
    import torch

    settings, labels = dict(settings), client.y.numpy()
    draws: Any = np.random.default_rng(settings.pop("seed"))
    draws.bit_generator.advance(int(received["first"]))  # one draw a sample
    points = client.rows["input/embedding"].numpy()
    more: dict[str, Any] = {"groups": federated.groups_of(client), "seed": draws}
    votes, share = knn_vote(points, labels, k=int(received["k"]), **more, **settings)
    counts = federated.keep_judgment(client, share, votes != labels, votes)["relabeled"]
    return {"votes": counts, "disagreement": torch.tensor(share.mean(), dtype=torch.float64)}


def _count_neighbors(sizes, k, classes):
    """Choose the number of voting neighbors (N,) for groups of these sizes."""
    return np.full(len(sizes), k) if k > 0 else neighbors_for(sizes, classes)


def vote_by_client(
    embeddings: np.ndarray, labels: np.ndarray, offsets: np.ndarray, k: int, settings: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Compute votes (m,) and shares (m,) of k neighbors; if k is -1, the client's size determines k.

    `settings` contains the seed, the groups (m,) of samples that do not vote for each other or None, and arguments of
    fnlkit.kernels.knn_vote.

    At most 64 MiB of vectors are in memory at a time, or one group if a group is larger.
    """
    settings = dict(settings)
    seed = settings.pop("seed")
    of = settings.pop("groups")
    sizes = np.diff(offsets)
    wanted = _count_neighbors(sizes, k, settings["classes"])
    votes, share = np.empty(len(labels), np.int64), np.empty(len(labels))
    for each in np.unique(wanted):
        draws = np.random.default_rng(seed)  # one stream for all groups with the same k, independent of the batching
        for groups in _few(np.flatnonzero(wanted == each), sizes * embeddings.shape[1] * embeddings.dtype.itemsize):
            rows = slice(int(offsets[groups[0]]), int(offsets[groups[-1] + 1]))
            if rows.stop - rows.start > sizes[groups].sum():  # groups with another k are between them
                rows = np.concatenate([np.arange(offsets[g], offsets[g + 1]) for g in groups])
            starts = np.concatenate([[0], np.cumsum(sizes[groups])])
            more: dict[str, Any] = {"client_offsets": starts, "groups": None if of is None else of[rows], "seed": draws}
            votes[rows], share[rows] = knn_vote(embeddings[rows], labels[rows], k=int(each), **more, **settings)
    return votes, share


def _few(groups, nbytes):
    """Yield batches of consecutive groups of at most 64 MiB."""
    number = (np.cumsum(nbytes[groups]) - nbytes[groups]) // _AT_ONCE
    for each in np.unique(number):
        yield groups[number == each]
