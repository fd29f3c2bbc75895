"""The versions with which the tests passed (.ci/constraints.txt) satisfy the requirements of setup.py."""

import ast
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PINNED = dict(
    line.split("==")
    for line in (ROOT / ".ci/constraints.txt").read_text(encoding="utf-8").lower().splitlines()
    if line[:1] != "#"
)


def requirements():
    """Return the requirements of the package and of its extras `test` and `flower`."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    keywords = {node.arg: node.value for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    extras = dict(zip(map(ast.literal_eval, keywords["extras_require"].keys), keywords["extras_require"].values, strict=True))
    lists = [keywords["install_requires"], extras["test"], extras["flower"]]
    return sorted({each.value for part in lists for each in ast.walk(part) if isinstance(each, ast.Constant)})


@pytest.mark.parametrize("text", requirements())
def test_a_tested_version_satisfies_the_requirement(text):
    required = Requirement(text)
    assert Version(PINNED[required.name.lower()]) in required.specifier
