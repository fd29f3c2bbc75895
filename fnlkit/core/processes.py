"""Processes that compute in one thread and end with their parent, and signals that wait."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

# Some libraries read these variables when they are imported.
_SINGLE = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMBA")} | {"FNLKIT_THREADS": "1"}


@contextlib.contextmanager
def single_threads() -> Iterator[None]:
    """Start processes with one thread, and without the script of the caller, which would run again without a main guard."""
    main, before = sys.modules["__main__"], {name: os.environ.get(name) for name in _SINGLE}
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(_SINGLE)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def end_with_parent(patience: float = 0) -> None:
    """Terminate this process when the parent ends, and kill it if it needs more than `patience` seconds."""

    def end() -> None:
        parent = multiprocessing.parent_process()
        if parent:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(patience)
            os._exit(1)

    threading.Thread(target=end, daemon=True).start()


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
