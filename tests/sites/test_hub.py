"""The project of `flower-app` passes the checks of Flower's hub and becomes an app file."""

import importlib
import re
import tomllib

import pytest

from fnlkit.sites.flower_app import FLOWER
from tests.commands import succeed
from tests.test_package import PROJECT


def test_the_versions_of_flower_are_those_of_the_extra():
    (line,) = [line for line in PROJECT["optional-dependencies"]["flower"] if line.startswith("flwr")]
    assert re.fullmatch(r"flwr>=(.+),<(.+)", line).groups() == (FLOWER["oldest"], FLOWER["newer"])


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's use of pathspec
def test_the_project_meets_the_rules_of_the_hub(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate
    from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

    succeed("fnlkit flower-app project --dataset digits --sites 2", tmp_path)
    project = tmp_path / "project"
    config, warnings = load_and_validate(project / "pyproject.toml", check_module=True)
    assert not warnings
    found = normalize_and_validate_fab_format(config)
    assert (found.fab_format_version, found.flwr_version_target) == (1, FLOWER["target"])
    publish = importlib.import_module("flwr.cli.app_cmd.publish")
    publish._validate_app_name(project.name, "directory")
    publish._validate_description(config["project"]["description"])
    files = publish._collect_file_paths(project)
    publish._validate_files(files)
    names = {file.relative_to(project.resolve()).as_posix() for file in files}
    assert names == {
        "pyproject.toml",
        "project.json",
        "LICENSE",
        *(f"fnlkit_sites/{part}.py" for part in ("__init__", "client", "server")),
    }
    assert b"fnlkit_sites/server.py" in build_fab_from_disk(project)
    assert tomllib.loads((project / "pyproject.toml").read_text())["project"]["license"] == {"file": "LICENSE"}
