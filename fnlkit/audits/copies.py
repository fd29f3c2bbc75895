"""Find exact copies by a hash of the bytes, and near copies within a site by distance.

Near copies are near in every compared space: in the embedding, if there is one, and in the values of the samples. Two
samples that only the backbone cannot distinguish are therefore not copies.  Within a site, distances are computed
directly.  A site must not see samples of another site, so sites are compared by hashes (fnlkit.audits.cells).
"""

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.components.declarations import Sent
from fnlkit.kernels.nearby import exact, far_out, near_and_typical, nearest, sample_positions

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel


# Smallest correlation between the values of two near copies that were found by an embedding.
CORRELATION = 0.97
# Images with longer sides (in pixels) are averaged to this size before the comparison.
SIDE = 64
ANY: dict[str, Any] = {"low": -(2**63), "high": 2**63}  # hashes fill 64 bits
SENDS = {
    "fingerprints": Sent("a salted hash of each sample, to find copies", "once", ("n",), "int64", **ANY),
    "copies": Sent.counts("number of exact copies within the site", "once"),
    "near_copies": Sent.counts("number of further near copies", "once"),
    "far": Sent.counts("number of samples far from all others", "once"),
    "near_distance": Sent("distances below which samples are near copies: by embedding, by values", "once", (2,), low=0),
    "typical_distance": Sent("typical distances of nearest neighbors: by embedding, by values", "once", (2,), low=0),
}
# Sites that share more of their samples than this are judged by models that were trained on none of them.
SHARED = 0.02


# ---- at the site
def spaces_of(client: "Client") -> list[np.ndarray]:
    """Return the compared spaces, a list of float32 (n, D): the embedding if there is one, then the values.

    Values that verify an embedding are centered and scaled to length 1 for each image or spectrogram, so that the squared
    distance of two samples is 2 (1 - their correlation); a constant sample is a row of zeros.
    """
    raw = client.x if client.inputs.image else client.inputs.plain(client.x).cpu()
    values = _small(raw) if client.inputs.image else raw.numpy().reshape(len(client), -1).astype(np.float32)
    if "input/embedding" not in client.rows:
        return [values]
    if _has_shape(client):
        values = values - values.mean(1, keepdims=True)
        values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-6)
    return [client.rows["input/embedding"].numpy(), values]


