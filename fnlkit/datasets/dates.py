"""Dates in the cells of a table: recognize a column of dates, and read year, day of the year and weekday."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from functools import partial

import numpy as np

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME = r"(?:[T ,]+\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp][Mm])?(?: ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?)?"
_YEAR, _NUMBER, _NAME = r"(\d{4})", r"(\d{1,2})", r"([A-Za-z]{3,9})\.?"
# Name of a form -> its pattern, and its parts in order: year, month, day, quarter and week.
_FORMS = {
    "year-month-day": (rf"{_YEAR}[-/.]{_NUMBER}[-/.]{_NUMBER}{_TIME}", "ymd"),
    "day-month-year": (rf"{_NUMBER}[-/.]{_NUMBER}[-/.]{_YEAR}{_TIME}", "dmy"),
    "month-day-year": (rf"{_NUMBER}[-/.]{_NUMBER}[-/.]{_YEAR}{_TIME}", "mdy"),
    "yearmonthday": (rf"((?:19|20)\d\d)(\d\d)(\d\d){_TIME}", "ymd"),
    "day name year": (rf"{_NUMBER}[-. ]+{_NAME}[-, ]+{_YEAR}{_TIME}", "dmy"),
    "name day year": (rf"{_NAME} +{_NUMBER},? +{_YEAR}{_TIME}", "mdy"),
    "year-month": (rf"{_YEAR}[-/. ]{_NUMBER}", "ym"),
    "yearmonth": (r"((?:19|20)\d\d)(\d\d)", "ym"),
    "month-year": (rf"{_NUMBER}[-/. ]{_YEAR}", "my"),
    "name year": (rf"{_NAME}[-, ]+{_YEAR}", "my"),
    "year name": (rf"{_YEAR}[-, ]+{_NAME}", "ym"),
    "year-quarter": (rf"{_YEAR}[-/ ]?[Qq]([1-4])", "yq"),
    "quarter-year": (rf"[Qq]([1-4])[-/ ]?{_YEAR}", "qy"),
    "year-week": (rf"{_YEAR}[- ]?[Ww]{_NUMBER}(?:-?[1-7])?", "yw"),
}
FORMS = tuple(_FORMS)
_READ = {form: (re.compile(pattern), parts) for form, (pattern, parts) in _FORMS.items()}
# Times of day, and dates whose year has two digits, are recognized but not converted.
_OTHER = re.compile(r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp][Mm])?|(\d{1,2})[./](\d{1,2})[./]\d{2}" + _TIME)
# Share of the cells that must be dates.
_MOST = 0.9
PARTS = ("year", "day of the year", "weekday")


def read_date(text: str, form: str) -> date | None:
    """Read the date in a text of a form of `FORMS`, or None; the first day of a month, quarter or week.

    A time after the date is ignored.

    Examples
    --------
    >>> read_date("2024-01-05 10:30", "year-month-day"), read_date("31/12/2023", "month-day-year")
    (datetime.date(2024, 1, 5), None)
    >>> read_date("2024-Q2", "year-quarter"), read_date("Mar 2024", "name year")
    (datetime.date(2024, 4, 1), datetime.date(2024, 3, 1))
    """
    pattern, parts = _READ[form]
    match = pattern.fullmatch(text.strip())
    if match is None:
        return None
    part = dict(zip(parts, match.groups(), strict=True))
    try:
        if "w" in part:
            return date.fromisocalendar(int(part["y"]), int(part["w"]), 1)
        month = part.get("m") or 3 * int(part["q"]) - 2
        if isinstance(month, str) and not month.isdigit():
            month = 1 + _MONTHS.index(month[:3].lower())
        return date(int(part["y"]), int(month), int(part.get("d", 1)))
    except ValueError:
        return None


def forms_of(texts: Sequence[str]) -> list[str]:
    """Find the forms of `FORMS` in which nearly all texts that are not empty are dates.

    Day and month are in doubt if two forms are returned, as for ``05/01/2024``.
    """
    filled = [text for text in texts if text.strip()]
    shares = {form: np.mean([read_date(text, form) is not None for text in filled]) if filled else 0 for form in FORMS}
    best = max(shares.values())
    return [form for form, share in shares.items() if share == best >= _MOST]


def are_dates(texts: Sequence[str]) -> bool:
    """Whether nearly all texts that are not empty are dates or times, such as ``2024-01-05`` or ``14:30``."""
    filled = [text for text in texts if text.strip()]
    if not filled or not any(char.isdigit() for char in filled[0]):
        return False
    return bool(forms_of(filled) or np.mean([_OTHER.fullmatch(text.strip()) is not None for text in filled]) >= _MOST)


def parts_of(texts: Sequence[str], form: str) -> tuple[np.ndarray, list[int]]:
    """Split dates into (year, day of the year from 1, weekday from 0 for Monday (n, 3) float64; indices of no dates).

    An empty text is missing: NaN.
    """
    parts, odd = np.full((len(texts), 3), np.nan), []
    for i, text in enumerate(texts):
        if not text.strip():
            continue
        date = read_date(text, form)
        if date is None:
            odd.append(i)
        else:
            parts[i] = date.year, date.timetuple().tm_yday, date.weekday()
    return parts, odd


def read_times(texts: Sequence[str]) -> np.ndarray:
    """Read times (n,) datetime64 in UTC.

    A text that is none is not-a-time, and so are those whose day and month are in doubt, as in 05/01/24, or all if no other
    text decides, as in 05/01/2024.  Times of day without a date are times if all texts are.
    """
    import pandas

    forms = forms_of(texts)
    if len(forms) > 1:
        return np.full(len(texts), np.datetime64("NaT", "ns"))
    others = [_OTHER.fullmatch(text.strip()) for text in texts]
    no_dates = any(text.strip() and (other is None or other[1]) for text, other in zip(texts, others, strict=True))
    doubted = [other is not None and (max(map(int, other.groups())) <= 12 if other[1] else no_dates) for other in others]
    first = bool(forms) and forms[0].startswith("day")
    read = partial(pandas.to_datetime, pandas.Series(texts, dtype=object), errors="coerce", utc=True)
    times = read(format="ISO8601").fillna(read(format="mixed", dayfirst=first))  # dayfirst reads 2024-01-06 as June 1, too
    return times.dt.tz_localize(None).mask(doubted).to_numpy("datetime64[ns]")
