"""Imports point down, heavy libraries are imported in one place, and `import fnlkit` is fast; read from the syntax trees."""

import importlib.util
import re
import subprocess
import sys
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

import fnlkit
from benchmarks import size
from benchmarks.size import list_imports as imports
from fnlkit import kernels
from fnlkit.cli import COMMANDS
from fnlkit.cli import group as commands
from fnlkit.core import registry

ROOT = Path(__file__).parent.parent
HOMES = {
    "numba": "fnlkit/_kernels/", "faiss": "fnlkit/kernels/neighbors.py", "torchvision": "fnlkit/models/vision.py",
    "flwr": "fnlkit/federated/engines/flower/api.py", "matplotlib": "fnlkit/results/plots/",
    "click": "cli/", "pydicom": "fnlkit/datasets/dicom.py", "pyarrow": "fnlkit/datasets/table.py",
}  # fmt: skip
FILES = sorted(p.relative_to(ROOT).as_posix() for folder in ("fnlkit", "cli") for p in (ROOT / folder).rglob("*.py"))


@cache
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
    """Return the package of a file: a folder of fnlkit/, a module next to them, or the commands."""
    top, inner, *deeper = path.split("/")
    return "cli" if top == "cli" else inner if deeper else inner.removesuffix(".py")


def layers():
    """Return the lines of packages in docs/architecture.md, from the top: the words of a line before the first other word."""
    rooms = {room(path) for path in ROOMED}
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## The packages")[1].split("```")[1]
    return [list(takewhile(rooms.__contains__, line.split())) for line in text.strip().splitlines()]


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


def test_every_package_is_listed_once_and_imports_only_from_lower_lines():
    lines = layers()
    level = {name: place for place, line in enumerate(reversed(lines)) for name in line}
    listed, rooms = sum(lines, []), {room(path) for path in ROOMED}
    assert not [path for path in FILES if re.search(r"(?m)^\s*from \.", (ROOT / path).read_text(encoding="utf-8"))]
    assert all(lines) and len(listed) == len(level), f"docs/architecture.md: a line without a package, or twice in {listed}"
    assert rooms == set(level), f"docs/architecture.md lacks {rooms - set(level)}"
    for (start, end), example in arrows().items():
        assert level[start] > level[end], f"{example}: in docs/architecture.md {end} is not below {start}"


def test_the_folders_of_a_round_import_downward_and_methods_import_no_engine():
    order = ["engines", "server", "client", "privacy"]
    for path in ROOMED:
        top, inner = [*path.split("/")[1:], ""][:2]
        imported = {name.split(".")[2] for name in imports(path) if name.startswith("fnlkit.federated.")}
        if top == "federated" and inner in order:
            assert not imported & {*order[: order.index(inner)]}, path
        if top in ("methods", "models", "encoders", "datasets", "simulate"):
            assert "engines" not in imported, path


def reached_from(folder):
    """Return {file: the file that imports it} of all files of fnlkit that the files of a folder import, also through others."""
    reached = {path: path for path in ROOMED if path.startswith(folder)}
    left = list(reached)
    while left:
        path = left.pop()
        for target in {place(name) for name in imports(path) if name.startswith("fnlkit.")} & {*ROOMED} - {*reached}:
            reached[target] = path
            left.append(target)
    return reached


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("audits/site", "audits/server"),
        ("audits/server", "audits/site"),
        ("sites/site", "sites/server"),
        ("sites/site", "audits/server"),
    ],
)
def test_what_runs_at_a_site_imports_nothing_of_the_server(start, end):
    """What leaves a site can be read from the imports: what reads samples and what sees sums only are apart."""
    reached = reached_from(f"fnlkit/{start}/")
    assert len(reached) > 5 and [f"{by}: {path}" for path, by in reached.items() if path.startswith(f"fnlkit/{end}/")] == []


def test_the_size_of_the_project_counts_code_and_imports():
    source = '"""Doc.\n\nMore.\n"""\n\n# comment\nx = """a\nb"""\n\n\ndef f():\n    """Doc."""\n    return 1  # code\n'
    assert size.count_code_lines(source) == 4  # two of the string, def, return
    assert size.count_imports(FILES) == len(arrows())


