"""Dates in the cells of a table: recognize a column of dates, and read year, day of the year and weekday."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

import numpy as np

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME = r"(?:[T ,]+\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp][Mm])?(?: ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?)?"
# Name of a form -> its pattern.  The order of the parts follows the name.
_PATTERNS = {
    "year-month-day": r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})",
    "day-month-year": r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})",
    "month-day-year": r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})",
    "yearmonthday": r"((?:19|20)\d{2})(\d{2})(\d{2})",
    "day name year": r"(\d{1,2})[-. ]+([A-Za-z]{3,9})\.?[-, ]+(\d{4})",
    "name day year": r"([A-Za-z]{3,9})\.? +(\d{1,2}),? +(\d{4})",
}
_ORDER = {"year-month-day": "ymd", "day-month-year": "dmy", "month-day-year": "mdy", "yearmonthday": "ymd",
          "day name year": "dmy", "name day year": "mdy"}  # fmt: skip
FORMS = tuple(_PATTERNS)
_READ = {form: re.compile(pattern + _TIME) for form, pattern in _PATTERNS.items()}
# Times of day, and dates whose year has two digits, are recognized but not converted.
_OTHER = re.compile(r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp][Mm])?|\d{1,2}[./]\d{1,2}[./]\d{2}" + _TIME)
# Share of the cells that must be dates.
_MOST = 0.9
PARTS = ("year", "day of the year", "weekday")


def read_date(text: str, form: str) -> date | None:
    """Return the date in a text of a form of `FORMS`, or None.  A time after the date is ignored.

    Examples
    --------
    >>> read_date("2024-01-05 10:30", "year-month-day"), read_date("31/12/2023", "month-day-year")
    (datetime.date(2024, 1, 5), None)
    """
    match = _READ[form].fullmatch(text.strip())
    if match is None:
        return None
    part = dict(zip(_ORDER[form], match.groups(), strict=True))
    month = part["m"] if part["m"].isdigit() else str(1 + _MONTHS.index(m) if (m := part["m"][:3].lower()) in _MONTHS else 0)
    try:
        return date(int(part["y"]), int(month), int(part["d"]))
    except ValueError:
        return None


def forms_of(texts: Sequence[str]) -> list[str]:
    """Return the forms of `FORMS` in which nearly all texts that are not empty are dates.

    Day and month are in doubt if two forms are returned, as for ``05/01/2024``.
    """
    filled = [text for text in texts if text.strip()]
    shares = {form: np.mean([read_date(text, form) is not None for text in filled]) if filled else 0 for form in FORMS}
    best = max(shares.values())
    return [form for form, share in shares.items() if share == best >= _MOST]


def are_dates(texts: Sequence[str]) -> bool:
    """Return whether nearly all texts that are not empty are dates or times, such as ``2024-01-05`` or ``14:30``."""
    filled = [text for text in texts if text.strip()]
    if not filled or not any(char.isdigit() for char in filled[0]):
        return False
    return bool(forms_of(filled) or np.mean([_OTHER.fullmatch(text.strip()) is not None for text in filled]) >= _MOST)


def parts_of(texts: Sequence[str], form: str) -> tuple[np.ndarray, list[int]]:
    """Return (year, day of the year from 1, weekday from 0 for Monday (n, 3) float64; indices of texts that are no dates).

    An empty text is missing: NaN.
    """
    out, odd = np.full((len(texts), 3), np.nan), []
    for i, text in enumerate(texts):
        if not text.strip():
            continue
        date = read_date(text, form)
        if date is None:
            odd.append(i)
        else:
            out[i] = date.year, date.timetuple().tm_yday, date.weekday()
    return out, odd
