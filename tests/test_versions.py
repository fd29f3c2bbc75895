"""The versions with which the tests passed (.ci/constraints.txt) satisfy the requirements of pyproject.toml."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import fnlkit
from fnlkit.core import tested_versions

ROOT = Path(__file__).parents[1]
PINNED = dict(
    line.split("==")
    for line in (ROOT / ".ci/constraints.txt").read_text(encoding="utf-8").lower().splitlines()
    if line[:1] != "#"
)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def extras():
    """Return {extra: requirements}; an extra contains the requirements of the extras that it names."""
    own, found = PROJECT["optional-dependencies"], {}
    for name, lines in own.items():
        inner = [extra for line in map(Requirement, lines) if line.name == "fnlkit" for extra in line.extras]
        outer = [line for line in lines if Requirement(line).name != "fnlkit"]
        found[name] = [*outer, *(line for extra in inner for line in own[extra])]
    return found


def python_versions():
    """Return the versions of Python in the classifiers."""
    return re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))


def requirements():
    """Return the requirements of the package and of its extras `test` and `flower`."""
    return sorted({*PROJECT["dependencies"], *extras()["test"], *extras()["flower"]})


@pytest.mark.parametrize("text", requirements())
def test_a_tested_version_satisfies_the_requirement(text):
    required = Requirement(text)
    assert Version(PINNED[required.name.lower()]) in required.specifier


def test_the_classified_versions_of_python_are_the_tested_ones():
    first, last = (int(text.split(".")[1]) for text in tested_versions.PYTHON)
    assert python_versions() == [f"3.{minor}" for minor in range(first, last + 1)]
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert f"3.{first}.0" in allowed and f"3.{first - 1}.9" not in allowed


def test_the_oldest_tested_torch_is_the_oldest_allowed_one():
    torch = next(need for need in map(Requirement, PROJECT["optional-dependencies"]["train"]) if need.name == "torch")
    oldest, newest = (Version(f"{text}.0") for text in tested_versions.TORCH)
    assert [str(limit) for limit in torch.specifier] == [f">={tested_versions.TORCH[0]}"]
    assert oldest <= Version(PINNED["torch"]) < Version(f"{newest.major}.{newest.minor + 1}")


def test_a_newer_torch_is_noted_once_per_version(tmp_path):
    assert not any(map(tested_versions.is_newer, (tested_versions.TORCH[1] + ".3+cpu", "2.11.0", "2.9.1")))
    assert all(map(tested_versions.is_newer, ("2.100.0", "3.0.1+cu140", "main")))
    notes = [tested_versions.note_once(text, tmp_path) for text in ("2.99.0", "2.99.1+cpu", "3.0.0", "2.99.0")]
    assert [note is not None for note in notes] == [True, False, True, False] and "2.99.0" in notes[0]


def test_all_files_name_the_same_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"(?m)^version: (.*)$", citation)[1] == fnlkit.__version__ == version("fnlkit")
