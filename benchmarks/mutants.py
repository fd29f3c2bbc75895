"""Share of small changes of the library that the tests notice, with the tests of one or of two commits.

    python -m benchmarks.mutants fnlkit/methods --tests tests/methods --count 20 [--seed 0] [--before COMMIT]

A mutant is a copy of the repository with one change of one line: another comparison, another operator, another number, `and`
for `or`, or a negated condition.  It is killed if pytest fails with it.  Mutants are drawn by the seed from all files of the
folder.  With --before, each mutant is also tested with the tests of an older commit, and both shares are printed.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch  # noqa: F401 - with pytest, most of the time until the first test

ROOT = Path(__file__).parent.parent
LIMIT = 1800  # seconds until a mutant counts as killed because it does not end
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}


def changes(tree):
    """Yield (node, field, value) of all possible changes of a syntax tree, in its order."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            yield node, "ops", [COMPARISONS[type(node.ops[0])](), *node.ops[1:]]
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            yield node, "op", OPERATORS[type(node.op)]()
        elif isinstance(node, ast.BoolOp):
            yield node, "op", ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield node, "value", node.value + 1
        elif isinstance(node, ast.If):
            yield node, "test", ast.UnaryOp(ast.Not(), node.test)


def draw(folder, count, seed):
    """Return `count` mutants (path, line, change, new text of the file) of a folder or file."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")) or [ROOT / folder]:
        text = path.read_text(encoding="utf-8")
        found += [(path, at) for at, _ in enumerate(changes(ast.parse(text)))]
    out = []
    for path, at in random.Random(seed).sample(found, min(count, len(found))):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        node, field, value = list(changes(tree))[at]
        before = ast.unparse(node).splitlines()[0]
        setattr(node, field, value)
        ast.fix_missing_locations(tree)
        change = f"{before}  ->  {ast.unparse(node).splitlines()[0]}"
        out.append((path.relative_to(ROOT), node.lineno, change, ast.unparse(tree)))
    return out


def killed(copy, tests, write=False):
    """Return whether pytest fails in a copy of the repository; in a fork, which has the libraries imported.

    With `write`, the compiled modules are kept for later calls.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _enter(copy)
            sys.dont_write_bytecode = not write  # a mutant as large as another one and of the same second would be taken for it
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
        finally:
            os._exit(code)
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        number, status = os.waitpid(child, os.WNOHANG)
        if number:
            return status != 0
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _enter(copy):
    """Make the present process one that runs in a copy: nothing of this repository stays imported."""
    os.setsid()
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "CI": "1"}
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("fnlkit", "benchmarks", "tests")]:
        del sys.modules[name]
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
    sys.argv = ["pytest"]


def prepare(folder, commit):
    """Write the repository and its compiled kernels to a folder, with the tests of a commit."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "x"], cwd=folder, input=archive, check=True)
    cache = Path("fnlkit/_kernels/__pycache__")
    (folder / cache).mkdir()
    for path in (ROOT / cache).glob("*.kernel"):
        shutil.copy(path, folder / cache)
    for name in ("cli", "data"):  # packages of fnlkit that lie beside it: an editable installation would find its own
        (folder / "fnlkit" / name).symlink_to(f"../{name}")
    if commit:
        shutil.rmtree(folder / "tests")
        tests = subprocess.run(["git", "archive", commit, "tests"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "x"], cwd=folder, input=tests, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", help="folder or file of the library that is changed")
    parser.add_argument("--tests", nargs="+", required=True, help="files or folders that pytest runs")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--before", metavar="COMMIT", help="also run the tests of this commit")
    options = parser.parse_args()
    versions = {"now": None} | ({"before": options.before} if options.before else {})
    totals = dict.fromkeys(versions, 0)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        copies = {version: Path(name, version) for version in versions}
        for version, commit in versions.items():
            prepare(copies[version], commit)
            if killed(copies[version], options.tests, write=True):
                raise SystemExit(f"the tests ({version}) fail without a change; nothing can be measured")
        mutants = draw(options.folder, options.count, options.seed)
        for path, line, change, text in mutants:
            verdicts = {}
            for version, copy in copies.items():
                whole = (copy / path).read_text(encoding="utf-8")
                (copy / path).write_text(text, encoding="utf-8")
                verdicts[version] = killed(copy, options.tests)
                (copy / path).write_text(whole, encoding="utf-8")
                totals[version] += verdicts[version]
            words = ", ".join(f"{version}: {'killed' if verdict else 'SURVIVES'}" for version, verdict in verdicts.items())
            print(f"{path}:{line}: {change}: {words}", flush=True)
    for version, total in totals.items():
        print(f"{version}: {total} of {len(mutants)} mutants killed")


if __name__ == "__main__":
    main()
