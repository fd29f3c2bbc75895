"""Numbers in the cells of a table that are written with a unit, a thousands separator or a detection limit.

A column has one notation: a decimal mark, a thousands separator and a unit.  It is learned from the training table and stored
with the run, so that new rows are read in the same way.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fnlkit.core.errors import list_names
from fnlkit.datasets.table import MISSING

# Share of the cells that must be numbers in a notation.
_MOST = 0.9
_CELL = re.compile(
    r"(?P<limit>[<>]=?|[≤≥])? ?(?P<money>[$€£¥])? ?(?P<digits>[-+]?[\d.,' ]*\d(?:[eE][-+]?\d+)?) ?"
    r"(?P<unit>(?:[^\W\d_]|[%‰°$€£¥]|/[^\W\d_])\S{0,19}(?: [^\s\d]{1,19})?)?"
)
# Thousands separator and decimal mark.  If a column fits several, the first counts: 1,234 is a thousand, except in a table with
# decimal commas.
MARKS = (("", "."), (",", "."), ("", ","), (".", ","), (" ", "."), (" ", ","), ("'", "."), ("'", ","))
_COMMA = (("", ","), ("", "."), *(marks for marks in MARKS[1:] if marks[0]))


def _pattern(thousands, decimal):
    mark = re.escape(decimal)
    whole = rf"[1-9]\d{{0,2}}(?:{re.escape(thousands)}\d{{3}})+|\d+" if thousands else r"\d+"
    return re.compile(rf"[-+]?(?:(?:{whole})(?:{mark}\d+)?|{mark}\d+)(?:[eE][-+]?\d+)?")


_PATTERNS = {marks: _pattern(*marks) for marks in MARKS}


def _split(text):
    """Split a cell into (limit, digits, unit), or None."""
    match = _CELL.fullmatch(re.sub(r"[\s\u00a0\u202f]+", " ", text).strip())
    if match is None or (match["money"] and match["unit"]):
        return None
    return match["limit"] or "", match["digits"].strip(), match["money"] or match["unit"] or ""


def find_notation(texts: Sequence[str], *, comma: bool = False) -> dict[str, str] | None:
    """Find the notation of the numbers in a column, or None if too few cells are numbers.

    Parameters
    ----------
    texts : (n,) texts
    comma : bool
        Whether ``1,234`` is a number with a decimal comma.  Default: False, which reads a thousands separator, unless another
        cell of the column has a decimal comma.

    Returns
    -------
    dict or None
        ``{"thousands": text, "decimal": text, "unit": text}``.  At least nine of ten cells that are not
        missing are numbers with these marks, a pair of `MARKS`.  The unit is the most frequent one, or ``""``.

    Examples
    --------
    >>> find_notation(["1,234.5 mg", "<0.5 mg", ""])
    {'thousands': ',', 'decimal': '.', 'unit': 'mg'}
    >>> find_notation(["north", "south"]) is None
    True
    """
    cells = [text for text in texts if text.strip().lower() not in MISSING]
    parts = [part for text in cells if (part := _split(text)) is not None]
    if not parts or len(parts) < _MOST * len(cells):
        return None
    fits = {m: sum(_PATTERNS[m].fullmatch(part[1]) is not None for part in parts) for m in (_COMMA if comma else MARKS)}
    marks = max(fits, key=fits.__getitem__)
    if fits[marks] < _MOST * len(cells):
        return None
    units = Counter(part[2] for part in parts if part[2])
    return {"thousands": marks[0], "decimal": marks[1], "unit": units.most_common(1)[0][0] if units else ""}


def read_numbers(texts: Sequence[str], notation: Mapping[str, str]) -> tuple[np.ndarray, list[int]]:
    """Read (values (n,) float64, indices of cells that are no numbers in the notation).

    A missing cell is NaN.  ``12 %`` is 12, a cell at a detection limit, such as ``<0.5``, is the limit, and a cell without a
    unit has the unit of the column.  A cell with another unit is none.

    Examples
    --------
    >>> read_numbers(["12 %", "<0.5 %", "", "3 mg"], {"thousands": "", "decimal": ".", "unit": "%"})
    (array([12. ,  0.5,  nan,  nan]), [3])
    """
    thousands, decimal, unit = notation["thousands"], notation["decimal"], notation["unit"]
    pattern, numbers, odd = _PATTERNS[thousands, decimal], np.full(len(texts), np.nan), []
    for i, text in enumerate(texts):
        if text.strip().lower() in MISSING:
            continue
        part = _split(text)
        if part is None or part[2] not in ("", unit) or not pattern.fullmatch(part[1]):
            odd.append(i)
            continue
        digits = part[1].replace(thousands, "") if thousands else part[1]
        numbers[i] = float(digits.replace(decimal, "."))
    return numbers, odd + np.flatnonzero(np.isinf(numbers)).tolist()


def describe_forms(texts: Sequence[str]) -> str:
    """Describe a column of numbers, such as "percentages ('12 %')", with an example of each form."""
    forms: dict[str, str] = {}
    units: Counter[str] = Counter()
    for text in texts:
        part = _split(text)
        if part is None:
            continue
        limit, digits, unit = part
        units[unit] += bool(unit)
        words = [("detection limits", limit), ("percentages", unit == "%"), ("units", unit not in ("", "%")),
                 ("separators", re.search(r"[,' ]|\..*\.", digits))]  # fmt: skip
        for name, has in words:
            if has:
                forms.setdefault(name, text.strip()[:40])
    several = f"several units ({list_names(name for name, count in units.most_common() if count)})"
    forms = {several if name == "units" and sum(map(bool, units.values())) > 1 else name: text for name, text in forms.items()}
    return " and ".join(f"{name} ({text!r})" for name, text in forms.items())


def looks_like_numbers(texts: Sequence[str], *, comma: bool = False) -> bool:
    """Whether a column of texts has numbers in one notation, some of them with a unit, a separator or a limit.

    At least two different numbers must not be at a detection limit, so that ``<50`` and ``>=50`` are categories.
    """
    notation = find_notation(texts, comma=comma)
    if notation is None or not describe_forms(texts):
        return False
    values, odd = read_numbers(texts, notation)
    cells = sum(text.strip().lower() not in MISSING for text in texts)
    exact = {v for text, v in zip(texts, values, strict=True) if np.isfinite(v) and not text.lstrip().startswith(tuple("<>≤≥"))}
    return len(exact) > 1 and len(odd) <= (1 - _MOST) * cells


def note_notation(name: str, texts: Sequence[str], notation: Mapping[str, str]) -> str:
    """Note how a column is read, with the number of cells at a detection limit and of cells without the unit."""
    parts = [part for text in texts if (part := _split(text)) is not None]
    limits, bare = sum(bool(part[0]) for part in parts), sum(not part[2] for part in parts)
    unit, thousands = notation["unit"], notation["thousands"]
    words = ["as numbers"] + [f"of unit {unit!r}"] * bool(unit) + [f"with thousands separator {thousands!r}"] * bool(thousands)
    words += ["with decimal comma"] * (notation["decimal"] == ",")
    more = [f"{limits:,} cells at a detection limit count as the limit"] * (limits > 0)
    more += [f"{bare:,} cells without a unit count as {unit}"] * (bool(unit) and bare > 0)
    return f"column {name!r} is read {' '.join(words)}" + "".join(f"; {note}" for note in more)
