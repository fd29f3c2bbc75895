"""Pieces of one job on a few plain threads.

Rationale
---------
Kernels release the GIL, so Python's own threads run them at full speed, and BLAS calls between them as well.  A pool of
numba's beside the one of BLAS would put twice as many threads on the cores as there are; forked processes would inherit
its locks.  The calling thread works too, so one thread means no hand-over at all.
"""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

# Threads of a kernel whose caller does not say; None leaves it to the environment (`fnlkit.kernels.get_threads`).
limit = None

_pool = {}


def _executor(workers):
    if _pool.get("workers", 0) < workers:
        _pool["executor"] = ThreadPoolExecutor(workers, thread_name_prefix="fnlkit-kernel")
        _pool["workers"] = workers
    return _pool["executor"]


# A forked child has the pool's bookkeeping but none of its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)


def run(work, pieces, threads):
    """Call ``work(*piece)`` for each piece, on at most `threads` threads; return the results in order.

    Pieces are handed out one by one, so give several a thread when their costs differ.
    """
    pieces = list(pieces)
    threads = min(threads, len(pieces))
    if threads <= 1:
        return [work(*piece) for piece in pieces]
    results = [None] * len(pieces)
    ticket = itertools.count()

    def serve():
        while (i := next(ticket)) < len(pieces):
            results[i] = work(*pieces[i])

    others = [_executor(threads - 1).submit(serve) for _ in range(threads - 1)]
    try:
        serve()
    finally:
        for other in others:
            # One that has not begun has nothing left to do; waiting for a busy machine to start it would cost a time
            # slice.
            if not other.cancel():
                other.result()
    return results


def even(total, parts):
    """Bounds (start, stop) of at most `parts` ranges of nearly equal length that cover range(total)."""
    parts = max(1, min(parts, total))
    return [(total * i // parts, total * (i + 1) // parts) for i in range(parts)]
