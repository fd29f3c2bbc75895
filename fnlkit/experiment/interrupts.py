"""Delay Ctrl-C and SIGTERM while several objects change together."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Deliver SIGINT and SIGTERM at the end of the context, so that an interruption finds a complete round or none.

    Only the main thread receives signals in Python; in another thread the context does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received[:1]:
            signal.raise_signal(number)
