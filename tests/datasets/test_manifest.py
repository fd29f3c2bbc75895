"""Tables of samples as people have them: what is read, what is refused, and by which row."""

import csv
import json
import re
import wave

import numpy as np
import pytest
from PIL import Image

from fnlkit import datasets
from fnlkit.artifacts import large
from fnlkit.core.errors import InputError
from fnlkit.datasets import decoding
from fnlkit.datasets.decoding import Decoded
from fnlkit.datasets.labels import doubts
from fnlkit.datasets.table import parse_table
from tests.commands import fnlkit, refuse_call
from tests.tables import write_table


def write(path, *lines, encoding="utf-8", end="\n"):
    path.write_bytes((end.join(lines) + end).encode(encoding))
    return path


def images(folder, count=8, size=(6, 5)):
    """Write gray images whose pixels are their number; return their names."""
    (folder / "scans").mkdir(parents=True, exist_ok=True)
    names = [f"scans/{i}.png" for i in range(count)]
    for i, name in enumerate(names):
        Image.fromarray(np.full(size, i, np.uint8)).save(folder / name)
    return names


def cases(folder, *changes, header="path,label,site,split,id", count=8):
    """Write a good manifest with some rows changed, given as (row of the spreadsheet, text); return its path."""
    sites, labels = ("Bern", "Zürich"), ("healthy", "krank")
    rows = [header, *(f"{name},{labels[i % 2]},{sites[i // 4]},{'test' if i % 4 == 3 else 'train'},c{i}"
                      for i, name in enumerate(images(folder, count)))]  # fmt: skip
    for row, text in changes:
        rows[row - 1] = text
    return write(folder / "cases.csv", *rows)


def test_columns_of_obvious_names_are_taken(tmp_path):
    data = datasets.load(cases(tmp_path))
    assert (data.kind, data.class_names, data.observed, data.truth) == ("image", ["healthy", "krank"], True, None)
    assert data.x_train[:, 0, 0, 0].tolist() == [0, 1, 2, 4, 5, 6] and data.x_test[:, 0, 0, 0].tolist() == [3, 7]
    assert data.y_train.tolist() == [0, 1, 0, 0, 1, 0] and data.y_test.tolist() == [1, 1]
    assert data.fields["site"].tolist() == ["Bern"] * 3 + ["Zürich"] * 3
    assert data.ids.tolist() == ["c0", "c1", "c2", "c4", "c5", "c6"] and data.paths[0] == "scans/0.png"
    assert data.notes == ["8 rows; label 'label', path 'path', site 'site', split 'split', id 'id'"]
    assert datasets.load(data.name).checksum == data.checksum
    Image.fromarray(np.full((6, 5), 9, np.uint8)).save(tmp_path / "scans/7.png")
    assert datasets.load(data.name, cache=tmp_path / "other").checksum != data.checksum


def test_columns_are_named_and_others_become_fields(tmp_path):
    path = cases(tmp_path, header="bild,diagnose,klinik,teil,scanner")
    refuse_call("cases.csv: no column is named label .*one of 'bild', 'diagnose', 'klinik'", datasets.load, path)
    data = datasets.load(f'manifest(file="{path}", path=bild, label=diagnose, split=teil)')
    assert data.class_names == ["healthy", "krank"] and len(data.y_test) == 2 and data.ids[0] == "scans/0.png"
    assert data.fields["klinik"][0] == "Bern" and data.fields["scanner"][-1] == "c6"
    assert "not used: klinik, scanner" in data.notes[0]
    with pytest.raises(InputError, match="label='diagnosis': no column 'diagnosis'; did you mean 'diagnose'"):
        datasets.load(f'manifest(file="{path}", path=bild, label=diagnosis)')
    refuse_call("the path can be in 'path' or 'file'", datasets.load, cases(tmp_path, header="path,label,file,split,id"))


