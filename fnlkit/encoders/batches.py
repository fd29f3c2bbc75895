"""Rows that are computed in batches and kept in memory or in a file, so that an interrupted computation continues."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fnlkit.artifacts.stored import Changed, Stored

BLOCK = 2**24  # bytes of samples per batch for backbones without a network


class Batches:
    """Rows (n, d) that arrive in batches, in memory or in a file.

    With a folder, finished rows survive an interruption.

    The file ``rows`` contains the numbers.  The file ``done`` contains d and then a byte per batch, written after the rows.
    """

    def __init__(self, place, count, size):
        self.place = place
        self.count = count
        self.size = size
        self.rows = None
        self.marks = None
        self.finished = np.zeros(-(-count // size), np.uint8)
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
            known = (place / "done").read_bytes() if (place / "done").is_file() else b""
            if len(known) == 8 + len(self.finished):
                self.finished[:] = np.frombuffer(known, np.uint8, offset=8)
                self._open(int.from_bytes(known[:8], "little"))

    @property
    def done(self) -> int:
        """Number of finished rows."""
        return min(self.count, int(self.finished.sum()) * self.size)

    def missing(self) -> Iterator[int]:
        """Yield the first positions of the missing batches."""
        yield from (np.flatnonzero(self.finished == 0) * self.size).tolist()

    def _open(self, width):
        shape = (self.count, width)
        if self.place is None:
            self.rows = np.empty(shape, np.float32)
            return
        with open(self.place / "done", "ab"):
            pass
        self.marks = os.open(self.place / "done", os.O_WRONLY)
        os.ftruncate(self.marks, 8 + len(self.finished))
        os.pwrite(self.marks, width.to_bytes(8, "little"), 0)
        with open(self.place / "rows", "ab") as values:
            values.truncate(self.count * width * 4)
        self.rows = Stored(os.open(self.place / "rows", os.O_RDWR), 0, np.float32, shape)

    def __del__(self):
        if self.marks is not None:
            os.close(self.marks)

    def put(self, start: int, rows: np.ndarray) -> None:
        """Store the rows of the batch that begins at a position."""
        if self.rows is None:
            self._open(rows.shape[1])
        if self.place is None:
            self.rows[start : start + len(rows)] = rows
        else:
            os.pwrite(self.rows.descriptor, np.ascontiguousarray(rows).data, start * rows.shape[1] * 4)
            os.pwrite(self.marks, b"\1", 8 + start // self.size)
        self.finished[start // self.size] = 1

    def whole(self) -> np.ndarray | Stored:
        """All rows, an array or Stored."""
        return np.empty((0, 1), np.float32) if self.rows is None else self.rows


def compute_rows(rows: Changed, place: Path | None, progress: Callable[[int, int], object] | None) -> np.ndarray | Stored:
    """Compute rows from samples block by block, once; `Batches` stores them."""
    sample = max(1, rows.source.nbytes // max(1, len(rows)))
    batches = Batches(place, len(rows), max(1, BLOCK // sample))
    for start in batches.missing():
        batches.put(start, rows[start : start + batches.size])
        if progress:
            progress(batches.done, len(rows))
    return batches.whole()
