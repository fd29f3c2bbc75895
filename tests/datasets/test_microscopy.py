"""Images of microscopes: 32 bits per pixel, and files with several pages."""

import numpy as np
import pytest
from PIL import Image

from fnlkit import datasets
from fnlkit.datasets import decoding
from fnlkit.errors import InputError


def pages_of(path, values):
    """Write an image with one page for each value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *others = (Image.fromarray(np.full((6, 5), value, np.uint8)) for value in values)
    first.save(path, save_all=True, append_images=others)


def deep(path, values, dtype=np.float32):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, dtype)).save(path)


def table_of(home, below):
    """Write a table that names the files of folders of classes, and return its path."""
    rows = [f"{file.relative_to(home).as_posix()},{file.parent.name}" for file in sorted((home / below).rglob("*.*"))]
    (home / "t.csv").write_text("\n".join(["path,label", *rows, ""]))
    return home / "t.csv"


@pytest.mark.parametrize("ending", ["tif", "gif"])
def test_the_first_page_is_read_and_the_others_are_counted(ending, tmp_path):
    value = {}
    for name, tone in (("clean", 10), ("ill", 100)):
        for i in range(5):
            value[f"{name}/{i}.{ending}"] = tone + i
            pages_of(tmp_path / "all" / name / f"{i}.{ending}", [tone + i, 200, 201][: 3 if i < 2 else 1])
    table = table_of(tmp_path, "all")
    for source in (tmp_path / "all", table):
        data = datasets.load(source)
        for path, x in zip(data.paths, np.asarray(data.x_train), strict=True):
            assert x.shape == (6, 5, 3 if ending == "gif" else 1) and (x == value[path.removeprefix("all/")]).all()
        (note,) = (note for note in data.notes if "pages" in note)
        assert note.startswith("4 of 10 images have several pages, of which the first is read and 8 are not: ")
        for new in (tmp_path / "all", table):
            notes = []
            names, x = datasets.new_samples(data, str(new), say=notes.append)
            assert [int(each[0, 0, 0]) for each in x] == [value[name.removeprefix("all/")] for name in names]
            assert notes == [note]
    for file in (tmp_path / "all").rglob(f"[01].{ending}"):
        pages_of(file, [7])
    assert not any("pages" in note for note in datasets.load(tmp_path / "all").notes)


def test_images_of_32_bits_are_scaled_by_the_range_of_the_data_set(tmp_path):
    values = {}
    for name, low in (("clean", 0), ("ill", 1000)):
        for i in range(5):
            values[f"{name}/{i}.tif"] = low + i + np.arange(30.0).reshape(6, 5) * 100
            deep(tmp_path / "all" / name / f"{i}.tif", values[f"{name}/{i}.tif"], np.int32 if i == 2 else np.float32)
    table = table_of(tmp_path, "all")
    sources = [f'folder(path="{tmp_path}/all", pixels="-100/4095")', f'manifest(file="{table}", pixels="-100/4095")']
    for source in sources:
        data = datasets.load(source)
        assert data.x_train.dtype == np.float32
        for path, x in zip(data.paths, np.asarray(data.x_train), strict=True):
            np.testing.assert_allclose(x[..., 0], (values[path.removeprefix("all/")] + 100) / 4195, atol=1e-6)
        assert datasets.load(data.name).checksum == data.checksum
        for new in (tmp_path / "all", table):  # the range comes from the training data
            names, x = datasets.new_samples(data, str(new))
            for name, each in zip(names, x, strict=True):
                np.testing.assert_allclose(each[..., 0], (values[name.removeprefix("all/")] + 100) / 4195, atol=1e-6)
    assert datasets.load(sources[0].replace("4095", "4096")).checksum != datasets.load(sources[0]).checksum
    for source in (tmp_path / "all", table):
        with pytest.raises(InputError, match=r"0\.tif: pixels of 32 bits from 0 to 2900, outside 0 to 1.*pixels=") as error:
            _ = datasets.load(source).x_train
        assert len(str(error.value)) < 2000


def test_values_that_are_no_numbers_are_refused(tmp_path):
    values = np.linspace(0, 1, 20).reshape(4, 5)
    deep(tmp_path / "a.tif", values)
    np.testing.assert_allclose(decoding.image(tmp_path / "a.tif")[..., 0], values, atol=1e-6)
    for odd in (np.nan, np.inf):
        values[1, 2] = odd
        deep(tmp_path / "a.tif", values)
        with pytest.raises(InputError, match=r"a\.tif: 1 pixels are NaN or infinite"):
            decoding.image(tmp_path / "a.tif")
    for odd in ("4095", "1/0", "0/inf", "nan/1", "a/b"):
        with pytest.raises(InputError, match="pixels is"):
            datasets.load(f'folder(path="{tmp_path}", pixels="{odd}")')
