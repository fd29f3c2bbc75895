"""Read tables by pandas: CSV in common encodings, Excel, Parquet, and the files of statistics programs."""

import contextlib
import csv
import io
import os
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from fnlkit.artifacts import files
from fnlkit.artifacts.paths import display_path, must_be_regular, one_line
from fnlkit.artifacts.sheets import decode
from fnlkit.core.errors import MOST_NAMES, InputError, list_names, nearest
from fnlkit.datasets.spelling import is_number, spell, spell_all

if TYPE_CHECKING:
    import pandas

MISSING = ("", "na", "n/a", "nan", "null", "none")  # texts that mean a missing number
_SEPARATORS = ",;\t|"
_MAX_BYTES = 2**28
_MAX_UNPACKED = 2**30
# Limit of the csv module, which other libraries raise for the whole process: scipy 1.17 does if it reads an ARFF file.
_MOST_CHARACTERS = 2**17
MAX_CELLS = 2**23  # text cells; each is an object
MAX_NUMBERS = 2**26  # numeric cells
_BLANK = re.compile(r'\A(?:(?:[ \t]*|(?i:sep=.|"sep=."))(?:\r\n|\r|\n))*')  # Excel reads a first line sep=;
_COMMA = re.compile(r"\s*[-+]?\d*,\d+([eE][-+]?\d+)?\s*")
_SHEETS = {"header": None, "dtype": object, "keep_default_na": False, "sheet_name": None}
# End of the name -> name of the format, function of pandas ("": `_read_xport`), its options, and the package that it needs.
_READERS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    ".parquet": ("Parquet", "read_parquet", {}, "pyarrow; run: pip install 'fnlkit[parquet]'"),
    ".feather": ("Feather", "read_feather", {}, "pyarrow; run: pip install 'fnlkit[parquet]'"),
    ".xlsx": ("Excel", "read_excel", _SHEETS, "openpyxl; run: pip install 'fnlkit[excel]'"),
    ".ods": ("OpenDocument", "read_excel", _SHEETS, "odfpy; run: pip install 'fnlkit[excel]'"),
    ".dta": ("Stata", "read_stata", {}, ""),
    ".sas7bdat": ("SAS", "read_sas", {"encoding": "infer"}, ""),
    ".xpt": ("SAS", "", {}, "pyreadstat; run: pip install pyreadstat"),
    ".sav": ("SPSS", "read_spss", {}, "pyreadstat; run: pip install pyreadstat"),
}
ENDINGS = (".csv", ".tsv", ".txt", *_READERS)


