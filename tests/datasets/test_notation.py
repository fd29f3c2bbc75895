"""Numbers with percent signs, thousands separators, detection limits and units: values, refusals, and each route."""

import json

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts import run_schema
from fnlkit.core.errors import InputError
from fnlkit.datasets.columns import learn
from fnlkit.datasets.manifest import open_manifest
from fnlkit.datasets.notation import MARKS, find_notation, looks_like_numbers, read_numbers
from tests.commands import refuse, succeed

NAN = float("nan")


@pytest.mark.parametrize(
    ("texts", "comma", "values"),
    [
        (["12 %", "0.5%", "", "NA", "-3 %"], False, [12, 0.5, NAN, NAN, -3]),
        (["1,234.5", "12", "1,000,000"], False, [1234.5, 12, 1e6]),
        (["1,234", "567"], False, [1234, 567]),  # no cell has a decimal comma
        (["1,234", "5,6"], False, [1.234, 5.6]),
        (["1.234,5", "12"], True, [1234.5, 12]),
        (["5,31 mg", "7 mg"], True, [5.31, 7]),
        (["1\u202f234,5", "12"], False, [1234.5, 12]),
        (["1'234.5", "12"], False, [1234.5, 12]),
        (["<0.5", "> 100", "<= 2", "\u22653", "7"], False, [0.5, 100, 2, 3, 7]),
        (["55 mg", "60", "<5 mg"], False, [55, 60, 5]),
        (["1.5e3 10^9/L", "2 10^9/L"], False, None),  # a unit starts with a letter or a sign such as %
        (["$1,200", "$3.5"], False, [1200, 3.5]),
        (["36.6 °C", "37 °C"], False, [36.6, 37]),
    ],
)
def test_values(texts, comma, values):
    notation = find_notation(texts, comma=comma)
    if values is None:
        assert notation is None
        return
    read, odd = read_numbers(texts, notation)
    assert odd == []
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize(
    "texts",
    [
        ["<50", ">=50"] * 10,  # two categories
        ["1a", "2b", "3c", "4d"],
        ["2024-01-05", "2024-01-06"],
        ["10-20", "20-30"],
        ["1.2.3", "1.2.4"],
        ["1", "2"],  # plain numbers
        ["", ""],
        [],
    ],
)
def test_texts_that_do_not_look_like_numbers(texts):
    assert not looks_like_numbers(texts)


CELLS = [f"{i + 0.5} %" for i in range(60)]


def train_on(dataset, folder):
    """Write run.pt, a run on a table."""
    succeed(f"fnlkit partition --dataset '{dataset}' --clients 2 -o fed.npz", folder)
    succeed("fnlkit train fed.npz --rounds 2 --fraction 1 --model 'mlp(hidden=[4])' --engine sequential -o run.pt", folder)


def write(folder, cells, ending="csv"):
    """Write a table of 60 rows with the columns share, age, label and site; return its path."""
    columns = {
        "share": list(cells),
        "age": [f"{20 + i % 7}.5" for i in range(60)],
        "label": ["ill" if i % 3 else "well" for i in range(60)],
        "site": ["Aix" if i % 2 else "Bonn" for i in range(60)],
    }
    path = folder / f"table.{ending}"
    if ending == "parquet":
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table(columns), path)
    else:
        rows = zip(*([f'"{cell}"' for cell in column] for column in columns.values()), strict=True)
        path.write_text("\n".join([",".join(columns), *map(",".join, rows)]) + "\n")
    return path


