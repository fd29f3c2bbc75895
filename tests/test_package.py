"""The package contains all modules and files; versions, extras and files that the configuration names exist."""

import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import fnlkit
from fnlkit.core import tested_versions

# ---- the versions with which the tests passed (.ci/constraints.txt) satisfy the requirements of pyproject.toml
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


# ---- the configuration of .github/ and pre-commit names versions, extras, files and markers that exist
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


# ---- the built package contains every module and file that the repository has, with the declared metadata
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
