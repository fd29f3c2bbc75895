"""Exchange log: requests to clients, replies and traffic; a run can be replayed."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike


@dataclass
class Traffic:
    """Traffic between server and clients, summed over rounds. Only the methods below change it.

    Attributes
    ----------
    bytes_down, bytes_up : int
        Payload to and from all clients.
    client_rounds : int
        Number of clients that trained, summed over rounds: FedCorr's "communication cost".
    sent : dict of str to int
        Bytes that clients have sent, by name of the reply.
    """

    bytes_down: int = 0
    bytes_up: int = 0
    client_rounds: int = 0
    sent: dict[str, int] = field(default_factory=dict)

    def broadcast(self, size: int, clients: int = 1) -> None:
        """Count `size` bytes sent to each of some clients."""
        self.bytes_down += size * clients

    def received(self, name: str, size: int) -> None:
        """Count `size` bytes that clients sent under a name."""
        self.bytes_up += size
        self.sent[name] = self.sent.get(name, 0) + size

    def trained(self, clients: int) -> None:
        """Count clients that trained in a round."""
        self.client_rounds += clients

    def add(self, other: "Traffic") -> None:
        """Add the traffic of another session."""
        for name, size in other.sent.items():
            self.received(name, size)
        self.broadcast(other.bytes_down)
        self.trained(other.client_rounds)

    def since(self, earlier: "Traffic") -> "Traffic":
        """Traffic since an earlier copy."""
        sent = {name: size - earlier.sent.get(name, 0) for name, size in self.sent.items()}
        down, up = self.bytes_down - earlier.bytes_down, self.bytes_up - earlier.bytes_up
        return Traffic(down, up, self.client_rounds - earlier.client_rounds, sent)

    def copy(self) -> "Traffic":
        """Copy the traffic, so that later traffic does not change it."""
        return replace(self, sent=dict(self.sent))


class Exchange(NamedTuple):
    """Log entry of one exchange.

    It contains the cohort (K,), the clients whose replies were accepted, their values {name: [array]}, and the L2 norms of
    their updates (float64, empty if no client trained).  Of replies whose sum alone is used (`Sent.sum_only`), it contains one
    array, the sum.
    """

    asked: np.ndarray
    kept: np.ndarray
    values: dict[str, Any]
    norms: np.ndarray = np.zeros(0)


class Result(NamedTuple):
    """Outcome of one `Clients.once`.

    The kind is ``value``, ``model`` or ``nothing``.  Only a value is stored.
    """

    kind: str
    value: np.ndarray = np.zeros(0)


def pack_log(log: Iterable[Exchange], results: Iterable[Result] = ()) -> tuple[list[list[Any]], list[list[Any]], np.ndarray]:
    """Pack all arrays into one buffer; return (log index, results index, bytes).

    An index contains the dtype, shape and position of each array.

    Parameters
    ----------
    log : sequence of Exchange
    results : sequence of Result
    """
    buffer, index = io.BytesIO(), []

    def put(array: ArrayLike) -> list[Any]:
        array = np.asarray(array)  # np.ascontiguousarray would convert a scalar to an array (1,)
        start = buffer.tell()
        buffer.write(array.tobytes())
        return [array.dtype.str, list(array.shape), start]

    for entry in log:
        named = {name: [put(v) for v in values] for name, values in entry.values.items()}
        index.append([put(entry.asked), put(entry.kept), named, put(entry.norms)])
    placed = [[kind, put(value)] for kind, value in results]
    return index, placed, np.frombuffer(buffer.getvalue() or b"\0", np.uint8)


def unpack_log(
    index: Iterable[Sequence[Any]], placed: Iterable[Sequence[Any]], data: np.ndarray
) -> tuple[list[Exchange], list[Result]]:
    """Unpack (log, results) from the output of `pack_log`.

    Raises
    ------
    ValueError
        If an array is not numeric or a result has an unknown kind.
    """
    raw = data.tobytes()

    def get(place: Sequence[Any]) -> np.ndarray:
        dtype, shape, start = place
        dtype = np.dtype(dtype)
        if dtype.kind not in "biuf":
            raise ValueError(f"log entry of type {dtype}")
        return np.frombuffer(raw, dtype, int(np.prod(shape)), start).reshape(shape).copy()

    log = [
        Exchange(get(asked), get(kept), {name: [get(v) for v in values] for name, values in named.items()}, get(norms))
        for asked, kept, named, norms in index
    ]
    if unknown := {kind for kind, _ in placed} - {"value", "model", "nothing"}:
        raise ValueError(f"a result of kind {sorted(unknown)[0]!r}")
    return log, [Result(kind, get(value)) for kind, value in placed]
