"""Find near copies across sites by hashes of cells, without showing samples or distances to the server.

For every sample, a site sends `HASHES` salted hashes of its cells in random quantized projections (locality-sensitive
hashing: Datar, Immorlica, Indyk, Mirrokni 2004).  Two samples that share at least `SHARED` hashes are near copies; the server
learns no distance between other samples.  The number of projections per hash grows with the number of samples, so that two
samples at a typical distance share a hash with a probability of at most 1 / (8 n): the server's work grows linearly, and
samples that are merely similar stay apart however many there are.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.special import ndtr

from fnlkit.audits.copies import blank, hash_rows, spaces_of
from fnlkit.components.declarations import Sent
from fnlkit.errors import InputError

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel


# Number of hashes per sample and of hashes that near copies share at least. With 16 projections, two samples at the distance of
# near copies share enough in 9 of 10 cases; with 43, which 200,000 samples of 64 columns need, at a third of the distance.
HASHES, SHARED = 64, 4
# Width of a cell as a multiple of the distance of near copies.
WIDTH = 6.0
# Least and largest number of projections per hash, over all spaces.
LEAST, MOST = 16, 96
# Samples whose projections are in memory at a time.
_AT_ONCE = 1024
SENDS = {
    "cells": Sent(
        "salted hashes of each sample's hash cells, to find near copies",
        "once",
        ("n", HASHES),
        "int64",
        low=-(2**63),
        high=2**63,
    )
}


def cells_of(near: np.ndarray, typical: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the widths of cells (S,) and the numbers of projections (S,) in S spaces; widths are 0 if no site knows one.

    Parameters
    ----------
    near : (N, S)
        Distances of near copies by site and space; 0 if unknown.
    typical : (N, S)
        Typical distances of a sample to its nearest neighbor.
    samples : int
        Number of samples of all sites.
    """
    spaces, widths, projections = near.shape[1], [], []
    for close, far in zip(near.T, typical.T, strict=True):
        known, width, wanted = (close > 0) & (close <= far) & np.isfinite(far), 0.0, 0.0
        if known.any():
            width = WIDTH * np.median(close[known])
            wanted = np.ceil(np.log(8 * samples) / -np.log(_probability_of_shared_cell(width / np.median(far[known]))))
        widths.append(width)
        projections.append(int(np.clip(wanted, -(-LEAST // spaces), MOST // spaces)))
    return np.array(widths), np.array(projections)


def _probability_of_shared_cell(ratio):
    """Return the probability that two samples share a cell of a projection; `ratio` is the width by their distance."""
    return 2 * ndtr(ratio) - 1 - np.sqrt(2 / np.pi) / ratio * (1 - np.exp(-(ratio**2) / 2))


# ---- at the site
def reply_cells(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Reply the salted hashes (n, HASHES) of each sample's cells.

    Receives `salt` (2,), `width` (S,) and `projections` (S,), the numbers of projections per hash.
    """
    salt, spaces = received["salt"].numpy(), spaces_of(client)
    widths, each = received["width"].tolist(), received["projections"].tolist()
    fewest, most = -(-LEAST // len(spaces)), MOST // len(spaces)  # a single projection would order the samples
    if not all(0 < width < np.inf for width in widths) or not all(fewest <= number <= most for number in each):
        raise InputError(f"message of the server: cells of width {widths} and {each} projections; the site refuses them")
    rng = np.random.default_rng(salt.astype(np.uint64).tolist())  # the same projections at every site
    directions = [rng.standard_normal((s.shape[1], HASHES * k), np.float32) for s, k in zip(spaces, each, strict=True)]
    shifts = [rng.random(HASHES * k, np.float32) for k in each]
    out = np.empty((len(client), HASHES), np.int64)
    for start in range(0, len(client), _AT_ONCE):
        rows, cells = slice(start, start + _AT_ONCE), []
        for points, width, direction, shift in zip(spaces, widths, directions, shifts, strict=True):
            found = np.floor(points[rows] @ direction / np.float32(width) + shift)
            cells.append(found.astype(np.int64).reshape(len(found), HASHES, -1))
        cells = np.concatenate(cells, 2)
        for i in range(HASHES):
            out[rows, i] = hash_rows(cells[:, i].copy(), salt)
    if len(spaces) > 1:
        empty = blank(client, spaces[1])
        out[empty] = hash_rows(np.ascontiguousarray(client.x.numpy()[empty]), salt)[:, None]  # near only to exact copies
    return {"cells": torch.from_numpy(out)}


# ---- the server
def count_near_copies(cells: list[np.ndarray], fingerprints: list[np.ndarray]) -> list[dict[int, int]]:
    """Return for each client {other client: number of the client's samples with only a near copy at the other}.

    Parameters
    ----------
    cells : list of int (n_k, HASHES)
    fingerprints : list of int (n_k,)
        Samples with an exact copy at the other client are not counted.
    """
    owner = np.repeat(np.arange(len(cells)), [len(part) for part in cells])
    held, count = [set(part.tolist()) for part in fingerprints], len(owner)
    prints = np.concatenate(fingerprints)
    pairs = [_pairs(np.concatenate([part[:, i] for part in cells]), owner) for i in range(HASHES)]
    found, times = np.unique(np.concatenate(pairs), return_counts=True)
    found = found[times >= SHARED]
    first, second = found // count, found % count
    near = np.unique(np.concatenate([first * len(cells) + owner[second], second * len(cells) + owner[first]]))
    out: list[dict[int, int]] = [{} for _ in cells]
    for sample, other in zip((near // len(cells)).tolist(), (near % len(cells)).tolist(), strict=True):
        if int(prints[sample]) not in held[other]:
            mine = out[int(owner[sample])]
            mine[other] = mine.get(other, 0) + 1
    return out


def _pairs(column, owner):
    """Return pairs a n + b (m,), a < b, of samples of different sites with an equal hash.

    Each sample is paired with the first sample of each other site only: a thousand copies of an empty image at two sites give
    two thousand pairs, not a million.

    Parameters
    ----------
    column : int (n,)
    owner : int (n,)
        In ascending order.
    """
    if not len(column):
        return np.empty(0, np.int64)
    order = np.argsort(column, kind="stable")  # within a hash, samples are in the order of their sites
    starts = np.flatnonzero(np.concatenate([[True], np.diff(column[order]) != 0]))
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    several = owner[order[starts]][group] != owner[order[np.append(starts[1:], len(order)) - 1]][group]
    order, group = order[several], group[several]
    block = np.flatnonzero(np.concatenate([[True], (np.diff(group) != 0) | (np.diff(owner[order]) != 0)]))[: len(order)]
    first, of = order[block], group[block]  # first sample of each site of each group
    begin, end = np.searchsorted(of, group), np.searchsorted(of, group, "right")
    sample = np.repeat(order, end - begin)
    place = np.arange(len(sample)) - np.repeat(np.cumsum(end - begin) - (end - begin), end - begin)
    other = first[np.repeat(begin, end - begin) + place]
    apart = owner[sample] != owner[other]
    low, high = np.minimum(sample, other)[apart], np.maximum(sample, other)[apart]
    return np.unique(low * len(column) + high)
