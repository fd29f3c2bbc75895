"""Convert table columns to feature vectors.

Numbers are used as they are, categories become one-hot features or ranks, and missing values are marked by a feature.
The learned values (category levels, and the mean that replaces missing numbers) are plain values that are saved with the
run, so that new rows are encoded in the same way.  The mean is computed from one sum and one count per site.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fnlkit.core.errors import InputError, list_names
from fnlkit.core.spec import find
from fnlkit.datasets import dates, notation
from fnlkit.datasets.spelling import is_code, order_levels, order_texts, spell
from fnlkit.datasets.table import MISSING, Table

MOST_LEVELS = 100
# If at least this share of a column's cells are numbers, a cell that is not a number is an error. Otherwise, the column is
# categorical.
_NUMERIC = 0.9
_ABSENT = "(missing)"
# A column with more distinct texts than this is free text if most rows differ, or if most texts have this many words.
_FEW_TEXTS, _SENTENCE = 10, 5
_UNKNOWN = "(unknown)"
# Values beyond all others by the factor _FAR, at most a share of _FEW of the cells, or beyond float32, mean missing values.
_FAR, _FEW, _BEYOND = 1e6, 0.25, 1e38
# Numbers are stored without their mean if their standard deviation is less than this number of steps of float32.
_FINE = 100
_FAR_ROW = 1000  # interquartile ranges from the median in most columns, at which a row is noted
_INNER = 5  # distinct values between the extremes of a column that can be codes, at least
# Numbers with a mark, and those whose mark can be a thousands separator.
_MARKED, _GROUPED = re.compile(r"[-+]?\d*([.,])\d+"), re.compile(r"[-+]?[1-9]\d{0,2}[.,]\d{3}")
# Features of a column of free text: hashed words and pairs of words.
TEXT_FEATURES = 256
# Named as text and imported at first use, because encoders import data sets.
_ENCODERS = {"texts": "fnlkit.encoders.encoding:encode_texts"}


def learn(
    table: Table,
    names: Sequence[str],
    rows: np.ndarray,
    sites: Sequence[str] | np.ndarray | None,
    *,
    categorical: Collection[str] = (),
    ordinal: Mapping[str, Sequence[str]] | Collection[str] = (),
    text: Collection[str] = (),
    numbers: Collection[str] = (),
    date: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Learn how to encode columns as numbers.

    Parameters
    ----------
    table : fnlkit.datasets.table.Table
    names : list of str
        Columns to encode.
    rows : int (n,)
        Indices of the training rows.  Only these rows are used for learning.
    sites : (n,) texts or None
    categorical : collection of str
        Columns of numbers to encode one-hot.
    ordinal : dict of str to list of str, or collection of str
        Columns to encode by the rank of their levels, with the levels in order.  Without levels, the order is that of the file
        (a categorical of Parquet or Stata), or that of `fnlkit.datasets.spelling.order_levels`.
    text : collection of str
        Columns of free text, encoded by hashed words and pairs of words; `fnlkit.encoders.features.with_backbone` replaces
        the hashed words.
    numbers : collection of str
        Columns of numbers that can have a unit, a thousands separator or a detection limit (fnlkit.datasets.notation).
    date : collection of str
        Columns of dates, encoded by year, day of the year and weekday (0 is Monday).

    Returns
    -------
    list of dict
        Plain values for each column: ``{"name", "kind": "number", "fill", "missing"}``, with ``"notation"`` if it is no
        plain number, and with ``"offset"``, which is subtracted, if it has large numbers of small differences;
        ``{"name", "kind": "one-hot" or "rank", "levels", ...}``; ``{"name", "kind": "text", "size"}``, with ``"encoder"`` and
        ``"weights"`` if a backbone encodes it;
        or ``{"name", "kind": "date", "form", "fill", "missing"}``, where `fill` has the mean of each part.

    Raises
    ------
    InputError
        If a column is free text or a cell is invalid.  The message names the column and row.
    """
    learned = []
    for name in names:
        if name in text:
            learned.append({"name": name, "kind": "text", "size": TEXT_FEATURES})
            continue
        if name in date:
            learned.append(_learn_date(table, name, rows, sites))
            continue
        codes = name not in numbers and _has_codes(table, name)
        if name not in categorical and name not in ordinal and not codes:
            values, odd = table.numbers(name)
            if len(odd) == 0:
                _refuse_far(table, name, values, declared=name in numbers)
                learned.append({"name": name, "kind": "number", **_number_of(values[rows], sites)})
                continue
            if name in numbers:
                learned.append(_learn_notation(table, name, rows, sites))
                continue
            if len(odd) <= (1 - _NUMERIC) * (np.isfinite(values).sum() + len(odd)):
                _refuse_among_numbers(table, name, odd)
        texts = table.texts(name)
        seen = {texts[row] for row in rows}
        given = ordinal[name] if isinstance(ordinal, Mapping) and name in ordinal else ()
        levels = order_texts(seen - {""})
        if name in ordinal:
            _must_list_all(table, name, rows, given)
            levels = order_levels(levels, given or table.orders.get(name, ()))
        declared = name in categorical or name in ordinal
        if len(levels) > MOST_LEVELS or not declared and _free(levels, len(rows)):
            _refuse_texts(table, name, levels, len(rows))
        if name in ordinal:
            column = {"name": name, "kind": "rank", "levels": levels}
            learned.append(column | _absent(_ranks(texts, levels)[rows], sites))
        else:
            learned.append({"name": name, "kind": "one-hot", "levels": levels + [_ABSENT] * ("" in seen)})
    return learned


