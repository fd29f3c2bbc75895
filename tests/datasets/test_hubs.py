"""`openml(...)` and `hf(...)`: local files in the formats of both libraries, without a network."""

import gzip
import hashlib
import io
import json
import socket

import numpy as np
import pytest
from PIL import Image

from fnlkit import datasets
from fnlkit.errors import InputError
from tests.commands import succeed

ARFF = """@RELATION wards
@ATTRIBUTE age NUMERIC
@ATTRIBUTE stage {low,high}
@ATTRIBUTE ward {Aix,Bonn}
@ATTRIBUTE finding {ill,well}
@DATA
"""
ROWS = [(20 + i, ("low", "high")[i % 2], ("Aix", "Bonn")[i % 3 > 0], ("ill", "well")[i % 4 > 1]) for i in range(40)]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a test used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def put_openml(cache, number=7, target="finding", rows=ROWS, head=ARFF):
    """Write the answers of OpenML about a table to the folder in which scikit-learn looks for downloads."""
    text = head + "".join(",".join(map(str, row)).replace("25,", "?,") + "\n" for row in rows)
    names = {"age": "numeric", "stage": "nominal", "ward": "nominal", "finding": "nominal"}
    features = [
        {"index": str(i), "name": name, "data_type": kind, "is_target": str(name == target).lower(), "is_ignore": "false",
         "is_row_identifier": "false", "number_of_missing_values": "0"}
        for i, (name, kind) in enumerate(names.items())
    ]  # fmt: skip
    about = {
        "id": str(number), "name": "wards", "version": "1", "description": "Wards.", "format": "ARFF", "status": "active",
        "file_id": "9",
        "url": "https://www.openml.org/data/v1/download/9/wards.arff", "default_target_attribute": target,
        "md5_checksum": hashlib.md5(text.encode()).hexdigest(),
    }  # fmt: skip
    answers = {
        f"api/v1/json/data/{number}": json.dumps({"data_set_description": about}),
        f"api/v1/json/data/features/{number}": json.dumps({"data_features": {"feature": features}}),
        f"api/v1/json/data/qualities/{number}": json.dumps(
            {"data_qualities": {"quality": [{"name": "NumberOfInstances", "value": str(len(ROWS))}]}}
        ),
        "data/v1/download/9/wards.arff": text,
        "data/v1/download/9": text,  # the address that scikit-learn 1.5 uses
    }
    for path, content in answers.items():
        file = cache / "openml/openml.org" / f"{path}.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(content.encode()))


def test_a_table_of_openml_is_stored_once_and_read_without_its_library(tmp_path, monkeypatch):
    put_openml(tmp_path)
    with pytest.raises(InputError, match=r"fnlkit data get 'openml\(id=7\)'"):
        datasets.load("openml(id=7)", cache=tmp_path)
    fetched = datasets.load("openml(id=7, site=ward)", cache=tmp_path, download=True)
    assert (tmp_path / "openml/7.npz").is_file()
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    data = datasets.load("openml(id=7, site=ward)", cache=tmp_path)
    assert data.name == fetched.name == 'openml(id=7, site="ward")' and data.class_names == ["ill", "well"]
    assert data.y_train.tolist() == [i % 4 > 1 for i in range(40)] and len(data.y_test) == 0 and data.observed
    assert data.fields["site"].tolist() == [row[2] for row in ROWS]
    ages = data.x_train[:, data.columns.index("age")]
    assert ages[4] == 24 and data.x_train[5, data.columns.index("age (missing)")] == 1
    assert data.x_train[:, data.columns.index("stage: high")].tolist() == [i % 2 for i in range(40)]
    other = datasets.load("openml(id=7, label=stage, drop=[ward])", cache=tmp_path)
    assert other.class_names == ["high", "low"] and not [name for name in other.columns if name.startswith("ward")]


def test_the_pipe_reads_a_table_of_openml(tmp_path, monkeypatch):
    monkeypatch.setenv("FNLKIT_CACHE", str(tmp_path))
    put_openml(tmp_path)
    succeed("fnlkit data get 'openml(id=7)'", tmp_path)
    done = succeed(
        "fnlkit partition --dataset 'openml(id=7, site=ward)' --scheme sites -o fed.npz && fnlkit info fed.npz", tmp_path
    )
    assert "Aix" in done.stdout


