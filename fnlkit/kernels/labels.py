"""Given labels beside the predicted classes: probabilities, confident classes and the samples that a filter selects."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fnlkit._kernels import counts, issues
from fnlkit._kernels.threads import even, run
from fnlkit.kernels import checks
from fnlkit.kernels.counting import SLACK, exact_limits

# Smallest number of probabilities per thread.
_ENTRIES = 200_000
# Smallest number of places for candidates that a selection drops later.
_SPARE = 8


def _pieces(probs, threads):
    threads = checks.thread_count(threads)
    return even(len(probs), min(threads, max(1, probs.size // _ENTRIES))), threads


def own_and_other(
    probs: np.ndarray, labels: np.ndarray, *, shift: np.ndarray | None = None, threads: int | None = None
) -> tuple[np.ndarray, np.ndarray, NDArray[np.bool_]]:
    """Return the probability of the label (n,), the largest other one (n,), and whether the label is the predicted class (n,).

    The label is the predicted class if it is the most probable class after 1e-6 was added to its probability.

    Parameters
    ----------
    probs : (n, C) float32 or float64
    labels : (n,) int64, each in 0..C-1
    shift : (C,), optional
        Added to the probabilities, which are then divided by their sums, for the first two results.

    Raises
    ------
    InputError
        NaN, infinity, or rows that are no probabilities.
    """
    pieces, threads = _pieces(probs, threads)
    own, other, agrees = np.empty(len(probs), probs.dtype), np.empty(len(probs), probs.dtype), np.empty(len(probs), bool)
    slack, flat = probs.dtype.type(SLACK), probs.reshape(-1)

    def work(start: int, stop: int) -> int:
        return issues.judge_rows(flat, labels, probs.shape[1], slack, start, stop, own, other, agrees)

    for wrong in run(work, pieces, threads):
        if wrong >= 0:
            row = probs[wrong : wrong + 1]
            checks.finite(row, "pred_probs")
            checks.distributions(row, "pred_probs", issues.SUM, "apply softmax to logits first")
    if shift is not None:
        own, other = np.empty(len(probs)), np.empty(len(probs))
        run(lambda start, stop: issues.shift_rows(probs, labels, shift, start, stop, own, other), pieces, threads)
    return own, other, agrees


def split_class(has: np.ndarray, probs: np.ndarray, c: int, labels: np.ndarray, pairs: np.ndarray) -> None:
    """Write whether each sample has class c to `labels` (n,), and p(absence) and p(presence) to `pairs` (n, 2).

    `has` and `probs` are (n, C).
    """
    pieces, threads = _pieces(probs, None)
    run(lambda start, stop: issues.split_rows(has, probs, c, start, stop, labels, pairs), pieces, threads)


def entropy_scores(probs: np.ndarray, own: np.ndarray, least: float, *, threads: int | None = None) -> NDArray[np.float64]:
    """Return log(r + 1) / max(r, least) of each row (n,), with r its entropy divided by log(C) and by max(own, least).

    `own` (n,) has the probabilities of the labels.
    """
    threads, out, own = checks.thread_count(threads), np.empty(len(probs)), own.astype(np.float64, copy=False)

    def work(start: int, stop: int) -> None:
        block = slice(start, stop)
        part = probs[block].astype(np.float64, copy=False).reshape(-1)
        issues.weigh_entropies(part, probs.shape[1], own[block], least, out[block])

    run(work, even(len(probs), max(1, probs.size // _ENTRIES)), threads)
    return out


def confident_classes(
    probs: np.ndarray, rows: np.ndarray, limits: np.ndarray, offsets: np.ndarray, *, threads: int | None = None
) -> NDArray[np.int64]:
    """Return the class (m,) that each of the increasing `rows` (m,) is confident in by the limits (S, C) of its site.

    The class of a row without a confident class is C.
    """
    threads = checks.thread_count(threads)
    out, exact, classes = np.empty(len(rows), np.int64), exact_limits(limits, probs.dtype), probs.shape[1]
    flat, bounds = probs.reshape(-1), np.searchsorted(rows, offsets)
    for site, (first, last) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        parts = even(last - first, min(threads, max(1, len(rows) * classes // _ENTRIES)))
        run(
            lambda a, b, site=site: counts.confident_rows(flat, classes, exact[site], rows, a, b, out),
            [(first + a, first + b) for a, b in parts],
            threads,
        )
    return out


def largest_margins(
    probs: np.ndarray,
    groups: np.ndarray,
    sizes: np.ndarray,
    numbers: np.ndarray,
    own: np.ndarray,
    other: np.ndarray,
    *,
    threads: int | None = None,
) -> NDArray[np.bool_]:
    """Return the samples (n,) of each group with the largest margins p[c] - p[label], a number for each other class c.

    Of these samples, those whose label is the most probable class are left out.

    Parameters
    ----------
    probs : (n, C) float32 or float64
    groups : (n,) int64
        Numbers of sites times C, plus the label.
    sizes : (G,) int64
        Number of samples of each group.
    numbers : (G, C) int64
        Those of the label are ignored.
    own, other : (n,)
        Results of `own_and_other`.
    """
    pieces, threads = _pieces(probs, threads)
    (n, classes), flat, out = probs.shape, probs.reshape(-1), np.zeros(len(probs), bool)
    numbers = np.clip(numbers, 0, sizes[:, None])
    numbers[np.arange(len(sizes)), np.arange(len(sizes)) % classes] = 0
    limits = exact_limits(np.where(numbers > 0, SLACK, np.inf), probs.dtype)  # 0, as `exact_limits` subtracts the tolerance
    places = np.append(0, np.cumsum(np.where(numbers > 0, numbers + np.maximum(numbers // 2, _SPARE), 0)))
    margins, candidates = np.empty(places[-1], probs.dtype), np.empty(places[-1], np.int64)
    wrong = other > own
    found, rows = np.zeros(numbers.shape, np.int64), np.flatnonzero(wrong)
    ends = np.searchsorted(np.cumsum(sizes), [n * (i + 1) // len(pieces) for i in range(len(pieces))]) + 1
    run(
        lambda a, b: issues.mark_higher(
            flat, groups, classes, rows, a, b, numbers, limits, places, found, margins, candidates, out
        ),
        list(pairwise([0, *ends[:-1], len(sizes)])),
        threads,
    )
    missing = numbers - found
    if classes > 2 and (missing > 0).any():  # of two classes, the other margins are those of right labels
        order, bounds = positions_by_group(groups, sizes)
        run(lambda a, b: issues.mark_rest(probs, order, bounds, missing, a, b, out), even(len(sizes), 4 * threads), threads)
        out &= wrong
    return out


def positions_by_group(groups: np.ndarray, sizes: np.ndarray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions (n,) sorted by group, and bounds (G + 1,) of the groups, whose sizes (G,) are known."""
    bounds = np.append(0, np.cumsum(sizes))
    out = np.empty(len(groups), np.int64)
    issues.sort_groups(groups, bounds[:-1].copy(), out)
    return out, bounds
