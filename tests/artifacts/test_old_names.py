"""Files and data of version 0.2: its federations and runs are refused, its data sets keep their names and checksums."""

from pathlib import Path

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from tests.commands import succeed

OLD = Path(__file__).parent / "old"


@pytest.mark.parametrize("kind, command", [(Federation, "partition"), (Run, "train")])
def test_a_file_of_version_0_2_is_refused_with_the_command_that_makes_it(kind, command):
    file = OLD / ("federation.npz" if kind is Federation else "run.pt")
    with pytest.raises(InputError, match=f"{file.name}: .*written by fnlkit 0.2.0; create it again with `fnlkit {command}`"):
        kind.read(file)


@pytest.mark.parametrize("column", ["site", "hospital", "center", "centre", "clinic", "institution"])
def test_column_names_of_sites(column, tmp_path):
    table = (OLD / "old.csv").read_text().replace("centre", column)
    (tmp_path / "table.csv").write_text(table)
    succeed("fnlkit partition --dataset table.csv --scheme sites -o fed.npz", tmp_path)
    assert Federation.read(tmp_path / "fed.npz").meta["client_names"] == ["Basel", "Bern", "Chur"]


@pytest.mark.parametrize("column", ["labeler", "labeller"])
def test_column_names_of_annotators(column, tmp_path):
    rows = [f"s{i},{i % 7},{who},{i % 2}" for i in range(12) for who in "ab"]
    (tmp_path / "votes.csv").write_text("\n".join([f"id,x,{column},label", *rows]))
    assert datasets.load(str(tmp_path / "votes.csv")).annotators == ["a", "b"]


def _bmp(value):
    """Return a gray BMP (4, 4). Pillow 10 and 13 write other palettes, and the checksum covers the bytes of a file."""
    header = b"BM" + np.array([1094, 0, 1078, 40, 4, 4], "<u4").tobytes() + b"\x01\x00\x08\x00"
    palette = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 4, axis=1) * np.array([1, 1, 1, 0], np.uint8)
    return header + np.array([0, 16, 3780, 3780, 256, 256], "<u4").tobytes() + palette.tobytes() + bytes([value]) * 16


def _folder(path, *names):
    """Write six images for each name."""
    for name in names:
        (path / name).mkdir()
        for i in range(6):
            (path / name / f"{i}.bmp").write_bytes(_bmp(10 * i))


@pytest.mark.parametrize("folder", ["_unlabeled", "_unlabelled"])
def test_folders_of_unlabeled_samples_are_no_class(folder, tmp_path):
    _folder(tmp_path, "clean", "ill", folder)
    data = datasets.load(str(tmp_path))
    assert data.class_names == ["clean", "ill"] and len(data.unlabeled.ids) == 6


@pytest.mark.parametrize(
    ("options", "checksum"),
    [("", "2aa342a18231"), (", size=3, crop=true", "cc3a43c1e647"), (", window='40/400'", "19d461e2134c")],
)
def test_checksums_of_version_0_2_are_unchanged(options, checksum, tmp_path):
    _folder(tmp_path, "clean", "ill")
    assert datasets.load(f'folder(path="{tmp_path}"{options})').checksum[:12] == checksum


def test_the_checksum_of_a_folder_separates_size_and_window(tmp_path):
    _folder(tmp_path, "clean", "ill")
    parts = (1, "40/400"), (14, "0/400")
    one, other = (datasets.load(f"folder(path=\"{tmp_path}\", size={size}, window='{window}')") for size, window in parts)
    assert one.checksum != other.checksum
