"""Columns that identify rows are no features: by values, by name, at each route, and what stays a feature."""

import hashlib
import json
import uuid

import numpy as np
import pytest

from fnlkit import InputError, datasets
from fnlkit.artifacts import run_schema
from fnlkit.datasets.dates import forms_of, parts_of, read_date
from fnlkit.datasets.identifiers import Asked, Samples, find_samples
from fnlkit.datasets.identifying import reason_to_leave_out
from tests.commands import refuse_call, succeed
from tests.datasets.test_notation import train_on

RNG = np.random.default_rng(0)


def kind_of(name, texts, sites=None):
    values = []
    for text in texts:
        try:
            values.append(float(text))
        except ValueError:
            values.append(np.nan)
    return reason_to_leave_out(name, list(map(str, texts)), np.array(values), sites)


HASHES = [hashlib.sha256(str(i).encode()).hexdigest()[:32] for i in range(40)]


@pytest.mark.parametrize(
    ("name", "texts", "kind"),
    [
        ("x", [str(100000 + i) for i in range(40)], "row numbers"),
        ("x", [f"{i}.0" for i in range(1, 41)], "row numbers"),  # as a program writes whole numbers with empty cells
        ("x", [str(500 - 10 * i) for i in range(40)], "row numbers"),
        ("x", [f"{i:06d}" for i in RNG.permutation(60)], "identifiers"),  # 60! / 60^60 is far below one in a million
        ("visit_no", [str(i) for i in range(10)], "row numbers"),
        ("visit_no", list(map(str, RNG.choice(10**7, 40, replace=False))), "identifiers"),
        ("patientId", list(map(str, RNG.choice(10**7, 40, replace=False))), "identifiers"),
        ("x", [str(uuid.UUID(int=int(i))) for i in RNG.integers(0, 2**60, 40)], "UUIDs"),
        ("x", HASHES, "hashes"),
        ("x", [f"scan_{i}.nii.gz" for i in range(40)], "file names"),
        ("x", [f"MRN-{i}" for i in RNG.permutation(40)], "codes"),
        ("x", [str(1_700_000_000 + 86_377 * i) for i in RNG.permutation(40)], "Unix times"),
        ("x", [f"2024-01-{1 + i % 28:02d}" for i in range(40)], "dates or times"),
        ("x", [f"{1 + i % 28}.1.2024 10:{i:02d}" for i in range(40)], "dates or times"),
        ("x", [f"{i % 24}:{i:02d}" for i in range(40)], "dates or times"),
        ("x", [f"202401{1 + i % 28:02d}" for i in range(40)], "dates"),
    ],
)
def test_columns_that_identify_rows(name, texts, kind):
    assert kind_of(name, texts) == kind


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("pressure", list(map(str, RNG.choice(np.arange(60, 220), 12, replace=False)))),  # 12 of 160 often differ
        ("price", list(map(str, RNG.choice(900_000, 60, replace=False)))),
        ("stage", [str(i % 4) for i in range(40)]),
        ("visit_no", [str(1 + i % 5) for i in range(40)]),  # the visits of each patient
        ("year", [str(1990 + i % 30) for i in range(60)]),
        ("x", [f"{i / 7:.4f}" for i in range(40)]),
        ("version", ["1.2", "2.0"] * 20),
        ("ward", ["b2", "b3", "c1"] * 10),
        ("x", [""] * 30),
        ("dose", list("123")),
        ("dose", [str(10 * i) for i in range(15)]),
    ],
)
def test_columns_that_stay_features(name, texts):
    assert kind_of(name, texts) is None


def test_sites_number_their_rows_independently():
    texts = [str(i) for i in range(20)] * 3
    assert kind_of("x", texts) is None
    assert kind_of("x", texts, ["a"] * 20 + ["b"] * 20 + ["c"] * 20) == "row numbers"


def test_forms_and_parts_of_dates():
    assert read_date("05/01/2024", "day-month-year").isoformat() == "2024-01-05"
    assert read_date("2024-02-30", "year-month-day") is None and read_date("5 Mayo 2024", "day name year").month == 5
    assert read_date("5 Xyz 2024", "day name year") is None
    assert forms_of(["05/01/2024", "", "31/12/2023"]) == ["day-month-year"]
    assert forms_of(["05/01/2024"]) == ["day-month-year", "month-day-year"] and forms_of(["", ""]) == [] == forms_of(["x"])
    values, odd = parts_of(["2024-03-01", "", "no"], "year-month-day")
    assert values[0].tolist() == [2024, 61, 4] and np.isnan(values[1:]).all() and odd == [2]  # 31 + 29 + 1; a Friday