@pytest.mark.parametrize(
    ("row", "text", "message"),
    [
        (3, "scans/none.png,krank,Bern,train,c1", "cases.csv, row 3: no file .*none.png"),
        (4, "scans/2.png,krank,Bern,valid,c2", "cases.csv, row 4: split is 'valid'; write train or test"),
        (5, "scans/3.png,krank,Bern,test,c2", "cases.csv, row 5: id c2 is also in row 4"),
        (5, "scans/2.png,krank,Bern,test,c3", "cases.csv, row 5: path scans/2.png is also in row 4"),
        (6, "scans/4.png,krank,,train,c4", "cases.csv, row 6: no site; every sample needs a site"),
        (6, "scans/4.png,krank,Bern,train,", "cases.csv, row 6: no id"),
        (6, ",krank,Bern,train,c4", "cases.csv, row 6: no path"),
        (7, "scans/5.png,krank,Bern", "cases.csv, row 7: 3 cells, but the first row has 5"),
        (7, 'scans/5.png,"krank,Bern,train,c5', "cases.csv, line 9: .*; quote cells"),
        (1, "path,label,site,label,id", "cases.csv: two columns have the name 'label'"),
    ],
)
def test_mistakes_are_named_by_row(row, text, message, tmp_path):
    path = cases(tmp_path, (row, text))
    refuse_call(message, datasets.load, path)
    done = fnlkit("fnlkit partition --dataset cases.csv --scheme sites", tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("label=3", "`label` is 3; write the name of a column"),
        ("ordinal={ward: low}", "levels of 'ward' as a list"),
        ("missing=[[a]]", "`missing` is for all columns"),
        ("categorical=[age], drop=[age]", "categorical and drop both name the column 'age'"),
        ('site="ward", categorical=[ward]', "column 'ward' is the site"),
        ("size=8", "size is for images and sounds"),
    ],
)
def test_options_without_an_effect_are_refused(options, message, tmp_path):
    table = write(tmp_path / "t.csv", "age,ward,label", *(f"{i},{'ab'[i % 2]},{'xy'[i // 4]}" for i in range(8)))
    assert len(datasets.load(f'manifest(file="{table}", categorical=[ward], drop=[age])').y_train) == 8
    refuse_call(message, datasets.load, f'manifest(file="{table}", {options})')


def test_a_code_for_missing_values_is_printed_as_it_is_written(tmp_path):
    values = [*range(101, 110), *range(101, 110), *[9999999] * 3]
    table = write(tmp_path / "t.csv", "age,label", *(f"{age},{'xy'[i % 2]}" for i, age in enumerate(values)))
    assert any("write missing=[9999999]" in note for note in datasets.load(table).notes)
    assert datasets.load(f'manifest(file="{table}", missing=[9999999])').columns == ["age", "age (missing)"]


def test_files_are_not_taken_for_categories(tmp_path):
    path = cases(tmp_path, header="datei,label,klinik,split,id")
    refuse_call('column .datei. has file names such as scans/0.png; write path="datei"', datasets.load, path)
    assert datasets.load(f'manifest(file="{path}", path="-")').kind == "vector"


def test_labels_that_are_missing(tmp_path):
    path = cases(tmp_path, (3, "scans/1.png,,Bern,train,c1"), (9, "scans/7.png, ,Zürich,test,c7"))
    data = datasets.load(path)
    assert len(data.y_train) == 5 and len(data.y_test) == 1 and data.class_names == ["healthy", "krank"]
    assert (data.unlabeled.ids, data.unlabeled.sites) == (["c1", "c7"], ["Bern", "Zürich"])
    assert data.unlabeled.samples()[:, 0, 0, 0].tolist() == [1, 7]
    done = fnlkit("fnlkit partition --dataset cases.csv --scheme sites | fnlkit info --json", tmp_path)
    assert json.loads(done.stdout)["meta"]["client_unlabeled"] == [1, 1]


def test_a_label_called_nan_is_a_class_and_doubted(tmp_path):
    path = cases(tmp_path, (2, "scans/0.png,nan,Bern,train,c0"), (3, "scans/1.png,Krank,Bern,train,c1"))
    data = datasets.load(path)
    assert data.class_names == ["healthy", "krank", "nan"]
    assert any("1 samples have the label 'nan', which is treated as a class; write missing=\"nan\"" in n for n in data.notes)
    assert any("differ only in case or spaces are read as one: 'krank' = 'Krank'" in note for note in data.notes)
    assert datasets.load(f'manifest(file="{path}", missing=nan)').unlabeled.ids == ["c0"]


