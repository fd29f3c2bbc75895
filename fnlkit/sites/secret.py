"""Secure aggregation: Flower's SecAgg+ around the visits of a round.

The server receives only the mean of the updates, or of the sums of a method such as `fedsums`, and no single one.

Bell, Bonawitz, Gascón, Lepoint, Raykova. Secure single-server aggregation with (poly)logarithmic overhead. CCS 2020.

Flower's mod (at a site) and workflow (at the server) exchange four messages: keys, shares of keys, masked updates, shares of
the masks. Flower draws the masks from a generator with a seed of 32 bits, which can be guessed. Both sides therefore use
different masks here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.message import encode

STEPS, MODULUS = 2**22, 2**32  # levels of a quantized entry; modulus of the sums
FEWEST, MOST = 3, MODULUS // STEPS - 1  # clients of a round: the sum of two reveals each update to the other client
CONFIGS = "secaggplus_configs"


def masks(seed: bytes, num_range: int, dimensions_list: Sequence[tuple[int, ...]], *, request: bytes = b"") -> list[np.ndarray]:
    """Draw random integers below `num_range` of each shape.

    The generator is AES-256 in counter mode. The key depends on the whole seed and on the request.

    Parameters
    ----------
    seed : bytes
    num_range : int
        A power of 2.
    dimensions_list : list of tuple
    request : bytes
        `common` of the request that a site answers. The masks of sites with different requests do not cancel. A server
        therefore cannot isolate a site by sending the other sites requests with known or zero updates.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    source = Cipher(algorithms.AES(hashlib.sha256(seed + request).digest()), modes.CTR(bytes(16))).encryptor()
    words = [np.frombuffer(source.update(bytes(4 * math.prod(shape))), "<u4") for shape in dimensions_list]
    pairs = zip(words, dimensions_list, strict=True)
    return [(values.astype(np.int64) & (num_range - 1)).reshape(shape) for values, shape in pairs]


def strengthen(module: Any, request: bytes) -> Any:
    """Make a module of Flower with the masks of this module, bound to a request."""
    module.pseudo_rand_gen = partial(masks, request=request)
    return module


def common(request: Mapping[str, Any]) -> bytes:
    """Compute the SHA-256 of the part of a request that all sites share.

    It covers the values that the visits scatter, but not the client numbers and the rounds with which a visit starts, which
    differ between the sites.
    """
    shared = {name: value for name, value in request.items() if name != "visits"}
    return hashlib.sha256(encode(shared | {"scattered": [visit[3] for visit in request["visits"]]})).digest()


# A sum is sent as three numbers, because a masked number has only 22 bits.
PARTS, HALF = 3, STEPS // 2
# Largest mean over a site's samples of a product of two features that can be masked.
LARGEST_PRODUCT = 2.0**20


def unit_of(samples: int) -> float:
    """Compute the largest sum over a number of samples that can be masked."""
    return samples * LARGEST_PRODUCT


def to_entries(sums: Mapping[str, torch.Tensor], unit: float) -> np.ndarray:
    """Split sums into numbers (3 n,) within -1..1, in the order of the names; the first n are above 1 for sums above `unit`.

    Each number is a multiple of 2 / `STEPS`, which Flower does not round.
    """
    rest = np.concatenate([np.asarray(sums[name], np.float64).ravel() for name in sorted(sums)] or [np.zeros(1)]) / unit
    parts = []
    for _ in range(PARTS):
        parts.append(np.rint(rest * HALF) / HALF)
        rest = (rest - parts[-1]) * HALF
    return np.concatenate(parts)


def from_entries(mean: np.ndarray, count: int, shapes: Mapping[str, tuple[Any, ...]], unit: float) -> dict[str, torch.Tensor]:
    """Restore the mean of the sums of sites from the mean of their entries.

    Parameters
    ----------
    mean : (3 n,)
    count : int
        Number of sites.
    shapes : dict of str to tuple of int or str
        Shape of each sum. A single sum can have one unknown side, as text.
    unit : float
        As for `to_entries`.

    Raises
    ------
    ValueError
        If the number of entries is another.
    """
    total = np.zeros(len(mean) // PARTS)
    for part in reversed(mean.reshape(PARTS, -1)):
        total = (total + np.rint(part * (count * HALF))) / HALF
    names = sorted(shapes)
    sides = [tuple(-1 if isinstance(side, str) else side for side in shapes[name]) for name in names]
    if len(names) == 1:
        return {names[0]: torch.from_numpy(total.reshape(sides[0]) * (unit / count))}
    ends = np.cumsum([math.prod(each) for each in sides])
    if len(total) != (ends[-1] if names else 1):
        raise ValueError("the entries are not those of the sums")
    parts = np.split(total * (unit / count), ends[:-1]) if names else []
    return {name: torch.from_numpy(part.reshape(each)) for name, part, each in zip(names, parts, sides, strict=True)}


def is_step(message: Any) -> bool:
    """Whether a Flower Message is a step of the protocol."""
    return CONFIGS in message.content.config_records


def byte_strings(record: Any) -> Iterator[bytes]:
    """Yield the byte strings of a record."""
    for value in record.values():
        yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, bytes))
