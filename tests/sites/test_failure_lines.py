"""The lines that docs/deployment.md and docs/deployment-site.md list are those that fnlkit prints."""

import ast
import re
import tomllib

import pytest

from tests.pages.steps import ROOT

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
