"""The configuration of .github/ and pre-commit names versions, extras, files and markers that exist."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.test_versions import PINNED, extras, python_versions

ROOT = Path(__file__).parent.parent
WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def lines(name):
    """Return the commands of a workflow, with a line for each value of its matrix."""
    out = []
    for job in load(WORKFLOWS[name])["jobs"].values():
        entries = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
        for command in (step["run"] for step in job["steps"] if "run" in step):
            out += [re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found, each=each: each[found[1]], command) for each in entries]
    return out


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_name_files_and_extras_that_exist(name):
    workflow = load(WORKFLOWS[name])
    assert workflow["permissions"] == {"contents": "read"} and True in workflow  # YAML reads the key `on` as True
    known = set(extras())
    for line in lines(name):
        for named in re.findall(r"\.\[([\w,]+)\]", line):
            assert set(named.split(",")) <= known, line
        for word in shlex.split(line):
            if word.startswith((".ci/", "tests/")):
                assert (ROOT / word).is_file(), line
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90


def test_tests_run_on_all_versions_and_systems_with_the_command_of_the_readme():
    jobs = load(WORKFLOWS["tests"])["jobs"]
    for job in ("linux", "wheel"):
        assert jobs[job]["strategy"]["matrix"]["python"] == python_versions()
    assert {each["os"] for each in jobs["short"]["strategy"]["matrix"]["include"]} == {"macos-latest", "windows-latest"}
    command = re.search(r"&& (python -m pytest .*)", (ROOT / "README.md").read_text(encoding="utf-8"))[1]
    assert command in lines("tests")


def test_only_the_jobs_that_publish_get_tokens():
    release, docs = (load(WORKFLOWS[name])["jobs"] for name in ("release", "docs"))
    assert release["publish"]["permissions"] == {"id-token": "write"} and release["publish"]["needs"] == "build"
    assert "permissions" not in release["build"] and "permissions" not in docs["build"]


def test_pre_commit_uses_the_tested_linter():
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    for hook in repository["hooks"]:
        assert hook["additional_dependencies"] == [f"ruff=={PINNED['ruff']}"]
