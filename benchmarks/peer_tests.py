"""Run cleanlab's own tests with fnlkit's functions in their place.

    python -m benchmarks.peer_tests --cleanlab CHECKOUT --label-errors CHECKOUT

A checkout is a folder with the repository cleanlab/cleanlab, or cleanlab/label-errors (data that test_dataset.py downloads
otherwise). Packages: cleanlab 2.9, pytest, hypothesis, 'datasets<4', 'pyarrow<21', matplotlib. The output has,
for each test file, the tests that pass, those of them that call a function of fnlkit, and the failures by reason. Exit code 1:
a failure without a reason.
"""

import argparse
import functools
import importlib
import io
import os
import sys
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

# Names of fnlkit that replace those of cleanlab.
NAMES = {
    "filter": ("find_label_issues",),
    "rank": ("get_label_quality_scores",),
    "count": (
        "get_confident_thresholds",
        "compute_confident_joint",
        "calibrate_confident_joint",
        "estimate_joint",
        "num_label_issues",
        "estimate_py_and_noise_matrices_from_probabilities",
    ),
    "dataset": (
        "rank_classes_by_label_quality",
        "find_overlapping_classes",
        "overall_label_health_score",
        "health_summary",
    ),
}
FILES = (
    "test_filter_count.py",
    "test_rank.py",
    "test_latent_algebra.py",
    "test_dataset.py",
    "datalab/datalab/test_datalab.py",
)
NO_DATA = "data of cleanlab/label-errors is not in the checkout"
# Part of a test's name and message, and the reason for its failure.
REASONS = (
    (NO_DATA, NO_DATA),
    (
        "is not searched; kinds: null",
        "kinds that fnlkit does not search: data valuation, groups of low accuracy, a user's own kinds",
    ),
    ("has no attribute 'info'", "the dictionary `info`; results are in tables"),
    ("has no attribute 'get_info'", "the dictionary `info`; results are in tables"),
    ("has no attribute 'data", "attributes of cleanlab's class"),
    ("Missing attribute data", "attributes of cleanlab's class"),
    ("has no attribute 'list_default", "attributes of cleanlab's class"),
    ("has no attribute 'save'", "files of a Datalab"),
    ("has no setter", "tests that replace a table of the class by a mock"),
    ("has no options here", "options of a kind, such as k and metric"),
    ("needs `features`", "outliers and other kinds from `pred_probs` alone"),
    ("`features` must have shape (3, D)", "features with another number of samples than `data`, which fnlkit refuses"),
    ("`pred_probs` and `features` are missing", "calls without input, which fnlkit refuses"),
    ("`task` must be 'classification'", "regression and several classes in Datalab; cleanlab has them"),
    ("test_print", "sentences of cleanlab's report and messages"),
    ("Report should contain", "sentences of cleanlab's report and messages"),
    ("Invalid issue type", "sentences of cleanlab's report and messages"),
    ("without_values_in_issue_types", "sentences of cleanlab's report and messages"),
    ("TestDatalabFindOutlierIssues::test_incremental", "other limits of outliers and near copies (those of the audit)"),
    ("test_fixed_embeddings_outputs", "other limits of outliers and near copies (those of the audit)"),
)


def replace_functions():
    """Replace cleanlab's functions and return a counter of the calls of fnlkit's."""
    calls = Counter()

    def counted(name, function):
        @functools.wraps(function)
        def call(*args, **options):
            calls[name] += 1
            return function(*args, **options)

        return call

    for module, names in NAMES.items():
        theirs, ours = (importlib.import_module(f"{package}.{module}") for package in ("cleanlab", "fnlkit"))
        for name in names:
            if not hasattr(theirs, name):
                raise SystemExit(f"cleanlab.{module} has no {name}; install cleanlab 2.9")
            setattr(theirs, name, counted(f"{module}.{name}", getattr(ours, name)))
    import cleanlab.datalab.datalab

    import fnlkit

    fnlkit.Datalab.find_issues = counted("Datalab.find_issues", fnlkit.Datalab.find_issues)
    cleanlab.Datalab = cleanlab.datalab.datalab.Datalab = fnlkit.Datalab
    return calls


def read_downloads_from(folder):
    """Let ``requests.get`` return files of a checkout of cleanlab/label-errors."""
    import requests

    def get(url):
        path = Path(folder or "/nonexistent", *url.split("/")[7:])
        if not path.is_file():
            raise FileNotFoundError(f"{NO_DATA}: {path.name}")
        return SimpleNamespace(content=path.read_bytes(), raise_for_status=lambda: None)

    requests.get = get


class Record:
    """Pytest plugin with the outcome of each test.

    Attributes
    ----------
    tests : dict of str to (bool, bool, str)
        Whether the test passes, whether it calls a function of fnlkit, and the last line of its error.
    """

    def __init__(self, calls):
        self.calls, self.tests, self.before = calls, {}, 0

    def pytest_runtest_setup(self, item):
        self.before = self.calls.total()

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = "" if report.passed else str(getattr(crash, "message", report.longrepr)).replace("\n", " ")
            self.tests[report.nodeid] = (report.passed, self.calls.total() > self.before, message)


def run(folder, files, calls):
    """Run test files of cleanlab and return a `Record`."""
    import pytest

    record = Record(calls)
    options = ["-q", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", "-W", "ignore", "--tb=line"]
    standard = sys.stdout
    sys.stdout = io.StringIO()
    try:
        pytest.main([*options, *(str(folder / "tests" / name) for name in files)], plugins=[record])
    finally:
        sys.stdout = standard
    return record


def report(record, files):
    """Print a table of the files and the failures by reason; return the number of failures without a reason."""
    print(f"cleanlab's tests{'':<28}pass    of    call fnlkit")
    failures = Counter()
    for name in files:
        of_file = [(test, *rest) for test, rest in record.tests.items() if test.partition("::")[0].endswith(name)]
        passed = [called for _, ok, called, _ in of_file if ok]
        print(f"  {name:<40}{len(passed):>6}{len(of_file):>6}{sum(passed):>8}")
        for test, ok, _, message in of_file:
            if not ok:
                reason = next((reason for part, reason in REASONS if part in f"{test} {message}"), None)
                failures[reason or f"WITHOUT A REASON: {test.partition('::')[2]}: {message[:160]}"] += 1
    print("failures by reason")
    for reason, number in sorted(failures.items(), key=lambda item: -item[1]):
        print(f"  {number:>3}   {reason}")
    return sum(number for reason, number in failures.items() if reason.startswith("WITHOUT"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cleanlab", type=Path, required=True, help="checkout of cleanlab/cleanlab")
    parser.add_argument("--label-errors", type=Path, help="checkout of cleanlab/label-errors")
    args = parser.parse_args()
    if not (args.cleanlab / "tests" / FILES[0]).is_file():
        parser.error(f"--cleanlab: {args.cleanlab} has no tests/{FILES[0]}")
    warnings.simplefilter("ignore")
    calls = replace_functions()
    read_downloads_from(args.label_errors)
    failures = report(run(args.cleanlab, FILES, calls), FILES)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