def _small(images):
    """Return images (n, H, W, C) as rows, averaged over squares of pixels to at most `SIDE` pixels a side."""
    factor = -(-max(images.shape[1:3]) // SIDE)
    if factor > 1:
        high, wide = (max(1, side // factor) for side in images.shape[1:3])
        squares = [factor if side > factor else side for side in images.shape[1:3]]
        parts = []
        for start in range(0, len(images), SIDE):
            part = images[start : start + SIDE, : high * squares[0], : wide * squares[1]].numpy().astype(np.float32)
            parts.append(part.reshape(len(part), high, squares[0], wide, squares[1], -1).mean((2, 4)))
        images = torch.from_numpy(np.concatenate(parts))
    return images.numpy().reshape(len(images), -1).astype(np.float32)


def find_copies(
    client: "Client", model: "LocalModel", received: dict[str, torch.Tensor], *, neighbors: int, across: bool = True
) -> dict[str, torch.Tensor]:
    """Reply fingerprints (if `across`), counts of copies and far samples, and distances of near copies; keep the samples.

    A copy equals an earlier sample of the site byte by byte.  A near copy is closer to its nearest earlier sample than the
    distance of near copies in each space (`near_and_typical`).  ``audit/copy_of`` (n,) keeps the index of that earlier sample,
    -1 for all others.  A sample is far if the distance to its k-th neighbor exceeds the third quartile by three interquartile
    ranges (Tukey's far out); copies count once.  Receives `salt` (2,) and `samples`, the number of samples of all sites, for
    which the distances that are replied hold.
    """
    prints = hash_rows(np.ascontiguousarray(client.x.numpy()), received["salt"].numpy())
    _, first, inverse = np.unique(prints, return_index=True, return_inverse=True)
    spaces, distinct = spaces_of(client), np.sort(first)
    copy, near, far = first[inverse] != np.arange(len(prints)), np.zeros(len(prints), bool), np.zeros(len(prints), bool)
    copy_of = np.where(copy, first[inverse], -1)
    k, limits = min(neighbors, len(distinct) - 1), np.zeros((2, 2))
    if k >= 1:
        points, held = spaces[0][distinct], max(len(prints), int(received["samples"]))
        away, found, rows = nearest(points, k)
        far[distinct] = far_out(points, away, rows, k)
        far = far[first[inverse]]
        limit, limits[0] = near_and_typical(away[rows, 0], len(points))[0], near_and_typical(away[rows, 0], len(points), held)
        close = (away[:, 0] < limit) & (found[:, 0] < np.arange(len(points)))
        if len(spaces) > 1:
            values = spaces[1][distinct]
            limit, limits[1] = _verification_distances(client, values, held)
            pairs = values[close], values[found[close, 0]]
            close[close] = (np.linalg.norm(pairs[0] - pairs[1], axis=1) < limit) & ~blank(client, pairs[0])
        near[distinct] = close
        copy_of[distinct[close]] = distinct[found[close, 0]]
    for name, values in (("copy_of", copy_of), ("far", far)):
        client.rows[f"audit/{name}"] = torch.from_numpy(values)
    numbers = {"copies": copy, "near_copies": near, "far": far}
    reply = {name: torch.tensor(int(mask.sum())) for name, mask in numbers.items()}
    reply |= {"fingerprints": torch.from_numpy(prints)} if across else {}
    return reply | {
        "near_distance": torch.from_numpy(limits[:, 0].copy()),
        "typical_distance": torch.from_numpy(limits[:, 1].copy()),
    }


def _verification_distances(client, values, held):
    """Return the distance of values that confirms near copies, and (it, the typical distance) among all sites; 0 if unknown."""
    rows = sample_positions(values)
    away = exact(values, rows, 1)[0][:, 0]
    limits = near_and_typical(away, len(values))[0], near_and_typical(away, len(values), held)
    if not _has_shape(client):
        return limits
    most = np.sqrt(2 * (1 - CORRELATION))
    (limit, (across, typical)) = limits
    return min(limit or most, most), (min(across or most, most), typical or most)


def _has_shape(client):
    """Whether samples are images or spectrograms, which are compared by the correlation of their values."""
    return client.x.ndim > 2


def blank(client: "Client", values: np.ndarray) -> np.ndarray:
    """Return a mask (n,) of constant samples, which have no correlation."""
    return _has_shape(client) & ~values.any(1)


def hash_rows(rows: np.ndarray, salt: np.ndarray) -> np.ndarray:
    """Return a keyed hash (n,) int64 of each row of an array (n, ...)."""
    keyed, digests = hashlib.blake2b(digest_size=8, key=salt.tobytes()), []
    for row in rows:
        digest = keyed.copy()
        digest.update(row.tobytes())
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), "<i8").astype(np.int64)


# ---- the server
def count_copies(fingerprints: list[np.ndarray]) -> list[dict[int, int]]:
    """Return for each client {other client: number of the client's samples that the other also has}."""
    held = [set(part.tolist()) for part in fingerprints]
    out: list[dict[int, int]] = [{} for _ in held]
    for a, mine in enumerate(held):
        for b, other in enumerate(held):
            if a != b and (number := len(mine & other)):
                out[a][b] = number
    return out


def separate(group: np.ndarray, shared: list[dict[int, int]], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (groups (N,), mask (N,)): sites that share samples are in one group, which no other site joins.

    The model that judges a group is trained on the other sites, and so it has not learned the labels that a judged sample has
    at another site.  The mask marks sites for which this leaves fewer than half of the sites; no model of other sites judges
    such a site, and its group is unchanged.

    Parameters
    ----------
    group : int (N,)
    shared : list of dict
        From `count_copies`.
    sizes : int (N,)
        Numbers of samples.

    Examples
    --------
    >>> from fnlkit.audits.copies import separate
    >>> groups, apart = separate([0, 1, 0, 2], [{1: 9}, {0: 9}, {}, {}], [10, 10, 10, 10])
    >>> groups.tolist(), apart.tolist()
    ([2, 2, 0, 1], [False, False, False, False])
    """
    group = np.array(group)
    linked = np.arange(len(group))
    for a, others in enumerate(shared):
        for b, number in others.items():
            if number > SHARED * min(sizes[a], sizes[b]):
                linked[linked == linked[b]] = linked[a]
    apart, out = np.zeros(len(group), bool), group.copy()
    for name, count in zip(*np.unique(linked, return_counts=True), strict=True):
        if count > 1 and 2 * count > len(group):
            apart |= linked == name
        elif count > 1:
            out[linked == name] = out.max() + 1
    return np.unique(out, return_inverse=True)[1], apart
