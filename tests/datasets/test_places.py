"""Where known data sets lie: their readers and `data list` ask the same function."""

import json
from types import SimpleNamespace

import pytest

from fnlkit import datasets
from fnlkit.core.errors import InputError
from fnlkit.datasets import places
from tests.commands import fnlkit, refuse


@pytest.mark.parametrize("name", ["mnist", "speechcommands"])
def test_half_a_data_set_is_none(name, tmp_path):
    """A download that broke off leaves some files: neither the list nor the reader takes them for the whole."""
    folder = places.first(name, tmp_path)
    folder.mkdir(parents=True)
    *some, last = places.PLACES[name][1]
    for file in some:
        (folder / file).write_bytes(b"")
    assert not datasets.present(name, cache=tmp_path)
    with pytest.raises(InputError, match=f"{name} is not on this machine"):
        datasets.load(name, cache=tmp_path)
    (folder / last).write_bytes(b"")
    assert datasets.present(name, cache=tmp_path)


@pytest.mark.parametrize(
    ("name", "torch_name", "left", "error"),
    [
        ("fashion-mnist", "FashionMNIST", "FashionMNIST/raw/train-images-idx3-ubyte", KeyboardInterrupt()),
        ("cifar10", "CIFAR10", "cifar-10-batches-py/data_batch_1", OSError("connection reset")),
        ("eurosat", "EuroSAT", "eurosat/2750/AnnualCrop/AnnualCrop_1.jpg", OSError("connection reset")),
    ],
)
def test_a_get_that_breaks_off_leaves_nothing_here(name, torch_name, left, error, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("FNLKIT_CACHE", str(cache))
    # Debian's Fashion-MNIST, where this machine has it, would need no download.
    monkeypatch.setitem(places.PLACES, name, (places.PLACES[name][0][:1], places.PLACES[name][1]))

    def download(root, **_):
        (cache / left).parent.mkdir(parents=True)
        (cache / left).write_bytes(b"the first bytes of many")
        raise error

    monkeypatch.setattr(
        "fnlkit.datasets.public_sets.torchvision", lambda: SimpleNamespace(datasets=SimpleNamespace(**{torch_name: download}))
    )
    done = fnlkit(f"fnlkit data get {name}", tmp_path)
    assert done.returncode == (130 if isinstance(error, KeyboardInterrupt) else 2)
    if done.returncode == 2:
        assert f"{name}: the download failed (OSError: connection reset); try again" in done.stderr
    assert not (cache / left).exists()
    listed = [json.loads(line) for line in fnlkit("fnlkit data list --json", tmp_path).stdout.splitlines()]
    assert [row["here"] for row in listed if row["name"] == name] == [False]
    refuse(f"fnlkit partition --dataset {name} -o fed.npz", tmp_path, f"{name} is not on this machine")


def test_a_failed_download_keeps_the_old_file_and_names_an_alternative(tmp_path, monkeypatch, capfd):
    mine = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"put here by hand")

    def download(root, **_):
        print("trying ...")
        raise OSError("no\nnetwork")

    monkeypatch.setattr(
        "fnlkit.datasets.public_sets.torchvision", lambda: SimpleNamespace(datasets=SimpleNamespace(MNIST=download))
    )
    with pytest.raises(InputError, match=r"the download failed \(OSError: no network\).*MNIST/raw yourself"):
        datasets.load("mnist", cache=tmp_path, download=True)
    assert capfd.readouterr().out == ""  # talk goes to stderr: stdout is data
    assert mine.read_bytes() == b"put here by hand"
    with pytest.raises(InputError, match="the download failed"):
        datasets.load("mnist", cache=tmp_path / "empty", download=True)
