"""The column that names the samples, in exports in which the tool's numbers shift, overlap, coincide or are permuted."""

import numpy as np
import pytest

from fnlkit import InputError
from fnlkit.datasets.identifiers import Asked, Samples, find_samples
from tests.commands import refuse_call

NUMBERS = Samples([list(map(str, range(1, 49)))])
FILES = Samples([list(map(str, range(1, 49))), [f"scans/{i}.png" for i in range(1, 49)]])


def fail(rows, text):
    raise InputError(f"t.csv, row {rows[0]}: {text}")


def find(columns, samples=NUMBERS, **options):
    columns = {name: list(map(str, values)) for name, values in columns.items()}
    return find_samples(columns, samples, Asked(fail, "t.csv", **options))


SAMPLE = np.arange(1, 31)


@pytest.mark.parametrize(
    "tool", [SAMPLE + 20, SAMPLE + 1, SAMPLE[::-1], np.where(SAMPLE < 15, SAMPLE, SAMPLE + 1), np.full(30, 7)]
)
def test_two_columns_that_name_different_samples_are_refused_with_both_names(tool):
    """The tool's numbers are shifted, overlap, are a permutation, coincide in part, or are one number."""
    columns = {"id": tool, "annotation_id": SAMPLE, "sample_id": SAMPLE, "lead_time": SAMPLE}
    refuse_call(r"'id' \(\d+ of 30 rows\), 'sample_id' \(30 of 30 rows\); choose one by", find, columns)
    assert find(columns, column="sample_id")[1].tolist() == list(range(30))
    if (tool <= 48).all():
        assert find(columns, column="id")[1].tolist() == (tool - 1).tolist()


def test_equal_columns_and_numbers_of_no_samples_are_no_doubt():
    for tool in (SAMPLE, SAMPLE + 100):
        assert find({"id": tool, "sample_id": SAMPLE})[1].tolist() == list(range(30))


def test_names_that_match_win_over_numbers():
    urls = [f"https://x.org/data/upload/3/0a1b2c3d-{i}.png" for i in SAMPLE]
    for column in ([f"scans/{i}.png" for i in SAMPLE], urls, [f"/data/local-files/?d=scans/{i}.png" for i in SAMPLE]):
        name, found = find({"id": SAMPLE + 3, "picture": column, "age": SAMPLE}, FILES)
        assert name == "picture" and found.tolist() == list(range(30))
    with pytest.raises(InputError, match="'id' .30 of 30 rows., 'picture' .29 of 30 rows."):
        find({"id": SAMPLE + 3, "picture": [*urls[1:], "else.png"]}, FILES)
    refuse_call("'picture' .30 of 30 rows., 'before' .30 of 30 rows.", find, {"picture": urls, "before": urls[::-1]}, FILES)


def test_a_column_that_misses_rows_is_refused_with_the_row_and_the_share():
    refuse_call(r"row 28: no sample '49' in the data; 'id' names a sample in 28 of 30 rows", find, {"id": SAMPLE + 20})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": SAMPLE + 100, "text": ["a b"] * 30}, "no sample '101' in the data, whose ids are such as '1'; compared: 'id'"),
        ({"age": SAMPLE, "height": SAMPLE + 150}, "no column names the samples; 'age' has numbers of samples"),
        ({"lead_time": SAMPLE}, "no column names the samples; choose one by"),
        ({"folder": [f"batch/{i}" for i in SAMPLE]}, "compared: 'folder'"),
        ({}, "no column names the samples"),
    ],
)
def test_a_table_without_samples_is_refused(columns, message):
    refuse_call(message, find, columns)


def test_an_id_of_two_samples_is_refused():
    refuse_call("row 1: '7' is the id or path of several samples", find, {"id": [6, 7]}, Samples([["6", "7", "7"]]))


def test_a_number_that_can_be_a_task_is_used_only_if_it_is_chosen():
    refuse_call("it can be the number of the task", find, {"id": SAMPLE}, doubtful=("id",))
    assert find({"id": SAMPLE}, doubtful=("id",), column="id")[1].tolist() == list(range(30))
    assert find({"id": [f"{i}.0" for i in SAMPLE]})[1].tolist() == list(range(30))
