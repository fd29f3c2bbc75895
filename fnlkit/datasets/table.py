"""Read tables from CSV files in common encodings, or from Parquet files."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from fnlkit.artifacts import files, paths
from fnlkit.artifacts.encoding import decode
from fnlkit.errors import MOST_NAMES, InputError, list_names, nearest

ENDINGS = (".csv", ".tsv", ".txt", ".parquet")
MISSING = ("", "na", "n/a", "nan", "null", "none")  # texts that mean a missing number
_SEPARATORS = ",;\t|"
_MAX_BYTES = 2**28
MAX_CELLS = 2**23  # text cells; each is an object
# Limit of the csv module, which other libraries raise for the whole process: scipy 1.17 does if it reads an ARFF file.
_MOST_CHARACTERS = 2**17
MAX_NUMBERS = 2**26  # numeric cells in Parquet
_LINE = re.compile(r"[^\r\n]*(?:\r\n|[\r\n])|[^\r\n]+")
_COMMA = re.compile(r"\s*[-+]?\d*,\d+([eE][-+]?\d+)?\s*")


class Table:
    """Table with columns of the same length.

    Parameters
    ----------
    source : str or os.PathLike
        Name of the file in messages.
    columns : dict of str to list of str or float64 array
        Cells as text, or as numbers in Parquet, where NaN is a missing number.
    rows : list of int
        Row numbers in messages.  In a CSV file, the column names are row 1 and the first cells row 2, as in a spreadsheet; in
        Parquet, the first cells are row 1.
    comma : bool
        Whether ``3,5`` is a number.
    notes : list of str
        Assumptions about the file that the user should check.
    """

    def __init__(self, source, columns, rows, comma=False, notes=()):
        self.source, self.columns, self.rows, self.comma, self.notes = source, columns, rows, comma, list(notes)

    def __len__(self):
        return len(self.rows)

    def at(self, row: int) -> str:
        """Return the name of a row in messages: ``cases.csv, row 7``."""
        return f"{paths.display_path(self.source)}, row {self.rows[row]}"

    def fail(self, rows: Sequence[int], text: str) -> NoReturn:
        """Raise InputError with the first of some rows and the number of further rows."""
        rows = [int(row) for row in rows]
        others = ", ".join(str(self.rows[row]) for row in rows[1:MOST_NAMES]) + (", ..." if len(rows) > MOST_NAMES else "")
        more = f" (and {len(rows) - 1:,} more: {others})" if len(rows) > 1 else ""
        raise InputError(f"{self.at(rows[0])}: {text}{more}")

    def must_have(self, name: str, option: str) -> None:
        """Raise InputError unless a column exists."""
        if name not in self.columns:
            hint = nearest(name, self.columns)
            raise InputError(
                f"{paths.display_path(self.source)}: {option}: no column {name!r}{hint}; the columns are {self.known()}"
            )

    def known(self) -> str:
        """Return at most five column names for a message."""
        return list_names(self.columns, quote=True)

    def chosen(self, rows: Iterable[int], leave: Collection[str] = ()) -> Table:
        """Return a Table of some rows without the columns in `leave`."""
        columns = {name: values for name, values in self.columns.items() if name not in leave}
        columns = {n: [v[i] for i in rows] if isinstance(v, list) else v[rows] for n, v in columns.items()}
        return Table(self.source, columns, [self.rows[i] for i in rows], self.comma, self.notes)

    def find_columns(self, *names: str) -> list[str]:
        """Return the columns with one of these names; ignore case, and treat " " as "_"."""
        return [column for column in self.columns if column.strip().lower().replace(" ", "_") in names]

    def records(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return one dict of cells per row.

        Columns that match one of `names` except for case are renamed to it.
        """
        wanted = {name.lower(): name for name in names if name not in self.columns}
        keys = [wanted.get(column.strip().lower(), column) for column in self.columns]
        return [dict(zip(keys, cells, strict=True)) for cells in zip(*self.columns.values(), strict=True)]

    def texts(self, name: str) -> list[str]:
        """Return the cells of a column as stripped texts.

        Whole numbers have no decimal point, and a missing number is "".
        """
        values = self.columns[name]
        if isinstance(values, list):
            return [text.strip() for text in values]
        return ["" if np.isnan(v) else str(int(v)) if v.is_integer() else repr(float(v)) for v in values.tolist()]

    def numbers(self, name: str) -> tuple[np.ndarray, list[int]]:
        """Return (values (n,) float64, indices of invalid rows) of a column.

        NaN is a missing value.  An invalid cell is neither a number nor missing.
        """
        values = self.columns[name]
        if not isinstance(values, list):
            return values, []
        out, odd = np.full(len(values), np.nan), []
        for i, text in enumerate(values):
            try:
                if text.strip().lower() not in MISSING:
                    text = "no number" if "_" in text else text  # Python would read 1_000 as a thousand
                    out[i] = float(text.replace(",", ".") if self.comma and _COMMA.fullmatch(text) else text)
            except ValueError:
                odd.append(i)
        return out, odd + np.flatnonzero(np.isinf(out)).tolist()


