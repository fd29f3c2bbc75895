"""Limit of the CPU time of a request at a site."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fnlkit.sites.site.errors import TooLong

# Seconds of CPU time after which the limit is raised again, if the code of a step caught it.
_AGAIN = 1.0


@contextmanager
def cpu_limit(seconds: float, what: str) -> Iterator[Callable[..., Any]]:
    """Raise TooLong inside the context after this CPU time of all threads of the process, without the time of the system.

    The error is raised between two instructions of Python: an operation of torch that is running ends first.  Yields a function
    that raises the error again, for a step that caught it.

    Parameters
    ----------
    seconds : float > 0
    what : str
        Description of the request, for the ledger.

    Raises
    ------
    TooLong
        Also at once if this thread or system cannot limit the time.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        raise TooLong(
            f"{what}: the CPU time cannot be limited here; run the start command of `fnlkit site join` on Linux or macOS"
        )
    error, expired = TooLong(f"{what}: it needs more than the {seconds:,g} s of CPU time that this site permits"), []

    def stop(number: int, frame: Any) -> None:
        expired.append(True)
        raise error

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _AGAIN)

    def check() -> None:
        if expired:
            raise error

    try:
        yield check
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    check()
