"""Secure aggregation: Flower's SecAgg+ around the visits of a round.

The server receives only the mean of the updates, or of the sums of a method such as `fedsums`, and no single one.

Bell, Bonawitz, Gascón, Lepoint, Raykova. Secure single-server aggregation with (poly)logarithmic overhead. CCS 2020.

Flower's mod (at a site) and workflow (at the server) exchange four messages: keys, shares of keys, masked updates, shares of
the masks. Flower draws the masks from a generator with a seed of 32 bits, which can be guessed. Both sides therefore use
different masks here.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.message import encode

STEPS, MODULUS = 2**52, 2**62  # levels of a quantized entry; modulus of the sums
FEWEST, MOST = 3, MODULUS // STEPS - 1  # clients of a round: the sum of two reveals each update to the other client
CONFIGS = "secaggplus_configs"


def masks(seed: bytes, num_range: int, dimensions_list: Sequence[tuple[int, ...]], *, request: bytes = b"") -> list[np.ndarray]:
    """Draw random integers below `num_range` of each shape.

    The generator is AES-256 in counter mode. The key depends on the whole seed and on the request.

    Parameters
    ----------
    seed : bytes
    num_range : int
        A power of 2, at most 2^63.
    dimensions_list : list of tuple
    request : bytes
        `common` of the request that a site answers. The masks of sites with different requests do not cancel. A server
        therefore cannot isolate a site by sending the other sites requests with known or zero updates.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    source = Cipher(algorithms.AES(hashlib.sha256(seed + request).digest()), modes.CTR(bytes(16))).encryptor()
    words = [np.frombuffer(source.update(bytes(8 * math.prod(shape))), "<u8") for shape in dimensions_list]
    pairs = zip(words, dimensions_list, strict=True)
    return [(values.astype(np.int64) & (num_range - 1)).reshape(shape) for values, shape in pairs]


def strengthen(module: Any, request: str) -> Any:
    """Make a module of Flower with the masks of this module, bound to a request, and with its precision."""
    module.pseudo_rand_gen, module.quantize = partial(masks, request=bytes.fromhex(request)), quantize
    return module


def common(request: Mapping[str, Any], about: Mapping[str, Any], history: str | None) -> str:
    """Digest the parts of a request that are equal at all sites, on which their masks depend: a hexadecimal SHA-256.

    It covers the values that the visits scatter and the scale of the samples, but not the client numbers.

    Parameters
    ----------
    request : dict
        As returned by fnlkit.federated.engines.flower.visits.request.
    about : dict
        Facts of the message.
    history : str or None
        Of sums, the digest of the round with whose memory the visits begin, "" without a memory: sites with another memory
        could reply zeros.  None for updates, since sites that missed rounds have other memories.
    """
    shared = {name: value for name, value in request.items() if name != "visits"}
    shared |= {"scattered": [visit[3] for visit in request["visits"]], "scale": about.get("scale", ""), "history": history}
    return hashlib.sha256(encode(shared)).hexdigest()


# Largest input and feature of a sample at a site that masks sums; larger ones are cut, sample by sample.
LARGEST = 64.0


def unit_of(samples: int) -> float:
    """Find the unit in which sums are masked: the largest sum over a number of samples."""
    return samples * LARGEST**2


def to_entries(sums: Mapping[str, torch.Tensor], unit: float) -> np.ndarray:
    """Collect sums as a vector within -1..1, in units of `unit` and in the order of the names."""
    values = [np.asarray(sums[name], np.float64).ravel() / unit for name in sorted(sums)] or [np.zeros(1)]
    return np.clip(np.nan_to_num(np.concatenate(values), nan=0.0), -1, 1)


def from_entries(mean: np.ndarray, shapes: Mapping[str, tuple[Any, ...]], unit: float) -> dict[str, torch.Tensor]:
    """Restore sums from a vector of `to_entries`, or their mean from the mean of such vectors.

    Parameters
    ----------
    mean : (n,)
    shapes : dict of str to tuple of int or str
        Shape of each sum. A single sum can have one unknown side, as text.
    unit : float

    Raises
    ------
    ValueError
        If the number of entries is another.
    """
    names = sorted(shapes)
    sides = [tuple(-1 if isinstance(side, str) else side for side in shapes[name]) for name in names]
    ends = np.cumsum([abs(math.prod(shape)) for shape in sides]) if len(names) > 1 else np.array([len(mean)])
    if len(mean) != (ends[-1] if names else 1):
        raise ValueError("the entries are not those of the sums")
    parts = np.split(mean * unit, ends[:-1])
    return {name: torch.from_numpy(part.reshape(shape)) for name, part, shape in zip(names, parts, sides, strict=False)}


def quantize(arrays: Sequence[np.ndarray], clip: float, steps: int) -> list[np.ndarray]:
    """Convert numbers within -`clip`..`clip` to integers 0..`steps`; Flower's function is limited to 31 bits."""
    return [np.rint((values + clip) * (steps / (2 * clip))).astype(np.int64) for values in arrays]


def is_step(message: Any) -> bool:
    """Whether a Flower Message is a step of the protocol."""
    return CONFIGS in message.content.config_records


def byte_strings(record: Any) -> Iterator[bytes]:
    """Yield the byte strings of a record."""
    for value in record.values():
        yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, bytes))