class Table:
    """Table with columns of the same length.

    Parameters
    ----------
    source : str or os.PathLike
        Name of the file in messages.
    columns : dict of str to list of str or float64 array
        Cells as text, or as numbers, where NaN is a missing number.
    rows : list of int
        Row numbers in messages.  In a CSV or Excel file, the column names are row 1 and the first cells row 2, as in a
        spreadsheet; in other files, the first cells are row 1.
    comma : bool
        Whether ``3,5`` is a number.
    notes : list of str
        Assumptions about the file that the user should check.
    orders : dict of str to list of str
        Levels of the columns whose file stores their order.
    """

    def __init__(self, source, columns, rows, comma=False, notes=(), orders=None):
        self.source, self.columns, self.rows, self.comma, self.notes = source, columns, rows, comma, list(notes)
        self.orders: dict[str, list[str]] = orders or {}

    def __len__(self):
        return len(self.rows)

    def at(self, row: int) -> str:
        """Name a row in messages: ``cases.csv, row 7``."""
        return f"{display_path(self.source)}, row {self.rows[row]}"

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
            raise InputError(f"{display_path(self.source)}: {option}: no column {name!r}{hint}; the columns are {self.known()}")

    def known(self) -> str:
        """List at most five column names for a message."""
        return list_names(self.columns, quote=True)

    def chosen(self, rows: Iterable[int], leave: Collection[str] = ()) -> "Table":
        """Select some rows, without the columns in `leave`."""
        rows = list(rows)
        columns = {name: values for name, values in self.columns.items() if name not in leave}
        columns = {n: [v[i] for i in rows] if isinstance(v, list) else v[rows] for n, v in columns.items()}
        return Table(self.source, columns, [self.rows[i] for i in rows], self.comma, self.notes, self.orders)

    def repeated(self, without: str | None = None) -> np.ndarray:
        """Mark the rows (n,) that equal an earlier row, if `without` is given apart from this column."""
        import pandas

        return pandas.DataFrame(self.columns).drop(columns=[without] if without else []).duplicated().to_numpy()

    def find_columns(self, *names: str) -> list[str]:
        """Find the columns with one of these names; ignore case, and treat " " as "_"."""
        return [column for column in self.columns if column.strip().lower().replace(" ", "_") in names]

    def records(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """List one dict of cells per row.

        Columns that match one of `names` except for case are renamed to it.
        """
        wanted = {name.lower(): name for name in names if name not in self.columns}
        keys = [wanted.get(column.strip().lower(), column) for column in self.columns]
        return [dict(zip(keys, cells, strict=True)) for cells in zip(*self.columns.values(), strict=True)]

    def raw(self, name: str) -> list[str]:
        """Read the cells of a column as they are written, without spaces at the ends; a missing number is ""."""
        values = self.columns[name]
        if isinstance(values, list):
            return [text.strip() for text in values]
        return ["" if value != value else spell(repr(value)) for value in values.tolist()]

    def texts(self, name: str) -> list[str]:
        """Read the cells of a column in one spelling (fnlkit.datasets.spelling): 1 for 1.0; a missing number is ""."""
        texts = self.raw(name)
        if self.comma:
            texts = [text.replace(",", ".") if _COMMA.fullmatch(text) else text for text in texts]
        return spell_all(texts)

    def numbers(self, name: str) -> tuple[np.ndarray, list[int]]:
        """Read (values (n,) float64, indices of invalid rows) of a column.

        NaN is a missing value.  An invalid cell is neither a number nor missing.
        """
        values = self.columns[name]
        if not isinstance(values, list):
            return values, np.flatnonzero(np.isinf(values)).tolist()
        import pandas

        texts = [text.strip() for text in values]
        if self.comma:
            texts = [text.replace(",", ".") if _COMMA.fullmatch(text) else text for text in texts]
        numbers = pandas.to_numeric(pandas.Series(texts, dtype=object), errors="coerce").to_numpy(np.float64, copy=True)
        odd = [int(i) for i in np.flatnonzero(~np.isfinite(numbers)) if texts[i].lower() not in MISSING]
        return numbers, odd

    def blank(self, codes: Collection[str]) -> None:
        """Make the cells empty whose value is one of `codes`."""
        known = {spell(code) for code in codes}
        values = [float(code) for code in known if code and is_number(code)]
        for name, cells in self.columns.items():
            if isinstance(cells, list):
                self.columns[name] = [
                    "" if spelled in known else cell for cell, spelled in zip(cells, self.texts(name), strict=True)
                ]
            else:
                self.columns[name] = np.where(np.isin(cells, values), np.nan, cells)


def read_table(path: str | os.PathLike[str]) -> Table:
    """Read the Table in a file with one of `ENDINGS`; a file with another ending is read as CSV.

    A CSV file is read as UTF-16 if it has the byte order mark, as UTF-8 if valid, and otherwise as Windows-1252.  The
    separator is the comma, semicolon, tab or vertical bar that gives the most columns in the first row, which contains the
    column names.  Quoted cells can contain separators and line breaks.  With semicolons, ``3,5`` is a number.  Empty rows and
    columns without a name are skipped.  Of an Excel or OpenDocument file, the first sheet is read.

    Parameters
    ----------
    path : str or os.PathLike

    Raises
    ------
    InputError
        One line that names file and row.
    """
    ending = os.path.splitext(str(path))[1].lower()
    if ending in _READERS:
        table = _read_file(path, ending)
    else:
        text, notes = _decode(path)
        table = parse_table(text, path)
        table.notes += notes
    if not len(table):
        raise InputError(f"{display_path(path)}: contains no rows below the column names")
    return table


def read_text(path: str | os.PathLike[str]) -> str:
    """Read the text of a CSV file.

    The encoding is UTF-8, UTF-16 with byte order mark, or otherwise Windows-1252.

    Raises
    ------
    InputError
        If the bytes are not text in any of these encodings.
    """
    return _decode(path)[0]


def _decode(path):
    """Decode (text, notes); a note states a guessed encoding."""
    name, raw = files.slurp(str(path), _MAX_BYTES)
    with one_line(name):
        text, guessed = decode(bytes(raw))
    note = f"{name} is not UTF-8 and was read as Windows-1252; check letters with accents, or save the file as UTF-8"
    return text, [note] if guessed else []


def parse_table(text: str, source: str | os.PathLike[str], *, short: bool = False) -> Table:
    """Parse the Table in the text of a CSV file, which can have no rows.

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
    import pandas

    name, body = display_path(source), _BLANK.sub("", text, count=1)
    skipped = len((text[: len(text) - len(body)] + "x").splitlines()) - 1
    read = {"header": None, "dtype": object, "keep_default_na": False, "skip_blank_lines": False, "index_col": False,
            "engine": "python"}  # fmt: skip
    separator = ","
    try:
        separator = max(_SEPARATORS, key=lambda mark: len(next(csv.reader(io.StringIO(body, ""), delimiter=mark), ())))
        if body.count(separator) > 2 * MAX_CELLS:
            raise InputError(f"{name}: more than {MAX_CELLS:,} cells; save it as Parquet")
        # The engine "c" fills rows that lack cells with "", so that they could not be told from empty cells.
        frame = pandas.read_csv(io.StringIO(body, ""), sep=separator, **read)
    except pandas.errors.EmptyDataError:
        raise InputError(f"{name}: is empty; expected column names in the first row") from None
    except (pandas.errors.ParserError, csv.Error) as error:
        if mismatch := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
            wanted, row, cells = map(int, mismatch.groups())
            raise InputError(f"{name}, row {row + skipped}: {cells} cells, but the first row has {wanted}") from None
        line = _broken_line(body, separator) + skipped
        raise InputError(f"{name}, line {line}: {error}; quote cells that contain separators or quotes") from None
    frame.index += 1 + skipped
    longest = frame.apply(lambda cells: cells.str.len()).max(axis=1)
    if (longest > _MOST_CHARACTERS).any():
        raise InputError(f"{name}, row {longest.idxmax()}: a cell has over {_MOST_CHARACTERS:,} characters; shorten it")
    return _from_sheet(frame, source, comma=separator == ";", short=short)


def _broken_line(text, separator):
    """Find the line of the first cell whose quotes are not closed."""
    reader = csv.reader(io.StringIO(text, ""), delimiter=separator, strict=True)
    with contextlib.suppress(csv.Error):
        for _ in reader:
            pass
    return reader.line_num


def _from_sheet(frame, source, *, comma=False, short=True):
    """Make the Table of cells whose first row that is not empty has the column names; the index has the row numbers."""
    name, cells, gaps = display_path(source), frame.to_numpy(), frame.isna().to_numpy()
    empty = gaps | (cells == "")
    filled = [
        any(not gap and str(cell).strip() for cell, gap in zip(*row, strict=True)) for row in zip(cells, empty, strict=True)
    ]
    frame, gaps = frame.mask(empty)[filled], gaps[filled]
    if not len(frame):
        raise InputError(f"{name}: is empty; expected column names in the first row")
    if not short and (lacking := gaps.sum(1)).any():
        row = int(np.flatnonzero(lacking)[0])
        wanted = frame.shape[1]
        raise InputError(f"{name}, row {frame.index[row]}: {wanted - lacking[row]} cells, but the first row has {wanted}")
    if frame.size > MAX_CELLS + frame.shape[1]:
        raise InputError(f"{name}: more than {MAX_CELLS:,} cells; save it as Parquet")
    frame.columns = _names(
        source, ["" if gap else _text(cell) for cell, gap in zip(frame.iloc[0], frame.iloc[0].isna(), strict=True)]
    )
    frame = frame.iloc[1:]
    return from_frame(frame[[column for column in frame if column]], source, frame.index.tolist(), comma)


def from_frame(frame: "pandas.DataFrame", source: str | os.PathLike[str], rows: list[int], comma: bool = False) -> Table:
    """Make the Table of a data frame; parameters as for `Table`."""
    import pandas

    columns, orders = {}, {}
    for name in frame:
        values = frame[name]
        if isinstance(values.dtype, pandas.CategoricalDtype):
            if values.cat.ordered:
                orders[str(name)] = spell_all([_text(level) for level in values.cat.categories])
            values = values.astype(object)
        columns[str(name)] = _cells(values, name, source)
    return Table(source, columns, rows, comma, orders=orders)


def _cells(values, name, source):
    """Convert the cells of a column to float64, or to a list of texts; booleans are 0 and 1."""
    import pandas

    kind = pandas.api.types.infer_dtype(values, skipna=True)
    if kind in ("boolean", "integer", "floating", "mixed-integer-float", "decimal"):
        numbers = pandas.to_numeric(values.astype(object), errors="coerce").to_numpy(np.float64, na_value=np.nan)
        if kind != "integer" or not (np.abs(numbers) >= 2**53).any():
            return numbers
    gaps = values.isna().tolist()
    texts = ["" if gap else value for value, gap in zip(values.astype(object), gaps, strict=True)]
    if kind == "string":
        return texts
    odd = next((value for value in texts if isinstance(value, (bytes, list, dict, tuple, np.ndarray))), None)
    if odd is not None:
        files_inside = isinstance(odd, bytes) or "bytes" in odd
        content = "encoded images or other files" if files_inside else f"values of type {type(odd).__name__}"
        raise InputError(
            f"{display_path(source)}: column {name!r} holds {content}, expected numbers or texts; save images "
            "as files and their paths in the column, or convert the table to an npz with x_train and y_train"
        )
    return [_text(value) for value in texts]


def _text(value):
    """Convert a cell to text: a time at midnight to its date, a whole number without a decimal point."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return spell(repr(value))
    text = str(value)
    return text.removesuffix(" 00:00:00") if hasattr(value, "year") else text


def _names(path, row):
    names = [cell.strip() for cell in row]
    counts = Counter(names)
    twice = next((name for name in names if name and counts[name] > 1), None)
    if twice is not None:
        raise InputError(f"{display_path(path)}: two columns have the name {twice!r}; rename one")
    odd = next((name for name in names if not name.isprintable() or len(name) > 200), None)
    if odd is not None:
        raise InputError(f"{display_path(path)}: column name {ascii(odd[:60])} has control characters, or is longer than 200")
    return names


def _read_file(path, ending):
    """Read the Table in a file that is not CSV."""
    import pandas

    name, (kind, function, options, needs) = display_path(path), _READERS[ending]
    must_be_regular(path)
    if not os.path.exists(path):
        raise InputError(f"{name}: no such file")
    try:
        _must_fit(path, ending)
        content = getattr(pandas, function)(path, **options) if function else _read_xport(path)
    except ImportError:
        raise InputError(f"{name}: {kind} needs {needs}") from None
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name}: cannot be read as {kind}: {' '.join(str(error).split())[:100]}") from error
    if isinstance(content, dict):
        first, *others = content
        frame = content[first]
        frame.index += 1
        table = _from_sheet(frame, path)
        table.notes += [f"the sheet {first!r} of {name} is read; not read: {list_names(others)}"] if others else []
        return table
    levels = [level for level in content.index.names if level is not None]
    _names(path, [*map(str, levels), *map(str, content.columns)])
    content = content.reset_index(level=levels)
    content.columns = [str(column).strip() for column in content.columns]
    content = content[[column for column in content if column and not column.startswith("__index_level_")]]
    texts = sum(dtype.kind == "O" for dtype in content.dtypes)
    if texts * len(content) > MAX_CELLS or content.size > MAX_NUMBERS:
        raise InputError(f"{name}: {len(content):,} rows of {content.shape[1]} columns are too large for memory: use an npz")
    return from_frame(content, path, list(range(1, len(content) + 1)))


