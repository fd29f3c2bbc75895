"""Folders that are merged come from other machines: nothing in them is followed or waited for."""

import os

import pytest

from fnlkit.errors import InputError
from fnlkit.reproduce import gathering


@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_a_merged_folder_gives_regular_files_only(kind, tmp_path):
    """A link would copy a file of this machine into a folder that is passed on; a pipe or device would never end."""
    source = tmp_path / "run.metrics.jsonl"
    if kind == "pipe":
        os.mkfifo(source)
    else:
        source.symlink_to("/dev/zero" if kind == "device" else __file__)
    with pytest.raises(InputError, match="regular file"):
        gathering._copy(source, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