@pytest.mark.parametrize("head, names", [(ARFF, ("ill", "well")), (ARFF.replace("{ill,well}", "NUMERIC"), ("2", "10.5"))])
def test_a_missing_label_of_openml_is_no_class(head, names, tmp_path):
    rows = [(*row[:3], "?" if i == 3 else names[i % 2]) for i, row in enumerate(ROWS)]
    put_openml(tmp_path, rows=rows, head=head)
    data = datasets.load("openml(id=7)", cache=tmp_path, download=True)
    assert data.class_names == list(names) and len(data.y_train) == 39 and len(data.unlabeled) == 1
    assert data.y_train.tolist() == [i % 2 for i in range(40) if i != 3]


def test_a_table_of_openml_with_one_class_is_refused_by_its_name(tmp_path):
    put_openml(tmp_path, rows=[(*row[:3], "ill") for row in ROWS])
    with pytest.raises(InputError, match=r"^openml\(id=7\): column 'finding': 1 different labels"):
        datasets.load("openml(id=7)", cache=tmp_path, download=True)


@pytest.mark.parametrize("spec, message", [("openml", "needs 'id'"), ("hf", "needs 'name'"), ('openml(id="x")', "'id'")])
def test_a_missing_or_wrong_name_is_refused(spec, message):
    with pytest.raises(InputError, match=message):
        datasets.load(spec)


def test_a_table_that_openml_cannot_give_is_refused_in_one_line(tmp_path):
    put_openml(tmp_path, target="missing")
    with pytest.raises(InputError, match=r"openml\(id=7\)") as error:
        datasets.load("openml(id=7)", cache=tmp_path, download=True)
    assert "\n" not in str(error.value) and not (tmp_path / "openml/7.npz").exists()


# ---- Hugging Face's library
def test_without_the_library_its_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'fnlkit\[hf\]'"):
        datasets.load('hf(name="a/b")', cache=tmp_path, download=True)
    with pytest.raises(InputError, match="fnlkit data get 'hf"):
        datasets.load('hf(name="a/b")', cache=tmp_path)


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    return pytest.importorskip("datasets", reason="datasets is not installed: pip install 'fnlkit[hf]'")