def _has_codes(table, name):
    """Whether a column has numbers with leading zeros, which are codes."""
    return isinstance(table.columns[name], list) and any(map(is_code, table.columns[name]))


def _must_list_all(table, name, rows, given):
    """Raise InputError if a cell is none of the levels that the user gave."""
    texts = table.texts(name)
    odd = [row for row in rows if given and texts[row] and texts[row] not in given]
    if odd:
        table.fail(odd, f"column {name!r} holds {texts[odd[0]][:40]!r}; `ordinal` lists {list_names(given, quote=True)}")


def _refuse_among_numbers(table, name, odd):
    """Raise InputError for a column of numbers with a few other cells."""
    texts = table.raw(name)
    first = f"column {name!r} contains {texts[odd[0]][:40]!r} among numbers"
    forms = notation.describe_forms([texts[row] for row in odd])
    if forms and notation.find_notation(texts, comma=table.comma):
        table.fail(odd, f'{first}, which looks like {forms}; write numbers=["{name}"] in the data set\'s spec to read it')
    table.fail(odd, f'{first}; correct it, or write categorical=["{name}"] in the data set\'s spec')


def _refuse_texts(table, name, levels, rows):
    """Raise InputError for a column with too many texts for categories."""
    first = f"{table.source}: column {name!r} has {len(levels):,} different texts"
    if _has_codes(table, name):
        first += ", some with leading zeros, which are codes"
        raise InputError(f'{first}; write numbers=["{name}"] to read numbers, or drop=["{name}"] to leave the column out')
    if (forms := notation.describe_forms(levels)) and notation.find_notation(levels, comma=table.comma):
        raise InputError(
            f"{first}, which look like numbers with {forms}; write "
            f'numbers=["{name}"] to read them as numbers, or drop=["{name}"] to leave the column out'
        )
    if len(levels) > MOST_LEVELS:
        group = f'group="{name}" if equal texts are one patient or the like, ' if len(levels) < 0.9 * rows else ""
        raise InputError(
            f"{first}, more than {MOST_LEVELS}; in the spec 'manifest(file=\"{table.source}\", ...)' write {group}"
            f'drop=["{name}"] to leave it out, or text=["{name}"] for free text'
        )
    raise InputError(
        f'{first} in {rows:,} rows, such as {levels[0][:40]!r}; write text=["{name}"] for free text, drop=["{name}"] to leave '
        f'it out, or categorical=["{name}"] for categories'
    )