@pytest.mark.parametrize(
    ("cells", "word", "values", "ending"),
    [
        (CELLS, "percentages", [0.5, 1.5], "parquet"),
        ([f"{i + 1},{100 + i}.5" for i in range(60)], "separators", [1100.5, 2101.5], "csv"),
        ([f"{i + 50} mg" for i in range(60)], "units", [50, 51], "csv"),
        ([f"<0.{i + 10}" if i % 2 else f"{i + 0.25}" for i in range(60)], "limits", [0.25, 0.11], "csv"),
    ],
)
def test_a_table_is_refused_with_the_option_that_reads_it(cells, word, values, ending, tmp_path):
    path = write(tmp_path, cells, ending)
    with pytest.raises(InputError, match=rf'60 different texts.*{word}.*numbers=\["share"\]'):
        datasets.load(path)
    data = datasets.load(f'manifest(file="{path}", numbers=[share])')
    assert data.columns[0] == "share" and data.x_train[:, 0].tolist()[:2] == pytest.approx(values)
    assert any("'share' is read as numbers" in note for note in data.notes)


def test_few_cells_are_named_with_their_rows_and_counted(tmp_path):
    cells = [f"{i}.25" for i in range(60)]
    cells[4], cells[9] = "<0.5", "> 50"
    path = write(tmp_path, cells)
    with pytest.raises(InputError, match=r"row 6: .*'<0.5'.*detection limits.*numbers=\[.share.\].*1 more: 11"):
        datasets.load(path)
    data = datasets.load(f'manifest(file="{path}", numbers=[share])')
    assert data.x_train[[4, 9], 0].tolist() == [0.5, 50]
    assert any("2 cells at a detection limit" in note for note in data.notes)


def test_several_units_and_other_texts_are_refused_with_rows(tmp_path):
    cells = [f"{i + 50} mg" for i in range(60)]
    cells[7] = "3 g"
    path = write(tmp_path, cells)
    with pytest.raises(InputError, match=r"several units \(mg, g\)"):
        datasets.load(path)
    with pytest.raises(InputError, match=r"row 9: .*'3 g'.*unit 'mg'"):
        datasets.load(f'manifest(file="{path}", numbers=[share])')
    path = write(tmp_path, ["north", "south"] * 30)
    with pytest.raises(InputError, match=r"row 2: .*'north'.*59 more"):
        datasets.load(f'manifest(file="{path}", numbers=[share])')


def test_predict_reads_new_rows_in_the_same_way(tmp_path):
    """A run stores the notation: 12 % and 12 are equal, and 12 mg is refused."""
    write(tmp_path, CELLS)
    train_on("manifest(file=table.csv, numbers=[share])", tmp_path)
    made = []
    for name, cells in (("a", CELLS), ("b", [cell.strip(" %") for cell in CELLS])):
        (tmp_path / name).mkdir()
        write(tmp_path / name, cells)
        made.append(succeed(f"fnlkit predict run.pt {name}/table.csv", tmp_path).stdout)
    assert made[0] and made[0] == made[1]
    write(tmp_path / "b", [*CELLS[:59], "12 mg"])
    refuse("fnlkit predict run.pt b/table.csv", tmp_path, "row 61", "'12 mg'")


def test_a_real_site_reads_agreed_columns(tmp_path):
    found = open_manifest(str(write(tmp_path, CELLS)))
    agreed = learn(found.table, ["share", "age"], np.arange(60), None, numbers=["share"])
    assert agreed[0]["notation"] == {"thousands": "", "decimal": ".", "unit": "%"} and "notation" not in agreed[1]
    for column in json.loads(json.dumps(agreed)):
        run_schema.check_column(column, "column")
    data = found.dataset(tmp_path, learned=agreed, of_site=True)
    assert data.x_train[:2, 0].tolist() == [0.5, 1.5]
    for broken in ({}, None, {"thousands": ".", "decimal": ".", "unit": ""}, {"thousands": "", "decimal": ".", "unit": 3}):
        with pytest.raises(InputError, match="column"):
            run_schema.check_column({**agreed[0], "notation": broken}, "column")
    assert run_schema._MARKS == MARKS
    with pytest.raises(InputError, match="notation"):
        run_schema.check_column({**agreed[0], "notation": {"thousands": ",", "decimal": ",", "unit": ""}}, "column")