def parts():
    """Return {part: (packages, parts that it may import)} of docs/architecture.md; the core has all other packages."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## The parts")[1].split("##")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")][2:]
    table = {name: (re.findall(r"`(\w+)`", packages), imported.split(", ")) for name, packages, imported in rows}
    others = {package for packages, _ in table.values() for package in packages}
    table["core"] = (sorted({room(path) for path in ROOMED} - others), table["core"][1])
    return table


def test_parts_import_only_the_parts_that_the_page_names():
    """The core can be read, installed and changed without the audit, the sites and the recipes."""
    table = parts()
    assert table["core"][1] == ["core"] and set(table) == {"core", "audit", "sites", "recipes", "commands"}
    part_of = {package: part for part, (packages, _) in table.items() for package in packages}
    for (start, end), example in arrows().items():
        allowed = {part_of[start], *table[part_of[start]][1]}
        assert part_of[end] in allowed, f"{example}: {part_of[start]} must not import {part_of[end]}"


def test_the_core_names_no_module_of_another_part_but_the_engine():
    """Registries import by name, which the imports of the syntax trees do not show."""
    core = parts()["core"][0]
    others = {room(path) for path in ROOMED} - {*core}
    texts = ((ROOT / path).read_text(encoding="utf-8") for path in ROOMED if room(path) in core)
    named = {name for text in texts for name in re.findall(r"""["'](fnlkit\.\w+[.:\w]*)["']""", text)}
    assert {name for name in named if re.split("[.:]", name)[1] in others} == set()


def test_no_cycle_of_files():
    """Packages without a cycle can still contain a cycle of files."""
    left = {path: {place(name) for name in imports(path) if name.startswith("fnlkit.")} - {path} for path in ROOMED}
    while done := [path for path, targets in left.items() if not targets & left.keys()]:
        for path in done:
            del left[path]
    assert not left, f"in a cycle, or importing one: {sorted(left)}"


def test_paths_in_the_architecture_page_exist():
    named = re.findall(r"`((?:fnlkit|cli)/[\w/.]*)`", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    assert named and [name for name in named if not (ROOT / name).exists()] == []


def test_heavy_libraries_are_imported_in_one_place():
    for path in ROOMED:
        for name in imports(path):
            top = name.partition(".")[0]
            assert top not in HOMES or path.startswith(HOMES[top]), f"{path} imports {top}; only {HOMES[top]} may"


def test_methods_import_no_internals_of_other_methods():
    """A method can run another method; parts that several methods use are in files that contain no method."""
    targets = [*registry.METHODS.values(), *registry.REGULARIZERS.values()]
    registered = {target.removeprefix("fnlkit.methods.") for target in targets}
    files = {target.partition(":")[0] for target in registered}
    shared = {f"fedavg:{name}" for name in ("Round", "follows_schedule")}  # the loop that other methods run
    for path in FILES:
        if path.startswith("fnlkit/methods/"):
            for name in imports(path):
                module, _, part = name.removeprefix("fnlkit.methods.").partition(".")
                if name.startswith("fnlkit.methods.") and module in files:
                    assert f"{module}:{part}" in registered | shared, f"{path} imports {part or 'all'} of the method {module}"


HEAVY = {"torch", "numba", "faiss", "sklearn", "rich", "scipy"}


@pytest.mark.parametrize(
    ("start", "heavy"),
    [
        ("import fnlkit", HEAVY),
        ("from fnlkit.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass", HEAVY),
        # Each takes longer to import than the votes of a small data set, or an evaluation.
        ("import fnlkit.estimators.inputs, fnlkit.kernels.voting", {"scipy.special", "scipy.linalg"}),
        ("import fnlkit.results.comparison", {"scipy.special"}),
    ],
)
def test_imports_and_help_load_no_heavy_library(start, heavy):
    code = f"{start}\nimport sys\nfound = {heavy!r} & set(sys.modules)\nassert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# Commands that read and write labels, tables, embeddings and pages, in an order in which each finds its input.
WITHOUT_TORCH = [
    "partition --dataset digits --clients 4 -o fed.npz",
    "inject-noise fed.npz -o noisy.npz",
    "info noisy.npz",
    "plot partition fed.npz -o partition.svg",
    "plot noise judged.npz -o noise.svg",
    "consensus fed.npz votes.csv -o agreed.npz",
    "correct judged.npz --csv cleaned.csv -o corrected.npz",
    "review suspects judged.npz -o suspects.csv",
    "review import judged.npz decisions.csv -o reviewed.npz",
    "watch run.metrics.jsonl --once",
    "data list",
    "info run.pt",
    "info run.pt --json",
    "evaluate run.pt",
    "audit fed.npz -o audited.npz",
    "reproduce",
    "methods",
    "methods --template loss",
    "methods noise",
]
CALL = """
import sys
from fnlkit.cli import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as end:
        assert end.code in (0, None), (line, end.code)
    assert "torch" not in sys.modules, line
"""


def test_commands_that_need_no_torch_do_not_import_it(tmp_path):
    """All commands in one process, because each start imports NumPy and the commands; also the help of every command."""
    fed = fnlkit.partition("digits", clients=4, say=None)
    fnlkit.train(fed, rounds=1, epochs=1, output=tmp_path / "run.pt")
    vectors = np.random.default_rng(0).random((len(fed.given), 8), np.float32)
    fnlkit.save(fnlkit.estimate_noise(fed, "knn", embeddings=vectors, say=None), tmp_path / "judged.npz")
    fnlkit.export_review(fnlkit.load(tmp_path / "judged.npz"), 1, tmp_path / "review", budget=5, say=None)
    text = (tmp_path / "review/decisions.csv").read_text()
    (tmp_path / "decisions.csv").write_text(text.replace(",,,,", ",keep,,,"))
    (tmp_path / "votes.csv").write_text("id,a,b\n0,1,1\n1,2,2\n")
    (tmp_path / "run.metrics.jsonl").write_text('{"round": 1, "stage": "train", "accuracy": 0.5}\n')
    inner = {name: getattr(commands.get_command(None, name), "commands", {}) for name in COMMANDS}
    names = [" ".join(words) for name in COMMANDS for words in [[name], *([name, each] for each in inner[name])]]
    plots = importlib.util.find_spec("matplotlib") is not None
    lines = [line for line in WITHOUT_TORCH if plots or not line.startswith("plot")]
    lines += [f"{name} --help" for name in names]
    done = subprocess.run([sys.executable, "-c", CALL, *lines], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_type_checkers_see_the_exported_names():
    """`fnlkit` loads names at first use; the imports for type checkers list the same names, and all annotations resolve."""
    assert (ROOT / "fnlkit/py.typed").is_file()
    always = {"fnlkit.core.lazy.attach", "fnlkit.core.version.__version__"}
    shown = {name for name in imports("fnlkit/__init__.py") if name.startswith("fnlkit.")} - always
    assert shown == {f"{home}.{name}" for name, home in fnlkit._HOME.items()}
    shown = {name for name in imports("fnlkit/kernels/__init__.py") if name.startswith("fnlkit.")} - {"fnlkit.core.lazy.attach"}
    assert shown == {f"fnlkit.kernels.{home}.{name}" for name, home in kernels._HOME.items()}
    for name in kernels.__all__:
        assert "return" in get_type_hints(getattr(kernels, name)), name
