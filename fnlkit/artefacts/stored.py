"""Arrays that stay where they are: rows are read from the file when they are asked for, and nothing else is in memory.

An array of numpy and everything here answer to one small set of questions, which is all that the rest of fnlkit asks of
samples: ``len``, ``shape``, ``dtype``, ``ndim``, ``nbytes`` and ``[slice or positions]``, which gives a fresh array.
"""

import os

import numpy as np

from fnlkit.errors import InputError


class Rows:
    """What every array read by rows has in common; a subclass has `shape`, `dtype` and ``_read(positions)``."""

    slow = False  # whether a row costs more than reading its bytes: then engines fetch ahead

    def __len__(self):
        return self.shape[0]

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def size(self):
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self):
        return self.size * self.dtype.itemsize

    def __getitem__(self, which):
        """Return the rows of a slice or of positions (m,), in the order asked, as a fresh array; of one position its row."""
        if isinstance(which, slice):
            return self._read(range(*which.indices(len(self))))
        which = np.asarray(which)
        if which.dtype == bool:
            which = np.flatnonzero(which)
        one, which = which.ndim == 0, np.atleast_1d(which).astype(np.int64)
        if len(which) and not -len(self) <= which.min() <= which.max() < len(self):
            raise IndexError(f"rows {which.min()} to {which.max()} of {len(self)}")
        out = self._read(np.where(which < 0, which + len(self), which))
        return out[0] if one else out

    def __array__(self, dtype=None, copy=None):
        out = self[:]
        return out if dtype is None else out.astype(dtype, copy=False)


class Stored(Rows):
    """Numbers in C order in a file, read by row.

    Pages are read, not mapped: what other processes read too lies in the system's cache once, and none of it counts as
    this process's memory.

    Parameters
    ----------
    file : str, os.PathLike or int
        A path, or the descriptor of an open file, which in a process that inherits it is the same.
    offset : int
        Bytes before the first row.
    dtype : numpy.dtype
        Of the file; rows come in the machine's own byte order.
    shape : tuple of int
    own : bool
        Close the descriptor with this array; of a path always.
    """

    def __init__(self, file, offset, dtype, shape, own=False):
        self.file, self.offset, self.stored, self.shape = file, int(offset), np.dtype(dtype), tuple(shape)
        self.dtype = self.stored.newbyteorder("=")
        self.row = int(np.prod(shape[1:], dtype=np.int64)) * self.stored.itemsize
        if isinstance(file, int):
            self.descriptor, self.own = file, own
        else:
            self.descriptor, self.own = os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)), True

    def __reduce__(self):
        return Stored, (self.file, self.offset, self.stored, self.shape)

    def __del__(self):
        if getattr(self, "own", False):
            os.close(self.descriptor)

    def _read(self, positions):
        out = np.empty((len(positions), *self.shape[1:]), self.stored)
        if out.size:
            view = memoryview(out.reshape(-1).view(np.uint8))
            if isinstance(positions, range) and positions.step == 1:
                self._fill(view, positions.start)
            else:
                positions = np.asarray(positions)
                # Neighbours in the file are read at once.
                starts = np.flatnonzero(np.concatenate([[True], np.diff(positions) != 1]))
                ends = [*starts[1:].tolist(), len(positions)]
                for a, b in zip(starts.tolist(), ends, strict=True):
                    self._fill(view[a * self.row : b * self.row], int(positions[a]))
        return out if self.stored.isnative else out.astype(self.dtype)

    def _fill(self, view, first):
        at = self.offset + first * self.row
        while len(view):
            got = os.preadv(self.descriptor, [view], at)
            if not got:
                raise InputError(f"{self.file}: became shorter while it was read; make it again")
            view, at = view[got:], at + got


class Changed(Rows):
    """Rows of another array through a function of a block of rows that keeps their number.

    Parameters
    ----------
    source : array (n, ...)
    function : (m, ...) array -> (m, ...) array
        At the top of a module, or a partial of such a function, so that it can travel to another process.
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
    """Arrays one behind the other, of one type and one shape of a row."""

    def __init__(self, sources):
        self.sources, first = list(sources), sources[0]
        self.starts = np.cumsum([0, *(len(source) for source in sources)])
        self.shape, self.dtype = (int(self.starts[-1]), *first.shape[1:]), first.dtype
        self.slow = any(getattr(source, "slow", False) for source in sources)

    def _read(self, positions):
        positions = np.asarray(positions, np.int64)
        out, owner = np.empty((len(positions), *self.shape[1:]), self.dtype), self.starts.searchsorted(positions, "right") - 1
        for k in np.unique(owner):
            out[owner == k] = self.sources[k][positions[owner == k] - self.starts[k]]
        return out


def blocks(rows, size=2**26, multiple=1):
    """Yield (start, stop) of consecutive blocks of rows of about `size` bytes, at least one row each.

    Parameters
    ----------
    rows : array (n, ...)
    size : int
    multiple : int
        All blocks but the last have a multiple of so many rows.
    """
    row = max(1, rows.nbytes // max(1, len(rows)))
    step = max(1, size // row // multiple) * multiple
    for start in range(0, len(rows), step):
        yield start, min(start + step, len(rows))
