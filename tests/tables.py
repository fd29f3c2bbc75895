"""CSV tables of commands, as lists of rows, and tables of users in the format of a file name."""

import csv
import io
from pathlib import Path

import pytest


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


def write_table(path, columns, **options):
    """Write {column: values} in the format of the path's ending, and return the path; skip if its library is missing."""
    import pandas

    ending, table = path.suffix[1:], pandas.DataFrame(columns)
    needs = {"xlsx": "openpyxl", "ods": "odf", "parquet": "pyarrow", "feather": "pyarrow", "sav": "pyreadstat"}
    if ending in needs:
        library = pytest.importorskip(needs[ending], reason=f"needs {needs[ending]}")
    if ending == "dta":
        table.to_stata(path, write_index=False, version=118, **options)
    elif ending == "sav":
        library.write_sav(table, path)
    elif ending in ("parquet", "feather"):
        getattr(table, f"to_{ending}")(path)
    else:
        (table.to_csv if ending == "csv" else table.to_excel)(path, index=False)
    return path
