#!/usr/bin/env bash
# Package: polars 2.1.0, columns of the type Categorical and their codes (to_physical).
# Guess: a column has its own categories, so that the labels "cat, dog, bird" have the codes 0, 1, 2 in the order in which they
#   occur, whatever else the program has read; this was so in the releases before 1.32, and is so for pandas.
# Behavior: since 1.32 all columns share one list of categories. After a table with other texts was read, "cat, dog, bird" have the codes
#   4, 3, 5: a text that occurred there keeps its code, and the others get the next ones. Codes as class numbers for a network thus
#   differ between two sites, or two runs, that read tables in another order, and exceed the number of classes. Once no such
#   column is left in memory, numbers start at 0 again. A conversion to pandas numbers each column from 0. An Enum has fixed codes.
# Source: polars, class Categories, whose default is global; user guide, categorical data.
"$(dirname "$0")/fresh" polars==2.1.0 pandas==3.1.1 pyarrow==26.0.1 <<'PYTHON'
import io
from importlib.metadata import version

import polars as pl

LABELS = "label\ncat\ndog\nbird\ndog\n"
SCANNERS = "scanner,remark\nA,none\nB,dog\nA,none\n"


def read(text):
    table = pl.read_csv(io.StringIO(text))
    return table.with_columns(pl.all().cast(pl.Categorical))


def codes(table):
    return table["label"].to_physical().to_list()


labels = read(LABELS)
seen = {"labels alone": codes(labels)}
del labels
scanners = read(SCANNERS)
labels = read(LABELS)
seen["labels after a table of scanners"] = codes(labels)
seen["the same column in pandas"] = labels["label"].to_pandas().cat.codes.tolist()
seen["the same column as Enum"] = labels["label"].cast(pl.String).cast(pl.Enum(["cat", "dog", "bird"])).to_physical().to_list()
del scanners, labels
labels = read(LABELS)
seen["labels after both tables were deleted"] = codes(labels)
for name, numbers in seen.items():
    print(f"polars {version('polars')}: {name}: {numbers}")
alone, after, pandas, enum, last = seen.values()
if not (alone == pandas == enum == last == [0, 1, 2, 1]) or max(after) <= 2:
    raise SystemExit(f"the behavior has changed: {seen}")
PYTHON
