"""docs/extending.md has an example of each kind of component, and all of them run."""

import re

from fnlkit.components import own
from tests.pages.steps import ROOT, walk

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")


def test_the_page_runs_and_has_an_example_of_each_kind(tmp_path, monkeypatch):
    walk("docs/extending.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    named = {name for name in re.findall(r"\b\w+\.py:\w+", PAGE) if (tmp_path / name.partition(":")[0]).exists()}
    assert {kind for name in named for kind, _ in own.kinds(name)} == set(own.CALLS)
