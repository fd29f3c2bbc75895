"""Numbers with percent signs, thousands separators, detection limits and units: values, refusals, and each route."""

import json

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts import run_schema
from fnlkit.core.errors import InputError
from fnlkit.datasets.columns import find_codes, learn, note_values
from fnlkit.datasets.dates import forms_of
from fnlkit.datasets.identifying import reason_to_leave_out
from fnlkit.datasets.manifest import open_manifest
from fnlkit.datasets.notation import MARKS, find_notation, looks_like_numbers, read_numbers
from tests.commands import fnlkit as run
from tests.commands import refuse, refuse_call, succeed
from tests.tables import write_table

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
        (["0,125 mg", "0,250 mg"], False, [0.125, 0.25]),  # no thousands begin with 0
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


@pytest.mark.parametrize("spec", ["", ", numbers=[platelets]"])
@pytest.mark.parametrize(
    ("counts", "other", "numbers", "noted"),
    [
        (["998", "1.234", "12.500"], "3,5", [998, 1.234, 12.5], True),
        (["998", "1,234", "12,500"], "3.5", [998, 1.234, 12.5], True),
        (["998", "1.234", "1.5"], "3,5", [998, 1.234, 1.5], False),  # a point is the decimal mark of this column
        (["998", "1.234", "12.500"], "3", [998, 1.234, 12.5], False),  # no other cell has a mark
        (["998", "1.234", "12.500"], "3.5", [998, 1.234, 12.5], False),
    ],
)
def test_marks_of_a_table_that_differ_are_noted(counts, other, numbers, noted, spec, tmp_path):
    """Other columns never change how a column is read, because a text or code can have any mark."""
    path = tmp_path / "a.csv"
    rows = [f"{count};{other};{'ab'[i // 3 % 2]};3,{i % 5};0.{i % 2}" for i, count in enumerate(counts * 20)]
    path.write_text("\n".join(["platelets;crp;label;version;scanner", *rows]))
    data = datasets.load(f'manifest(file="{path}", drop=[version, scanner]{spec})')
    np.testing.assert_array_equal(data.x_train[:3, 0], np.float32(numbers))
    assert any(note.startswith("column 'platelets': 1") for note in data.notes) == noted


CELLS = [f"{i + 0.5} %" for i in range(60)]


def train_on(dataset, folder):
    """Write run.pt, a run on a table."""
    succeed(f"fnlkit partition --dataset '{dataset}' --clients 2 -o fed.npz", folder)
    succeed("fnlkit train fed.npz --rounds 2 --fraction 1 --model 'mlp(hidden=[4])' --engine sequential -o run.pt", folder)


def write(folder, cells, ending="csv"):
    """Write a table of 60 rows with the columns share, age, label and site; return its path."""
    i = np.arange(60)
    columns = {
        "share": list(cells),
        "age": [f"{20 + k % 7}.5" for k in i],
        "label": np.where(i % 3, "ill", "well"),
        "site": np.where(i % 2, "Aix", "Bonn"),
    }
    return write_table(folder / f"table.{ending}", columns)


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
    refuse_call(rf'60 different texts.*{word}.*numbers=\["share"\]', datasets.load, path)
    data = datasets.load(f'manifest(file="{path}", numbers=[share])')
    assert data.columns[0] == "share" and data.x_train[:, 0].tolist()[:2] == pytest.approx(values)
    assert any("'share' is read as numbers" in note for note in data.notes)


def test_few_cells_are_named_with_their_rows_and_counted(tmp_path):
    cells = [f"{i}.25" for i in range(60)]
    cells[4], cells[9] = "<0.5", "> 50"
    path = write(tmp_path, cells)
    refuse_call(r"row 6: .*'<0.5'.*detection limits.*numbers=\[.share.\].*1 more: 11", datasets.load, path)
    data = datasets.load(f'manifest(file="{path}", numbers=[share])')
    assert data.x_train[[4, 9], 0].tolist() == [0.5, 50]
    assert any("2 cells at a detection limit" in note for note in data.notes)


def test_several_units_and_other_texts_are_refused_with_rows(tmp_path):
    cells = [f"{i + 50} mg" for i in range(60)]
    cells[7] = "3 g"
    path = write(tmp_path, cells)
    refuse_call(r"several units \(mg, g\)", datasets.load, path)
    refuse_call(r"row 9: .*'3 g'.*unit 'mg'", datasets.load, f'manifest(file="{path}", numbers=[share])')
    path = write(tmp_path, ["north", "south"] * 30)
    refuse_call(r"row 2: .*'north'.*59 more", datasets.load, f'manifest(file="{path}", numbers=[share])')


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
        refuse_call("column", run_schema.check_column, {**agreed[0], "notation": broken}, "column")
    assert run_schema._MARKS == MARKS
    with pytest.raises(InputError, match="notation"):
        run_schema.check_column({**agreed[0], "notation": {"thousands": ",", "decimal": ",", "unit": ""}}, "column")


