"""Votes of nearest neighbors."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit.core.errors import InputError
from fnlkit.kernels import checks

# Labels are sorted along with distances, as float32; larger numbers would be rounded.
_MOST_CLASSES = 2**24


def knn_vote(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    k: int = 100,
    client_offsets: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    classes: int | None = None,
    seed: int | np.random.Generator = 0,
    include_self: bool = False,
    ties: Literal["random", "lowest"] = "random",
    metric: Literal["euclidean"] = "euclidean",
    threads: int | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Majority label among the k nearest neighbors of each sample, and the share of disagreeing neighbors.

    Parameters
    ----------
    embeddings : array (n, d)
        Normalize the rows for cosine similarity.
    labels : array (n,) of int
        Given labels, 0..classes-1.
    k : int
        A client of m samples uses min(k, m - 1) neighbors, with `include_self` min(k, m).
    client_offsets : array (K + 1,) of int, optional
        Search neighbors within each client. Default: within the whole set.
    groups : array (n,) of int, optional
        Samples with equal numbers, such as the images of a patient, do not vote for each other. A sample then uses at most as
        many neighbors as there are samples of other groups.
    classes : int, optional
        Default: the largest label + 1.
    seed : int or Generator
        Seed of the draws that break ties between equally frequent labels, one draw per sample.
    include_self : bool
        Count a sample among its own neighbors, as FedLN's public code does.
    ties : {"random", "lowest"}
        "lowest" selects the smallest of equally frequent labels, as FedLN's public code does.
    metric : "euclidean"
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    votes : ndarray (n,) int64
    share : ndarray (n,) float64
        In [0, 1].  A sample without neighbors votes for its own label, with share 0.

    Raises
    ------
    InputError
        Wrong shapes, labels out of range, NaN or infinity.

    Notes
    -----
    FedLN (Tsouvalas et al. 2024), section 4.1: NNC.  Distances come from inner products in the precision of the input;
    of samples exactly as far as the k-th, the first in order are used, so that the order of rows decides where many rows are
    equal.  FAISS 1.15 searches small sets by differences instead, and can break these ties differently.  Sets of
    more than 4,096 samples are searched by FAISS in float32.

    Examples
    --------
    >>> votes, share = knn_vote([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 0], k=3)
    >>> votes, share.round(2)
    (array([0, 0, 0, 0]), array([0.33, 0.33, 1.  , 0.33]))
    """
    from fnlkit.kernels import neighbors

    embeddings = checks.real(embeddings, "embeddings", 2, "(n, d)")
    if embeddings.shape[1] < 1:
        raise InputError(f"must have at least one dimension, found shape {embeddings.shape}", parameter="embeddings")
    labels = checks.integers(labels, "labels", len(embeddings), "row of `embeddings`")
    offsets = checks.offsets(client_offsets, len(embeddings))
    k = checks.positive(k, "k")
    checks.one_of(ties, "ties", ("random", "lowest"))
    checks.one_of(metric, "metric", ("euclidean",), "; for cosine similarity, scale rows to length 1")
    include_self = checks.flag(include_self, "include_self")
    classes = int(labels.max(initial=0)) + 1 if classes is None else checks.positive(classes, "classes")
    if classes > _MOST_CLASSES:
        raise InputError(
            f"`labels` have {classes:,} classes, at most {_MOST_CLASSES:,} can be counted; number the classes from 0 with "
            "np.unique(labels, return_inverse=True)"
        )
    checks.check_range(labels, "labels", classes)
    threads = checks.thread_count(threads)
    of = np.zeros(0, np.int64) if groups is None else checks.integers(groups, "groups", len(embeddings), "row of `embeddings`")
    try:
        draws = np.random.default_rng(seed).random(len(labels)) if ties == "random" else np.full(len(labels), -1.0)
    except (TypeError, ValueError) as error:
        raise InputError(f"`seed` must be an integer of at least 0 or a Generator, found {checks.brief(seed)}") from error
    if np.diff(offsets).max() <= neighbors.LARGEST_PRODUCT:
        return neighbors.vote_by_products(embeddings, labels, of, offsets, classes, k, include_self, draws, threads)
    votes, shares = np.empty(len(labels), np.int64), np.empty(len(labels))
    for first, last in zip(offsets[:-1], offsets[1:], strict=True):
        block = slice(int(first), int(last))
        client_data = embeddings[block], labels[block], of[block] if len(of) else of
        if last - first <= neighbors.LARGEST_PRODUCT:
            one = np.array([0, last - first])
            votes_and_shares = neighbors.vote_by_products(*client_data, one, classes, k, include_self, draws[block], threads)
        else:
            checks.finite(client_data[0], "embeddings")
            votes_and_shares = neighbors.vote_by_index(*client_data, classes, k, include_self, draws[block], threads)
        votes[block], shares[block] = votes_and_shares
    return votes, shares
