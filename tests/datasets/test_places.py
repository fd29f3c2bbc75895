"""Where known data sets lie: their readers and `data list` ask the same function."""

import pytest

from fnlkit import datasets
from fnlkit.datasets import places
from fnlkit.errors import InputError


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


def test_a_second_place_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not datasets.present("pathmnist", cache=tmp_path / "cache")
    (tmp_path / ".medmnist").mkdir()
    (tmp_path / ".medmnist/pathmnist.npz").write_bytes(b"")
    assert datasets.present("pathmnist", cache=tmp_path / "cache")
