"""Messages of fnlkit as Flower's messages: one array of bytes each."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

_FORM = "fnlkit.message"  # name of the record and serialization type of its only array
LATE = object()


def record(data: bytes) -> Any:
    """Wrap the bytes of a message in Flower's RecordDict."""
    from fnlkit.federated.engines.flower.api import Array, ArrayRecord, RecordDict

    return RecordDict({_FORM: ArrayRecord({_FORM: Array(dtype="uint8", shape=(len(data),), stype=_FORM, data=data)})})


def bytes_of(message: Any) -> bytes:
    """Read the bytes in a Flower Message; empty if it contains none."""
    return bytes_in(message.content)


def bytes_in(record: Any) -> bytes:
    """Read the bytes in a RecordDict; empty if it contains none."""
    array = record.array_records.get(_FORM, {}).get(_FORM)
    return array.data if array is not None and array.stype == _FORM else b""


def reply_to(message: Any, data: bytes) -> Any:
    """Make the Flower Message that replies bytes to a message."""
    from fnlkit.federated.engines.flower.api import Message

    return Message(record(data), reply_to=message)


def exchange(
    grid: Any,
    contents: Mapping[int, bytes],
    limit: float | None,
    *,
    poll: float,
    kind: str = "train",
    on_error: Callable[[int, Any], object] = lambda node, error: None,
    on_silent: Callable[[Collection[int], float], object] = lambda nodes, seconds: None,
) -> Iterator[tuple[int, Any]]:
    """Yield (node, bytes) of a round's replies as they arrive, (node, LATE) for a late reply.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    contents : dict of node to bytes
    limit : float or None
        Seconds.
    poll : float
        Seconds between two questions to the grid.
    kind : str
        Flower's type of the messages.
    on_error : callable (node, flwr.app.Error)
        Receives the errors that Flower returns instead of replies.
    on_silent : callable (nodes, seconds)
        Receives the nodes whose replies are missing.
    """
    from fnlkit.federated.engines.flower.api import Message

    numbers = list(grid.push_messages([Message(record(data), node, kind) for node, data in contents.items()]))
    waiting = {number: node for number, node in zip(numbers, contents, strict=False) if number}  # None: not accepted
    began = time.monotonic()
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                on_error(node, reply.error)
            else:
                yield node, bytes_of(reply)
        seconds = time.monotonic() - began
        if limit is not None and seconds > limit:
            break
        if waiting:
            on_silent(waiting.values(), seconds)
            time.sleep(poll)
    yield from ((node, LATE) for node in waiting.values())
