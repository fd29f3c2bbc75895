"""Equal values in different spellings: one rule for labels, groups, sites, categories, ranks, ids, annotators and votes.

Numbers of equal value are equal: 1, 1.0 and +1.  A number with leading zeros, such as 007, is a code, and differs from 7.
Labels, groups and sites that differ only in case or spaces are equal, and a note states it.
"""

import decimal
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from fnlkit.core.errors import list_names

_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
# A hexadecimal code can have this form, too.  It is a number if all cells of the column are numbers.
_DOUBTFUL = re.compile(r"[0-9]+[eE][0-9]+")
_CODE = re.compile(r"0[0-9]+")
_DIGITS = re.compile(r"([0-9]+)")
# Exact for all digits of a cell, also for codes of 30 digits.
_EXACT = decimal.Context(prec=100_000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
_LONGEST = 400  # characters of a number
_LEAST, _MOST = -7, 25  # decimal places of a number that is written without an exponent
# A level of ordered texts: <10, 10-20, 65+, >= 5 years.
_RANGE = re.compile(
    r"(?P<sign><=?|>=?|≤|≥|under|below|over|above|up to)?\s*(?P<low>-?[0-9]+(?:[.,][0-9]+)?)\s*(?:[^\W\d_]*|%)\s*"
    r"(?:(?:-|–|—|\.\.+|to|bis)\s*(?P<high>-?[0-9]+(?:[.,][0-9]+)?)|(?P<more>\+|and (?:more|over|older)))?[^\d]*"
)
_SCALES = (
    ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"),
    ("none", "very low", "low", "medium low", "medium", "moderate", "medium high", "high", "very high"),
    ("none", "minimal", "slight", "mild", "moderate", "severe", "very severe", "critical"),
    ("very poor", "poor", "fair", "average", "good", "very good", "excellent"),
    ("never", "rarely", "sometimes", "often", "usually", "always"),
    ("xs", "s", "m", "l", "xl", "xxl"),
    ("tiny", "small", "medium", "large", "huge"),
    ("strongly disagree", "disagree", "neutral", "agree", "strongly agree"),
)


def spell(text: str) -> str:
    """Spell a text in one way: 1 for 1.0 and +1, and other texts without spaces at the ends, as NFC.

    Examples
    --------
    >>> [spell(text) for text in ("1.0", "+1", "1e3", "2.50", "007", " north ")]
    ['1', '1', '1000', '2.5', '007', 'north']
    """
    text = unicodedata.normalize("NFC", text.strip())
    if not _NUMBER.fullmatch(text) or len(text) > _LONGEST or text.isdigit():
        return text
    try:
        value = _EXACT.create_decimal(text).normalize(_EXACT)
    except decimal.DecimalException:  # an exponent beyond any limit
        return text
    if not value:
        return "0"
    return f"{value:f}" if _LEAST < value.adjusted() < _MOST else str(value)


def spell_all(texts: Sequence[str]) -> list[str]:
    """Spell each cell of a column in one way; 1e5 is a number only if all cells are numbers."""
    spelling = {text: spell(text) for text in set(texts)}
    if any(_DOUBTFUL.fullmatch(text.strip()) for text in spelling) and not all(map(is_number, spelling.values())):
        spelling = {text: text.strip() if _DOUBTFUL.fullmatch(text.strip()) else spelled for text, spelled in spelling.items()}
    return [spelling[text] for text in texts]


def is_number(text: str) -> bool:
    """Whether a text is empty or a number without leading zeros."""
    return not text or _NUMBER.fullmatch(text) is not None


def is_code(text: str) -> bool:
    """Whether a text is a number with leading zeros, such as 007."""
    return _CODE.fullmatch(text.strip()) is not None


def fold(text: str) -> str:
    """Fold the text by which labels, groups and sites are compared: without case and repeated spaces."""
    return " ".join(spell(text).casefold().split())


def merge_spellings(*parts: Sequence[str], what: str = "labels") -> tuple[list[list[str]], list[str]]:
    """Merge spellings: (the texts of each part in the most frequent spelling, notes).

    Equal values have one spelling (`spell_all`), and texts that differ only in case or spaces are one.

    Parameters
    ----------
    *parts : sequences of str
        Labels, groups or sites.
    what : str
        Their plural in the note.
    """
    spelled = spell_all([text for part in parts for text in part])
    counts, alike = Counter(spelled), dict[str, list[str]]()
    for text in sorted(counts, key=lambda text: (-counts[text], text)):
        alike.setdefault(fold(text), []).append(text)
    usual = {text: same[0] for same in alike.values() for text in same}
    names = list_names(" = ".join(map(repr, same)) for same in alike.values() if len(same) > 1)
    notes = [f"{what} that differ only in case or spaces are read as one: {names}"] if names else []
    left = iter(spelled)
    return [[usual[text] for text in itertools.islice(left, len(part))] for part in parts], notes


def order_texts(texts: Iterable[str]) -> list[str]:
    """Sort texts: by value if all are numbers, otherwise by letters and by the value of the numbers in them.

    Examples
    --------
    >>> order_texts({"10", "9", "1e1"}), order_texts({"T10", "T2", "T1"})
    (['9', '10', '1e1'], ['T1', 'T2', 'T10'])
    """
    texts = list(texts)
    try:
        values = {text: decimal.Decimal(text) for text in texts}
        if all(value.is_finite() for value in values.values()):
            return sorted(texts, key=lambda text: (values[text], text))
    except decimal.InvalidOperation:
        pass
    return sorted(texts, key=_natural)


def order_levels(texts: Iterable[str], given: Sequence[str] = ()) -> list[str]:
    """Sort the levels of an ordinal column.

    The order is that of `given` if it contains all levels, that of a usual scale such as low, medium, high, that of the numbers
    of ranges such as <10, 10-20, >20, or that of `order_texts`.

    Parameters
    ----------
    texts : iterable of str
    given : sequence of str
        Levels in their order; levels that do not occur are kept.
    """
    levels = set(texts)
    if given and levels <= set(given):
        return list(given)
    for scale in _SCALES:
        rank = {name: place for place, name in enumerate(scale)}
        if levels and all(fold(level) in rank for level in levels):
            return sorted(levels, key=lambda level: (rank[fold(level)], level))
    if levels and all(map(is_number, levels)):
        return order_texts(levels)
    ends = {level: _ends(level) for level in levels}
    if None not in ends.values():
        return sorted(levels, key=lambda level: (ends[level], level))
    return order_texts(levels)


def _natural(text):
    parts = _DIGITS.split(text)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], text


def _ends(level):
    """Read (low, high) of a range such as 10-20, <10 or 65+, or None."""
    match = _RANGE.fullmatch(level.strip().lower())
    if match is None:
        return None
    low = float(match["low"].replace(",", "."))
    high = float(match["high"].replace(",", ".")) if match["high"] else low
    sign = match["sign"] or ""
    if sign[:1] in ("<", "≤") or sign in ("under", "below", "up to"):
        return float("-inf"), high
    return low, float("inf") if sign or match["more"] else high
