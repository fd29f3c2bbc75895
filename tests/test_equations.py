"""The table of equations, benchmarks/equations.toml: its code occurs once, and its tests exist."""

import ast
from collections import Counter

from benchmarks import equations

PAPERS = ["FedCorr", "FedEFC", "FedDPCont", "FLR", "FedLN"]


def test_each_code_occurs_once_and_its_change_is_python():
    for mutation in equations.mutations():
        equations.changed(mutation, (equations.ROOT / mutation.file).read_text(encoding="utf-8"))


def test_each_named_test_exists():
    files = {}
    for mutation in equations.mutations():
        file, _, name = mutation.test.partition("::")
        if file not in files:
            tree = ast.parse((equations.ROOT / file).read_text(encoding="utf-8"))
            files[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name.partition("[")[0] in files[file], mutation.test


def test_each_paper_has_at_least_thirty_changes_and_no_change_is_listed_twice():
    rows = equations.mutations()
    counts = Counter(row.paper for row in rows)
    assert min(counts[paper] for paper in PAPERS) >= 30 and set(counts) <= {*PAPERS, "common"}
    assert len({(row.file, row.code, row.change) for row in rows}) == len(rows)


def test_the_stored_output_has_every_row_and_no_survivor():
    stored = (equations.ROOT / "benchmarks/results/equations.txt").read_text(encoding="utf-8")
    rows = equations.mutations()
    assert stored.count("\nkilled ") + stored.startswith("killed ") == len(rows)
    for row in rows:
        assert f"          -> {' '.join(row.change.split())}\n          {row.test}\n" in stored
    numbers = stored.splitlines()[-1].split()
    assert numbers[0] == "all" and numbers[2:] == [str(len(rows)), str(len(rows)), "0", "0"]


def test_only_a_test_that_runs_and_fails_kills():
    results = [(0, ""), (1, "AssertionError"), (1, "NameError"), (2, ""), (None, "")]
    assert [equations.verdict(*result) for result in results] == ["SURVIVED", "killed", "INVALID", "INVALID", "killed"]
