"""Run pieces of one job on a few plain threads.

Rationale
---------
Kernels and BLAS calls release the GIL, so Python threads run them at full speed.  numba's thread pool in addition to the
pool of BLAS would start twice as many threads as there are cores, and forked processes would inherit its locks.  The calling
thread also works, so a call with one thread has no overhead.
"""

import itertools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# Default number of threads of a kernel; None reads the environment (`fnlkit.kernels.get_threads`).
limit: int | None = None

_pool = {}


def core_count() -> int:
    """Return the number of processors that this process can use, or of the machine where the system has no such limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _executor(workers):
    if _pool.get("workers", 0) < workers:
        _pool["executor"] = ThreadPoolExecutor(workers, thread_name_prefix="fnlkit-kernel")
        _pool["workers"] = workers
    return _pool["executor"]


# A forked child inherits the pool object but none of the threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)


def run(work: Callable[..., Any], pieces: Iterable[Any], threads: int) -> list[Any]:
    """Call ``work(*piece)`` for each piece on at most `threads` threads; return the results in order.

    A thread gets the next piece when it has finished the previous piece.  If the costs of pieces differ, pass several pieces
    per thread.
    """
    pieces = list(pieces)
    threads = min(threads, len(pieces))
    if threads <= 1:
        return [work(*piece) for piece in pieces]
    results = [None] * len(pieces)
    ticket = itertools.count()

    def serve() -> None:
        while (i := next(ticket)) < len(pieces):
            results[i] = work(*pieces[i])

    others = [_executor(threads - 1).submit(serve) for _ in range(threads - 1)]
    try:
        serve()
    finally:
        for other in others:
            # A worker that has not started has no work left; waiting for its start on a busy machine would cost a time slice.
            if not other.cancel():
                other.result()
    return results


def even(total: int, parts: int, first: int = 0) -> list[tuple[int, int]]:
    """Return bounds (start, stop) of at most `parts` ranges of nearly equal length that cover `total` numbers from `first`."""
    parts = max(1, min(parts, total))
    return [(first + total * i // parts, first + total * (i + 1) // parts) for i in range(parts)]
