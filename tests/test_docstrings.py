"""Every example in a docstring of the library gives what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WITH_EXAMPLES = [p for p in sorted((ROOT / "fnlkit").rglob("*.py")) if ">>> " in p.read_text(encoding="utf-8")]
# The decorator's own example compiles a kernel, and stands in no module that can be tested by name.
NAMES = [p.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__") for p in WITH_EXAMPLES]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fnlkit._kernels._compile"])
def test_docstrings(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed
