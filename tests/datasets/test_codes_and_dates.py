"""Values that mean missing values, large numbers of small differences, dates without a day, and new rows on another scale."""

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.datasets.columns import find_codes
from fnlkit.datasets.dates import forms_of
from fnlkit.datasets.identifying import reason_to_leave_out
from tests.commands import fnlkit as run

SIZE = 60


def write_table(path, **columns):
    columns = {"a": np.arange(SIZE) % 7 / 3, "label": np.array(["p", "q"])[np.arange(SIZE) % 2], **columns}
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def with_code(code):
    values = (np.arange(SIZE) * 37 % 101 / 10).astype(object)
    values[[5, 20, 40]] = code
    return values


@pytest.mark.parametrize("code", ["-3.4028234663852886e+38", "1.7976931348623157e+308", "1e15", "-2147483648"])
def test_values_beyond_all_others_are_refused_with_the_option(tmp_path, code):
    path = write_table(tmp_path / "t.csv", elev=with_code(code))
    with pytest.raises(fnlkit.InputError, match=r"row 7.*'elev'.*missing=\[.*2 more: 22, 42"):
        datasets.load(path)
    data = datasets.load(f'manifest(file="{path}", missing=[{code}])')
    empty = datasets.load(write_table(tmp_path / "e.csv", elev=with_code("")))
    np.testing.assert_array_equal(np.asarray(data.x_train), np.asarray(empty.x_train))
    assert data.table == empty.table and data.columns[-1] == "elev (missing)"


@pytest.mark.parametrize(("code", "noted"), [(-999, True), (9999, True), (99.0, True), (-1, False), (0, False)])
def test_repeated_extremes_are_noted_with_column_count_and_option(tmp_path, code, noted):
    data = datasets.load(write_table(tmp_path / "t.csv", elev=with_code(code)))
    notes = [note for note in data.notes if "missing=[" in note]
    assert len(notes) == noted and all(f"'elev': 3 cells are {code:g}" in note for note in notes)


def test_one_code_is_missing_in_all_columns_and_in_new_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ward = np.array(["x", "y", "-999.0"])[np.arange(SIZE) % 3]
    labels = np.where(np.arange(SIZE) < 4, "-999", np.array(["p", "q"])[np.arange(SIZE) % 2])
    path = write_table(tmp_path / "t.csv", elev=with_code(-999), ward=ward, label=labels)
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
    near = datasets.load(write_table(tmp_path / "t.csv", counter=8_000_000_000 + differences))
    x = np.asarray(near.x_train)[:, 1]
    np.testing.assert_array_equal(x - x.min(), differences - differences.min())
    from fnlkit.datasets.columns import decode_row

    shown = dict(decode_row(near.table, np.asarray(near.x_train)[3]))
    assert float(shown["counter"]) == pytest.approx(8_000_000_000 + differences[3], rel=1e-5)
    assert "offset" not in datasets.load(write_table(tmp_path / "t.csv", year=2000 + differences)).table[1]


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
    path = write_table(tmp_path / "t.csv", when=np.array(texts)[np.arange(SIZE) % 2])
    data = datasets.load(path)
    assert data.columns == ["a"] and "when" in data.left_out
    x = np.asarray(datasets.load(f'manifest(file="{path}", date=[when])').x_train)
    days = [30.4 * (month - 1) + 1 for month in months]
    np.testing.assert_allclose(x[:2, 2], days, atol=3)


def test_new_rows_on_another_scale_are_noted_with_the_columns(tmp_path):
    write_table(tmp_path / "t.csv", height=1.5 + np.arange(SIZE) % 9 / 20, sex=np.array(["m", "w"])[np.arange(SIZE) % 2])
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
    with pytest.raises(fnlkit.InputError, match="beyond float32"):
        datasets.load(tmp_path / "t.npz")


def test_columns_of_an_npz_are_noted(tmp_path):
    x = np.stack([np.arange(SIZE) % 7 / 3, with_code(-999).astype(float), 8e9 + np.arange(SIZE) % 41], 1)
    np.savez(tmp_path / "t.npz", x_train=x, y_train=np.arange(SIZE) % 2)
    notes = [note for note in datasets.load(tmp_path / "t.npz").notes if note.startswith("column ")]
    assert len(notes) == 2 and "column 1 of `x_train`: 3 values are -999" in notes[0] and "column 2" in notes[1]
