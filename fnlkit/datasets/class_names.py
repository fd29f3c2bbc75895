"""Find the class that a cell of a table names."""

from collections import Counter
from collections.abc import Callable, Iterable

from fnlkit.datasets.spelling import fold, spell
from fnlkit.datasets.table import MISSING

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
