"""Columns of a table that identify rows and describe nothing: row numbers, identifiers, file names, dates and times.

A model that is trained on them learns the order of the rows.  A measured whole number, such as a blood pressure or a price, can
be different in each row, too.  Therefore, the values decide only if independent draws would have repeated some of them.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fnlkit.core.errors import list_names
from fnlkit.datasets.dates import are_dates
from fnlkit.datasets.notation import looks_like_numbers

NUMERIC = ("row numbers", "identifiers", "Unix times")  # kinds of columns of numbers
# A column of whole numbers is left out if independent draws from its range would all differ with at most this probability.
_CHANCE = 1e-6
# Fewer rows than this are not judged by their numbers, because few numbers can be a designed sequence, such as doses or counts.
# With the name of an identifier, fewer are enough.
_LEAST, _LEAST_NAMED = 20, 10
_MOST_ROWS = 10_000
# Share of the cells that must have a form, and share of different ones.
_MOST = 0.9
_NAMES = re.compile(
    r"(^|[_\s.-])(id|ids|uid|uuid|guid|no|nr|num|number|key|mrn|code|index|idx|row|rownames|serial|accession)$|Id$|ID$|No$"
    r"|^(patient|subject|participant|case|visit|record|sample|customer|order|row|study|exam)(id|no|nr|num|number)?$"
    r"|^unnamed: ?\d+$",
)
_UUID = re.compile(r"\{?[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\}?")
_HASH = re.compile(r"(?=[^a-fA-F]*[a-fA-F])(?=[^0-9]*[0-9])[0-9a-fA-F]{12,128}")
_FILE = re.compile(
    r".*\.(png|jpe?g|bmp|p[pg]m|webp|tiff?|dcm|dicom|gif|svs|nii|gz|zip|wav|mp3|flac|ogg|mp4|avi|npy|npz|mat|edf|pdf|txt|csv|tsv"
    r"|json|xml|html?|docx?|xlsx?)",
    re.IGNORECASE,
)
# Dates that are numbers: 20240131, 202401, 01.2024, 2024.01.
_DATE = re.compile(r"(19|20)\d{6}|(19|20)\d\d\.?(0[1-9]|1[0-2])|(0[1-9]|1[0-2])\.(19|20)\d\d")
# A text of letters and digits without spaces, such as ``p0017`` or ``MRN-20034``.
_CODE = re.compile(r"(?=[^\d]*\d)[\w./#:-]{2,64}")
# Seconds from the start of 1990 to that of 2050, as Unix time.
_TIMES = (631_152_000, 2_524_608_000)


def reason_to_leave_out(name: str, texts: Sequence[str], values: np.ndarray, sites: Sequence[str] | None = None) -> str | None:
    """Kind of a column that identifies rows, such as "row numbers" or "dates", or None.

    Parameters
    ----------
    name : str
        Name of the column.
    texts : (n,) texts
        Cells without spaces at the ends.
    values : float (n,)
        The cells as numbers; NaN if they are none.
    sites : (n,) texts, optional
        Sites can number their rows independently.

    Notes
    -----
    - Dates and times, UUIDs, hexadecimal hashes, file names, and codes such as ``p0017`` are recognized by the form of nearly
      all cells.  UUIDs, hashes and codes differ in nearly all rows.
    - Unix times are numbers of which nearly all are within 1990 to 2050 in seconds, or thousandths and so on.
    - Row numbers are whole numbers with equal differences in the order of the rows.
    - Other whole numbers that all differ are identifiers if the name is that of an identifier, or if n draws from the R whole
      numbers of their range would all differ with a probability R! / (R - n)! / R^n of at most one in a million.  The uniform
      distribution makes this probability largest, so that measured values are rarely mistaken.
    """
    filled = [i for i, text in enumerate(texts) if text]
    cells = [texts[i] for i in filled]
    if len(set(cells)) < 2:
        return None
    if np.isfinite(values[filled]).mean() < _MOST:
        return _form_of(cells)
    finite = [i for i in filled if np.isfinite(values[i])]
    numbers = values[finite]
    if _are_times(numbers):
        return "Unix times"
    if all(map(_DATE.fullmatch, cells)) and are_dates(cells):
        return "dates"
    if (numbers % 1 != 0).any():
        return None
    parts = _by_site(numbers, None if sites is None else [sites[i] for i in finite])
    named = has_id_name(name)
    if len(numbers) < (_LEAST_NAMED if named else _LEAST) or any(len(np.unique(part)) < len(part) for part in parts):
        return None
    if (
        all(len(part) < 3 or (np.diff(part) == part[1] - part[0]).all() for part in parts)
        and max(map(len, parts)) >= _LEAST_NAMED
    ):
        return "row numbers"
    if named or sum(map(_chance_to_differ, parts)) <= math.log(_CHANCE):
        return "identifiers"
    return None


def has_id_name(name: str) -> bool:
    """Whether a column has the name of identifiers, such as ``doc_id``, ``DocID`` or ``case no``."""
    return _NAMES.search(_plain(name)) is not None


def note_columns(x: Any, name: str) -> list[str]:
    """Note columns of an array without names that are like row numbers, identifiers or Unix times.

    Parameters
    ----------
    x : numbers (n, d)
        At most the first 10,000 rows are read.
    name : str
        Name of the array in the note.

    Examples
    --------
    >>> note_columns(np.stack([np.arange(30), np.arange(30) % 7], 1), "x_train")
    ['column 0 (row numbers) of `x_train` identifies rows, and a model can learn their order from it; remove it']
    """
    rows = np.asarray(x[:_MOST_ROWS], np.float64)
    if len(rows) < _LEAST:
        return []
    # Measured values have fractions or repeat within a few rows, so that few columns are read whole.
    start = rows[:_LEAST]
    whole = np.flatnonzero((start % 1 == 0).all(0) & (np.diff(np.sort(start, 0), axis=0) > 0).all(0))
    kinds = {int(j): reason_to_leave_out("", [f"{value:g}" for value in rows[:, j]], rows[:, j]) for j in whole}
    kinds = {j: kind for j, kind in kinds.items() if kind in NUMERIC}
    if not kinds:
        return []
    columns = list_names(f"{j} ({kind})" for j, kind in kinds.items())
    if len(kinds) > 1:
        return [f"columns {columns} of `{name}` identify rows, and a model can learn their order from them; remove them"]
    return [f"column {columns} of `{name}` identifies rows, and a model can learn their order from it; remove it"]


def _plain(name):
    """Write a name in lower case, unless it ends in Id, ID or No."""
    name = name.strip()
    return name if re.search(r"(?<=[a-z])(Id|ID|No)$", name) else name.lower()


def _by_site(numbers, sites):
    if sites is None:
        return [numbers]
    names = np.asarray(sites, np.str_)
    return [numbers[names == site] for site in np.unique(names)]


def _form_of(cells):
    """Kind of texts by their form, or None."""
    share = lambda form: np.mean([form.fullmatch(text) is not None for text in cells])  # noqa: E731
    if are_dates(cells):
        return "dates or times"
    different = len(set(cells)) >= _MOST * len(cells) and len(cells) >= 2
    if different and share(_UUID) >= _MOST:
        return "UUIDs"
    if different and share(_HASH) >= _MOST and len(set(map(len, cells))) == 1:
        return "hashes"
    if different and share(_FILE) >= _MOST:
        return "file names"
    if different and len(cells) >= _LEAST_NAMED and share(_CODE) >= _MOST and not looks_like_numbers(cells):
        return "codes"
    return None


def _are_times(numbers):
    if len(numbers) < _LEAST_NAMED or len(np.unique(numbers)) < _MOST * len(numbers):
        return False
    return any(np.mean((numbers >= _TIMES[0] * unit) & (numbers < _TIMES[1] * unit)) >= _MOST for unit in (1, 1e3, 1e6, 1e9))


def _chance_to_differ(numbers):
    """Logarithm of R! / (R - n)! / R^n of n different whole numbers in a range of R."""
    size, width = len(numbers), float(numbers.max() - numbers.min()) + 1
    if size < 2 or width > 1e9:
        return 0.0
    return math.lgamma(width + 1) - math.lgamma(width - size + 1) - size * math.log(width)