SIZE = 60


def two_classes(path, **columns):
    """Write a table of a feature, labels of two classes and further columns; return its path."""
    i = np.arange(SIZE)
    return write_table(path, {"a": i % 7 / 3, "label": np.array(["p", "q"])[i % 2], **columns})


def with_code(code):
    values = (np.arange(SIZE) * 37 % 101 / 10).astype(object)
    values[[5, 20, 40]] = code
    return values


@pytest.mark.parametrize("code", ["-3.4028234663852886e+38", "1.7976931348623157e+308", "1e15", "-2147483648"])
def test_values_beyond_all_others_are_refused_with_the_option(tmp_path, code):
    path = two_classes(tmp_path / "t.csv", elev=with_code(code))
    refuse_call(r"row 7.*'elev'.*missing=\[.*2 more: 22, 42", datasets.load, path)
    data = datasets.load(f'manifest(file="{path}", missing=[{code}])')
    empty = datasets.load(two_classes(tmp_path / "e.csv", elev=with_code("")))
    np.testing.assert_array_equal(np.asarray(data.x_train), np.asarray(empty.x_train))
    assert data.table == empty.table and data.columns[-1] == "elev (missing)"


@pytest.mark.parametrize(("code", "noted"), [(-999, True), (9999, True), (99.0, True), (-1, False), (0, False)])
def test_repeated_extremes_are_noted_with_column_count_and_option(tmp_path, code, noted):
    data = datasets.load(two_classes(tmp_path / "t.csv", elev=with_code(code)))
    notes = [note for note in data.notes if "missing=[" in note]
    assert len(notes) == noted and all(f"'elev': 3 cells are {code:g}" in note for note in notes)


def test_one_code_is_missing_in_all_columns_and_in_new_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ward = np.array(["x", "y", "-999.0"])[np.arange(SIZE) % 3]
    labels = np.where(np.arange(SIZE) < 4, "-999", np.array(["p", "q"])[np.arange(SIZE) % 2])
    path = two_classes(tmp_path / "t.csv", elev=with_code(-999), ward=ward, label=labels)
    spec = f'manifest(file="{path}", missing=-999)'
    data = datasets.load(spec)
    assert data.columns == ["a", "elev", "elev (missing)", "ward: x", "ward: y", "ward: (missing)"]
    assert data.class_names == ["p", "q"] and len(data.unlabeled.ids) == 4
    federation = fnlkit.partition(spec, clients=2, say=None)
    trained = fnlkit.train(federation, rounds=1, output=tmp_path / "run.pt", say=None)
    (tmp_path / "new.csv").write_text("a,elev,ward\n1,-999,x\n1,,x\n")
    first, second = fnlkit.predict(trained, tmp_path / "new.csv").rows
    assert first[1:3] == second[1:3] and first[3] == pytest.approx(second[3])


def test_large_numbers_of_small_differences_keep_their_differences(tmp_path):
    differences = np.arange(SIZE) * 37 % 41
    near = datasets.load(two_classes(tmp_path / "t.csv", counter=8_000_000_000 + differences))
    x = np.asarray(near.x_train)[:, 1]
    np.testing.assert_array_equal(x - x.min(), differences - differences.min())
    from fnlkit.datasets.columns import decode_row

    shown = dict(decode_row(near.table, np.asarray(near.x_train)[3]))
    assert float(shown["counter"]) == pytest.approx(8_000_000_000 + differences[3], rel=1e-5)
    assert "offset" not in datasets.load(two_classes(tmp_path / "t.csv", year=2000 + differences)).table[1]


def test_columns_of_large_numbers_share_a_note_and_rows_far_from_all_others_are_noted():
    x = np.random.default_rng(0).normal(size=(300, 4))
    x[:, 3] = 1
    assert note_values(x, "x") == []
    (note,) = note_values(x + [2e9, 0, 0, 0], "x")
    assert note.startswith("column 0 of `x` has large numbers")
    assert note_values(np.tile(x + 2e9, 2), "x")[0].startswith("columns 0, 1, 2, 4, 5 and 1 more of `x`")
    x[[17, 40], :2] = [[1e4], [1.1e4]]  # two of the three columns that vary
    x[5, 0] = 1e9
    (note,) = note_values(x, "x")
    assert "2, the first is row 17;" in note
    x[40:44, :2] = np.arange(1.2e4, 2e4, 1e3).reshape(4, 2)
    assert note_values(x, "x") == []  # more than 1 %, a group of its own


