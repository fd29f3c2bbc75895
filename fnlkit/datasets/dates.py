"""Dates in the cells of a table: recognize a column of dates, and read year, day of the year and weekday."""

import re
from collections.abc import Sequence
from datetime import date

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
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp][Mm])?")
# Times of day, and dates whose year has two digits, are recognized but not converted.
_OTHER = re.compile(rf"{_CLOCK.pattern}|\d{{1,2}}[./]\d{{1,2}}[./]\d{{2}}{_TIME}")
_NUMBERS = re.compile(r"(\D*)(\d{4}|\d\d?)[-./](\d\d?)[-./](\d{4}|\d\d?)(?!\d)(.*)")
_DOTTED = re.compile(r"\D*\d\d?\.")
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

    A text that is none is not-a-time, and so is a date in doubt, such as 24/01/31, or 05/01/2024 if the others do not decide.
    Times of day without a date are times if all texts are.
    """
    import pandas

    texts = [text.strip() for text in texts]
    forms = forms_of([text for text in texts if not text[:4].isdigit()])
    form = forms[0] if len(forms) == 1 else ""
    mixed = not all(_CLOCK.fullmatch(text) for text in texts if text)
    written = ["" if mixed and _CLOCK.fullmatch(text) else _as_iso(text, form) for text in texts]
    times = pandas.to_datetime(pandas.Series(written, dtype=object), format="mixed", errors="coerce", utc=True)
    return times.dt.tz_localize(None).to_numpy("datetime64[ns]")


def _as_iso(text, form):
    """Write the date in a text as 2024-01-05; "" if several dates are possible.

    Of a year with four digits, the form of the column decides if it fits.
    """
    match = _NUMBERS.fullmatch(text)
    if match is None:
        return text
    before, *numbers, after = match.groups()
    dates, orders = {}, [("day-month-year", 2), ("month-day-year", 2), ("year-month-day", 0)]
    if _DOTTED.match(text):  # points stand after a day, or between a year of four digits and a month
        orders.pop()
    for order, year in orders:
        parts = [("19" if n >= "69" else "20") + n if i == year and len(n) == 2 else n for i, n in enumerate(numbers)]
        dates[order] = read_date("-".join(parts), order)
    decided = dates.get(form) if max(map(len, numbers)) == 4 else None
    possible = {decided or day for day in dates.values()} - {None}
    return f"{before}{possible.pop()}{after}" if len(possible) == 1 else "" if possible else text
