"""Convert label texts to named classes, and find the class that a text names."""

import difflib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from fnlkit.artifacts.federation import MAX_CLASSES, must_be_names
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.spelling import fold, merge_spellings, order_texts, spell
from fnlkit.datasets.table import MISSING

# More classes than this, with fewer samples per class than this, are probably not classes.
_FEW, _LEAST, _USUAL = 20, 2, 10
# A class with at most _RARE samples can be a typing error of a similar name with _MANY times as many; short names are alike.
_RARE, _MANY, _SIMILAR, _SHORT, _MOST_RARE = 2, 5, 0.85, 3, 20
_JOINED = "|;,+&/"
# These texts can mean a missing label, but they can also be class names. The user has to decide.
DOUBTFUL = ("nan", "na", "n/a", "none", "null", "?", "unknown", "-1", "missing", "unlabeled", "unlabelled")


def classes_of(
    texts: Sequence[str], *, true: Sequence[str] = (), others: Collection[str] = (), of_site: bool = False
) -> tuple[list[str], np.ndarray, np.ndarray, list[str]]:
    """Find (class names, labels, true labels, notes) of texts; -1 is a missing label.

    Equal values in different spellings are one class (fnlkit.datasets.spelling).  Classes are sorted by value if all are
    numbers, otherwise by letters and the numbers in them.

    Parameters
    ----------
    texts : list of n str
    true : list of n str
        Texts of the true labels, if they are known.
    others : collection of str
        Additional classes, which need not occur in any sample.
    of_site : bool
        Whether the labels are those of a single site of a deployment, whose classes are agreed: a site can have one class, and
        most of its labels can occur only once.

    Returns
    -------
    names : list of C str
    labels, true : int64 (n,)
    notes : list of str
        On labels that were merged.

    Raises
    ------
    InputError
    """
    (texts, true, others), notes = merge_spellings(texts, true, tuple(others))
    present = {*texts, *true, *others} - {""}
    names = order_texts(present)
    least = 1 if of_site else 2
    if not least <= len(names) <= MAX_CLASSES:
        few = f" ({names[0]!r})" if len(names) == 1 else ""
        raise InputError(f"{len(names):,} different labels{few}; expected {least} to {MAX_CLASSES:,}")
    if not of_site:
        must_repeat(names, sum(text != "" for text in texts))
    must_be_names(names, len(names))
    index = {"": -1, **{name: i for i, name in enumerate(names)}}
    labels, true_labels = (np.array([index[text] for text in part], np.int64) for part in (texts, true))
    return names, labels, true_labels, notes


def whole_labels(values: np.ndarray, name: str) -> np.ndarray:
    """Convert whole numbers, booleans, whole floats or texts of shape (n,) or (n, 1) to labels (n,), int64 or texts.

    NaN is a missing label, -1, and None is the empty text.

    Parameters
    ----------
    values : array
    name : str
        Of the array, for messages.

    Raises
    ------
    InputError
        If the labels are of another type or shape.

    Examples
    --------
    >>> whole_labels(np.array([[1.0], [np.nan]]), "y").tolist(), whole_labels(np.array([True, False]), "y").tolist()
    ([1, -1], [1, 0])
    """
    values = values.reshape(-1) if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim == 1 and values.dtype.kind in "OT":
        values = np.array(["" if value is None or value != value else str(value) for value in values.tolist()], np.str_)
    if values.ndim == 1 and values.dtype.kind == "f":
        filled = np.where(np.isnan(values), -1, values)
        values = filled.astype(np.int64) if (np.abs(filled) < 2**53).all() and (filled % 1 == 0).all() else values
    if values.ndim != 1 or values.dtype.kind not in "iubU":
        raise InputError(f"`{name}` is {values.dtype} of shape {values.shape}; expected whole numbers or texts (n,)")
    return np.char.strip(values) if values.dtype.kind == "U" else values.astype(np.int64)


def drop_unknown(
    names: list[str], labels: np.ndarray, true: np.ndarray, in_test: np.ndarray
) -> tuple[list[str], np.ndarray, np.ndarray, list[str]]:
    """Remove classes such as -1 and ``?`` that only test samples have: (names, labels, true labels, notes).

    These samples have no label: they are predicted, and not scored.

    Parameters
    ----------
    names : list of C str
    labels, true : int64 (n,)
    in_test : bool (n,)
    """
    known = np.unique(np.concatenate([labels[~in_test], true])).tolist()
    gone = [c for c, name in enumerate(names) if name.lower() in DOUBTFUL and c not in known]
    if not gone:
        return names, labels, true, []
    number = np.full(len(names) + 1, -1)  # the last one for -1
    left = np.setdiff1d(np.arange(len(names)), gone)
    number[left] = np.arange(len(left))
    words = " or ".join(repr(names[c]) for c in gone)
    count = int(np.isin(labels, gone).sum())
    note = f"{count:,} test samples have the label {words}, which no training sample has: they count as unlabeled"
    return [names[c] for c in left], number[labels], number[true], [note]


def must_repeat(names: Sequence[str], samples: int) -> None:
    """Raise InputError if most labels occur only once.

    This is the case for regression targets, ids and free text.

    Parameters
    ----------
    names : list of C str
    samples : int
        Number of training samples with a label.
    """
    if len(names) > _FEW and len(names) * _LEAST > samples:
        raise InputError(
            f"{len(names):,} different labels on {samples:,} samples, such as {names[0][:40]!r} and {names[-1][:40]!r}; fnlkit "
            "trains classifiers: convert numbers to ranges, or name another column or array as the label"
        )