def test_codes_are_found_beside_each_other_but_not_among_few_values():
    inner = np.arange(20.0)
    assert find_codes(np.r_[inner, -999, -999, 9999, 9999]) == [(-999, 2), (9999, 2)]
    assert find_codes(np.r_[inner, 9999]) == [] and find_codes(np.r_[0.0, 0, 1, 1, 999, 999]) == []
    assert find_codes(np.full(9, np.nan)) == find_codes(np.zeros(0)) == []


@pytest.mark.parametrize(
    "texts",
    [
        ["2024-03", "2023-12"], ["2024/03", "2024/04"], ["2024-Q1", "2023Q4"], ["Q1 2024", "Q2 2024"], ["2024W07", "2024-W51"],
        ["2024-W07-3", "2024-W07-1"],
        ["Mar 2024", "March 2023"], ["2024 May", "2024 Jun"], ["03/2024", "04/2024"],
    ],
)  # fmt: skip
def test_dates_without_a_day_are_dates(texts):
    assert len(forms_of(texts)) == 1
    assert reason_to_leave_out("when", texts * 8, np.full(16, np.nan)) == "dates or times"


@pytest.mark.parametrize("template", ["{y}{m:02d}", "{m:02d}.{y}", "{y}.{m:02d}"])
def test_months_that_are_numbers_are_dates(template):
    texts = [template.format(y=2020 + i // 12, m=1 + i % 12) for i in range(24)]
    assert reason_to_leave_out("when", texts, np.array(texts, float)) == "dates"
    assert reason_to_leave_out("mass", ["12.3", "13.7"] * 12, np.array([12.3, 13.7] * 12)) is None


@pytest.mark.parametrize(("texts", "months"), [(["2024-02", "2023-11"], (2, 11)), (["2024-Q1", "2024-Q3"], (1, 7))])
def test_a_column_of_months_or_quarters_can_be_a_feature(tmp_path, texts, months):
    path = two_classes(tmp_path / "t.csv", when=np.array(texts)[np.arange(SIZE) % 2])
    data = datasets.load(path)
    assert data.columns == ["a"] and "when" in data.left_out
    x = np.asarray(datasets.load(f'manifest(file="{path}", date=[when])').x_train)
    days = [30.4 * (month - 1) + 1 for month in months]
    np.testing.assert_allclose(x[:2, 2], days, atol=3)


def test_new_rows_on_another_scale_are_noted_with_the_columns(tmp_path):
    two_classes(tmp_path / "t.csv", height=1.5 + np.arange(SIZE) % 9 / 20, sex=np.array(["m", "w"])[np.arange(SIZE) % 2])
    run("fnlkit partition --dataset t.csv --clients 2 | fnlkit train --rounds 1 -o run.pt", tmp_path)
    (tmp_path / "same.csv").write_text("a,height,sex\n" + "1,1.7,m\n" * 5)
    (tmp_path / "centimeters.csv").write_text("a,height,sex\n" + "1,170,m\n" * 5)
    assert "scale" not in run("fnlkit predict run.pt same.csv", tmp_path).stderr
    assert "'height'" in run("fnlkit predict run.pt centimeters.csv", tmp_path).stderr
    np.save(tmp_path / "x.npy", np.tile([1, 170, 0, 1], (5, 1)).astype(np.float32))
    assert "'height'" in run("fnlkit predict run.pt x.npy", tmp_path).stderr


def test_arrays_beyond_float32_are_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(SIZE, 3))
    x[4, 1] = 1e300
    np.savez(tmp_path / "t.npz", x_train=x, y_train=np.arange(SIZE) % 2)
    refuse_call("beyond float32", datasets.load, tmp_path / "t.npz")


def test_columns_of_an_npz_are_noted(tmp_path):
    x = np.stack([np.arange(SIZE) % 7 / 3, with_code(-999).astype(float), 8e9 + np.arange(SIZE) % 41], 1)
    np.savez(tmp_path / "t.npz", x_train=x, y_train=np.arange(SIZE) % 2)
    notes = [note for note in datasets.load(tmp_path / "t.npz").notes if note.startswith("column ")]
    assert len(notes) == 2 and "column 1 of `x_train`: 3 values are -999" in notes[0] and "column 2" in notes[1]