def table(folder, rows=40, ending="csv", *, drop=()):
    """Write a table sorted by its label, whose only honest feature is noise; return its path."""
    columns = {
        "exam_no": [str(100_000 + i) for i in range(rows)],
        "nr": [str(i + 1) for i in range(rows)],
        "date": [f"2024-01-{1 + i % 28:02d}" for i in range(rows)],
        "noise": [f"{v:.3f}" for v in np.random.default_rng(1).normal(size=rows)],
        "label": ["ill" if i < rows // 2 else "well" for i in range(rows)],
        "site": ["Aix" if i % 2 else "Bonn" for i in range(rows)],
    }
    columns = {name: cells for name, cells in columns.items() if name not in drop}
    path = folder / f"table.{ending}"
    if ending == "parquet":
        pa = pytest.importorskip("pyarrow", reason="needs pyarrow (extra `parquet`)")
        from pyarrow import parquet

        numeric = {"exam_no": int, "nr": int, "noise": float}
        parquet.write_table(pa.table({n: list(map(numeric.get(n, str), c)) for n, c in columns.items()}), path)
    else:
        lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
        path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_leave_them_out_with_a_note_and_keep_them_on_request(ending, tmp_path):
    path = table(tmp_path, ending=ending)
    data = datasets.load(path)
    assert data.columns == ["noise"] and data.x_train.shape == (40, 1)
    note = next(note for note in data.notes if note.startswith("left out"))
    assert all(name in note for name in ("exam_no", "nr", "date", 'numbers=["exam_no"]', 'date=["date"]'))
    kept = datasets.load(f'manifest(file="{path}", numbers=[nr], date=[date])')
    assert kept.columns == ["nr", "date year", "date day of the year", "date weekday", "noise"]
    assert kept.x_train[0, :4].tolist() == [1, 2024, 1, 0] and kept.x_train[27, 1:4].tolist() == [2024, 28, 6]
    assert kept.checksum != data.checksum


def test_a_table_of_identifiers_only_is_refused(tmp_path):
    refuse_call("exam_no", datasets.load, table(tmp_path, drop=("noise",)))


def test_dates_with_gaps_and_in_doubt(tmp_path):
    path = table(tmp_path)
    path.write_text(path.read_text().replace("2024-01-01,", ","))
    data = datasets.load(f'manifest(file="{path}", date=[date])')
    assert data.columns[3] == "date (missing)" and data.x_train[0, 3] == 1
    assert data.x_train[0, 0] == 2024  # the mean of the other years
    path.write_text(path.read_text().replace("2024-01-", "01/02/20"))
    refuse_call("doubt", datasets.load, f'manifest(file="{path}", date=[date])')


def test_predict_and_sites_need_no_column_that_was_left_out(tmp_path):
    """Identifiers sorted by label predict nothing, and new rows need no identifier."""
    table(tmp_path)
    (tmp_path / "new").mkdir()
    table(tmp_path / "new", drop=("exam_no", "nr", "label"))
    train_on("manifest(file=table.csv, date=[date])", tmp_path)
    succeed("fnlkit predict run.pt new/table.csv", tmp_path)


def test_agreed_columns_of_a_real_site(tmp_path):
    """A column of an older project stays a feature; agreed dates are checked."""
    from fnlkit.datasets.columns import learn
    from fnlkit.datasets.manifest import open_manifest

    path = table(tmp_path)
    found = open_manifest(str(path))
    agreed = learn(found.table, ["nr", "date", "noise"], np.arange(40), None, date=["date"])
    for column in json.loads(json.dumps(agreed)):
        run_schema.check_column(column, "column")
    data = found.dataset(tmp_path, learned=agreed, of_site=True)
    assert data.x_train.shape == (40, 5) and data.x_train[:, 0].tolist() == list(range(1, 41))
    assert not any("'nr'" in note for note in data.notes if note.startswith("left out"))
    for broken in ({"form": "xyz"}, {"fill": 3.0}, {"fill": [1.0]}):
        refuse_call("column", run_schema.check_column, {**agreed[1], **broken}, "column")


def test_unseen_categories_are_counted(tmp_path):
    """Test rows and new rows with a category that no training row has; a known level and a missing rank are none."""
    wards = ["south", "north"] * 10 + ["east", "west", "east", "", "south"]
    lines = ["ward,stage,age,label,split"]
    lines += [f"{w},{i % 3},{i + 0.5},{'ab'[i % 2]},{'train' if i < 20 else 'test'}" for i, w in enumerate(wards)]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    data = datasets.load(f'manifest(file="{tmp_path}/table.csv", ordinal=[stage])')
    note = next(note for note in data.notes if "no training row" in note)
    assert note.startswith("column 'ward': 4 of 5 test rows") and note.endswith("'(missing)', 'east', 'west'")
    train_on("manifest(file=table.csv, ordinal=[stage])", tmp_path)
    (tmp_path / "new.csv").write_text("ward,stage,age\nsouth,9,1.5\nup,1,2.5\nup,7,3.5\nnorth,1,3.5\n")
    made = succeed("fnlkit predict run.pt new.csv", tmp_path)
    assert len(made.stdout.splitlines()) == 5
    assert "'ward': 2 of 4 rows" in made.stderr and "'stage': 2 of 4 rows" in made.stderr and "3 of 4 rows" in made.stderr
    (tmp_path / "new.csv").write_text("ward,stage,age\nsouth,1,1.5\n")
    assert "rows have" not in succeed("fnlkit predict run.pt new.csv", tmp_path).stderr


# ---- the column that names the samples, in exports whose numbers shift, overlap or are permuted
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
    refuse_call("'id' .30 of 30.*'picture' .29 of 30", find, {"id": SAMPLE + 3, "picture": [*urls[1:], "else.png"]}, FILES)
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
