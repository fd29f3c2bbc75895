"""Secure aggregation: Flower's SecAgg+ around the visits of a round.

The server receives only the mean of the updates and no single update.

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


def is_step(message: Any) -> bool:
    """Whether a Flower Message is a step of the protocol."""
    return CONFIGS in message.content.config_records


def byte_strings(record: Any) -> Iterator[bytes]:
    """Yield the byte strings of a record."""
    for value in record.values():
        yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, bytes))
