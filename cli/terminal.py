"""Output of commands: tables with one row per line outside a terminal, and characters that the reader supports."""

import codecs
import contextlib
import functools
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fnlkit.cli.group import name_options

if TYPE_CHECKING:
    from rich.console import Console


# Width without a terminal: a table row is always one line, for grep and awk.
_ENDLESS = 100_000
_quiet = [False]
_PLAIN = {"±": "+-", "×": "x", "–": "-", "—": "-", "…": "...", "→": "->", "≤": "<=", "≥": ">=", "‘": "'", "’": "'"}


def use_ascii_fallback() -> None:
    """Let stdout and stderr replace characters that their encoding lacks instead of raising."""
    codecs.register_error("fnlkit.nearest", _nearest)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="fnlkit.nearest")


def _nearest(error):
    """Plain letters for characters that cannot be encoded: Aguera for Agüera, +- for ±, otherwise an escape."""
    names = []
    for letter in error.object[error.start : error.end]:
        bare = _PLAIN.get(letter) or unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
        names.append(bare or ascii(letter)[1:-1])
    return "".join(names), error.end


class _Stream:
    """stdout or stderr at the time of writing, without trailing blanks of tables."""

    def __init__(self, name):
        self._name = name

    def write(self, text: str) -> int:
        stream = getattr(sys, self._name)
        stream.write(text if stream.isatty() else re.sub(r"[ \t]+(?=\n)", "", text))
        return len(text)

    def flush(self) -> None:
        getattr(sys, self._name).flush()

    def __getattr__(self, name):
        return getattr(getattr(sys, self._name), name)


class Talk(_Stream):
    """stderr that ignores a closed reader, so that messages do not stop the work."""

    def __init__(self):
        super().__init__("stderr")

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


class Output:
    """Console that escapes control characters, on rich, which is imported for a terminal and for tables only.

    Parameters
    ----------
    file : file
        Receives the text.
    stream : file
        Decides whether the reader is a terminal.
    quiet : bool
        True prints nothing.
    change : callable
        Applied to each text.
    """

    def __init__(self, file, stream, quiet=False, change=str):
        self._file, self._quiet, self._change = file, quiet, change
        # rich reads these variables: a width, or colors without a terminal.
        self._terminal = stream.isatty() or any(name in os.environ for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"))

    @functools.cached_property
    def rich(self) -> "Console":
        from rich.console import Console

        made = Console(
            file=self._file, highlight=False, markup=False, width=None if self._terminal else _ENDLESS, quiet=self._quiet
        )
        made.on_broken_pipe = _reader_gone  # type: ignore[method-assign]  # the handler of rich would exit with code 1
        return made

    @property
    def is_terminal(self) -> bool:
        return self._terminal and self.rich.is_terminal

    @property
    def width(self) -> int:
        return self.rich.width

    def print(self, *objects: Any, style: str | None = None, soft_wrap: bool = False) -> None:
        """Print texts and renderables of rich, separated by a blank, and a line break."""
        parts = [_lines(self._change(part)) if isinstance(part, str) else part for part in objects]
        if self._terminal or not all(isinstance(part, str) for part in parts):
            self.rich.print(*parts, style=style, soft_wrap=soft_wrap)
        elif not self._quiet:
            self._file.write(" ".join(parts) + "\n")
            self._file.flush()


def console() -> Output:
    """Console on stderr, for messages that name options; it prints nothing after `be_quiet(True)`."""
    return Output(Talk(), sys.stderr, quiet=_quiet[0], change=name_options)


def be_quiet(quiet: bool) -> None:
    """Let the console for messages print nothing, or everything again; errors are always printed."""
    _quiet[0] = quiet


def out_console() -> Output:
    """Console on stdout, for tables that are results."""
    return Output(_Stream("stdout"), sys.stdout)


# Lines of a command's default output; -v prints the rest.
LINES = 15


def height(say: Output, *parts: Any) -> int:
    """Count the lines that renderables and texts take on a console."""
    with say.rich.capture() as text:
        for part in parts:
            say.rich.print(part, soft_wrap=isinstance(part, str) and not say.is_terminal)
    return text.get().count("\n")


def _reader_gone():
    raise BrokenPipeError


class Table:
    """Table without lines; its texts can come from files, so that control characters are printed as escapes.

    Parameters
    ----------
    *columns : str
        Column heads.
    rows : iterable of lists of cells
        A whole number is printed with thousands separators, None as an empty cell.
    title : str or None
        A line above the table, which can be wider.
    heads : bool
        False omits the heads.
    """

    def __init__(self, *columns, rows=(), title=None, heads=True):
        self.columns, self.title, self.heads, self.rows = columns, title, heads, []
        for cells in rows:
            self.add_row(*cells)

    def add_row(self, *cells: Any, style: str = "") -> None:
        texts = ["" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells]
        self.rows.append((texts, style))

    def __rich_console__(self, made, options):
        from rich.table import Column
        from rich.table import Table as Rows

        if self.title:
            yield _lines(self.title)
        columns = [Column(_lines(head), overflow="fold") for head in self.columns]
        rows = Rows(*columns, box=None, show_header=self.heads, padding=(0, 2, 0, 0), pad_edge=False)
        for cells, style in self.rows:
            rows.add_row(*map(_lines, cells), style=style)
        yield rows


def cross(values: Any, title: str, names: Iterable[object], form: Callable[[Any], str] = str) -> Table:
    """Tabulate classes against classes; if the names are too wide, heads are numbers.

    Parameters
    ----------
    values : (C, C)
    title : str
    names : iterable of C names
    form : callable
        Returns the text of a value.
    """
    names, cells = list(map(printable, names)), [[form(value) for value in row] for row in values]
    width = sum(max(map(len, column)) + 2 for column in [names, *zip(names, *cells, strict=True)])
    heads = names if width <= out_console().width else list(map(str, range(len(names))))
    firsts = [name if name == head else f"{head} {name}" for head, name in zip(heads, names, strict=True)]
    return Table("", *heads, rows=[(first, *row) for first, row in zip(firsts, cells, strict=True)], title=title)


def _lines(text):
    return "\n".join(map(printable, text.split("\n"))) if isinstance(text, str) else text


def printable(value: object) -> str:
    """Escape control characters of text from a file."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(value))