def doubts(names: Sequence[str], labels: np.ndarray, unlabeled: str = "") -> list[str]:
    """Warn about suspicious classes.

    Parameters
    ----------
    names : list of C str
    labels : int (n,)
        Labels of the samples; -1 if missing.
    unlabeled : str
        How to mark a missing label.  Default: by the option `missing` of a table.
    """
    labels, warnings = labels[labels >= 0], []
    for i, name in enumerate(names):
        if name.lower() in DOUBTFUL:
            warnings.append(
                f"{int((labels == i).sum()):,} samples have the label {name!r}, which is treated as a class; "
                + (unlabeled or f'write missing="{name}" in the data set\'s spec')
                + " if it means a missing label"
            )
    numbers = [number for number in map(_number, names) if number is not None]
    whole = all(number.is_integer() for number in numbers)
    if len(numbers) == len(names) and not (whole and (len(names) <= _FEW or len(labels) >= _USUAL * len(names))):
        warnings.append(
            f"the {len(names):,} classes are {'whole' if whole else 'decimal'} numbers, {names[0]} to {names[-1]}, on "
            f"{len(labels):,} samples; fnlkit trains classifiers: convert numbers to ranges"
        )
    if joined := [name for mark in _JOINED for name in _find_joined(names, mark)]:
        warnings.append(
            f"{len(joined):,} classes such as {joined[0][:60]!r} seem to join several labels; each combination is a separate "
            "class: keep one label per sample, or create one data set per label"
        )
    alike = Counter(map(fold, names))
    for same in [text for text, count in alike.items() if count > 1]:
        twins = [repr(name) if unicodedata.is_normalized("NFC", name) else ascii(name) for name in names if fold(name) == same]
        warnings.append(f"classes {', '.join(twins)} differ only in spelling, case or spaces; rename them if they are equal")
    counts = np.bincount(labels, minlength=len(names))
    for rare, usual in _find_misspellings(names, counts):
        few = "1 sample" if counts[rare] == 1 else f"{counts[rare]} samples"
        warnings.append(
            f"class {names[rare]!r} has {few} and is spelled like {names[usual]!r} ({counts[usual]:,} samples); "
            "correct the label if it is a typing error"
        )
    return warnings


def note_empty_classes(names: Sequence[str], labels: Sequence[np.ndarray], true: np.ndarray | None, named: bool) -> list[str]:
    """Note that no sample has some of the classes: labels counted from 1 have a class 0."""
    present = np.unique(np.concatenate([*labels, *([] if true is None else [true])]))
    empty = np.setdiff1d(np.arange(len(names)), present)
    if not len(empty):
        return []
    first = list_names([names[c] for c in empty], quote=True)
    if named:
        return [f"{len(empty):,} of {len(names):,} classes have no sample: {first}; remove them, unless other sites use them"]
    low, high = (int(end) for end in (present[present >= 0].min(), present.max()))
    return [
        f"labels {low} to {high} are {len(names):,} classes counted from 0, and {len(empty):,} have no sample: {first}; number "
        "the labels without gaps (numpy.unique(labels, return_inverse=True)), or name all classes in `class_names`"
    ]


def _find_misspellings(names, counts):
    """Find pairs (rare class, class of a similar name with many more samples), of at most _MOST_RARE rare classes."""
    pairs = []
    for i in np.flatnonzero((counts > 0) & (counts <= _RARE))[:_MOST_RARE]:
        text = names[i].lower()
        # Grades and other names that differ in digits are similar, but no typing errors.
        others = {
            names[j].lower(): j
            for j in np.flatnonzero(counts >= _MANY * counts[i])
            if re.findall(r"\d+", names[j]) == re.findall(r"\d+", names[i]) and names[j].lower() != text
        }
        close = difflib.get_close_matches(text, others, 1, cutoff=_SIMILAR) if len(text) > _SHORT else []
        pairs += [(int(i), int(others[name])) for name in close]
    return pairs


def _number(text):
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _find_joined(names, mark):
    """Find the class names that consist of several parts joined by a mark.

    If the mark is not a vertical bar, each part must also occur elsewhere.
    """
    parts = {name: [part.strip().lower() for part in name.split(mark)] for name in names if mark in name.strip(mark)}
    known = Counter(part for joined in parts.values() for part in set(joined)) + Counter({n.strip().lower() for n in names})
    least = 1 if mark == "|" else 2
    return [name for name, joined in parts.items() if all(part and known[part] >= least for part in joined)]


# Texts that mean "no label", unless a class has this name.
NO_LABEL = (*MISSING, "<na>", "-1", "-1.0")


def class_finder(names: Iterable[object]) -> Callable[[str], int | None]:
    """Make a function from a text to the number of the class that it names, or None.

    A text names a class by its exact name, by an equal value in another spelling, such as ``6.0`` for the class 6, or by its
    name in other case if this is unique (fnlkit.datasets.spelling).  A name of two classes names none.

    Examples
    --------
    >>> find = class_finder(["0", "6"])
    >>> find("6.0"), find("7")
    (1, None)
    """
    texts = [str(name).strip() for name in names]
    several = {text for text, count in Counter(texts).items() if count > 1}
    exact = {text: c for c, text in enumerate(texts) if text not in several}
    known: dict[str, int] = {}
    for way in (fold, spell):
        counts = Counter(map(way, texts))
        known |= {way(name): c for name, c in exact.items() if counts[way(name)] == 1}

    def find(text: str) -> int | None:
        text = text.strip()
        return exact.get(text, known.get(spell(text), known.get(fold(text))))

    return find


def vote_finder(names: Iterable[object]) -> Callable[[str], int | None]:
    """Make a function as `class_finder`, which returns -1 for a text in `NO_LABEL` that is not the name of a class."""
    find = class_finder(names)

    def vote(text: str) -> int | None:
        number = find(text)
        return -1 if number is None and text.strip().lower() in NO_LABEL else number

    return vote
