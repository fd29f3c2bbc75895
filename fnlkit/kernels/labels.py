"""Given labels beside the predicted classes: probabilities, confident classes and the samples that a filter selects."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fnlkit._kernels import issues
from fnlkit._kernels.threads import even, run
from fnlkit.kernels import checks
from fnlkit.kernels.counting import SLACK, exact_limits

# Smallest number of probabilities per thread.
_ENTRIES = 200_000


def _pieces(probs, threads):
    threads = checks.thread_count(threads)
    return even(len(probs), min(threads, max(1, probs.size // _ENTRIES))), threads


def own_and_other(
    probs: np.ndarray, labels: np.ndarray, *, shift: np.ndarray | None = None, threads: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
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
    own, other, agrees = np.empty(len(probs)), np.empty(len(probs)), np.empty(len(probs), bool)
    slack, flat = probs.dtype.type(SLACK), probs.reshape(-1)

    def work(start: int, stop: int) -> int:
        return issues.judge_rows(flat, labels, probs.shape[1], slack, start, stop, own, other, agrees)

    for wrong in run(work, pieces, threads):
        if wrong >= 0:
            row = probs[wrong : wrong + 1]
            checks.finite(row, "pred_probs")
            checks.distributions(row, "pred_probs", issues.SUM, "apply softmax to logits first")
    if shift is not None:
        run(lambda start, stop: issues.shift_rows(probs, labels, shift, start, stop, own, other), pieces, threads)
    return own, other, agrees


def entropy_shares(probs: np.ndarray, *, threads: int | None = None) -> NDArray[np.float64]:
    """Return the entropy of each row (n,) divided by log(C)."""
    pieces, threads = _pieces(probs, threads)
    out = np.empty(len(probs))
    run(lambda start, stop: issues.entropies(probs, start, stop, out), pieces, threads)
    return out


def confident_classes(
    probs: np.ndarray, limits: np.ndarray, offsets: np.ndarray, *, threads: int | None = None
) -> NDArray[np.int64]:
    """Return the class (n,) that each sample is confident in by the limits (S, C) of its site, -1 for none."""
    threads = checks.thread_count(threads)
    out, exact, classes = np.empty(len(probs), np.int64), exact_limits(limits, probs.dtype), probs.shape[1]
    flat = probs.reshape(-1)
    for site, (first, last) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        pieces = [(first + a, first + b) for a, b in even(last - first, min(threads, max(1, probs.size // _ENTRIES)))]
        run(lambda a, b, site=site: issues.confident_rows(flat, classes, exact[site], a, b, out), pieces, threads)
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
    classes, flat, out = probs.shape[1], probs.reshape(-1), np.zeros(len(probs), bool)
    wrong = other > own
    counts = np.zeros((len(pieces), len(sizes), classes), np.int64)
    run(
        lambda piece, a, b: issues.count_higher(flat, groups, classes, wrong, a, b, counts[piece]),
        [(piece, *bounds) for piece, bounds in enumerate(pieces)],
        threads,
    )
    # First by group and class, then by piece, so that samples keep their order.
    ends = np.cumsum(counts.transpose(1, 2, 0).ravel())
    starts = (ends - counts.transpose(1, 2, 0).ravel()).reshape(len(sizes), classes, len(pieces)).transpose(2, 0, 1).copy()
    places = np.append(starts[0].ravel(), ends[-1:])
    margins, rows = np.empty(places[-1], probs.dtype), np.empty(places[-1], np.int64)
    run(
        lambda piece, a, b: issues.collect_higher(flat, groups, classes, wrong, a, b, starts[piece], margins, rows),
        [(piece, *bounds) for piece, bounds in enumerate(pieces)],
        threads,
    )
    order, bounds = positions_by_group(groups, sizes)
    numbers = np.array(numbers, np.int64)
    numbers[np.arange(len(sizes)), np.arange(len(sizes)) % classes] = 0
    run(
        lambda a, b: issues.mark_pairs(probs, order, bounds, numbers, places, margins, rows, a, b, out),
        even(len(sizes), 4 * threads if threads > 1 else 1),
        threads,
    )
    return out


def positions_by_group(groups: np.ndarray, sizes: np.ndarray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions (n,) sorted by group, and bounds (G + 1,) of the groups, whose sizes (G,) are known."""
    bounds = np.append(0, np.cumsum(sizes))
    out = np.empty(len(groups), np.int64)
    issues.sort_groups(groups, bounds[:-1].copy(), out)
    return out, bounds
