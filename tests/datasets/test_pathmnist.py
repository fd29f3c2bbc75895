"""`pathmnist`: small local files in the format of the package medmnist, without a network."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.core.errors import InputError
from fnlkit.datasets.pathmnist import CLASSES


def put(path, *, size=28, labels=9, **more):
    """Write a file as medmnist's: {train,val,test}_images (n, H, W, 3) uint8 and {train,val,test}_labels (n, 1) uint8."""
    rng, arrays = np.random.default_rng(0), {}
    for part, n in (("train", 40), ("val", 5), ("test", 10)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (n, size, size, 3), np.uint8)
        arrays[f"{part}_labels"] = (np.arange(n, dtype=np.uint8) % labels)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays | more)
    return arrays


def test_a_file_is_read_with_its_classes_and_without_validation_images(tmp_path):
    arrays = put(tmp_path / "pathmnist.npz")
    data = datasets.load("pathmnist", cache=tmp_path)
    assert data.name == "pathmnist" and data.class_names == CLASSES and not data.observed
    assert np.array_equal(data.x_train, arrays["train_images"]) and np.array_equal(data.x_test, arrays["test_images"])
    assert data.y_train.tolist() == [i % 9 for i in range(40)] and data.y_train.dtype == np.int64 and len(data.y_test) == 10


@pytest.mark.parametrize(
    "more",
    [{"size": 32}, {"labels": 10}, {"test_images": np.zeros((0, 28, 28, 3), np.uint8), "test_labels": np.zeros((0, 1), int)}],
)
def test_a_file_of_another_data_set_is_refused(more, tmp_path):
    put(tmp_path / "pathmnist.npz", **more)
    with pytest.raises(InputError, match="pathmnist.npz"):
        datasets.load("pathmnist", cache=tmp_path)


def test_the_package_downloads_into_the_cache_folder(tmp_path, monkeypatch):
    class PathMNIST:
        def __init__(self, *, split, root, size, download):
            assert (split, root, size, download) == ("train", str(tmp_path / "cache"), 28, True)
            put(tmp_path / "cache" / "pathmnist.npz")

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "medmnist", None)
    with pytest.raises(InputError, match=r"pip install 'fnlkit\[medmnist\]'"):
        datasets.load("pathmnist", cache=tmp_path / "cache", download=True)
    monkeypatch.setitem(sys.modules, "medmnist", SimpleNamespace(PathMNIST=PathMNIST))
    assert datasets.load("pathmnist", cache=tmp_path / "cache", download=True).classes == 9
