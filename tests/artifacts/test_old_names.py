"""Files of version 0.2, which spelled some names differently: tests/artifacts/old was written by it (OLD.md)."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.old_names import rename_memory
from fnlkit.artifacts.run import Run
from fnlkit.datasets.dataset import must_be
from fnlkit.errors import InputError
from tests.commands import succeed

OLD = Path(__file__).parent / "old"


def test_a_federation_keeps_its_numbers_of_unlabeled_samples():
    assert Federation.read(OLD / "federation.npz").meta["client_unlabeled"] == [4, 0, 0]


def test_a_run_is_resumed_with_todays_names(tmp_path):
    for file in OLD.iterdir():
        shutil.copy(file, tmp_path)
    assert Run.read(OLD / "run.pt").settings["standardize"] == "always"
    options = "--standardize always --fraction 1 --epochs 1 --model 'mlp(hidden=[4])' --engine sequential --dataset old.csv"
    method = "--method 'dividemix(unlabeled=10, warmup=1)'"
    succeed(f"fnlkit train federation.npz --resume run.pt --rounds 3 {method} {options} -o new.pt", tmp_path)
    assert len(Run.read(tmp_path / "new.pt").history) == 3


def test_a_run_without_settings_of_today_is_named_as_older(tmp_path):
    run = Run.read(OLD / "run.pt")
    run.settings = {name: value for name, value in run.settings.items() if name != "client_optimizer"}
    for wrote, named in (("0.1.0", "written by an older version, fnlkit 0.1.0"), ("999.0", "not a usable run")):
        run.meta["provenance"][-1]["versions"]["fnlkit"] = wrote
        run.write(tmp_path / "run.pt")
        with pytest.raises(InputError, match=rf"run.pt: {named}.*: settings: client_optimizer"):
            Run.read(tmp_path / "run.pt")


def test_memory_of_clients_has_todays_names():
    before = {"state/normalisers": torch.ones(2), "rows/neighbour_disagreement": torch.zeros(3), "state/normalisers/clients": 1}
    assert list(rename_memory(before)) == ["state/normalizers", "rows/neighbor_disagreement", "state/normalizers/clients"]


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
    [("", "2aa342a18231"), (", size=3", "cc3a43c1e647"), (", window='40/400'", "19d461e2134c")],
)
def test_checksums_of_version_0_2_are_unchanged(options, checksum, tmp_path):
    _folder(tmp_path, "clean", "ill")
    assert datasets.load(f'folder(path="{tmp_path}"{options})').checksum[:12] == checksum


def test_the_checksum_of_a_folder_separates_size_and_window(tmp_path):
    _folder(tmp_path, "clean", "ill")
    parts = (1, "40/400"), (14, "0/400")
    one, other = (datasets.load(f"folder(path=\"{tmp_path}\", size={size}, window='{window}')") for size, window in parts)
    assert one.checksum != other.checksum
    with pytest.raises(InputError, match="or fnlkit 0.2 or older wrote it"):
        must_be(one, {"dataset_checksum": other.checksum}, len(one.y_train), what="the federation")
