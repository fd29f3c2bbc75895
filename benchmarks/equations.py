"""Change each equation of the five papers in the code, and run the test that must notice the change.

    python -m benchmarks.equations [--only TEXT] > benchmarks/results/equations.txt

benchmarks/equations.toml has a row per change: paper, equation or line of an algorithm, the code that computes it, the changed
code, and the narrowest test.  Each change is made in a copy of the repository.  A change is killed if the test fails by an
assertion or by an exception of the changed computation, and survives if the test passes.  A row is invalid if the test cannot
run, for example because of an unknown name.  Each test runs in a separate process, which starts with torch already imported.
Kernels are compiled again after a change.  The exit code is 1 unless all changes are killed.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks/equations.toml"
# Exceptions that show a mistake in the changed code instead of another result.
INVALID = ("SyntaxError", "NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "TypingError")
# Seconds until a changed program counts as killed because it does not end.
LIMIT = 300
LIBRARIES = ("torch", "numpy", "scipy.stats", "scipy.linalg", "sklearn.mixture", "numba", "hypothesis", "pytest")


@dataclass(frozen=True)
class Mutation:
    """A change of one equation in the code.

    Attributes
    ----------
    paper, equation : str
        The paper, and the number of the equation, ``A1:9`` for line 9 of Algorithm 1, or the section of a formula without a
        number.
    computes : str
        What the code computes.
    file : str
        Path of the source file in the repository.
    code, change : str
        Part of the file that occurs exactly once, and its replacement.
    test : str
        Node ID of the test for pytest.
    """

    paper: str
    equation: str
    computes: str
    file: str
    code: str
    change: str
    test: str


def mutations():
    """Return the mutations of the table in their order.

    Raises
    ------
    TypeError
        If a row lacks a field or has an unknown one.
    """
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["mutation"]
    return [Mutation(**row) for row in rows]


def changed(mutation, text):
    """Return the text of a source file after a mutation.

    Raises
    ------
    ValueError
        If the code does not occur exactly once, or if the changed file is no Python.
    """
    where = f"{mutation.file}, {mutation.paper} {mutation.equation}"
    if (count := text.count(mutation.code)) != 1:
        raise ValueError(f"{where}: the code occurs {count} times, not once: {mutation.code}")
    after = text.replace(mutation.code, mutation.change)
    if after == text:
        raise ValueError(f"{where}: the change equals the code")
    compile(after, mutation.file, "exec")
    return after


def copy_repository(folder):
    """Copy the tracked and new files of the repository, and its compiled kernels, to `folder`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    cache = Path("fnlkit/_kernels/__pycache__")
    (folder / cache).mkdir(parents=True, exist_ok=True)
    for path in (ROOT / cache).glob("*.kernel"):
        shutil.copy(path, folder / cache)
    for name in ("cli", "data"):  # packages of fnlkit that lie beside it: an editable installation would find its own
        (folder / "fnlkit" / name).symlink_to(f"../{name}")


class Recorder:
    """A plugin of pytest that writes the name of the first exception to a file, and does not shrink examples of hypothesis."""

    def __init__(self, path):
        self.path = path

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config):
        from hypothesis import Phase, settings

        settings.register_profile("first failure", settings.default, phases=(Phase.explicit, Phase.generate))
        settings.load_profile("first failure")

    def pytest_exception_interact(self, node, call, report):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(call.excinfo.typename + "\n")


