"""Columns that identify rows are no features, and equal values in different spellings are one value."""

import hashlib
import json
import uuid

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fnlkit
from fnlkit import InputError, datasets
from fnlkit.artifacts import run_schema
from fnlkit.datasets.dataset import must_be
from fnlkit.datasets.dates import forms_of, parts_of, read_date
from fnlkit.datasets.identifiers import Asked, Samples, find_samples
from fnlkit.datasets.identifying import reason_to_leave_out
from fnlkit.datasets.labels import class_finder
from fnlkit.datasets.spelling import merge_spellings, order_levels, order_texts, spell, spell_all
from tests.commands import refuse_call, shell, succeed
from tests.datasets.test_notation import train_on
from tests.tables import write_table

# ---- columns that identify rows are no features: by values, by name, at each route, and what stays a feature
RNG = np.random.default_rng(0)


def kind_of(name, texts, sites=None):
    values = pd.to_numeric(pd.Series(texts), errors="coerce").to_numpy(float)
    return reason_to_leave_out(name, texts, values, sites)


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


def test_repeated_rows_do_not_make_an_identifier_a_feature(tmp_path):
    cells = {"nr": range(100, 140), "x": RNG.normal(size=40).round(3), "label": ["a", "b"] * 20}
    twice = {name: [*values, *values[:3]] for name, values in cells.items()}
    assert datasets.load(write_table(tmp_path / "table.csv", twice)).left_out == {"nr": "row numbers"}


@pytest.mark.parametrize("draws", [RNG.integers(1, 121, 400), RNG.integers(0, 20_000, 400)])
def test_a_column_stays_a_feature_if_the_others_follow_from_it(tmp_path, draws):
    """The rows repeat because they have few columns: the values differ in all rows that are no copies."""
    for column, texts in ((draws, draws), ([f"c{i}" for i in draws % 60], draws % 60)):
        cells = {"code": column, "name": [f"region {i % 40}" for i in texts], "label": np.where(texts % 7 > 3, "a", "b")}
        for names in (("code", "label"), ("code", "name", "label")):
            path = write_table(tmp_path / f"{len(names)}.csv", {name: cells[name] for name in names})
            assert "code" not in datasets.load(path).left_out


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
    i = np.arange(rows)
    columns = {
        "exam_no": 100_000 + i,
        "nr": i + 1,
        "date": [f"2024-01-{1 + k % 28:02d}" for k in i],
        "noise": np.random.default_rng(1).normal(size=rows).round(3),
        "label": np.where(i < rows // 2, "ill", "well"),
        "site": np.where(i % 2, "Aix", "Bonn"),
    }
    return write_table(folder / f"table.{ending}", {name: cells for name, cells in columns.items() if name not in drop})


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


# ---- equal values in different spellings are one value, in all roles and all forms of data
SIZE = 60


def mixed(values):
    """Whole numbers as texts; every third with a decimal point, as pandas writes a column with an empty cell."""
    return [f"{value}.0" if i % 3 == 0 else str(value) for i, value in enumerate(values)]


def with_feature(path, columns):
    """Write a table of a feature and `columns`; return its path."""
    return str(write_table(path, {"a": np.arange(SIZE) % 7 / 3, **columns}))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "1.0", "+1", "1.", "1e0", "10e-1"], {"1"}),
        (["-0", "0.0", "0"], {"0"}),
        (["007", "7", "07"], {"007", "7", "07"}),  # leading zeros are codes
        (["10", "1e1", "1E+01"], {"10"}),
        (["12345678901234567890", "12345678901234567891"], {"12345678901234567890", "12345678901234567891"}),
        (["1.10", "1.1"], {"1.1"}),
        (["u\u0308ber", "\u00fcber "], {"\u00fcber"}),  # composed and decomposed letters
        (["1e5", "1f5"], {"1e5", "1f5"}),  # hexadecimal codes
        (["1e999999999", "nan", "inf", "1_000", "0x10"], {"1e999999999", "nan", "inf", "1_000", "0x10"}),
    ],
)
def test_numbers_of_equal_value_are_equal_and_codes_are_not(texts, expected):
    assert set(spell_all(texts)) == expected
    assert all(spell(spell(text)) == spell(text) for text in texts)


def test_case_is_merged_with_a_note_to_the_usual_spelling():
    (first, second), notes = merge_spellings(["Cat", "cat", "cat", "dog"], ["CAT ", "Dog", "dog"], what="sites")
    assert first == ["cat"] * 3 + ["dog"] and second == ["cat", "dog", "dog"]
    assert len(notes) == 1 and "sites" in notes[0] and "'cat' = 'CAT' = 'Cat'" in notes[0]
    assert merge_spellings(["1", "1.0", "b"]) == ([["1", "1", "b"]], [])


