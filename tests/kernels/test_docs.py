"""The page about the kernels tells the truth."""

import doctest
from pathlib import Path


def test_examples_of_the_page():
    page = Path(__file__).parents[2] / "docs" / "kernels.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted > 20 and results.failed == 0
