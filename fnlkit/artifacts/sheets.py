"""Tables for users: CSV files without executable formulas, data frames, and arrays from a CSV."""

import codecs
import csv
import io
import os
import re
from typing import TYPE_CHECKING

import numpy as np

from fnlkit.artifacts import display, saving
from fnlkit.core.errors import InputError

if TYPE_CHECKING:
    import pandas


_FORMULA = re.compile(r"'*[=+\-@\t\r]")
MAX_ENTRIES = 2**22  # of a csv of arrays; each becomes a Python object
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def guard(cell: object) -> str:
    """Write a cell as text; a formula gets a leading apostrophe as protection.

    Numbers such as ``-1.5`` are unchanged.  `unguard` returns the original text.  The review page uses the same rule.
    """
    text = str(cell)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def unguard(text: str) -> str:
    """Restore the original text of a cell that `guard` wrote."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


class Sheet:
    """A table of plain values.

    Parameters
    ----------
    columns : list of str
    rows : list of lists
        Texts, numbers, booleans or None; one value per column.

    Examples
    --------
    >>> from fnlkit.artifacts.sheets import Sheet
    >>> print(Sheet(["sample", "label"], [["a.png", "=1+1"]]).csv(), end="")
    sample,label
    a.png,'=1+1
    """

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows

    def __len__(self):
        return len(self.rows)

    def csv(self) -> str:
        """Format the table as CSV.

        None becomes an empty cell, booleans become yes and no, and formulas are guarded.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(guard, self.columns))
        writer.writerows([_cell(value) for value in row] for row in self.rows)
        return text.getvalue()

    def write(self, target: str | os.PathLike[str]) -> None:
        """Write the table as CSV (UTF-8) to a path, or to stdout if `target` is ``-``."""
        saving.write_bytes([self.csv().encode()], os.fspath(target))

    def to_pandas(self) -> "pandas.DataFrame":
        """Convert the table to a pandas.DataFrame."""
        return display.frame([dict(zip(self.columns, row, strict=True)) for row in self.rows])

    def _repr_html_(self):
        return display.html_table(f"{len(self.rows):,} rows", self.columns, self.rows[:20])

    def __repr__(self):
        return f"Sheet: {len(self.rows):,} rows of {', '.join(self.columns)}"


def _cell(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6f}" if isinstance(value, float) else guard(value)


def parse_csv(raw: bytes) -> dict[str, np.ndarray]:
    """Parse the columns of a csv, by name if it has a header line, otherwise ``array``.

    A single column becomes a vector.  Whole numbers become int64, other numbers float64, and all other values text.
    """
    try:
        text, _ = decode(raw)
    except InputError as error:
        raise InputError(f"neither npz, npy, pt nor csv: {error}") from None
    count = text.count(",") + text.count("\n")
    if count > MAX_ENTRIES:
        raise InputError(f"a csv of {count:,} entries; expected at most {MAX_ENTRIES:,}: save it as npy or npz")
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]  # pandas would fill short rows
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        raise InputError(f"a csv with {min(widths, default=0)} to {max(widths, default=0)} entries per row; expected the same")
    if _column(rows[0]).dtype.kind == "U":
        names = [entry.strip() for entry in rows[0]]
        if len(set(names)) < len(names):
            raise InputError("a csv with two columns of the same name")
        return {name: _column([row[i] for row in rows[1:]]) for i, name in enumerate(names)}
    columns = list(map(_column, zip(*rows, strict=True)))
    return {"array": columns[0] if len(columns) == 1 else np.stack(columns, 1)}


def _column(entries):
    """Read a column as whole numbers, as other numbers, or as text."""
    import pandas

    try:
        values = pandas.to_numeric(np.array(entries, object))
    except ValueError:
        return np.array([entry.strip()[:1000] for entry in entries], str)
    return values.astype(np.int64 if values.dtype.kind == "i" or not len(values) else np.float64)


def decode(raw: bytes) -> tuple[str, bool]:
    """Decode the bytes of a text file and return (text, guessed).

    The encoding is UTF-16 if the file begins with its byte order mark, UTF-8 if the bytes are valid UTF-8, and otherwise
    Windows-1252.  In the last case `guessed` is True, because almost any bytes are valid Windows-1252.

    Parameters
    ----------
    raw : bytes

    Raises
    ------
    InputError
        If the bytes are not text in any of these encodings, or if the text contains NUL characters.

    Examples
    --------
    >>> decode("größe".encode("utf-16")), decode("größe".encode("cp1252"))
    (('größe', False), ('größe', True))
    """
    guessed = False
    try:
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            text = raw.decode("utf-16")
        else:
            try:
                text = raw.decode("utf-8-sig")
            except UnicodeDecodeError:
                text, guessed = raw.decode("cp1252"), True
    except UnicodeDecodeError as error:
        raise InputError(f"not text in UTF-8, UTF-16 or Windows-1252: {error.reason} at byte {error.start:,}") from None
    if "\0" in text:
        raise InputError("not text: contains NUL bytes")
    return text, guessed
