"""docs/extending.md has a part of each kind, and all of them run."""

import re

from fnlkit.components import own
from tests.pages.steps import ROOT, walk

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")


def test_the_page_runs(tmp_path):
    walk("docs/extending.md", tmp_path)


def test_the_page_has_a_part_of_each_kind():
    named = re.findall(r"(\w+)\.py:(\w+)", PAGE)
    assert {"focus", "calm", "slow", "nearest", "Largest", "smooth", "net", "fours", "round_robin", "few", "pixels"} <= {
        name for _, name in named
    }
    assert len(own.CALLS) == 11
