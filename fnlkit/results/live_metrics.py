"""Follow the run of another process by the metrics file: rows so far, and a sparkline."""

import json
import math
import os
import stat
from collections.abc import Sequence
from typing import Any

from fnlkit.errors import InputError

BARS = "▁▂▃▄▅▆▇█"
_LONGEST = 2**22  # longest row in bytes; a longer row is an error
_BLOCK = 2**20  # bytes per read
# Required and optional fields of a row.
_KINDS, _NUMBERS = {"round": int, "stage": str}, ("accuracy", "agreement", "client_rounds")


class Metrics:
    """The rows of a growing metrics file; a resumed run rewrites the file, which is detected.

    Parameters
    ----------
    path : str

    Attributes
    ----------
    rows : list of dict
        Round, stage and scores.

    Raises
    ------
    InputError
        If the path is not a regular file.
    """

    def __init__(self, path):
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            raise InputError(
                f"{path}: {error.strerror}; `fnlkit.train(output='RUN.pt')` writes RUN.metrics.jsonl beside it"
            ) from error
        if not stat.S_ISREG(mode):
            raise InputError(f"{path}: no regular file; give the RUN.metrics.jsonl that `fnlkit train` writes")
        self.path, self.rows, self._at, self._rest = path, [], 0, b""

    @property
    def running(self) -> bool:
        """Return whether a training process writes to the file: such a process locks the file until it ends."""
        from filelock import FileLock, Timeout

        path = f"{os.path.realpath(self.path)}.lock"
        if not os.path.isfile(path):  # FileLock would create it
            return False
        try:
            with FileLock(path, timeout=0):
                return False
        except Timeout:
            return True
        except OSError:
            return False

    def update(self) -> list[dict[str, Any]]:
        """Read and return the rows added since the last call.

        Raises
        ------
        InputError
            If a line is not a row of `fnlkit train`.
        """
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_size < self._at:
                self.rows, self._at, self._rest = [], 0, b""
            file.seek(self._at)
            new = []
            while added := file.read(_BLOCK):
                self._at += len(added)
                *lines, self._rest = (self._rest + added).split(b"\n")
                if len(self._rest) > _LONGEST:
                    raise InputError(
                        f"{self.path}: a line of more than {_LONGEST:,} bytes; give the RUN.metrics.jsonl of a run"
                    )
                more = [self._row(line, len(self.rows) + i + 1) for i, line in enumerate(lines)]
                self.rows += more
                new += more
        return new

    def _row(self, line, number):
        try:
            row = json.loads(line)
            row = {name: row[name] for name in (*_KINDS, *_NUMBERS) if name in _KINDS or name in row}
        except (ValueError, KeyError, TypeError, RecursionError):
            row = {}
        right = row and all(isinstance(row[name], kind) for name, kind in _KINDS.items())
        if not right or not all(isinstance(row.get(name, 0), (int, float)) for name in _NUMBERS):
            raise InputError(f"{self.path}: line {number} is no row of a run; give the RUN.metrics.jsonl of `fnlkit train`")
        return row


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Return values as a line of bars, each the mean of a range of values; an empty text without finite values.

    Examples
    --------
    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    count = min(width, len(values))
    parts = [values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    if high == low:
        return BARS[3] * count
    return "".join(BARS[int((mean - low) / (high - low) * (len(BARS) - 1) + 0.5)] for mean in means)


def summary(rows: list[dict[str, Any]]) -> tuple[str, list[float]]:
    """Return (the rows as a line, scores so far)."""
    if not rows:
        return "no round yet", []
    name = "agreement" if any("agreement" in row for row in rows) and not any("accuracy" in row for row in rows) else "accuracy"
    scores, last = [row[name] for row in rows if name in row], rows[-1]
    rounds = sum(row["stage"] != "final" for row in rows)
    spent = next((row["client_rounds"] for row in reversed(rows) if "client_rounds" in row), None)
    text = f"{last['stage']}, {rounds:,} rounds" + ("" if spent is None else f", {spent:,} client-rounds")
    if scores:
        text += f", {name} {scores[-1]:.4f}, best {max(scores):.4f}"
    return text, scores
