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
import subprocess
import tempfile
from pathlib import Path

import torch  # noqa: F401 - with pytest, most of the time until the first test

from benchmarks.equations import ROOT, copy_repository, replaced, run_tests

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


def killed(copy, tests):
    """Return whether pytest fails in a copy of the repository."""
    return run_tests(copy, tests, copy.with_name(f"{copy.name}.log"), LIMIT)[0] != 0


def prepare(folder, commit):
    """Write the repository and its compiled kernels to a folder, with the tests of a commit."""
    folder.mkdir()
    copy_repository(folder)
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
            if killed(copies[version], options.tests):
                raise SystemExit(f"the tests ({version}) fail without a change; nothing can be measured")
        mutants = draw(options.folder, options.count, options.seed)
        for number, (path, line, change, text) in enumerate(mutants):
            verdicts = {}
            for version, copy in copies.items():
                with replaced(copy / path, text, number):
                    verdicts[version] = killed(copy, options.tests)
                totals[version] += verdicts[version]
            words = ", ".join(f"{version}: {'killed' if verdict else 'SURVIVES'}" for version, verdict in verdicts.items())
            print(f"{path}:{line}: {change}: {words}", flush=True)
    for version, total in totals.items():
        print(f"{version}: {total} of {len(mutants)} mutants killed")


if __name__ == "__main__":
    main()
