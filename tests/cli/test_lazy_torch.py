"""Packages that are loaded at the first use of an attribute."""

import dataclasses
import importlib
import sys

import pytest

from fnlkit.cli import lazy_torch


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A postponed package with a submodule; it notes when it is executed."""
    folder = tmp_path / "slowpackage"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import sys\nsys.slow_executions = getattr(sys, 'slow_executions', 0) + 1\nnumber = 3\n"
    )
    (folder / "part.py").write_text("from slowpackage import number\ntwice = 2 * number\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    lazy_torch.postpone("slowpackage")
    lazy_torch.postpone("slowpackage")
    assert len(sys.meta_path) == len(finders) + 1
    yield "slowpackage"
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.partition(".")[0] == "slowpackage"]:
        del sys.modules[name]
    vars(sys).pop("slow_executions", None)


def test_a_package_is_executed_once_at_the_first_attribute(slow):
    package = importlib.import_module(slow)
    assert importlib.import_module(slow) is package and not hasattr(sys, "slow_executions")
    assert package.number == 3 and package.number == 3 and sys.slow_executions == 1
    assert importlib.import_module(slow) is package


def test_a_submodule_loads_its_package_first(slow):
    importlib.import_module(slow)
    assert importlib.import_module(f"{slow}.part").twice == 6 and sys.slow_executions == 1


def test_a_dataclass_whose_annotations_name_the_package_does_not_load_it(slow):
    """Python 3.15 looks up the text of annotations."""
    code = f"from __future__ import annotations\nimport {slow}\n@dataclass\nclass Part:\n    x: {slow}.number\n"
    exec(code, {"dataclass": dataclasses.dataclass, "__name__": __name__})
    assert not hasattr(sys, "slow_executions") and importlib.import_module(slow).number == 3
