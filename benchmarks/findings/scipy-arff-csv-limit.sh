#!/usr/bin/env bash
# Package: scipy 1.17.1, scipy.io.arff.loadarff.
# Guess: reading a file of one format leaves the settings of Python's csv module alone.
# Behavior: reading an ARFF file, even with numbers only, sets csv.field_size_limit of the whole process to the largest integer and
#   leaves it there. A program that reads tables afterwards no longer gets an error for a cell with a forgotten quotation mark,
#   which then holds the rest of the file, without a message.
# Source: scipy/io/arff/_arffread.py, split_data_line.
"$(dirname "$0")/fresh" scipy==1.17.1 numpy==2.2.6 <<'PYTHON'
import csv
import io

import scipy
from scipy.io.arff import loadarff

table = "id,note,label\n" + '1,"forgotten,a\n' + "2,right,b\n" * 20_000


def count_rows():
    """Return the number of rows of the table, or the error."""
    try:
        return len(list(csv.reader(io.StringIO(table))))
    except csv.Error as error:
        return str(error)


seen = [count_rows()]
loadarff(io.StringIO("@relation r\n@attribute a numeric\n@data\n1\n2\n"))
seen.append(count_rows())
print(f"scipy {scipy.__version__}: the same table before an ARFF file is read: {seen[0]}; after: {seen[1]} rows")
if seen != ["field larger than field limit (131072)", 2]:
    raise SystemExit(f"the behavior has changed: {seen}")
PYTHON