def run_tests(copy, tests, log, limit=LIMIT):
    """Run tests in a copy of the repository, in a fork of this process; return (exit code of pytest, first exception).

    The exit code is None if the tests did not end within `limit` seconds.
    """
    seen = log.with_suffix(".exception")
    seen.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        code = 70
        try:
            os.setsid()
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(copy)
            os.environ |= {"PYTHONPATH": str(copy), "CI": "1"}
            sys.path[:] = [str(copy), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
            for name in [name for name in sys.modules if name.partition(".")[0] in ("fnlkit", "tests", "cli", "benchmarks")]:
                del sys.modules[name]
            import fnlkit

            if not Path(fnlkit.__file__).is_relative_to(copy):
                raise RuntimeError(f"{fnlkit.__file__} is not in the copy")
            # hypothesis is imported before pytest can rewrite its assertions, which is no mistake here.
            quiet = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
            code = pytest.main(["-x", *quiet, *tests], plugins=[Recorder(seen)])
        except BaseException as error:
            with open(seen, "a", encoding="utf-8") as file:
                file.write(type(error).__name__ + "\n")
            print(repr(error), flush=True)
        finally:
            os._exit(int(code))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            first = seen.read_text(encoding="utf-8").splitlines()[:1] if seen.exists() else []
            return os.waitstatus_to_exitcode(status), first[0] if first else ""
        time.sleep(0.02)
    os.killpg(child, 9)
    os.waitpid(child, 0)
    return None, "no end"


def verdict(code, exception):
    """Return ``killed``, ``SURVIVED`` or ``INVALID`` for the exit code of pytest and the first exception."""
    if code == 0:
        return "SURVIVED"
    if code is None or (code == 1 and exception not in INVALID):
        return "killed"
    return "INVALID"


@contextlib.contextmanager
def replaced(path, text, number):
    """Context in which a file of a copy has another text.

    Compiled Python files are recognized by the second of the change and the size: each `number` has another second.
    """
    before, stamp = path.read_text(encoding="utf-8"), path.stat().st_mtime_ns
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(stamp, stamp - (number + 1) * 10**9))
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")
        os.utime(path, ns=(stamp, stamp))


def judge(copy, mutation, number, log):
    """Return the verdict and the first exception of a mutation; the copy is unchanged afterwards."""
    path = copy / mutation.file
    with replaced(path, changed(mutation, path.read_text(encoding="utf-8")), number):
        code, exception = run_tests(copy, [mutation.test], log)
    return verdict(code, exception), exception


def report(rows, results):
    """Yield the lines of the output: a row per mutation, then the numbers per paper."""
    for mutation, found in zip(rows, results, strict=True):
        yield f"{found:8}  {mutation.paper:10} {mutation.equation:10} {mutation.computes}"
        yield f"          {mutation.file}: {' '.join(mutation.code.split())}"
        yield f"          -> {' '.join(mutation.change.split())}"
        yield f"          {mutation.test}"
    yield ""
    yield f"{'paper':12}{'equations':>10}{'mutations':>10}{'killed':>8}{'survived':>9}{'invalid':>8}"
    papers = {}
    for mutation, found in zip(rows, results, strict=True):
        papers.setdefault(mutation.paper, []).append((mutation.equation, found))
    for paper, each in (papers | {"all": [(f"{p} {e}", f) for p, those in papers.items() for e, f in those]}).items():
        count = Counter(found for _, found in each)
        numbers = f"{len(each):>10}{count['killed']:>8}{count['SURVIVED']:>9}{count['INVALID']:>8}"
        yield f"{paper:12}{len({equation for equation, _ in each}):>10}{numbers}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutations with this text in one of their fields")
    options = parser.parse_args()
    rows = [each for each in mutations() if any(options.only in getattr(each, field.name) for field in fields(each))]
    if not rows:
        parser.error(f"--only {options.only}: no row of {TABLE.name} has this text; write a paper, an equation or a file")
    for row in rows:
        changed(row, (ROOT / row.file).read_text(encoding="utf-8"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in LIBRARIES:
        __import__(name)
    with tempfile.TemporaryDirectory() as name:
        copy, log = Path(name).resolve() / "copy", Path(name).resolve() / "log"
        copy.mkdir()
        copy_repository(copy)
        code, exception = run_tests(copy, list(dict.fromkeys(row.test for row in rows)), log)
        if code != 0:
            print(log.read_text(encoding="utf-8"), file=sys.stderr)
            raise SystemExit(f"equations: the tests fail without a change ({exception}); repair them first")
        results = []
        for number, row in enumerate(rows):
            begin = time.monotonic()
            found, exception = judge(copy, row, number, log)
            results.append(found)
            seconds = f"{time.monotonic() - begin:.1f} s"
            print(f"{number + 1}/{len(rows)} {found} in {seconds} by {exception}: {row.paper} {row.equation}", file=sys.stderr)
    print(*report(rows, results), sep="\n")
    sys.exit(any(found != "killed" for found in results))


if __name__ == "__main__":
    main()
