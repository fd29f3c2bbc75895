"""Imports point down, heavy libraries have one home, and starting costs nothing: read from the syntax trees."""

import ast
import inspect
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import get_type_hints

import pytest

import fnlkit
from fnlkit import kernels

ROOT = Path(__file__).parent.parent
HOMES = {
    "numba": ("fnlkit/_kernels/",),
    "faiss": ("fnlkit/kernels/neighbors.py",),
    "torchvision": ("fnlkit/models/vision.py",),
    "torchaudio": ("fnlkit/models/vision.py",),
    "flwr": ("fnlkit/engines/flower/", "fnlkit/deploy/"),
    "ray": ("fnlkit/engines/flower/",),
    "tensorboard": ("fnlkit/experiment/tracking.py",),
    "mlflow": ("fnlkit/experiment/tracking.py",),
    "wandb": ("fnlkit/experiment/tracking.py",),
    "matplotlib": ("fnlkit/results/plots/",),
    "click": ("cli/",),
    "pydicom": ("fnlkit/datasets/dicom.py",),
    "pyarrow": ("fnlkit/datasets/table.py",),
}
FILES = sorted(p.relative_to(ROOT).as_posix() for folder in ("fnlkit", "cli") for p in (ROOT / folder).rglob("*.py"))


def imports(path):
    """Return the dotted names that a file imports, at any depth."""
    found = []
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def place(name):
    """Return the file of a dotted name of ours, or None for the package itself."""
    parts = name.split(".")
    folder = ROOT / "cli" if parts[:2] == ["fnlkit", "cli"] else ROOT / "fnlkit"
    rest = parts[2:] if parts[:2] == ["fnlkit", "cli"] else parts[1:]
    for count in range(len(rest), 0, -1):
        path = folder.joinpath(*rest[:count])
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate.relative_to(ROOT).as_posix()
    return None


def room(path):
    """Return what a file belongs to: a package of fnlkit/, a module beside them, or the commands."""
    top, inner, *deeper = path.split("/")
    return "cli" if top == "cli" else inner if deeper else inner.removesuffix(".py")


def drawing():
    """Return the lines of rooms in docs/architecture.md, from the top."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## The packages")[1].split("```")[1]
    return [re.split(r"\s{5,}", line)[0].split() for line in text.strip().splitlines()]


ROOMED = [path for path in FILES if path != "fnlkit/__init__.py"]


def arrows():
    """Return {(room, room): a file that imports so}."""
    found = {}
    for path in ROOMED:
        for name in imports(path):
            target = place(name) if name.partition(".")[0] == "fnlkit" else None
            if target in ROOMED and room(target) != room(path):
                found.setdefault((room(path), room(target)), f"{path} imports {target}")
    return found


def test_the_drawing_shows_the_rooms_and_every_arrow_points_down():
    """Each line of the drawing imports from the lines below it alone, so that there is no circle either."""
    lines = drawing()
    level = {name: place for place, line in enumerate(reversed(lines)) for name in line}
    rooms = {room(path) for path in ROOMED}
    twice, missing = [r for line in lines for r in line if sum(lines, []).count(r) > 1], rooms ^ set(level)
    assert not twice and not missing, f"docs/architecture.md: drawn twice {twice}; missing there or in the tree {missing}"
    found = arrows()
    for (start, end), example in found.items():
        assert level[start] > level[end], f"{example}: in docs/architecture.md {end} does not stand below {start}"
    print(f"{len(rooms)} rooms on {len(lines)} lines, {len(found)} arrows")
    assert len(rooms) <= 24


def test_no_files_import_each_other_round_about():
    """Rooms that point down may still hold a circle of files."""
    left = {path: {place(name) for name in imports(path) if name.startswith("fnlkit.")} - {path} for path in ROOMED}
    while done := [path for path, targets in left.items() if not targets & left.keys()]:
        for path in done:
            del left[path]
    assert not left, f"in a circle, or above one: {sorted(left)}"


def test_the_architecture_names_files_that_exist():
    named = re.findall(r"`((?:fnlkit|cli)/[\w/.]*)`", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    assert len(named) > 8 and [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", ROOMED)
def test_heavy_libraries_have_one_home(path):
    for name in imports(path):
        top = name.partition(".")[0]
        if top in HOMES:
            assert path.startswith(HOMES[top]), f"{path} imports {top}; only {HOMES[top]} may"


def test_kernels_import_nothing_of_ours():
    for path in FILES:
        if path.startswith("fnlkit/_kernels/"):
            for name in imports(path):
                top = name.partition(".")[0]
                allowed = (
                    top in ("numpy", "numba", "llvmlite")
                    or top in sys.stdlib_module_names
                    or name.startswith("fnlkit._kernels")
                )
                assert allowed, f"{path} imports {name}"


def test_methods_and_engines_do_not_know_each_other():
    for path in FILES:
        other = {"fnlkit/methods/": "fnlkit/engines/", "fnlkit/engines/": "fnlkit/methods/"}
        for folder, forbidden in other.items():
            if path.startswith(folder):
                for name in imports(path):
                    target = place(name) if name.startswith("fnlkit") else None
                    assert not (target or "").startswith(forbidden), f"{path} imports {target}"


@pytest.mark.parametrize(
    "start", ["import fnlkit", "from fnlkit.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"]
)
def test_starting_imports_nothing_heavy(start):
    heavy = {"torch", "numba", "faiss", "sklearn", "rich"}
    code = f"{start}\nimport sys\nfound = {heavy!r} & set(sys.modules)\nassert not found, found"
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    # Not a benchmark: ten times the goal of 0.3 s, to notice a heavy import that has no name above.
    assert time.perf_counter() - began < 3


def test_type_checkers_see_what_can_be_imported():
    """`import fnlkit` loads names at first use; what a checker reads instead says the same, and every type in it exists."""
    assert (ROOT / "fnlkit/py.typed").is_file()
    shown = {name for name in imports("fnlkit/__init__.py") if name.startswith("fnlkit.")}
    assert shown == {f"{home}.{name}" for name, home in fnlkit._HOME.items()}
    for name in kernels.__all__:
        function = getattr(kernels, name)
        assert set(get_type_hints(function)) == {*inspect.signature(function).parameters, "return"}, name
