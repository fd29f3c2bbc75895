"""Arrays on disk: rows are read from the file on access.

NumPy arrays and the classes of this module share an interface, and fnlkit uses only this interface for samples: ``len``,
``shape``, ``dtype``, ``ndim``, ``nbytes`` and ``[slice or positions]``, which returns a new array.
"""

import os
from collections.abc import Iterator

import numpy as np

from fnlkit.core.errors import InputError

SMALL = 2**26  # arrays up to this size in bytes are kept in memory


class Rows:
    """Interface of arrays that are read by rows.

    A subclass defines `shape`, `dtype` and ``_read(positions)``.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    here = True  # whether rows can be read
    slow = False  # whether a row costs more than reading its bytes; if so, engines prefetch

    def __len__(self):
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __getitem__(self, which):
        """Read the rows of a slice or of positions (m,) as a new array; or one row."""
        if isinstance(which, slice):
            return self._read(range(*which.indices(len(self))))
        which = np.asarray(which)
        if which.dtype == bool:
            which = np.flatnonzero(which)
        single, which = which.ndim == 0, np.atleast_1d(which).astype(np.int64)
        if len(which) and not -len(self) <= which.min() <= which.max() < len(self):
            raise IndexError(f"rows {which.min()} to {which.max()} of {len(self)}")
        rows = self._read(np.where(which < 0, which + len(self), which))
        return rows[0] if single else rows

    def __array__(self, dtype=None, copy=None):
        values = self[:]
        return values if dtype is None else values.astype(dtype, copy=False)


class Stored(Rows):
    """Numbers in C order in a file, read by row.

    Bytes are read, not memory-mapped.  The operating system caches the bytes once for all processes, and the cache does not
    count as memory of this process.

    Parameters
    ----------
    file : str, os.PathLike or int
        A path, or the descriptor of an open file, which is closed with this array.
    offset : int
        Bytes before the first row.
    dtype : numpy.dtype
        Type in the file; returned rows have native byte order.
    shape : tuple of int
    """

    def __init__(self, file, offset, dtype, shape):
        self.file, self.offset, self.stored, self.shape = file, int(offset), np.dtype(dtype), tuple(shape)
        self.dtype = self.stored.newbyteorder("=")
        self.row = int(np.prod(shape[1:], dtype=np.int64)) * self.stored.itemsize
        self.descriptor = file if isinstance(file, int) else os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def __reduce__(self):
        return Stored, (self.file, self.offset, self.stored, self.shape)

    def __del__(self):
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    def _read(self, positions):
        rows = np.empty((len(positions), *self.shape[1:]), self.stored)
        if rows.size:
            view = memoryview(rows.reshape(-1).view(np.uint8))
            if isinstance(positions, range) and positions.step == 1:
                self._fill(view, positions.start)
            else:
                positions = np.asarray(positions)
                # Read rows that are consecutive in the file at once.
                starts = np.flatnonzero(np.concatenate([[True], np.diff(positions) != 1]))
                ends = [*starts[1:].tolist(), len(positions)]
                for a, b in zip(starts.tolist(), ends, strict=True):
                    self._fill(view[a * self.row : b * self.row], int(positions[a]))
        return rows if self.stored.isnative else rows.astype(self.dtype)

    def _fill(self, view, first):
        at = self.offset + first * self.row
        while len(view):
            got = os.preadv(self.descriptor, [view], at)
            if not got:
                raise InputError(f"{self.file}: became shorter while it was read; create it again")
            view, at = view[got:], at + got


class Changed(Rows):
    """Apply a function to blocks of rows of another array.

    Parameters
    ----------
    source : array (n, ...)
    function : (m, ...) array -> (m, ...) array
        A module-level function, or a partial of such a function, so that it can be sent to another process.
    """

    def __init__(self, source, function):
        self.source, self.function, self.slow = source, function, getattr(source, "slow", False)
        first = function(source[:1])
        self.shape, self.dtype = (len(source), *first.shape[1:]), first.dtype

    def _read(self, positions):
        if isinstance(positions, range):
            if positions.step == 1:
                return self.function(self.source[positions.start : positions.stop])
            positions = np.asarray(positions)
        return self.function(self.source[positions])


class Chosen(Rows):
    """Some rows of another array, by position (m,)."""

    def __init__(self, source, positions):
        self.source, self.positions, self.slow = source, np.asarray(positions, np.int64), getattr(source, "slow", False)
        self.shape, self.dtype = (len(self.positions), *source.shape[1:]), source.dtype

    def _read(self, positions):
        return self.source[self.positions[np.asarray(positions, np.int64)]]


class Joined(Rows):
    """Concatenation of arrays with the same type and row shape."""

    def __init__(self, sources):
        self.sources, first = list(sources), sources[0]
        self.starts = np.cumsum([0, *(len(source) for source in sources)])
        self.shape, self.dtype = (int(self.starts[-1]), *first.shape[1:]), first.dtype
        self.slow = any(getattr(source, "slow", False) for source in sources)

    def _read(self, positions):
        positions = np.asarray(positions, np.int64)
        rows, owner = np.empty((len(positions), *self.shape[1:]), self.dtype), self.starts.searchsorted(positions, "right") - 1
        for k in np.unique(owner):
            rows[owner == k] = self.sources[k][positions[owner == k] - self.starts[k]]
        return rows


def load_small(rows: np.ndarray | Rows) -> np.ndarray | Rows:
    """Read rows into memory if they need at most 64 MiB; return a larger array unread."""
    return rows[:] if not isinstance(rows, np.ndarray) and rows.nbytes <= SMALL else rows


def blocks(rows: np.ndarray | Rows, size: int = SMALL, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive blocks of rows of about `size` bytes.

    Parameters
    ----------
    rows : array (n, ...)
    size : int
    multiple : int
        The number of rows in all blocks except the last is a multiple of this, and at least one.
    """
    row = max(1, rows.nbytes // max(1, len(rows)))
    step = max(1, size // row // multiple) * multiple
    for start in range(0, len(rows), step):
        yield start, min(start + step, len(rows))
