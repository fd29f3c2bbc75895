"""Select regimes and rows by words of their names, or by a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable


def mentions(name: str, text: str) -> bool:
    """Return whether a name contains a text as whole words, or matches a pattern with ``*`` and ``?``.

    Case is ignored.  A pattern describes the whole name.

    Examples
    --------
    >>> mentions("FedAvg, CIFAR-100 ResNet-34", "cifar-10"), mentions("FedAvg, CIFAR-100 ResNet-34", "*cifar-10*")
    (False, True)
    >>> mentions("asymmetric 0.45", "symmetric"), mentions("asymmetric 0.45", "0.4"), mentions("symmetric 0.4", "0.4")
    (False, False, True)
    """
    name, text = name.lower(), text.strip().lower()
    if "*" in text or "?" in text:
        pattern = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in text)
        return re.fullmatch(pattern, name) is not None
    before = r"(?<!\w)(?<!\d\.)" if re.match(r"\w", text) else ""
    after = r"(?!\w)(?!\.\d)" if re.search(r"\w$", text) else ""
    return re.search(before + re.escape(text) + after, name) is not None


def hint(names: Iterable[str], text: str) -> str:
    """Return a remedy for a text that only occurs inside words of the names, else an empty text."""
    inside = any(text.strip().lower() in name.lower() for name in names)
    return f"; words are matched as a whole, write '*{text.strip()}*' for a part of a word" if inside else ""
