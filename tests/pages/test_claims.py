"""Statements about privacy and loss in the pages about real sites name the test that checks them.

A comment ``<!-- test: FILE::TEST -->`` ends a block of the page's source whose sentences the test checks. ``<!-- limit -->``
marks a block that promises nothing: it states what the protection does not do.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = "deployment*", "audits", "audit-by-mail"
PAGES = sorted(path for name in NAMES for path in ROOT.glob(f"docs/{name}.md"))
MARK = re.compile(r"<!-- test: (\S+)::(\w+) -->")
NOT_TEXT = re.compile(
    r"(?ms)^```.*?^```$|<!-- computed: .*?<!-- end -->|^#.*?$|^<!-- (?:given|shorter|needs|run by|not run|numbers): .*?-->$"
)
CLAIM = re.compile(
    r"(?i)\b(leaves?|left|reveals?|masks?|masked|secret|privacy|private|never|lost|loses|refuses?|refused|withheld|hash(?:es)?|"
    r"stays? (?:at|here|there|with)|sends? (?:only|nothing))\b"
)


def blocks(page):
    """Return the blocks of a page's source with sentences, each with its comments."""
    text = NOT_TEXT.sub("", page.read_text(encoding="utf-8"))
    found = []
    for block in re.split(r"\n\s*\n", text):
        if found and block.strip() and not re.sub(r"(?s)<!--.*?-->", "", block).strip():
            found[-1] += block  # comments after a table
        elif block.strip():
            found.append(block)
    return found


@cache
def names_in(path):
    """Return the names of the tests of a file."""
    return {
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }


def unmarked(page):
    """Return the beginnings of blocks with a statement and neither a test nor a limit."""
    return [
        re.sub(r"\s+", " ", block.strip())[:100]
        for block in blocks(page)
        if CLAIM.search(re.sub(r"(?s)<!--.*?-->|\[[^\]]*\]\(.*?\)", "", block))
        and not MARK.search(block)
        and "<!-- limit -->" not in block
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_statements_name_their_tests(page):
    assert unmarked(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_tests_exist(page):
    named = MARK.findall(page.read_text(encoding="utf-8"))
    assert [f"{path}::{name}" for path, name in named if not (ROOT / path).exists() or name not in names_in(path)] == []
    assert page.read_text(encoding="utf-8").count("<!-- test:") == len(named)


def test_a_new_statement_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nNothing leaves the site.\n\nA site has samples.\n\nA key is secret.\n<!-- limit -->\n")
    assert unmarked(page) == ["Nothing leaves the site."]
    page.write_text("Nothing leaves the site.\n<!-- test: tests/pages/test_claims.py::test_named_tests_exist -->\n")
    assert unmarked(page) == []
