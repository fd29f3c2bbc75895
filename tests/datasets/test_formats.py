"""A newcomer's table in every format: partition, audit, train and predict, with the same rows and notes as the CSV."""

import datetime

import numpy as np
import pandas
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.datasets.columns import encode, note_unseen
from fnlkit.datasets.table import read_table
from tests.commands import refuse_call
from tests.tables import write_table

SIZE = 90


def frame():
    rng, i = np.random.default_rng(0), np.arange(SIZE)
    ill = rng.integers(0, 2, SIZE)
    return pandas.DataFrame(
        {
            "Fallnummer": [f"F{700 + 3 * k}" for k in i],
            "Größe [cm]": np.where(i % 11 == 0, np.nan, (165 + 9 * ill + rng.normal(0, 4, SIZE)).round(1)),
            "Sättigung": [f"{value} %" for value in 90 + 5 * ill + rng.integers(0, 4, SIZE)],
            "Station": pandas.Categorical(np.array(["Süd", "Nord", "Ost"])[i % 3], ["Süd", "Nord", "Ost"], ordered=True),
            "aufgenommen": pandas.to_datetime("2024-01-05") + pandas.to_timedelta(i // 2, "D"),
            "hospital": np.array(["Köln", "Bonn"])[i % 2],
            "label": np.array(["gesund", "krank"])[ill],
        }
    )


def write(folder, ending):
    table, options = frame(), {}
    if ending in ("dta", "sav"):  # names of Stata have letters of ASCII only, and dates a unit
        table, options = table.rename(columns={"Größe [cm]": "Größe"}), {"convert_dates": {"aufgenommen": "td"}}
    if ending == "sav":
        table["Station"] = table["Station"].astype(str)
    return write_table(folder / f"t.{ending}", table, **options)


@pytest.mark.parametrize("ending", ["xlsx", "ods", "parquet", "feather", "dta", "sav"])
def test_a_table_of_each_format_is_that_of_the_csv(tmp_path, ending):
    spec = 'manifest(file="{}", numbers=["Sättigung"], ordinal=[Station])'
    if ending in ("dta", "sav"):  # Stata and SPSS: other names of columns, and the order of Stata only
        spec = 'manifest(file="{}", numbers=["Sättigung"])'
    expected, data = (datasets.load(spec.format(write(tmp_path, each))) for each in ("csv", ending))
    assert data.class_names == expected.class_names == ["gesund", "krank"]
    assert data.ids.tolist() == expected.ids.tolist() == frame()["Fallnummer"].tolist()
    assert {"Fallnummer", "aufgenommen"} <= data.left_out.keys() and set(data.fields["site"]) == {"Köln", "Bonn"}
    x, y = np.asarray(data.x_train), np.asarray(expected.x_train)
    if "ordinal" in spec and ending in ("parquet", "feather"):  # the file has the order Süd, Nord, Ost; a CSV has none
        np.testing.assert_array_equal(x[:, 3], np.arange(SIZE) % 3)
        x, y = x[:, :3], y[:, :3]
    np.testing.assert_allclose(x[:, :3], y[:, :3], rtol=1e-6)
    assert any("'%'" in note for note in data.notes)


def test_sas_xport_has_dates_and_texts_of_utf_8_or_latin_1(tmp_path):
    path, library = tmp_path / "t.xpt", pytest.importorskip("pyreadstat", reason="needs pyreadstat")
    library.write_xport(pandas.DataFrame({"day": [datetime.date(2024, 1, 5)], "hospital": ["Köln"], "label": ["a"]}), path)
    assert [*read_table(path).columns.values()] == [["2024-01-05"], ["Köln"], ["a"]]
    path.write_bytes(path.read_bytes().replace("Köln".encode(), "Köln ".encode("latin-1")))
    assert read_table(path).texts("hospital") == ["Köln"]
    path.write_bytes(path.read_bytes()[:-100])
    refuse_call("t.xpt: .*cut off", read_table, path)


@pytest.mark.parametrize(("train", "new"), [("csv", "parquet"), ("csv", "xlsx"), ("parquet", "csv")])
def test_new_rows_with_true_and_false_are_read_in_each_format(train, new, tmp_path):
    """A model that was trained on a CSV read 0 and 1 of Parquet and Excel as unknown categories."""
    columns = {"smoker": pandas.array([True, False, None] * 10, "boolean"), "label": ["a", "b", "c"] * 10}
    paths = [write_table(tmp_path / f"t.{each}", columns) for each in (train, new)]
    learned = datasets.load(paths[0]).table
    rows = [encode(learned, read_table(path), np.arange(30)) for path in paths]
    np.testing.assert_array_equal(*rows)
    assert len(np.unique(rows[0], axis=0)) == 3
    assert note_unseen(learned, read_table(paths[1]), range(30), "rows") == []


def test_new_rows_with_true_and_false_are_no_other_numbers(tmp_path):
    """A column of ages was read as 1 and 0."""
    (tmp_path / "t.csv").write_text("age,label\n" + "".join(f"{40 + i % 9},{'ab'[i % 2]}\n" for i in range(30)))
    (tmp_path / "n.csv").write_text("age\ntrue\nfalse\n")
    with pytest.raises(fnlkit.InputError, match="n.csv, row 2: column 'age' holds 'true'; expected a number"):
        encode(datasets.load(tmp_path / "t.csv").table, read_table(tmp_path / "n.csv"), np.arange(2))


@pytest.mark.parametrize("ending", ["xlsx", "dta"])
def test_a_table_goes_through_partition_audit_train_and_predict(few_trees, tmp_path, ending):
    spec, notes = f'manifest(file="{write(tmp_path, ending)}", numbers=["Sättigung"])', []
    federation = fnlkit.partition(spec, "sites", say=notes.append)
    assert sorted(federation.names) == ["Bonn", "Köln"] and any("because they identify rows" in note for note in notes)
    assert len(fnlkit.audit(federation, say=None).to_pandas()) == 2
    run = fnlkit.train(federation, rounds=2, output=tmp_path / "run.pt", say=None)
    rows = fnlkit.predict(run, tmp_path / f"t.{ending}").rows
    assert [row[0] for row in rows] == frame()["Fallnummer"].tolist() and {row[2] for row in rows} <= {"gesund", "krank"}


def test_a_sheet_is_read_as_a_person_sees_it(tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="needs openpyxl (extra `excel`)")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Werte"
    sheet.append([None] * 4)
    sheet.append(["Größe", "Anteil", "Datum", "label", None])
    sheet.append([1.5, 0.12, datetime.datetime(2024, 1, 5), 1, "a remark"])
    sheet.append([None] * 4)
    sheet.append(["2,5", 0.5, datetime.datetime(2024, 1, 6, 14, 30), 2])
    sheet.append([3, "", None, 1.0])
    sheet["B3"].number_format = "0 %"
    book.create_sheet("Notizen").append(["x"])
    book.save(tmp_path / "t.xlsx")
    table = read_table(tmp_path / "t.xlsx")
    assert list(table.columns) == ["Größe", "Anteil", "Datum", "label"] and table.rows == [3, 5, 6]
    assert table.raw("Größe") == ["1.5", "2,5", "3"] and table.texts("label") == ["1", "2", "1"]
    assert table.raw("Datum") == ["2024-01-05", "2024-01-06 14:30:00", ""] and table.texts("Anteil") == ["0.12", "0.5", ""]
    assert any("'Werte'" in note and "Notizen" in note for note in table.notes)


@pytest.mark.parametrize("ending", ["xlsx", "ods", "parquet", "feather", "dta", "sas7bdat", "xpt", "sav"])
def test_a_damaged_file_is_refused_in_one_line(tmp_path, ending):
    (tmp_path / f"t.{ending}").write_bytes(b"no table" * 100)
    refuse_call(rf"t.{ending}: (cannot be read as|.* needs )", read_table, tmp_path / f"t.{ending}")
    refuse_call(rf"no.{ending}: (no such file|.* needs )", read_table, tmp_path / f"no.{ending}")


def test_an_index_with_the_name_of_a_column_is_refused(tmp_path):
    index = pandas.MultiIndex.from_product([[0, 1], [0]], names=["age", "k"])
    write_table(tmp_path / "t.parquet", pandas.DataFrame({"age": [1, 2], "label": ["a", "b"]}, index=index))
    refuse_call("two columns have the name 'age'", read_table, tmp_path / "t.parquet")


def test_a_table_with_another_ending_is_told_the_endings(tmp_path):
    (tmp_path / "t.tab").write_text("age,label\n1,a\n")
    refuse_call("a table ends in .csv, .*.sav", datasets.load, tmp_path / "t.tab")