def put_images(hub, folder, rows=12):
    """Write Parquet files as the hub has them, with images, classes and a column of sites; return the pixels."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (rows, 6, 5), np.uint8), [i % 3 if i else -1 for i in range(rows)]
    kinds = {"image": hub.Image(), "label": hub.ClassLabel(names=["cat", "dog", "elk"]), "site": hub.Value("string")}
    columns = {"image": list(pixels), "label": labels, "site": [f"s{i % 2}" for i in range(rows)]}
    folder.mkdir(parents=True)
    for part, stop in (("train", rows), ("test", 6)):
        made = hub.Dataset.from_dict({key: values[:stop] for key, values in columns.items()}, features=hub.Features(kinds))
        made.to_parquet(str(folder / f"{part}-00000-of-00001.parquet"))
    return pixels


def test_images_in_parquet_files_are_read(hub, tmp_path):
    pixels = put_images(hub, tmp_path / "animals")
    data = datasets.load(f'hf(name="{tmp_path / "animals"}")', cache=tmp_path / "cache")
    assert data.kind == "image" and data.class_names == ["cat", "dog", "elk"]
    np.testing.assert_array_equal(data.x_train[..., 0], pixels[1:])  # the first sample has no label
    np.testing.assert_array_equal(data.y_train, np.arange(1, 12) % 3)
    assert data.y_test.tolist() == [1, 2, 0, 1, 2]  # a test sample without a label is left out
    assert data.fields["site"].tolist() == [f"s{i % 2}" for i in range(1, 12)] and len(data.unlabeled) == 1
    again = datasets.load(data.name, cache=tmp_path / "cache")
    np.testing.assert_array_equal(again.x_train, data.x_train)


def test_photos_of_the_hub_are_upright_and_groups_are_read(hub, tmp_path, monkeypatch):
    """Of Parquet files with encoded photos; images that an earlier version stored as they lie are fetched again."""
    stored, upright = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20, np.rot90(np.arange(12).reshape(3, 4) * 20, -1)
    exif, photo = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.fromarray(stored).save(photo, "PNG", exif=exif)
    kinds = {"image": hub.Image(), "label": hub.ClassLabel(names=["cat", "dog"]), "patient": hub.Value("string")}
    columns = {"image": [{"bytes": photo.getvalue(), "path": None}] * 8, "label": [0, 1] * 4, "patient": list("aabbccdd")}
    made = hub.Dataset.from_dict(columns, features=hub.Features(kinds))
    (tmp_path / "animals").mkdir()
    made.to_parquet(str(tmp_path / "animals/train-00000-of-00001.parquet"))
    spec = f'hf(name="{tmp_path / "animals"}")'
    data = datasets.load(spec, cache=tmp_path / "cache")
    assert data.x_train[0, :, :, 0].tolist() == upright.tolist() and data.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    place = tmp_path / "cache/hf/a--b.npz"
    place.parent.mkdir(parents=True, exist_ok=True)
    np.savez(place, x_train=data.x_train, y_train=data.y_train, class_names=np.array(["cat", "dog"]), label=np.array("label"))
    with pytest.raises(InputError, match="upright.*fnlkit data get"):
        datasets.load('hf(name="a/b")', cache=tmp_path / "cache")
    arrays = dict(np.load(place)) | {"upright": np.array(True)}
    np.savez(place, **arrays)
    assert datasets.load('hf(name="a/b")', cache=tmp_path / "cache").kind == "image"


def write_rows(hub, folder, kind, images, labels):
    folder.mkdir(parents=True)
    made = hub.Dataset.from_dict(
        {"image": images, "label": labels}, features=hub.Features({"image": hub.Image(), "label": kind})
    )
    made.to_parquet(str(folder / "train-00000-of-00001.parquet"))
    return f'hf(name="{folder}")'


def test_gray_images_among_colored_ones_do_not_remove_the_colors(hub, tmp_path):
    images = [np.full((6, 5), 7, np.uint8), *np.random.default_rng(0).integers(0, 256, (7, 6, 5, 3), np.uint8)]
    spec = write_rows(hub, tmp_path / "mixed", hub.Value("int64"), images, [2, 10] * 4)
    data = datasets.load(spec, cache=tmp_path / "cache")
    assert data.class_names == ["2", "10"] and data.y_train.tolist() == [0, 1] * 4
    np.testing.assert_array_equal(data.x_train[1:], images[1:])
    assert (data.x_train[0] == 7).all()


@pytest.mark.parametrize(
    "first, labels, message",
    [
        (None, [0, 1] * 4, "image 0 of train is missing"),
        (np.full((6, 5), 40_000, np.uint16), [0, 1] * 4, "expected 8 bits per channel"),
        (np.zeros((6, 5), np.uint8), [[0], [0, 1]] * 4, "'label' has several labels per image"),
    ],
)
def test_images_and_labels_that_would_be_changed_are_refused(hub, first, labels, message, tmp_path):
    kind = hub.Sequence(hub.Value("int64")) if isinstance(labels[0], list) else hub.Value("int64")
    spec = write_rows(hub, tmp_path / "odd", kind, [first, *np.zeros((7, 6, 5), np.uint8)], labels)
    with pytest.raises(InputError, match=message):
        datasets.load(f"{spec[:-1]}, label=label)", cache=tmp_path / "cache")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library leaves files open
def test_a_table_in_csv_files_is_read(hub, tmp_path):
    (tmp_path / "wards").mkdir()
    head = "age,stage,finding,ward\n"
    for part in ("train", "test"):
        lines = (f"{20 + i}.5,{'lh'[i % 2]},{('ill', 'well')[i % 4 > 1]},{'AB'[i % 2]}\n" for i in range(20))
        (tmp_path / f"wards/{part}.csv").write_text(head + "".join(lines))
    where = tmp_path / "cache"
    with pytest.raises(InputError, match="which column has the labels"):
        datasets.load(f'hf(name="{tmp_path / "wards"}")', cache=where)
    data = datasets.load(f'hf(name="{tmp_path / "wards"}", label=finding, site=ward)', cache=where)
    assert (len(data.y_train), len(data.y_test), data.class_names) == (20, 20, ["ill", "well"])
    assert data.x_train[3, data.columns.index("age")] == 23.5 and data.fields["site"].tolist()[:2] == ["A", "B"]
    with pytest.raises(InputError, match="did you mean 'finding'"):
        datasets.load(f'hf(name="{tmp_path / "wards"}", label=findings)', cache=where)


def test_a_data_set_of_the_hub_is_stored_once(hub, tmp_path, monkeypatch):
    put_images(hub, tmp_path / "animals")
    load, asked = hub.load_dataset, []
    monkeypatch.setattr(hub, "load_dataset", lambda name, *rest, **more: asked.append(name) or load(str(tmp_path / "animals")))
    first = datasets.load('hf(name="zoo/animals")', cache=tmp_path / "cache", download=True)
    assert asked == ["zoo/animals"] and (tmp_path / "cache/hf/zoo--animals.npz").is_file()
    second = datasets.load('hf(name="zoo/animals")', cache=tmp_path / "cache")
    assert asked == ["zoo/animals"] and second.name == 'hf(name="zoo/animals")'
    np.testing.assert_array_equal(first.x_train, second.x_train)
