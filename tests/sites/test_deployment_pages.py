"""The pages for coordinators and sites: the commands of docs/deployment-site.md in order, and the lines that both list."""

import ast
import re
import shutil
import tomllib

import numpy as np
import pytest

from tests.commands import fnlkit, succeed
from tests.pages.steps import ROOT


def test_the_commands_of_the_page_run_in_order(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")
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


# ---- the lines that fnlkit prints
HEADINGS = {"What can go wrong": "deployment.md", "If something fails": "deployment-site.md"}


def strings():
    """Return the texts of fnlkit's source, with `...` for each value that is filled in."""
    out = [*tomllib.loads((ROOT / "data/deployment.toml").read_text(encoding="utf-8")).values()]
    for path in (*ROOT.glob("fnlkit/sites/**/*.py"), *ROOT.glob("cli/*.py"), ROOT / "fnlkit/federated/client/failure.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                out.append("".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                out.append(re.sub(r"{\w+}", "...", node.value))
    return [" ".join(text.split()) for text in out]


def lines(heading):
    """Return the printed lines in the first column of the table below a heading."""
    text = (ROOT / "docs" / HEADINGS[heading]).read_text(encoding="utf-8")
    rows = re.search(rf"(?ms)^## {heading}\n.*?\n((?:\|.*\n)+)", text)[1].splitlines()[2:]
    return [line for row in rows for line in re.findall(r"^\| `(.*?)` \|", row)]


@pytest.mark.parametrize("heading", HEADINGS)
def test_each_listed_line_is_printed_by_fnlkit(heading):
    printed, found = strings(), lines(heading)
    assert len(found) > 5
    for line in found:
        whole = re.escape(line).replace(r"\.\.\.", ".*?")
        if any(re.search(whole, text) for text in printed):
            continue
        parts = [part.strip() for part in re.split(r"\.\.\.|[():;,]", line)]  # of a line that several texts make
        assert max(len(part.split()) for part in parts) >= 2, line
        for part in parts:
            assert any(part in text for text in printed), f"{line}: no source has {part!r}"
