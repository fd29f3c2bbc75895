"""docs/extending.md has an example of each kind of component, and all of them run."""

import re

import pytest

from fnlkit.core import own
from tests.pages.steps import ROOT, walk

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_runs_and_has_an_example_of_each_kind(tmp_path, monkeypatch):
    walk("docs/extending.md", tmp_path)


def test_the_page_has_an_example_or_a_row_of_each_kind():
    """The kinds with a row have a template that tests/cli/test_methods.py runs."""
    examples = set(re.findall(r"^## An? (\w+)$", PAGE, re.MULTILINE))
    rows = set(re.findall(r"^\| (\w+) \| `\(", PAGE, re.MULTILINE))
    assert examples | rows == set(own.CALLS) and {"loss", "method", "optimizer"} <= examples
