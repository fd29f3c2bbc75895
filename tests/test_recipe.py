"""The recipe for conda-forge requires what pyproject.toml requires."""

import pytest

from tests.test_versions import PROJECT, ROOT

yaml = pytest.importorskip("yaml", reason="needs PyYAML (extra `docs`)")
RECIPE = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text(encoding="utf-8"))
CONDA = {"torch": "pytorch"}  # names that differ


def bounds(line):
    """Return (name, set of bounds) of a requirement of pip or conda."""
    name = line.replace(">", " ").replace("<", " ").split()[0]
    return CONDA.get(name, name), set(line.removeprefix(name).replace(" ", "").split(","))


def test_the_recipe_has_the_requirements_of_the_package():
    expected = dict(map(bounds, [f"python{PROJECT['requires-python']}", *PROJECT["dependencies"]]))
    assert dict(map(bounds, RECIPE["requirements"]["run"])) == expected


def test_the_recipe_has_the_version_the_command_and_the_build_tool():
    assert (RECIPE["context"]["name"], RECIPE["context"]["version"]) == (PROJECT["name"], PROJECT["version"])
    assert RECIPE["build"]["python"]["entry_points"] == [f"{name} = {where}" for name, where in PROJECT["scripts"].items()]
    assert RECIPE["about"]["license"] == PROJECT["license"]
    assert "setuptools >=77" in RECIPE["requirements"]["host"]