def test_numbers_as_labels_keep_their_order(tmp_path):
    rows = [f"{i},{i * i},{('10.0', '9.0', '2.0')[i % 3]}" for i in range(9)]
    data = datasets.load(write(tmp_path / "t.csv", "a,b,label", *rows))
    assert data.class_names == ["2", "9", "10"] and data.y_train.tolist() == [2, 1, 0] * 3


def test_semicolons_commas_in_numbers_and_quoted_lines(tmp_path):
    lines = ["größe;ort;label;bemerkung", *(f'{i},5;"A;{i % 2}";ja {i % 2};"zwei\nZeilen; {i}"' for i in range(6))]
    path = write(tmp_path / "t.csv", *lines)
    data = datasets.load(f'manifest(file="{path}", drop=[bemerkung])')
    assert data.columns == ["größe", "ort: A;0", "ort: A;1"]
    assert data.x_train[:, 0].tolist() == [i + 0.5 for i in range(6)] and data.fields["bemerkung"][1] == "zwei\nZeilen; 1"
    assert data.ids.tolist() == [f"row {i}" for i in range(2, 8)]
    assert datasets.load(data.name).checksum == data.checksum
    text = path.read_text()
    for line in ("sep=;", '"sep=;"', "SEP=;"):  # for Excel
        path.write_text(f"{line}\n{text}")
        with_line = datasets.load(data.name)
        assert with_line.ids[0] == "row 3" and (with_line.x_train == data.x_train).all()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["label", "a", "b"], "no column contains file paths or features"),
        (["x"], "no rows below the column names"),
        ([""], "is empty"),
        (["x,label", "1,a", "2,a"], "column 'label': 1 different labels \\('a'\\); expected 2"),
        (["x,label", *["1,a", "2,b"] * 9, "3_0,a"], "row 20: column 'x' contains '3_0' among numbers; correct it"),
        (["x,label", *(f"text {i},{i % 2}" for i in range(101))], r'101 different texts, more than 100; .* drop=\["x"\]'),
        (["x,label", "1,a\x01", "2,b"], r"class name 'a\\x01' contains control characters"),
        (["x,label", *(f"text {i // 2},{i % 2}" for i in range(202))], r'in the spec .* write group="x" if .*, drop=\["x"\]'),
        (["x,true_label,label", "1,a,a", "2,,b"], "row 3: no true_label"),
    ],
)
def test_tables_that_cannot_be_used(lines, message, tmp_path):
    refuse_call(message, datasets.load, write(tmp_path / "t.csv", *lines))


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-be", "utf-8-sig"])
def test_tables_in_the_encodings_of_spreadsheets(encoding, tmp_path):
    lines = ["größe,label", *(f"{i},{'müde' if i % 2 else 'wach'}" for i in range(6))]
    raw = "\r\n".join(lines).encode(encoding)
    (tmp_path / "t.csv").write_bytes(b"\xfe\xff" + raw if encoding == "utf-16-be" else raw)
    data = datasets.load(tmp_path / "t.csv")
    assert data.columns == ["größe"] and data.class_names == ["müde", "wach"] and data.x_train[:, 0].tolist() == list(range(6))
    assert any("Windows-1252" in note for note in data.notes) == (encoding == "cp1252")  # the guess is stated


@pytest.mark.parametrize("raw", ["größe,label\n1,a".encode("utf-16-le"), b"\xff\xfeabc", b"gr\x81\xdfe,label\n1,a\n", b"a\0b"])
def test_bytes_that_are_no_table_of_texts(raw, tmp_path):
    (tmp_path / "t.csv").write_bytes(raw)
    refuse_call("t.csv: not ", datasets.load, tmp_path / "t.csv")


def test_truth_is_a_column(tmp_path):
    data = datasets.load(write(tmp_path / "t.csv", "x,label,true_label", "1,a,a", "2,b,a", "3,c,b"))
    assert not data.observed and data.truth.tolist() == [0, 0, 1] and data.columns == ["x"]