def read_table(path: str | os.PathLike[str]) -> Table:
    """Return the Table in a CSV or Parquet file.

    A CSV file is read as UTF-16 if it has the byte order mark, as UTF-8 if valid, and otherwise as Windows-1252.  The
    separator is the comma, semicolon, tab or vertical bar that gives the most columns in the first row, which contains the
    column names.  Quoted cells can contain separators and line breaks.  With semicolons, ``3,5`` is a number.  Empty rows and
    columns without a name are skipped.

    Parameters
    ----------
    path : str or os.PathLike

    Raises
    ------
    InputError
        One line that names file and row.
    """
    if str(path).lower().endswith(".parquet"):
        table = _parquet(path)
    else:
        text, notes = _decode(path)
        table = parse_table(text, path)
        table.notes += notes
    if not len(table):
        raise InputError(f"{paths.display_path(path)}: contains no rows below the column names")
    return table


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a CSV file.

    The encoding is UTF-8, UTF-16 with byte order mark, or otherwise Windows-1252.

    Raises
    ------
    InputError
        If the bytes are not text in any of these encodings.
    """
    return _decode(path)[0]


def _decode(path):
    """Return (text, notes); a note states a guessed encoding."""
    name, raw = files.slurp(str(path), _MAX_BYTES)
    with paths.one_line(name):
        text, guessed = decode(bytes(raw))
    note = f"{name} is not UTF-8 and was read as Windows-1252; check letters with accents, or save the file as UTF-8"
    return text, [note] if guessed else []


def parse_table(text: str, source: str | os.PathLike[str], *, short: bool = False) -> Table:
    """Return the Table in the text of a CSV file, which can have no rows.

    The separator is detected in the first row.  `csv.Sniffer` would guess it from all cells, and fails for a single column.

    Parameters
    ----------
    text : str
    source : str or os.PathLike
        Name of the file in messages.
    short : bool
        Fill rows that lack cells at the end with empty cells, instead of raising an error.

    Raises
    ------
    InputError
        One line that names file and row.
    """
    separator = max(_SEPARATORS, key=lambda mark: len(_first(source, text, mark)))
    reader = csv.reader(_lines(text), delimiter=separator, strict=True)
    columns: list[list[str]] | None = None
    rows: list[int] = []
    names: list[str] = []
    try:
        for number, row in enumerate(reader, 1):
            if not any(map(str.strip, row)):
                continue
            if columns is None:
                names, columns = _names(source, row), [[] for _ in row]
                continue
            if max(map(len, row)) > _MOST_CHARACTERS:
                raise InputError(
                    f"{paths.display_path(source)}, row {number}: a cell has over {_MOST_CHARACTERS:,} characters; shorten it"
                )
            if short:
                row += [""] * (len(columns) - len(row))
            if len(row) != len(columns):
                raise InputError(
                    f"{paths.display_path(source)}, row {number}: {len(row)} cells, but the first row has {len(columns)}"
                )
            rows.append(number)
            if len(rows) * len(columns) > MAX_CELLS:
                raise InputError(f"{paths.display_path(source)}: more than {MAX_CELLS:,} cells; save it as Parquet")
            for cells, cell in zip(columns, row, strict=True):
                cells.append(cell)
    except csv.Error as error:
        where = f"{paths.display_path(source)}, line {reader.line_num}"
        raise InputError(f"{where}: {error}; quote cells that contain separators or quotes") from None
    if columns is None:
        raise InputError(f"{paths.display_path(source)}: is empty; expected column names in the first row")
    return Table(source, {name: cells for name, cells in zip(names, columns, strict=True) if name}, rows, separator == ";")


def _lines(text):
    """Yield the lines of a text including their ends, without copying the whole text."""
    return (line[0] for line in _LINE.finditer(text))


def _first(path, text, separator):
    """Return the cells of the first row that is not empty."""
    try:
        for row in csv.reader(_lines(text), delimiter=separator):
            if row:
                return row
    except csv.Error as error:
        raise InputError(f"{paths.display_path(path)}, row 1: {error}; expected a CSV table") from None
    return []


def _names(path, row):
    names = [cell.strip() for cell in row]
    counts = Counter(names)
    twice = next((name for name in names if name and counts[name] > 1), None)
    if twice is not None:
        raise InputError(f"{paths.display_path(path)}: two columns have the name {twice!r}; rename one")
    odd = next((name for name in names if not name.isprintable() or len(name) > 200), None)
    if odd is not None:
        raise InputError(
            f"{paths.display_path(path)}: column name {ascii(odd[:60])} contains control characters or is longer than 200"
        )
    return names


def _content(kind):
    """Return a description of the cells of a Parquet column of nested or binary type, for a message."""
    fields = {kind.field(i).name for i in range(kind.num_fields)} if hasattr(kind, "num_fields") else set()
    return "encoded images or other files" if "bytes" in fields or not fields else f"values of type {str(kind)[:60]}"


def _parquet(path):
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{paths.display_path(path)}: Parquet needs pyarrow; run: pip install 'fnlkit[parquet]'") from None
    paths.must_be_regular(path)
    try:
        about = parquet.ParquetFile(path).metadata
        texts = sum(about.schema.column(i).physical_type == "BYTE_ARRAY" for i in range(about.num_columns))
        size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        if texts * about.num_rows > MAX_CELLS or about.num_columns * about.num_rows > MAX_NUMBERS or size > 2**30:
            what = f"{about.num_rows:,} rows of {about.num_columns} columns, {texts} of texts, {size:,} bytes unpacked"
            raise InputError(f"{paths.display_path(path)}: {what}; too large for memory: use an npz")
        table = parquet.read_table(path)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{paths.display_path(path)}: cannot be read as Parquet: {' '.join(str(error).split())[:100]}"
        ) from error
    columns = {}
    for name, values in zip(_names(path, table.column_names), table.columns, strict=True):
        kind = values.type
        if pa.types.is_dictionary(kind):
            values, kind = values.cast(kind.value_type), kind.value_type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise InputError(
                f"{paths.display_path(path)}: column {name!r} holds {_content(kind)}, expected numbers or texts; save images "
                "as files and their paths in the column, or convert the table to an npz with x_train and y_train"
            )
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            columns[name] = values.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
        else:
            columns[name] = ["" if value is None else str(value) for value in values.to_pylist()]
    # Drop an index that pandas saved with the columns.
    columns = {name: values for name, values in columns.items() if name and not name.startswith("__index_level_")}
    return Table(path, columns, list(range(1, table.num_rows + 1)))
