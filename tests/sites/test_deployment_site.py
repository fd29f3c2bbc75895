"""The commands of docs/deployment-site.md in order, in the folder that a coordinator sent."""

import shutil

import numpy as np
import pytest

from tests.commands import fnlkit, succeed
from tests.pages.steps import ROOT

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")


def test_the_commands_of_the_page_run_in_order(tmp_path):
    line = "fnlkit flower-app project --dataset digits --sites 2 --name Aix --name Bonn --address localhost:18100"
    assert fnlkit(f"{line} --model 'mlp(hidden=8)'", tmp_path).returncode == 0
    shutil.copytree(tmp_path / "project/sites/Bonn", tmp_path / "Bonn")
    x = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1), np.uint8)
    np.savez(tmp_path / "ours.npz", x=x, y=np.arange(20) % 10)
    text = (ROOT / "docs/deployment-site.md").read_text(encoding="utf-8")
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("fnlkit site ")
        and not line.startswith(("fnlkit site review", "fnlkit site predict", "fnlkit site answer"))
    ]
    assert len(lines) == 3
    for line in lines:
        succeed(line, tmp_path)
    assert (tmp_path / "Bonn/Bonn.key.pub").is_file() and (tmp_path / "Bonn/start.sh").is_file()
