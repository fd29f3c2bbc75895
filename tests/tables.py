"""CSV tables of commands, as lists of rows."""

import csv
import io
from pathlib import Path


def parse_csv(table):
    """Return the rows (dicts) of a path or of a text."""
    text = table.read_text(encoding="utf-8") if isinstance(table, Path) else table
    return list(csv.DictReader(io.StringIO(text, newline="")))


def format_csv(rows, **form):
    """Return rows as the text of a table."""
    out = io.StringIO(newline="")
    table = csv.DictWriter(out, list(rows[0]), **{"lineterminator": "\n"} | form)
    table.writeheader()
    table.writerows(rows)
    return out.getvalue()


def edit_csv(path, change):
    """Replace `row` by `row | change(row)` in a table, and return its rows."""
    rows = [row | change(row) for row in parse_csv(path)]
    path.write_text(format_csv(rows), encoding="utf-8")
    return rows