def test_categories_ranks_and_missing_values(tmp_path):
    rows = ["61,2,w,Aix,0", ",1,w,Bonn,1", "53,10,,Aix,1", "40,2,m,Aix,0", "NA,2,m,Aix,1", "99,2,div,Aix,0"]
    path = write(tmp_path / "t.csv", "age,stage,sex,site,y", *rows)
    data = datasets.load(f'manifest(file="{path}", ordinal=[stage])')
    assert data.columns == ["age", "age (missing)", "stage", "sex: div", "sex: m", "sex: w", "sex: (missing)"]
    mean = np.float32((61 + 53 + 40 + 99) / 4)
    expected = [
        [61, 0, 1, 0, 0, 1, 0], [mean, 1, 0, 0, 0, 1, 0], [53, 0, 2, 0, 0, 0, 1],
        [40, 0, 1, 0, 1, 0, 0], [mean, 1, 1, 0, 1, 0, 0], [99, 0, 1, 1, 0, 0, 0],
    ]  # fmt: skip
    np.testing.assert_array_equal(data.x_train, np.array(expected, np.float32))
    assert "values are missing in age, sex: a feature marks them, and numbers become the mean of all sites" in data.notes
    assert "stage: 1" in datasets.load(f'manifest(file="{path}", categorical=stage)').columns


def test_scales_and_categories_come_from_training_rows_only(tmp_path):
    path = write(tmp_path / "t.csv", "x,kind,split,label", "1,a,train,u", "3,b,train,v", "100,c,test,u", ",a,test,v")
    data = datasets.load(path)
    assert data.columns == ["x", "kind: a", "kind: b"] and data.x_test.tolist() == [[100, 0, 0], [2, 1, 0]]


def test_parquet_equals_csv(tmp_path, monkeypatch):
    table = {"age": [61.0, None, 53.0, 40.0], "n": [1, 2, 3, None], "sex": ["w", "m", None, "m"], "label": [1, 2, None, 1]}
    write_table(tmp_path / "t.parquet", {**table, "__index_level_0__": [0, 1, 2, 3]})
    lines = [",".join("" if v is None else str(v) for v in row) for row in zip(*table.values(), strict=True)]
    write(tmp_path / "t.csv", ",".join(table), *lines)
    found, expected = (datasets.load(tmp_path / name) for name in ("t.parquet", "t.csv"))
    np.testing.assert_array_equal(found.x_train, expected.x_train)
    assert (found.columns, found.class_names, found.table) == (expected.columns, expected.class_names, expected.table)
    assert found.unlabeled.ids == ["row 3"] and expected.unlabeled.ids == ["row 4"]
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    refuse_call(r"Parquet needs pyarrow; run: pip install 'fnlkit\[parquet\]'", datasets.load, tmp_path / "t.parquet")


def tone(path, length, rate=8000, channels=1, width=2):
    values = (np.sin(np.arange(length) / 5) * 0.5 * (2 ** (8 * width - 1) - 1)).astype("<i8")
    values = values + 128 if width == 1 else values
    raw = np.repeat(values[:, None], channels, 1).reshape(-1, 1).view(np.uint8)[:, :width]
    with wave.open(str(path), "wb") as clip:
        clip.setnchannels(channels)
        clip.setsampwidth(width)
        clip.setframerate(rate)
        clip.writeframes(raw.tobytes())


def test_sounds(tmp_path):
    for i in range(4):
        tone(tmp_path / f"{i}.wav", 4000, channels=1 + i % 2, width=1 + i)
    path = write(tmp_path / "t.csv", "file,label", *(f"{i}.wav,{i % 2}" for i in range(4)))
    data = datasets.load(path)
    assert (data.kind, data.sample_rate, data.x_train.shape, data.x_train.dtype) == ("wave", 8000, (4, 4000), np.float32)
    for row in data.x_train:
        np.testing.assert_allclose(row, np.sin(np.arange(4000) / 5) * 0.5, atol=0.02)
    refuse_call("size. is for images", datasets.load, f'manifest(file="{path}", size=8)')
    tone(tmp_path / "3.wav", 3000)
    refuse_call("3.wav: 3,000 samples; .* 4,000 samples; write seconds=1.0", lambda: datasets.load(path).x_train)
    data = datasets.load(f'manifest(file="{path}", seconds=0.45)')
    assert data.x_train.shape == (4, 3600) and (data.x_train[3, 3000:] == 0).all()
    tone(tmp_path / "2.wav", 4000, rate=16000)
    refuse_call("2.wav: 16,000 Hz, the first sound has 8,000 Hz; resample", lambda: datasets.load(path).x_train)
    (tmp_path / "1.wav").write_bytes(b"RIFF")
    refuse_call("1.wav: cannot be read as wav", lambda: datasets.load(path).x_train)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("size=-1", "size. is -1"),
        ("size=100000", "size. is 100,000"),
        ("seconds=-1", "seconds. is -1"),
        ("seconds=1", "seconds. is for sounds"),
        ("crop=true", "crop. needs"),
    ],
)
def test_options_for_other_files_are_refused(options, message, tmp_path):
    table = cases(tmp_path)
    for name in ("a", "b"):
        images(tmp_path / "all" / name, 3)
    for spec in (f'manifest(file="{table}", {options})', f'folder(path="{tmp_path}/all", label=1, {options})'):
        refuse_call(message, datasets.load, spec)


