#!/usr/bin/env bash
# Package: pandas 3.1.1, read_csv of a file whose rows have fewer cells than the first one, as texts.
# Guess: `dtype=str, keep_default_na=False` gives no missing value, whatever the engine, so that a cell that is not there is an
#   empty text, as an empty cell is; `na_filter=False` says so once more.
# Behavior: the C engine gives empty texts. The Python engine, which is needed for a separator that is found automatically
#   (`sep=None`), gives NaN for cells that are not there and an empty text for empty cells, also with `na_filter=False`. So a
#   short row differs from a row of empty cells with one engine only.
# Source: pandas/io/parsers/python_parser.py, _rows_to_cols, which makes columns of ragged rows by lib.to_object_array: None where a
#   row ends early, whatever na_filter says.
"$(dirname "$0")/fresh" pandas==3.1.1 numpy==2.4.6 <<'PYTHON'
import io

import numpy as np
import pandas as pd

print(f"pandas {pd.__version__}, numpy {np.__version__}")
text = "a,b,c\n1,2,3\n4,5\n6,,\n"
seen = {}
for engine in ("c", "python"):
    for options in ({}, {"na_filter": False}):
        frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, engine=engine, **options)
        cells = ["missing" if pd.isna(cell) else repr(cell) for cell in frame["c"]]
        print(f"{engine:6} {options or 'keep_default_na=False'}: {cells}")
        seen[engine, bool(options)] = cells
short = {"c": "''", "python": "missing"}
if seen != {(engine, both): ["'3'", short[engine], "''"] for engine in short for both in (False, True)}:
    raise SystemExit("the behavior has changed")
PYTHON
