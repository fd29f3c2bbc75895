"""Find the class that a cell of a table names."""

import re
from collections import Counter
from collections.abc import Callable, Iterable

from fnlkit.datasets.table import MISSING

# Texts that mean "no label", unless a class has this name.
NO_LABEL = (*MISSING, "<na>", "-1", "-1.0")
_WHOLE_NAME, _WHOLE = re.compile(r"-?\d+"), re.compile(r"-?\d+\.0*")


def class_finder(names: Iterable[object]) -> Callable[[str], int | None]:
    """Return a function from a text to the number of the class that it names, or None.

    A text names a class by its exact name, or else by its name in other case if this is unique.  If all classes are whole
    numbers, ``6.0`` names the class 6: pandas writes whole numbers with a decimal point if a cell of the column is missing.

    Examples
    --------
    >>> find = class_finder(["0", "6"])
    >>> find("6.0"), find("7")
    (1, None)
    """
    exact = {str(name).strip(): c for c, name in enumerate(names)}
    alike = Counter(name.lower() for name in exact)
    folded = {name.lower(): c for name, c in exact.items() if alike[name.lower()] == 1}
    whole = all(_WHOLE_NAME.fullmatch(name) for name in exact)

    def find(text: str) -> int | None:
        text = text.strip()
        number = exact.get(text, folded.get(text.lower()))
        return exact.get(text.partition(".")[0]) if number is None and whole and _WHOLE.fullmatch(text) else number

    return find


def vote_finder(names: Iterable[object]) -> Callable[[str], int | None]:
    """Return a function as `class_finder`, which returns -1 for a text in `NO_LABEL` that is not the name of a class."""
    find = class_finder(names)

    def vote(text: str) -> int | None:
        number = find(text)
        return -1 if number is None and text.strip().lower() in NO_LABEL else number

    return vote