def _read_xport(path):
    """Read SAS XPORT of versions 5 and 8 with dates, which pandas reads as numbers; texts have the encoding of the session."""
    import pyreadstat

    if os.path.getsize(path) % 80:
        raise ValueError("it is cut off; create the file again")
    try:
        return pyreadstat.read_xport(path)[0]
    except UnicodeDecodeError:
        return pyreadstat.read_xport(path, encoding="LATIN1")[0]


def _must_fit(path, ending):
    """Raise InputError if a compressed table would unpack to more than memory."""
    if ending == ".parquet":
        from pyarrow import parquet

        about = parquet.ParquetFile(path).metadata
        texts = sum(about.schema.column(i).physical_type == "BYTE_ARRAY" for i in range(about.num_columns))
        size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        if texts * about.num_rows > MAX_CELLS or about.num_columns * about.num_rows > MAX_NUMBERS or size > _MAX_UNPACKED:
            extent = f"{about.num_rows:,} rows of {about.num_columns} columns, {texts} of texts, {size:,} bytes unpacked"
            raise InputError(f"{display_path(path)}: {extent}; too large for memory: use an npz")
    elif ending in (".xlsx", ".ods"):
        with zipfile.ZipFile(path) as file:
            size = sum(member.file_size for member in file.infolist())
        if size > _MAX_UNPACKED:
            raise InputError(f"{display_path(path)}: {size:,} bytes unpacked are too large for memory: save it as CSV")
