"""Display facts as aligned text, HTML tables in a notebook, or data frames."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fnlkit.core.errors import InputError
from fnlkit.core.spec import parse

if TYPE_CHECKING:
    import pandas


_PLACES = ("path", "file")
_CELL = "text-align:left;padding:1px 1em 1px 0"


class Facts(dict[str, Any]):
    """A dict of facts that is displayed as a table.

    Parameters
    ----------
    title : str
    facts : dict
    """

    def __init__(self, title, facts):
        super().__init__(facts)
        self.title = title

    def __repr__(self):
        width = max((len(str(name)) for name in self), default=0)
        lines = [f"  {str(name).replace('_', ' '):<{width}}  {plain(value)}" for name, value in self.items()]
        return "\n".join([self.title, *lines])

    def _repr_html_(self):
        return html_table(self.title, None, [(str(name).replace("_", " "), plain(value)) for name, value in self.items()])


def plain(value: object) -> str:
    """Format a value as one line of printable text.

    Numbers have four decimals or separators between thousands, and None becomes a dash.
    """
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(value))


def data_set(name: object) -> str:
    """Short name of a data set: the end of a path, or the name of a spec.

    Examples
    --------
    >>> from fnlkit.artifacts.display import data_set
    >>> data_set('folder(path="/data/sites", label=2)'), data_set("/data/cases.csv"), data_set("digits")
    ('sites', 'cases.csv', 'digits')
    """
    try:
        spec = parse(str(name), "data set")
        places = [str(getattr(spec.parameters[key], "name", spec.parameters[key])) for key in _PLACES if key in spec.parameters]
        name = places[0] if places else spec.name
    except InputError:  # a path that is not a valid spec
        pass
    return plain(Path(str(name)).name or name)


def html_table(title: str, header: Sequence[str] | None, rows: Iterable[Sequence[object]]) -> str:
    """Format a table as HTML with all texts escaped.

    Parameters
    ----------
    title : str
    header : sequence of str or None
    rows : sequence of sequences of str
    """
    lines = [f"<table><caption style='text-align:left'>{escape(title)}</caption>"]
    if header:
        lines.append("<tr>" + "".join(f"<th style='{_CELL}'>{escape(str(name))}</th>" for name in header) + "</tr>")
    for row in rows:
        lines.append("<tr>" + "".join(f"<td style='{_CELL}'>{escape(str(cell))}</td>" for cell in row) + "</tr>")
    return "\n".join([*lines, "</table>"])


def frame(rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> "pandas.DataFrame":
    """Convert a list of dicts to a pandas.DataFrame."""
    import pandas

    return pandas.DataFrame(rows)