@pytest.mark.parametrize(("shape", "kind"), [((5,), "vector"), ((4, 4, 3), "image")])
def test_arrays(shape, kind, tmp_path):
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", np.full(shape, i, np.float64 if kind == "vector" else np.uint8))
    data = datasets.load(write(tmp_path / "t.csv", "file,label", *(f"{i}.npy,{i % 2}" for i in range(4))))
    assert data.kind == kind and np.asarray(data.x_train).reshape(4, -1)[:, 0].tolist() == [0, 1, 2, 3]
    np.save(tmp_path / "2.npy", np.zeros(7))
    refuse_call(r"2.npy: float64 \(7,\); the other files", lambda: datasets.load(data.name).x_train)


def test_images_are_read_once_before_and_decoded_when_a_client_is_visited(tmp_path, monkeypatch):
    path, opened = cases(tmp_path), []
    monkeypatch.setattr(large, "SMALL", 10)
    monkeypatch.setattr("fnlkit.datasets.places._SETTLED", 0)
    original = decoding._open
    monkeypatch.setattr(decoding, "_open", lambda path, window: opened.append(path.name) or original(path, window))
    data = datasets.load(path, cache=tmp_path / "cache")
    assert opened == [] and isinstance(data.x_train, Decoded)
    assert sorted(opened) == [f"{i}.png" for i in range(8)]  # all of both parts are checked
    again = datasets.load(path, cache=tmp_path / "cache").x_train
    assert len(opened) == 8 and again[[3]].shape == (1, 6, 5, 1) and opened[8:] == ["4.png"]  # as it is known


def test_new_rows_without_a_number_or_with_a_code_are_noted_and_a_huge_number_is_refused(tmp_path):
    """A row without an age got the mean age without a note, and 1e39 became infinity."""
    data = datasets.load(write(tmp_path / "t.csv", "age,label", *(f"{40 + i % 9}.5,{'ab'[i % 2]}" for i in range(40))))
    ages = ["", "", "-999", "-999", *(f"{40 + i}.5" for i in range(9))]
    notes = []
    new = write(tmp_path / "new.csv", "age,id", *(f"{age},{i if i != 2 else ''}" for i, age in enumerate(ages)))
    names, x = datasets.new_samples(data, str(new), say=notes.append)
    assert names[:3] == ["0", "1", "row 4"] and x[1, 0] == np.float32(data.table[0]["fill"])
    assert any("'age': 2 of 13 rows have no value" in note for note in notes)
    assert any("'age': 2 cells are -999" in note for note in notes)
    with pytest.raises(InputError, match="row 3: column 'age' holds 1e\\+39, beyond float32"):
        datasets.new_samples(data, str(write(tmp_path / "new.csv", "age,id", "41,a", "1e39,b")))


def test_the_column_of_paths_of_a_run_is_that_of_new_rows(tmp_path):
    """New rows needed another name of the column than the training rows."""
    table = cases(tmp_path, header="bild,label,site,split,id")
    data = datasets.load(f'manifest(file="{table}", path=bild)')
    (tmp_path / "9.png").write_bytes(b"no image")
    new = write(tmp_path / "new.csv", "bild", *data.paths.tolist(), "9.png")
    names, x = datasets.new_samples(data, str(new), skip_damaged=True)
    assert names == data.paths.tolist() and np.array_equal(x, data.x_train)


def test_paths_as_windows_writes_them(tmp_path):
    rows = [row.replace("/", "\\") for row in cases(tmp_path).read_text().splitlines()]
    assert datasets.load(write(tmp_path / "cases.csv", *rows)).x_train.shape == (6, 6, 5, 1)