@pytest.mark.parametrize("ending", ["csv", "parquet", "xlsx", "dta"])
def test_one_value_in_two_spellings_is_one_group_category_rank_and_site(tmp_path, ending):
    i = np.arange(SIZE)
    columns = {"label": np.array(["p", "q"])[i // 3 % 2], "site": mixed(i % 2 + 1), "patient_id": mixed(i // 3 + 100),
               "ward": mixed(i % 3 + 9), "stage": mixed(i % 3 + 9)}  # fmt: skip
    path = with_feature(tmp_path / f"t.{ending}", columns)
    data = datasets.load(f'manifest(file="{path}", categorical=[ward], ordinal=[stage])')
    assert data.columns == ["a", "ward: 9", "ward: 10", "ward: 11", "stage"]
    np.testing.assert_array_equal(np.asarray(data.x_train)[:, 4], i % 3)
    assert set(data.fields["site"]) == {"1", "2"}
    federation = fnlkit.partition(f'manifest(file="{path}", site="-")', clients=3, say=None)
    held = np.flatnonzero(federation.extra["holdout_client"] >= 0)
    patients = i // 3
    assert len(held) and not set(patients[held]) & set(patients[federation.client_indices])
    assert list(fnlkit.partition(path, "sites", say=None).names) == ["1", "2"]


def test_case_of_labels_groups_and_sites_is_merged_in_tables_and_arrays(tmp_path):
    i = np.arange(SIZE)
    case = lambda texts: [text.upper() if place % 5 == 0 else text for place, text in enumerate(texts)]  # noqa: E731
    label, site = case(np.array(["p", "q"])[i // 3 % 2].tolist()), case(np.array(["bern", "ulm"])[i % 2].tolist())
    group = case([f"p{g}" for g in i // 3])
    path = with_feature(tmp_path / "t.csv", {"label": label, "site": site, "patient": group})
    np.savez(tmp_path / "t.npz", x_train=np.random.default_rng(0).normal(size=(SIZE, 2)), y_train=np.array(label),
             site_train=np.array(site), groups_train=np.array(group))  # fmt: skip
    for source in (path, str(tmp_path / "t.npz")):
        data = datasets.load(source)
        assert data.class_names == ["p", "q"] and set(data.fields["site"]) == {"bern", "ulm"}
        assert len(np.unique(data.groups)) == SIZE * 2 // 3  # a patient at two sites is two groups
        assert sum("only in case" in note for note in data.notes) == 3
        np.testing.assert_array_equal(data.y_train, i // 3 % 2)


def test_a_column_with_leading_zeros_is_categories_with_a_note(tmp_path):
    i = np.arange(SIZE)
    path = with_feature(tmp_path / "t.csv", {"label": np.array(["p", "q"])[i % 2], "ward": np.array(["007", "7"])[i % 2]})
    data = datasets.load(path)
    assert data.columns == ["a", "ward: 007", "ward: 7"] and any("leading zeros" in note for note in data.notes)
    assert datasets.load(f'manifest(file="{path}", numbers=[ward])').columns == ["a", "ward"]


def test_ids_votes_decisions_and_predictions_are_found_by_value():
    samples = Samples([["7", "8.0", "009", "x1"]])
    assert samples.match(["7.0", "8", "009", "9", "+7", "X1"]).tolist() == [0, 1, 2, -1, 0, -1]
    find = class_finder(["1.0", "2", "007", "Cat"])
    assert [find(text) for text in ("1", "2.0", "7", "007", "cat", "CAT ")] == [0, 1, None, 2, 3, 3]
    find = class_finder(["crane", "crane", "Ox"])  # a decision "crane" was one for the second class
    assert [find(text) for text in ("crane", "Crane", "ox")] == [None, None, 2]


@pytest.mark.parametrize(
    ("levels", "given"),
    [
        (["1", "01", "1.5", "2", "10"], None),
        (["T1", "T2", "T10"], None),
        (["b", "a"], ["a", "b"]),
    ],
)
def test_the_order_of_texts_does_not_depend_on_their_first_order(levels, given):
    expected = order_texts(levels)
    assert expected == order_texts(levels[::-1]) == order_texts(sorted(levels))
    assert given is None or expected == given


@pytest.mark.parametrize(
    "levels",
    [
        ["low", "medium", "high"],
        ["none", "Mild", "Moderate", "Severe"],
        ["5-9", "10-14", "15-19"],
        ["<10", "10-20", ">20"],
        ["< 18 years", "18 to 64 years", "65+ years"],
        ["T1", "T2", "T10"],
        ["-5", "-1", "3"],
        ["I", "II", "IV", "IX"],
        ["1", "1.5", "10"],
    ],
)
def test_levels_have_their_natural_order(levels):
    assert order_levels(sorted(levels)) == order_levels(levels[::-1]) == levels


def test_levels_have_the_order_of_the_user_or_of_the_file(tmp_path):
    pandas = pytest.importorskip("pandas")
    grades, i = ["wenig", "mehr", "viel"], np.arange(SIZE) % 3
    columns = {"grade": np.array(grades)[i], "label": np.array(["p", "q"])[np.arange(SIZE) % 2]}
    path = with_feature(tmp_path / "t.csv", columns)
    data = datasets.load(f'manifest(file="{path}", ordinal={{grade: [wenig, mehr, viel]}})')
    np.testing.assert_array_equal(np.asarray(data.x_train)[:, 1], i)
    assert any("wenig < mehr < viel" in note for note in data.notes)
    np.testing.assert_array_equal(np.asarray(datasets.load(data.name).x_train), np.asarray(data.x_train))
    refuse_call("row 4.*'viel'", datasets.load, f'manifest(file="{path}", ordinal={{grade: [wenig, mehr]}})')
    for ending in ("parquet", "dta"):
        stored = pandas.Categorical(columns["grade"], grades, ordered=True)
        path = with_feature(tmp_path / f"t.{ending}", {**columns, "grade": stored})
        x = np.asarray(datasets.load(f'manifest(file="{path}", ordinal=[grade])').x_train)
        np.testing.assert_array_equal(x[:, 1], i)


@pytest.mark.slow  # eight processes
def test_commands_write_the_same_bytes_under_all_hash_seeds(tmp_path):
    rows = [f"0.{i},{label}" for i in range(20) for label in ("1", "01", "2", "10", "1e1", "T2", "T10")]
    (tmp_path / "t.csv").write_text("\n".join(["a,label", *rows]) + "\n")
    for seed in (1, 2):
        partition = f"export PYTHONHASHSEED={seed}; fnlkit partition --dataset t.csv --clients 2 -q"
        line = f"{partition} | fnlkit inject-noise -q -o {seed}.npz && fnlkit audit {seed}.npz -q -o a{seed}.npz"
        assert shell(line, tmp_path).returncode == 0
    for name in ("1.npz", "a1.npz"):
        assert (tmp_path / name).read_bytes() == (tmp_path / name.replace("1", "2")).read_bytes()


# ---- classes have one order in all kinds of data
NAMES = [str(c) for c in range(12)]


def write(folder, route):
    for c in NAMES:
        for part in ("train", "test") if route == "split" else ("A", "B"):
            home = folder / (c if route == "class" else f"{part}/{c}")
            home.mkdir(parents=True, exist_ok=True)
            for i in range(3):
                image = np.random.default_rng(100 * int(c) + 10 * (part == "B") + i).integers(0, 256, (6, 6))
                Image.fromarray(image.astype(np.uint8)).save(home / f"{part}{i}.png")
    if route == "files":
        rows = [(str(p.relative_to(folder)), p.parent.name, p.parent.parent.name) for p in sorted(folder.rglob("*.png"))]
        pd.DataFrame(rows, columns=["path", "label", "site"]).to_csv(folder / "t.csv", index=False)
        return str(folder / "t.csv")
    return f'folder(path="{folder}", label={2 if route == "site" else 1})' if route in ("class", "site") else str(folder)


@pytest.mark.parametrize("route", ["class", "site", "split", "files"])
def test_numbers_are_ordered_by_value_and_a_matrix_hits_the_named_class(route, tmp_path):
    fed = fnlkit.partition(write(tmp_path, route), clients=2, holdout=0, say=None)
    data = datasets.load(fed.dataset)
    assert data.class_names == fed.meta["class_names"] == NAMES
    assert [path.split("/")[-2] for path in data.paths] == [NAMES[label] for label in data.y_train]
    matrix = np.eye(12)
    matrix[2, 2:4] = 0, 1
    np.savetxt(tmp_path / "T.csv", matrix, delimiter=",")
    noisy = fnlkit.inject_noise(fed, f'matrix(path="{tmp_path / "T.csv"}")', say=None)
    assert (noisy.true != noisy.given).any() and set(noisy.true[noisy.true != noisy.given]) == {2}
    assert set(noisy.given[noisy.true != noisy.given]) == {3}
    np.save(tmp_path / "labels.npy", np.array([int(path.split("/")[-2]) for path in data.paths]))
    assert (fnlkit.inject_noise(fed, f'labels(path="{tmp_path / "labels.npy"}")', say=None).given == fed.given).all()


@pytest.mark.parametrize("route", ["class", "files"])
def test_files_of_earlier_versions_keep_their_order_of_classes(route, tmp_path):
    """Earlier versions ordered class folders as texts; their federations and runs store this order and a checksum of it."""
    name = write(tmp_path, route)
    fed, before = fnlkit.partition(name, clients=2, say=None), datasets.load(name)
    before.order_classes(sorted(NAMES))
    number = np.array([sorted(NAMES).index(c) for c in NAMES])
    fed.given = number[fed.given]
    fed.meta |= {"class_names": sorted(NAMES), "dataset_checksum": before.checksum}
    again = datasets.load(name)
    assert before.checksum != again.checksum
    assert must_be(again, fed.meta, len(fed.given), what="the federation") is None
    assert again.class_names == sorted(NAMES) and (again.y_train == fed.given).all()
    run = fnlkit.train(fed, rounds=1, fraction=1.0, model="mlp", backbone="none", say=None)
    assert run.meta["samples"]["class_names"] == sorted(NAMES)
    must_be(datasets.load(name), run.meta, len(fed.given), what="the run")
