"""Random streams keyed by (seed, purpose, round, client), or by a secret if privacy depends on them."""

import hashlib
import hmac
import json
import zlib

import numpy as np

from fnlkit.core.errors import InputError


def stream(seed: int, purpose: str, round: int = 0, client: int | np.integer = 0) -> np.random.Generator:
    """Open the random stream for a purpose, round and client.

    Calls with equal keys return generators that draw the same numbers on every engine, in every process and after a resume.

    Parameters
    ----------
    seed : int >= 0
        The seed of the command.
    purpose : str
        Name of the use of the numbers, for example ``"batches"`` or ``"noise"``.
    round, client : int >= 0

    Returns
    -------
    numpy.random.Generator

    Examples
    --------
    >>> from fnlkit.kernels.streams import stream
    >>> int(stream(0, "noise", client=3).integers(10)), int(stream(0, "noise", client=3).integers(10))
    (4, 4)
    """
    return np.random.default_rng([int(seed), zlib.crc32(purpose.encode()), int(round), int(client)])


def derive_key(secret: bytes, *facts: object) -> bytes:
    """Derive 32 bytes from a secret and every fact (HMAC-SHA256); they reveal nothing about the secret.

    Parameters
    ----------
    secret : bytes
    *facts : array, bytes, or a JSON value
    """
    total = hmac.new(secret, digestmod="sha256")
    for fact in facts:
        if isinstance(fact, bytes):
            kind, data = "bytes", fact
        elif isinstance(fact, np.ndarray):
            kind, data = f"{fact.dtype}{fact.shape}", np.ascontiguousarray(fact).tobytes()
        else:
            kind, data = "json", json.dumps(fact, sort_keys=True).encode()
        total.update(f"{kind} {len(data)} ".encode())
        total.update(data)
    return total.digest()


class HiddenStream:
    """Random numbers that only the holder of a secret can repeat or predict (SHAKE-256 of the secret and the facts).

    Use it for draws on which privacy depends.  `stream` depends only on the seed, which is public.

    Parameters
    ----------
    secret : bytes or None
        None makes a stream that raises when something is drawn.
    *facts
        As in `derive_key`.  Streams of different facts are independent.

    Examples
    --------
    >>> from fnlkit.kernels.streams import HiddenStream
    >>> a, b = HiddenStream(b"secret", "noise", 3), HiddenStream(b"secret", "noise", 4)
    >>> bool(a.random(2).tolist() == HiddenStream(b"secret", "noise", 3).random(2).tolist() != b.random(2).tolist())
    True
    """

    def __init__(self, secret, *facts):
        self._key = None if secret is None else derive_key(secret, *facts)
        self._count = 0

    def with_facts(self, *facts: object) -> "HiddenStream":
        """Derive the stream for additional facts, independent of earlier draws from this stream."""
        return HiddenStream(self._key, *facts)

    def random(self, size: int | tuple[int, ...]) -> np.ndarray:
        """Draw uniform float64 numbers in (0, 1) of shape `size`, with 52 random bits each.

        Raises
        ------
        InputError
            If there is no secret.
        """
        if self._key is None:
            raise InputError("a draw on which privacy depends needs a secret; give one with `privacy_key`")
        self._count += 1
        data = hashlib.shake_256(self._key + self._count.to_bytes(8, "big")).digest(8 * int(np.prod(size)))
        return ((np.frombuffer(data, "<u8") >> 12) + 0.5).reshape(size) / 2**52

    def standard_normal(self, size: int | tuple[int, ...]) -> np.ndarray:
        """Draw normal float64 numbers of shape `size`; see `random`."""
        from scipy.special import ndtri

        return ndtri(self.random(size))
