"""`medmnist(name=...)`: small local files in the format of the package medmnist, without a network."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.datasets.medmnist import CLASSES
from fnlkit.errors import InputError
from tests.commands import succeed


def put(path, *, size=28, channels=(3,), labels=8, train=40, **more):
    """Write a file as medmnist's: {train,val,test}_images (n, H, W[, 3]) uint8 and {train,val,test}_labels (n, 1) uint8."""
    rng, arrays = np.random.default_rng(0), {}
    for part, n in (("train", train), ("val", 5), ("test", 10)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (n, size, size, *channels), np.uint8)
        arrays[f"{part}_labels"] = (np.arange(n, dtype=np.uint8) % labels)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays | more)
    return arrays


def test_a_file_is_read_with_its_classes_and_without_validation_images(tmp_path):
    arrays = put(tmp_path / "bloodmnist.npz")
    data = datasets.load("medmnist(name=bloodmnist)", cache=tmp_path)
    assert data.name == "medmnist(name=bloodmnist)" and data.class_names == CLASSES["bloodmnist"] and not data.observed
    assert np.array_equal(data.x_train, arrays["train_images"]) and np.array_equal(data.x_test, arrays["test_images"])
    assert data.y_train.tolist() == [i % 8 for i in range(40)] and data.y_train.dtype == np.int64 and len(data.y_test) == 10


def test_larger_images_have_a_file_of_their_own_and_the_package_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / ".medmnist/octmnist_64.npz", size=64, channels=(), labels=4)
    data = datasets.load("medmnist(name=octmnist, size=64)", cache=tmp_path / "cache")
    assert data.x_train.shape == (40, 64, 64, 1) and data.classes == 4
    with pytest.raises(InputError, match=r"fnlkit data get 'medmnist\(name=octmnist\)'`, or put octmnist.npz at"):
        datasets.load("medmnist(name=octmnist)", cache=tmp_path / "cache")


def test_pathmnist_is_the_same_data_set_under_both_names(tmp_path):
    put(tmp_path / "pathmnist.npz", labels=9)
    short, long = (datasets.load(name, cache=tmp_path) for name in ("pathmnist", "medmnist(name=pathmnist)"))
    assert short.checksum == long.checksum and short.class_names == long.class_names and short.name == "pathmnist"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("medmnist", "needs 'name'"),
        ("medmnist(name=chestmnist)", "several labels per image"),
        ("medmnist(name=organmnist3d)", "or volumes"),
        ("medmnist(name=bloodmnst)", "did you mean"),
        ("medmnist(name=bloodmnist, size=32)", "size"),
    ],
)
def test_other_names_and_sizes_are_refused(spec, message, tmp_path):
    with pytest.raises(InputError, match=message) as error:
        datasets.load(spec, cache=tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "more",
    [{"size": 32}, {"labels": 9}, {"test_images": np.zeros((0, 28, 28, 3), np.uint8), "test_labels": np.zeros((0, 1), int)}],
)
def test_a_file_of_another_data_set_is_refused(more, tmp_path):
    put(tmp_path / "bloodmnist.npz", **more)
    with pytest.raises(InputError, match="bloodmnist.npz"):
        datasets.load("medmnist(name=bloodmnist)", cache=tmp_path)


def test_the_package_downloads_into_the_cache_folder(tmp_path, monkeypatch):
    class BloodMNIST:
        def __init__(self, *, split, root, size, download):
            assert (split, size, download) == ("train", 28, True)
            put(tmp_path / "cache" / "bloodmnist.npz")
            assert root == str(tmp_path / "cache")

    stand_in = SimpleNamespace(INFO={"bloodmnist": {"python_class": "BloodMNIST"}}, BloodMNIST=BloodMNIST)
    monkeypatch.setitem(sys.modules, "medmnist", stand_in)
    data = datasets.load("medmnist(name=bloodmnist)", cache=tmp_path / "cache", download=True)
    assert data.classes == 8
    monkeypatch.setitem(sys.modules, "medmnist", None)
    with pytest.raises(InputError, match=r"pip install 'fnlkit\[medmnist\]'"):
        datasets.load("medmnist(name=dermamnist)", cache=tmp_path / "cache", download=True)


def test_names_and_numbers_of_classes_are_those_of_the_package():
    info = pytest.importorskip("medmnist", reason="medmnist is not installed: pip install 'fnlkit[medmnist]'").INFO
    single = {name for name, about in info.items() if "multi-label" not in about["task"] and "3d" not in name}
    assert set(CLASSES) == single
    for name, classes in CLASSES.items():
        assert len(classes) == len(info[name]["label"])


def test_the_pipe_reads_a_preset(tmp_path, monkeypatch):
    monkeypatch.setenv("FNLKIT_CACHE", str(tmp_path))
    put(tmp_path / "pneumoniamnist.npz", channels=(), labels=2)
    done = succeed(
        "fnlkit partition --dataset 'medmnist(name=pneumoniamnist)' --clients 2 -o fed.npz && fnlkit inject-noise fed.npz "
        "--noise 'symmetric(eta=0.3)' -o noisy.npz && fnlkit info noisy.npz",
        tmp_path,
    )
    assert "medmnist(name=pneumoniamnist)" in done.stdout
