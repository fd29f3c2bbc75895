"""The built package contains every module and file that the repository has, with the declared metadata."""

import re
import shlex
import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import fnlkit
from tests.test_versions import PINNED, PROJECT, ROOT, python_versions


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    # setuptools writes build/ and *.egg-info into the folder that it builds.
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs git, to copy the files of the repository only")
    for name in filter(None, listed.stdout.split("\0")):
        if name.split("/")[0] in ("fnlkit", "cli", "data") or "/" not in name:
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    build = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_contains_all_files_of_the_package(wheel):
    folders = {"fnlkit": "fnlkit", "cli": "fnlkit/cli", "data": "fnlkit/data"}
    expected = {
        f"{inside}/{path.relative_to(ROOT / outside).as_posix()}"
        for outside, inside in folders.items()
        for path in (ROOT / outside).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


def test_the_metadata_are_those_of_the_project(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    found = Parser().parsestr(wheel.read(name).decode())
    assert (found["Name"], found["Version"], found["License-Expression"]) == ("fnlkit", fnlkit.__version__, PROJECT["license"])
    assert set(found.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert len([line for line in found.get_all("Requires-Dist") if "extra ==" not in line]) == len(PROJECT["dependencies"])
    (scripts,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "fnlkit = fnlkit.cli:main" in wheel.read(scripts).decode()
    assert (Path(name).parent / "licenses/LICENSE").as_posix() in wheel.namelist()


def test_the_image_is_built_from_the_locked_versions_and_the_files_of_the_package():
    lines = [shlex.split(line) for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    (base,) = [words[1] for words in lines if words[0] == "FROM"]
    assert re.fullmatch(r"python:(.*)-slim", base)[1] in python_versions()
    copied = {source for words in lines if words[0] == "COPY" for source in words[1:-1]}
    assert copied == {"pyproject.toml", "setup.py", "README.md", "LICENSE", ".ci/constraints.txt", "fnlkit", "cli", "data"}
    assert all((ROOT / source).exists() for source in copied)
    assert ["-c", "/src/.ci/constraints.txt", "/src[train]"] in [words[-3:] for words in lines]


def test_the_lock_has_a_version_of_every_installed_requirement():
    """Follow the requirements of the required packages, as pip does in the image."""
    if version("torch").partition("+")[0] != PINNED["torch"]:
        pytest.skip("another version of torch has other requirements: pip install -c .ci/constraints.txt")
    cuda = re.compile("nvidia-|cuda-|triton")  # of torch's builds with CUDA; the lock is that of the CPU build
    left, seen = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["train"]], set()
    while left:
        wanted = Requirement(left.pop())
        name = wanted.name.lower().replace("_", "-")
        if name in seen or cuda.match(name) or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        left += requires(wanted.name) or []
    assert seen <= {name.replace("_", "-") for name in PINNED}
