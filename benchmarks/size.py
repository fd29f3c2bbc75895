"""Print the size of the project, and fail if the package or its tests have more code lines than the limits here.

    python -m benchmarks.size

A code line is not blank and contains more than a comment or a docstring.  Only tracked files count.  Lower a limit when code
is removed; a change that needs a higher limit changes the line here, so that the growth is visible in a review.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {"fnlkit and cli": 44_810, "tests": 27_220, "benchmarks": 5_000}
OTHERS = {"words of pages": 41_000, "tracked files": 894, "imports between packages": 108, "benchmark programs": 28}


def count_code_lines(source):
    """Return the number of lines that contain code."""
    documentation = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            documentation |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(source.split("\n"), 1)
    return sum(
        1 for number, line in lines if line.strip() and not line.lstrip().startswith("#") and number not in documentation
    )


def package_of(path):
    """Return the row of a tracked Python file in the table, or None: a package, `modules` beside the packages, or a folder."""
    top, *rest = path.split("/")
    if top == "fnlkit":
        return rest[0] if len(rest) > 1 else "modules"
    return top if top in ("cli", "tests", "benchmarks") else None


def measure_code(files):
    """Return {row: code lines} of the tracked files."""
    lines = {}
    for path in files:
        if path.endswith(".py") and (package := package_of(path)):
            lines[package] = lines.get(package, 0) + count_code_lines((ROOT / path).read_text(encoding="utf-8"))
    return lines


@cache
def list_imports(path):
    """Return the dotted names that a file of the repository imports, at any depth."""
    names, left = [], [ast.parse((ROOT / path).read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names += [f"{node.module}.{a.name}" if isinstance(node, ast.ImportFrom) else a.name for a in node.names]
        # Expressions, which are most of the nodes, contain no imports.
        left += [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt | ast.excepthandler | ast.match_case)]
    return names


def count_imports(files):
    """Return the number of pairs (package, imported package); a module beside the packages and `cli` count as packages."""
    modules = {path.removesuffix(".py").removesuffix("/__init__") for path in files if path.startswith(("fnlkit/", "cli/"))}

    def room(module):
        parts = module.split("/")
        return "cli" if parts[0] == "cli" else parts[1]

    def target(name):
        """Return the package of a dotted name of ours, or None for the names of fnlkit/__init__.py."""
        parts = name.split(".")
        parts = parts[1:] if parts[:2] == ["fnlkit", "cli"] else parts
        paths = ("/".join(parts[:length]) for length in range(len(parts), 1 if parts[0] == "fnlkit" else 0, -1))
        return next((room(path) for path in paths if path in modules), None)

    pairs = set()
    for path in files:
        if not path.endswith(".py") or not path.startswith(("fnlkit/", "cli/")) or path == "fnlkit/__init__.py":
            continue
        imported = {target(name) for name in list_imports(path) if name.partition(".")[0] == "fnlkit"} - {None}
        pairs |= {(room(path.removesuffix(".py")), package) for package in imported}
    return sum(start != end for start, end in pairs)


def main():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    files = [path for path in files if (ROOT / path).is_file()]
    code = measure_code(files)
    pages = [path for path in files if path == "README.md" or (path.startswith("docs/") and path.endswith(".md"))]
    values = {
        "words of pages": sum(len((ROOT / page).read_text(encoding="utf-8").split()) for page in pages),
        "tracked files": len(files),
        "imports between packages": count_imports(files),
        "benchmark programs": sum(path.startswith("benchmarks/") and path.endswith(".py") for path in files) - 1,
    }
    code["fnlkit and cli"] = sum(lines for name, lines in code.items() if name not in ("tests", "benchmarks"))
    print(f"{'code lines':<26} {'now':>7} {'limit':>7}")
    for name in sorted(set(code) - set(LIMITS)):
        print(f"{name:<26} {code[name]:>7,}")
    print(f"{'pages':<26} {len(pages):>7,}")
    failures = []
    for name, limit in (LIMITS | OTHERS).items():
        value = (code | values)[name]
        print(f"{name:<26} {value:>7,} {limit:>7,}{'  too large' if value > limit else ''}")
        failures += [name] if value > limit else []
    if failures:
        print(
            f"larger than in benchmarks/size.py: {', '.join(failures)}; remove code, or change the limit there", file=sys.stderr
        )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
