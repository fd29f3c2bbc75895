"""The number of threads of the kernels in this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fnlkit._kernels import threads as shared
from fnlkit._kernels.threads import core_count
from fnlkit.core.errors import InputError

__all__ = ["core_count", "get_threads", "set_threads"]


def set_threads(threads: int | None) -> None:
    """Set the number of threads of the kernels in this process; None restores the default.

    Parameters
    ----------
    threads : int or None
        At least 1.  While clients train it is 1, because engines run clients in parallel.

    Examples
    --------
    >>> set_threads(1)
    >>> get_threads()
    1
    >>> set_threads(None)
    """
    whole = isinstance(threads, int | np.integer) and not isinstance(threads, bool)
    if threads is not None and not (whole and threads >= 1):
        raise InputError(f"`threads` must be an integer of at least 1, found {threads!r}")
    shared.limit = threads


@contextmanager
def one_kernel_thread() -> Iterator[None]:
    """Run the kernels of this process on one thread inside the context."""
    before, shared.limit = shared.limit, 1
    try:
        yield
    finally:
        shared.limit = before


def get_threads() -> int:
    """Number of threads: from `set_threads`, else FNLKIT_THREADS, else the available processors.

    Examples
    --------
    >>> get_threads() >= 1
    True
    """
    if shared.limit is not None:
        return int(shared.limit)
    value = os.environ.get("FNLKIT_THREADS", "")
    if value:
        if not value.isdecimal() or int(value) < 1:
            raise InputError(f"the variable `FNLKIT_THREADS` must be an integer of at least 1, found {value!r}")
        return int(value)
    return core_count()
