"""Tables of numbers with spreads, as texts or LaTeX."""

import re
from dataclasses import dataclass
from typing import Any

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A number with spread, in the unit of the column's title.

    Attributes
    ----------
    mean : float or None
    spread : float or None
    digits : int
        After the decimal point.
    signed : bool
        Written with a sign, also if positive.
    star : bool
        Marked with a star, because the difference is significant.
    bold : bool
        Bold in LaTeX, because it is the best of a setting.
    chance : bool
        Marked, because it is no better than a model that always predicts the most frequent class.
    """

    mean: float | None
    spread: float | None = None
    digits: int = 2
    signed: bool = False
    star: bool = False
    bold: bool = False
    chance: bool = False

    def text(self, between: str = " ± ") -> str:
        if self.mean is None:
            return ""
        number = f"{self.mean:{'+' if self.signed else ''},.{self.digits}f}"
        if self.spread is not None:
            number += f"{between}{self.spread:,.{self.digits}f}"
        return number + (" *" if self.star else "") + (" (chance)" if self.chance else "")

    def latex(self) -> str:
        text = self.text(r" \pm ").replace(",", "{,}").replace(" *", "^{*}").replace(" (chance)", r"\text{ (chance)}")
        text = rf"\mathbf{{{text}}}" if self.bold and text else text
        return f"${text}$" if text else ""


@dataclass
class Table:
    """A table of texts and `Value`s; columns without any text are left out.

    Attributes
    ----------
    title : str
    columns : list of str
    rows : list of lists of str or Value
    notes : list of str
        Sentences below the table.
    """

    title: str
    columns: list[str]
    rows: list[Any]
    notes: list[str]

    def __post_init__(self):
        empty = {i for i, column in enumerate(zip(*self.rows, strict=True)) if not any(map(_text, column))}
        self.columns, *self.rows = ([v for i, v in enumerate(row) if i not in empty] for row in [self.columns, *self.rows])

    def texts(self) -> list[list[str]]:
        """Format the rows as plain texts for a terminal."""
        return [[_text(cell) for cell in row] for row in self.rows]

    def latex(self) -> str:
        """Format the table as a LaTeX tabular with rules of booktabs."""
        import pandas

        rows = [[cell.latex() if isinstance(cell, Value) else latex(_text(cell)) for cell in row] for row in self.rows]
        frame = pandas.DataFrame(rows, columns=list(map(latex, self.columns)))
        notes = "".join(f"% {line}\n" for line in map(_one_line, [self.title, *self.notes]))
        return notes + frame.to_latex(index=False, escape=False)


def shorten(names: list[str]) -> list[str]:
    """Remove the folders of absolute paths from names of methods and data sets, if all stay different.

    Examples
    --------
    >>> shorten(["/home/me/mine.py:method(lr=1)", 'folder(path="/data/sites")', "fedavg"])
    ['mine.py:method(lr=1)', 'folder(path="sites")', 'fedavg']
    """
    short = {name: re.sub(r'(?<=")/[^"]*/|(?<![\w".])/(?:[^/\s"(),=]+/)+', "", name) for name in names}
    return [short[name] for name in names] if len(set(short.values())) == len(short) else names


def latex(text: str) -> str:
    """Escape text for LaTeX.

    Examples
    --------
    >>> print(latex("a_b & 50 %"))
    a\\_b \\& 50 \\%
    """
    return "".join(_LATEX.get(c, c) for c in _one_line(text)).replace("±", r"$\pm$")


def _one_line(text):
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def _text(cell):
    return cell.text() if isinstance(cell, Value) else "" if cell is None else str(cell)