def _learn_notation(table, name, rows, sites):
    """Describe a column of numbers with units, separators or limits."""
    texts = table.raw(name)
    form = notation.find_notation(texts, comma=table.comma) or {"thousands": "", "decimal": ".", "unit": ""}
    column = {"name": name, "kind": "number", "notation": form}
    return column | _number_of(_read_numbers(table, column)[rows], sites)


def _number_of(values, sites):
    """Describe numbers by {"fill", "missing"}, and {"offset"} if float32 cannot tell the values apart without it."""
    if loses_differences(values):
        known = values[np.isfinite(values)]
        offset = float(np.round(known[0] + (known - known[0]).mean()))
        return {"offset": offset, **_absent(values - offset, sites)}
    return _absent(values, sites)


def _refuse_far(table, name, values, declared=False):
    """Raise InputError if a few values are so far from the others that they can only mean missing values."""
    known = np.abs(values[np.isfinite(values)])
    sizes = np.unique(known[known > 0])
    far = [] if declared else sizes[1:][sizes[1:] / _FAR > sizes[:-1]].tolist()
    limits = [size for size in far if (known >= size).mean() <= _FEW]
    limits += [size for size in sizes[-1:].tolist() if size > _BEYOND]
    if limits:
        rows = np.flatnonzero(np.abs(values) >= min(limits))
        codes = ", ".join(sorted({repr(float(values[row])) for row in rows})[:3])
        table.fail(
            rows.tolist(),
            f"column {name!r} holds {float(values[rows[0]])!r}, beyond all other values by a factor of a million; write "
            f'missing=[{codes}] if it means a missing value, or numbers=["{name}"] to use it',
        )


def loses_differences(values: np.ndarray) -> bool:
    """Whether float32 cannot hold the differences of numbers (n,), such as counters near 8e9."""
    known = values[np.isfinite(values)]
    largest = np.abs(known).max(initial=0)
    return bool(0 < largest < _BEYOND and np.spacing(np.float32(largest)) * _FINE > (known - known[0]).std() > 0)


def note_values(x: Any, name: str) -> list[str]:
    """Note codes of missing values, differences that float32 loses, and far rows of an array without names of columns.

    Parameters
    ----------
    x : numbers (n, d)
        At most the first 10,000 rows are read, and arrays of more than 200 columns are not.
    name : str
        Name of the array in the notes.
    """
    if x.shape[1] > 200:
        return []
    rows, notes = np.asarray(x[:10_000], np.float64), []
    for j in range(rows.shape[1]):
        notes += [
            f"column {j} of `{name}`: {count:,} values are {spell(repr(value))}, far from the others; replace codes of missing "
            "values"
            for value, count in find_codes(rows[:, j])
        ]
    if large := [j for j in range(rows.shape[1]) if loses_differences(rows[:, j])]:
        listed = f"{', '.join(map(str, large[:5]))}{f' and {len(large) - 5:,} more' if len(large) > 5 else ''}"
        columns = f"columns {listed} of `{name}` have" if len(large) > 1 else f"column {listed} of `{name}` has"
        notes.append(f"{columns} large numbers whose differences float32 cannot hold; subtract their mean")
    if far := find_far_rows(rows):
        notes.append(
            f"rows of `{name}` beyond {_FAR_ROW:,} interquartile ranges in most columns: {len(far):,}, the first is row "
            f"{far[0]}; one can spoil a model: check them"
        )
    return notes


