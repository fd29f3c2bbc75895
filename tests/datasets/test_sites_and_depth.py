"""Folders of images as hospitals have them: 16 bits a pixel, and sites above classes."""

import numpy as np
import pytest
from PIL import Image

from fnlkit import datasets
from fnlkit.errors import InputError


def image(path, value, dtype=np.uint16):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), value, dtype)).save(path)


def test_sixteen_bits_are_read_as_they_are(tmp_path):
    for i in range(10):
        for name, value in (("clean", 300 + i), ("ill", 4000 + i)):
            image(tmp_path / name / f"{i}.png", value)
    data = datasets.load(tmp_path)
    x = np.asarray(data.x_train[:])
    assert x.dtype == np.float32 and x.shape[1:] == (8, 8, 1)
    values = np.rint(x[:, 0, 0, 0] * 65535).astype(int)
    assert set(values[data.y_train == 0]) < set(range(300, 310)) and set(values[data.y_train == 1]) < set(range(4000, 4010))
    image(tmp_path / "ill" / "3.png", 7, np.uint8)
    with pytest.raises(InputError, match="3.png: has 8 bits a pixel"):
        np.asarray(datasets.load(tmp_path).x_train[:]), np.asarray(datasets.load(tmp_path).x_test[:])


def test_sixteen_bits_in_an_npz(tmp_path):
    x = np.arange(20 * 4 * 4, dtype=np.uint16).reshape(20, 4, 4)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=np.arange(20) % 2, x_test=x, y_test=np.arange(20) % 2)
    found = np.asarray(datasets.load(tmp_path / "d.npz").x_train[:])
    np.testing.assert_array_equal(np.rint(found[..., 0] * 65535), x)


def test_sites_above_classes_are_asked_about(tmp_path):
    for site in ("Basel", "Bern", "Chur"):
        for i in range(5):
            for name in ("clean", "ill"):
                image(tmp_path / site / name / f"{i}.png", i, np.uint8)
    with pytest.raises(InputError, match="classes may be Basel, Bern, Chur or, below them, clean, ill; .*label=2"):
        datasets.load(tmp_path)
    data = datasets.load(f'folder(path="{tmp_path}", label=2)')
    assert data.class_names == ["clean", "ill"] and set(data.fields["site"]) == {"Basel", "Bern", "Chur"}
    assert datasets.load(data.name).checksum == data.checksum  # the name in the federation says which level
    assert datasets.load(f'folder(path="{tmp_path}", label=1)').class_names == ["Basel", "Bern", "Chur"]


def test_folders_within_a_class_ask_nothing(tmp_path):
    for name in ("clean", "ill"):
        for i in range(5):
            image(tmp_path / name / f"patient-{name}-{i}" / "a.png", i, np.uint8)
    assert datasets.load(tmp_path).class_names == ["clean", "ill"]