# ---- labels and columns that are not what a classifier needs: refused, or doubted in one line that names the remedy
def table(path, labels, column=None):
    rows = [f"{i + 0.5},{column[i] if column else i % 7},{label}" for i, label in enumerate(labels)]
    path.write_text("\n".join(["age,other,label", *rows]) + "\n", encoding="utf-8")
    return path


def test_numbers_to_predict_are_no_classes(tmp_path):
    rng = np.random.default_rng(0)
    target = np.round(rng.normal(100, 20, 300), 1)
    assert len(set(target)) > 200
    refuse_call("different numbers.*cleanlab", datasets.load, table(tmp_path / "t.csv", target))
    refuse_call("join several labels.*cleanlab", datasets.load, table(tmp_path / "s.csv", ["Edema|Effusion", "Edema"] * 20))
    refuse_call("column 'label'", datasets.load, f'manifest(file="{table(tmp_path / "t.csv", target)}", task=classification)')
    refuse_call("did you mean 'classification'", datasets.load, f'manifest(file="{tmp_path / "t.csv"}", task=clasification)')
    x, y = rng.normal(size=(300, 4)), np.arange(300) // 2
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y * 2 % 151, x_test=x, y_test=y)
    refuse_call("d.npz: 15. different labels", datasets.load, tmp_path / "d.npz")
    (tmp_path / "sites").mkdir()
    np.savez(tmp_path / "sites" / "a.npz", x=x, y=np.arange(300) % 200)
    refuse_call("200 different labels on 300 samples", datasets.load, tmp_path / "sites")


@pytest.mark.parametrize(
    ("classes", "doubt"),
    [
        ({"0.5": 300, "1": 300, "1.5": 300}, "ranges"),  # a decimal number is an amount
        (dict.fromkeys(map(str, range(20, 90)), 4), "ranges"),  # ages
        (dict.fromkeys(map(str, range(100)), 50), None),
        ({"Edema": 40, "Edema|Effusion": 40}, "join"),
        ({"Edema": 40, "Effusion": 40, "Edema; effusion": 40}, "join"),
        ({"a,b": 40, "b,c": 40, "a,c": 40}, "join"),
        ({"T-shirt/top": 40, "Trouser": 40, "|": 40}, None),
        ({"Smith, Ann": 40, "Smith, Bob": 40}, None),
        ({"benign": 40, "malignant": 30, "malignat": 1}, "'malignat'.*spelled"),
        ({"Pneumonia": 40, "clear": 30, "pnuemonia": 2}, "'pnuemonia'.*spelled"),
        ({"benign": 40, "malignant": 30, "malignat": 9}, None),  # not rare
        ({"male": 40, "female": 1, "grade 1": 30, "grade 2": 1}, None),
        ({"benign": 40, "unlabelled": 30}, "'unlabelled'.*treated as a class"),
        ({"sample a": 2, "sample b": 2}, None),  # all classes are rare
    ],
)
def test_odd_classes_are_doubted(classes, doubt):
    """Amounts, several labels in one, and a rare class that is spelled like another one."""
    found = doubts(list(classes), np.repeat(np.arange(len(classes)), list(classes.values())))
    assert len(found) == (doubt is not None) and all(re.search(doubt, text) for text in found)


def test_free_text_columns_are_not_categories(tmp_path):
    labels = ["ab"[i % 2] for i in range(200)]
    own = [f"note {i}" for i in range(20)]
    said = [f"the patient said number {i % 20} today" for i in range(200)]
    for column, rows in ((own, 20), (said, 200)):
        path = table(tmp_path / "t.csv", labels[:rows], column)
        refuse_call("t.csv: column 'other' has 20 different texts", datasets.load, path)
        assert len(datasets.load(f'manifest(file="{path}", categorical=other)').columns) == 21
        assert datasets.load(f'manifest(file="{path}", drop=[other])').columns == ["age"]
    wards = [f"ward {i % 20}" for i in range(200)]
    assert len(datasets.load(table(tmp_path / "t.csv", labels, wards)).columns) == 21


def test_the_limit_of_a_cell_does_not_depend_on_other_libraries():
    usual = csv.field_size_limit(2**31 - 1)
    try:
        refuse_call("row 2", parse_table, f"a,b\n1,{'x' * 140_000}\n", "table")
    finally:
        csv.field_size_limit(usual)