def find_far_rows(rows: np.ndarray) -> list[int]:
    """Find the rows of numbers (n, d) beyond `_FAR_ROW` interquartile ranges in most columns that vary; [] if over 1 %."""
    low, middle, high = np.quantile(np.nan_to_num(rows), (0.25, 0.5, 0.75), axis=0)
    varies = high > low
    far = np.abs(rows - middle)[:, varies] > _FAR_ROW * (high - low)[varies]
    found = np.flatnonzero(far.mean(1) > 0.5).tolist() if varies.any() else []
    return found if len(found) <= max(1, len(rows) // 100) else []


def find_codes(values: np.ndarray) -> list[tuple[float, int]]:
    """Find (value, count) of the extremes that can mean missing values, such as -999 and 9999.

    The lowest and the highest value are compared with all values between them.  An extreme is returned if it occurs twice or
    more and is farther from them than their range, or consists of at least three nines.

    Parameters
    ----------
    values : float (n,)
        NaN for a missing value.
    """
    known = values[np.isfinite(values)]
    ends, counts = np.unique(known, return_counts=True)
    inner = ends[1:-1]
    if len(inner) < _INNER:
        return []
    codes = []
    for value, count, near in ((ends[0], counts[0], inner[0]), (ends[-1], counts[-1], inner[-1])):
        nines = re.fullmatch(r"-?9{3,}(\.0)?", repr(float(value))) is not None
        if count > 1 and value != 0 and (nines or abs(value - near) > inner[-1] - inner[0]):
            codes.append((float(value), int(count)))
    return codes


def _read_numbers(table, column):
    """Read the numbers (n,) of a column, NaN if missing."""
    name, form = column["name"], column.get("notation")
    if form is None or not isinstance(table.columns[name], list):
        values, odd = table.numbers(name)
        wanted = "expected a number"
        # A column of booleans of a file with types, which is learned as 0 and 1, has a mean of 0 to 1.
        if len(odd) and 0 <= column.get("fill", -1) <= 1 and (flags := _read_booleans(table, name)) is not None:
            values, odd = flags, []
    else:
        values, odd = notation.read_numbers(table.raw(name), form)
        marks = [f"the unit {form['unit']!r}" if form["unit"] else "no unit", f"decimal mark {form['decimal']!r}"]
        marks += [f"thousands separator {form['thousands']!r}"] * bool(form["thousands"])
        wanted = f"expected a number with {' and '.join(marks)}, as in the other rows"
    if len(odd):
        table.fail(odd, f"column {name!r} holds {table.raw(name)[odd[0]][:40]!r}; {wanted}")
    return values


def _read_booleans(table, name):
    """Read a column whose cells are true, false or missing as 1, 0 and NaN (n,), otherwise None."""
    texts = [text.lower() for text in table.texts(name)]
    if not set(texts) <= {"true", "false", *MISSING}:
        return None
    return np.array([{"true": 1.0, "false": 0.0}.get(text, np.nan) for text in texts])


def _read_categories(table, column):
    """Read the cells of a category as texts.

    A file with types has 1 and 0 where a CSV file has true and false.
    """
    texts, level_of = table.texts(column["name"]), {level.lower(): level for level in column["levels"]}
    if not {"true", "false"} <= set(level_of) <= {"true", "false", _ABSENT}:
        return texts
    return [{"1": level_of["true"], "0": level_of["false"]}.get(text, text) for text in texts]


def _learn_date(table, name, rows, sites):
    texts = table.raw(name)
    forms = dates.forms_of(texts)
    if len(forms) != 1:
        problem = f"contains {next(filter(None, texts), '')[:40]!r}, which has no known form of a date" if not forms else (
            "has dates whose day and month are in doubt")  # fmt: skip
        raise InputError(f"{table.source}: column {name!r} {problem}; write dates as 2024-01-31")
    values = _parts_of_dates(table, name, forms[0])[rows]
    known = np.isfinite(values[:, 0])
    owner = None if sites is None else np.asarray(sites)[known]
    fill = [_absent(values[known, i], owner)["fill"] for i in range(values.shape[1])]
    return {"name": name, "kind": "date", "form": forms[0], "fill": fill, "missing": bool(not known.all())}


def _parts_of_dates(table, name, form):
    values, odd = dates.parts_of(table.raw(name), form)
    if odd:
        table.fail(odd, f"column {name!r} holds {table.raw(name)[odd[0]][:40]!r}; expected a date, {form}")
    return values


def doubts(table: Table, columns: Sequence[dict[str, Any]], categorical: Collection[str] = ()) -> list[str]:
    """Note columns of numbers with units, separators or limits, and numbers that became categories.

    Parameters
    ----------
    table : fnlkit.datasets.table.Table
    columns : list of dict
        As returned by `learn`.
    categorical : collection of str
        Columns that the user declared.
    """
    written = [column for column in columns if "notation" in column and isinstance(table.columns[column["name"]], list)]
    notes = [notation.note_notation(each["name"], table.raw(each["name"]), each["notation"]) for each in written]
    notes += _note_marks(table, columns)
    notes += note_codes(table, columns)
    for name in [column["name"] for column in columns if column["kind"] == "one-hot" and column["name"] not in categorical]:
        values, odd = table.numbers(name)
        count = int(np.isfinite(values).sum())
        texts = table.raw(name)
        if _has_codes(table, name):
            example = next(text for text in texts if is_code(text))
            notes.append(
                f"column {name!r} has numbers with leading zeros, such as {example!r}: codes, read as categories; write "
                f'numbers=["{name}"] to read numbers, or categorical=["{name}"]'
            )
        elif odd and notation.looks_like_numbers(texts, comma=table.comma):
            notes.append(
                f"column {name!r} is read as categories, but looks like numbers with {notation.describe_forms(texts)}; write "
                f'numbers=["{name}"] to read numbers, or categorical=["{name}"]'
            )
        elif count > len(odd) > 0:
            text = texts[odd[0]][:40]
            notes.append(
                f"column {name!r} is read as categories, although {count:,} of {count + len(odd):,} cells are numbers; "
                f"{len(odd):,} are not, such as {text!r} in row {table.rows[odd[0]]}: correct them to read numbers, or write "
                f'categorical=["{name}"]'
            )
    return notes


def _note_marks(table, columns):
    """Note numbers of a table with semicolons that can be thousands: 1.234 if the other columns have numbers as 3,5."""
    plain = [each["name"] for each in columns if each["kind"] == "number" and not each.get("notation", {}).get("thousands")]
    marked = {name: [text for text in table.raw(name) if _MARKED.fullmatch(text)] for name in plain if table.comma}
    decimal = {_MARKED.fullmatch(text)[1] for texts in marked.values() for text in texts if not _GROUPED.fullmatch(text)}
    return [
        f"column {name!r}: {texts[0]} is read as {texts[0].replace(',', '.')}, although the decimal mark of other columns is "
        f"{mark!r}; remove {_MARKED.fullmatch(texts[0])[1]!r} if it separates thousands"
        for name, texts in marked.items()
        for mark in decimal
        if len(decimal) == 1 and texts and not any(mark in text for text in texts)
    ]


def note_codes(table: Table, columns: Sequence[dict[str, Any]]) -> list[str]:
    """Note numbers that can be codes of missing values, such as -999; arguments as for `doubts`."""
    notes = []
    for column in (column for column in columns if column["kind"] == "number"):
        for value, count in find_codes(_read_numbers(table, column)):
            code = spell(repr(value))  # all digits: 9999999, not 1e+07, is a cell
            notes.append(
                f"column {column['name']!r}: {count:,} cells are {code}, far from the other values; write "
                f"missing=[{code}] if it means a missing value"
            )
    return notes


def _free(levels, rows):
    """Whether a column is free text: mostly distinct texts, or sentences."""
    return len(levels) > _FEW_TEXTS and (2 * len(levels) > rows or np.median([len(t.split()) for t in levels]) >= _SENTENCE)


def _absent(values, sites):
    """Describe missing values by {"fill", "missing"}: the mean, and whether any value is missing."""
    known = np.isfinite(values)
    owner = np.zeros(len(values), np.int64) if sites is None else np.unique(sites, return_inverse=True)[1]
    sums = np.bincount(owner[known], values[known])
    return {"fill": float(sums.sum() / max(1, known.sum())), "missing": bool(not known.all())}


def _ranks(texts, levels):
    rank = {spell(level): float(i) for i, level in enumerate(levels)}
    return np.array([rank.get(text, np.nan) for text in texts])


def features(columns: Iterable[dict[str, Any]]) -> list[str]:
    """Name the encoded features in order."""
    names = []
    for column in columns:
        if column["kind"] == "one-hot":
            names += [f"{column['name']}: {level}" for level in column["levels"]]
        elif column["kind"] == "date":
            parts = [f"{column['name']} {part}" for part in dates.PARTS]
            names += parts + [f"{column['name']} {_ABSENT}"] * column["missing"]
        elif column["kind"] == "text":
            names += [f"{column['name']} words {i}" for i in range(column["size"])]
        else:
            names += [column["name"], *([f"{column['name']} {_ABSENT}"] if column["missing"] else [])]
    return names


def encode(columns: Sequence[dict[str, Any]], table: Table, rows: np.ndarray) -> np.ndarray:
    """Encode rows of a table as vectors (n, d) float32.

    A category that was not seen during learning becomes zeros (one-hot) or a missing rank.

    Raises
    ------
    InputError
        If the table lacks a column, or if a cell of a numeric column is not a number (the message names the row).
    """
    rows = np.asarray(rows, np.int64)
    parts = [np.empty((len(rows), 0))]
    for column in columns:
        name = column["name"]
        table.must_have(name, "the model's columns")
        if column["kind"] == "text":
            texts = table.raw(name)
            parts.append(encode_texts([texts[row] for row in rows], column))
            continue
        if column["kind"] == "one-hot":
            texts = _read_categories(table, column)
            cells = np.array([texts[row] or _ABSENT for row in rows], np.str_)
            parts.append(cells[:, None] == np.array([spell(level) for level in column["levels"]], np.str_)[None, :])
            continue
        if column["kind"] == "date":
            values = _parts_of_dates(table, name, column["form"])
        elif column["kind"] == "rank":
            values = _ranks(_read_categories(table, column), column["levels"])[:, None]
        else:
            values = _read_numbers(table, column)[:, None] - column.get("offset", 0.0)
            if far := np.asarray(rows, int)[np.abs(values[rows, 0]) > np.finfo(np.float32).max].tolist():
                table.fail(
                    far, f"column {name!r} holds {values[far[0], 0]:g}, beyond float32; leave the cell empty if it is missing"
                )
        absent = ~np.isfinite(values[rows])
        parts.append(np.where(absent, column["fill"], values[rows]))
        parts += [absent[:, :1]] * column["missing"]
    return np.concatenate(parts, 1).astype(np.float32)


def note_unseen(columns: Sequence[dict[str, Any]], table: Table, rows: Sequence[int] | np.ndarray, what: str) -> list[str]:
    """Note categories and missing numbers that did not occur during learning, a note per column with the number of rows.

    Parameters
    ----------
    columns, table, rows
        As for `encode`.
    what : str
        Name of the rows in the notes, such as "test rows".
    """
    notes, all_rows = [], set()
    for column in columns:
        odd = unseen_rows(column, table, rows)
        if odd:
            all_rows.update(odd)
            texts = table.texts(column["name"])
            names = list_names(order_texts({texts[row] or _ABSENT for row in odd}), quote=True)
            notes.append(
                f"column {column['name']!r}: {len(odd):,} of {len(rows):,} {what} have categories that no training row has: "
                f"{names}"
            )
    if len(notes) > 1:
        notes.append(f"{len(all_rows):,} of {len(rows):,} {what} have such a category in some column")
    gaps = {column["name"]: _count_gaps(column, table, rows) for column in columns}
    return notes + [
        f"column {name!r}: {count:,} of {len(rows):,} {what} have no value, and every training row has one: they get its mean"
        for name, count in gaps.items()
        if count
    ]


def _count_gaps(column, table, rows):
    """Count the rows without a number or date in a column that has no feature for missing values."""
    if column["kind"] not in ("number", "date") or column["missing"]:
        return 0
    texts = table.raw(column["name"])
    return sum(texts[row].lower() in MISSING for row in rows)


def unseen_rows(column: dict[str, Any], table: Table, rows: Iterable[int]) -> list[int]:
    """Find the rows whose category is not a level of a column; [] for a column of another kind."""
    if column["kind"] not in ("one-hot", "rank"):
        return []
    texts, absent = _read_categories(table, column), _ABSENT if column["kind"] == "one-hot" else None
    known = {"" if level == absent else spell(level) for level in column["levels"]}
    known |= {""} if column.get("missing") else set()
    return [int(row) for row in rows if texts[row] not in known]


def encode_texts(texts: Sequence[str], column: dict[str, Any]) -> np.ndarray:
    """Encode the texts of a column as (n, size) float32 by its backbone, otherwise as hashed words."""
    if "encoder" not in column:
        return hash_texts(texts, column["size"])
    encode = find("texts", _ENCODERS, "encoder")
    return encode(texts, column["encoder"], column.get("weights", ""))


def hash_texts(texts: Sequence[str], size: int, **how: Any) -> np.ndarray:
    """Count words and pairs of words in hashed bins, (n, size) float32, each text scaled to length 1.

    Parameters
    ----------
    texts : list of n str
    size : int
    **how
        Other settings of scikit-learn's HashingVectorizer, such as ``analyzer``.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    made = HashingVectorizer(n_features=size, **{"ngram_range": (1, 2), "dtype": np.float32} | how)
    return made.transform(texts).toarray() if texts else np.zeros((0, size), np.float32)


def decode_row(columns: Sequence[dict[str, Any]], vector: np.ndarray) -> list[tuple[str, Any]]:
    """Decode one encoded row to a list of (column, value) pairs, without columns of free text.

    Numbers and categories are texts; None marks a missing value.  A category that was not seen during learning is
    ``(unknown)``.

    Parameters
    ----------
    columns : list of dict
        As returned by `learn`.
    vector : (d,)
        As returned by `encode`.
    """
    cells, at = [], 0
    for column in columns:
        levels = column.get("levels", [])
        if column["kind"] == "text":
            at += column["size"]
            continue
        if column["kind"] == "one-hot":
            places = np.flatnonzero(vector[at : at + len(levels)] > 0.5)
            level = levels[places[0]] if len(places) else _UNKNOWN
            cells.append((column["name"], None if level == _ABSENT else level))
            at += len(levels)
            continue
        wide = len(dates.PARTS) if column["kind"] == "date" else 1
        number = float(vector[at]) + column.get("offset", 0.0)
        if column["missing"] and vector[at + wide] > 0.5:
            text = None
        elif column["kind"] == "date":
            text = f"{round(number)}, day {round(float(vector[at + 1]))}"
        else:
            text = levels[round(number)] if column["kind"] == "rank" else f"{number:.6g}"
        cells.append((column["name"], text))
        at += wide + column["missing"]
    return cells


def descriptions(columns: Sequence[dict[str, Any]]) -> list[str]:
    """Describe how each column is encoded, in sentences."""
    kinds = {
        "number": "numbers",
        "one-hot": "categories, one-hot",
        "rank": "categories by rank",
        "text": "free text",
        "date": "dates: year, day of the year, weekday",
    }
    sentences = []
    for kind, words in kinds.items():
        names = [c["name"] + (f" ({' < '.join(c['levels'])})" if kind == "rank" else "") for c in columns if c["kind"] == kind]
        if names:
            sentences.append(f"{words}: {list_names(names)}")
    gaps = [c["name"] for c in columns if c.get("missing") or _ABSENT in c.get("levels", ())]
    if gaps:
        sentences.append(
            f"values are missing in {list_names(gaps)}: a feature marks them, and numbers become the mean of all sites"
        )
    return sentences
