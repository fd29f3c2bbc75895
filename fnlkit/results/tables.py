"""Tables of numbers with spreads, as texts or LaTeX."""

from dataclasses import dataclass
from typing import Any

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A number with its spread, in the unit of the column's title.

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
    """

    mean: float | None
    spread: float | None = None
    digits: int = 2
    signed: bool = False
    star: bool = False
    bold: bool = False

    def text(self, between: str = " ± ") -> str:
        if self.mean is None:
            return ""
        out = f"{self.mean:{'+' if self.signed else ''},.{self.digits}f}"
        if self.spread is not None:
            out += f"{between}{self.spread:,.{self.digits}f}"
        return out + (" *" if self.star else "")

    def latex(self) -> str:
        text = self.text(r" \pm ").replace(",", "{,}").replace(" *", "^{*}")
        text = rf"\mathbf{{{text}}}" if self.bold and text else text
        return f"${text}$" if text else ""


@dataclass
class Table:
    """A table of texts and `Value`s.

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

    def texts(self) -> list[list[str]]:
        """Return the rows as plain texts for a terminal."""
        return [[_text(cell) for cell in row] for row in self.rows]

    def latex(self) -> str:
        """Return the table as a LaTeX tabular with rules of booktabs."""
        lines = [rf"\begin{{tabular}}{{{'l' * len(self.columns)}}}", r"\toprule"]
        lines.append(" & ".join(map(latex, self.columns)) + r" \\")
        lines.append(r"\midrule")
        for row in self.rows:
            cells = [c.latex() if isinstance(c, Value) else latex(_text(c)) for c in row]
            lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        return "\n".join(["% " + line for line in map(_one_line, [self.title, *self.notes])] + lines) + "\n"


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
