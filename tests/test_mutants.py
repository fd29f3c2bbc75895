"""A copy of the repository for a mutant imports its own packages, so that a change in any folder is noticed."""

import os
import subprocess
import sys

import pytest

from benchmarks import mutants

# The children compute alone. Python 3.15 sees the threads of libraries, which are idle, and warns.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_a_copy_imports_its_own_packages(tmp_path):
    mutants.prepare(tmp_path / "copy", None)
    code = "import fnlkit.cli, fnlkit.data; print(fnlkit.__file__, fnlkit.cli.__file__, fnlkit.data.__file__)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "copy")}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert all(path.startswith(str(tmp_path / "copy")) for path in done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_a_mutant_is_killed_if_a_test_fails_in_its_copy(wrong, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "fnlkit").mkdir()
    (tmp_path / "fnlkit/__init__.py").write_text(f"number = {3 + wrong}\n")
    (tmp_path / "tests/test_it.py").write_text("import fnlkit\n\n\ndef test_it():\n    assert fnlkit.number == 3\n")
    assert mutants.killed(tmp_path, ["tests/test_it.py"]) == wrong
