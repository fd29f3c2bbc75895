"""Damaged files stop partition and predict, unless they are left out, with their names."""

import numpy as np
import pytest
from PIL import Image

from fnlkit import datasets
from tests.commands import fnlkit, succeed


@pytest.mark.parametrize("route", ["folder", "files"])
def test_damaged_files_are_left_out_with_their_names(route, tmp_path):
    rng, rows = np.random.default_rng(0), []
    for name in "ab":
        (tmp_path / "all" / name).mkdir(parents=True)
        for i in range(12):
            file = tmp_path / "all" / name / f"{i}.png"
            Image.fromarray(rng.integers(0, 256, (8, 8)).astype(np.uint8)).save(file)
            rows.append(f"all/{name}/{i}.png,{name}")
    for name in ("a/3", "b/7"):
        (tmp_path / "all" / f"{name}.png").write_bytes(b"not an image")
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    source = "all" if route == "folder" else "t.csv"
    done = fnlkit(f"fnlkit partition --dataset {source} --clients 2 -o fed.npz", tmp_path)
    assert done.returncode == 2 and "2 of 24 files cannot be used" in done.stderr
    done = succeed(f"fnlkit partition --dataset {source} --clients 2 --skip-damaged -o fed.npz", tmp_path)
    assert "2 damaged files are left out" in done.stderr and "3.png" in done.stderr and "7.png" in done.stderr
    succeed("fnlkit train fed.npz --rounds 1 --fraction 1 -o run.pt", tmp_path)
    assert fnlkit(f"fnlkit predict run.pt {source}", tmp_path).returncode == 2
    done = succeed(f"fnlkit predict run.pt {source} --skip-damaged", tmp_path)
    assert len(done.stdout.splitlines()) == 23 and "2 damaged files are left out" in done.stderr
    spec = datasets.load(str(tmp_path / "all")).name if route == "folder" else str(tmp_path / "t.csv")
    kind = "folder(path" if route == "folder" else "manifest(file"
    data = datasets.load(f'{kind}="{spec}", skip_damaged=true)')
    assert len(data.y_train) + len(data.y_test) == 22 and datasets.load(data.name).checksum == data.checksum
