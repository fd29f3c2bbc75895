"""Every command and snippet of README.md and docs/ runs, except blocks with a reason.

Pages with a separate test file in this folder are run there.
"""

import re
from pathlib import Path

import pytest

from tests.pages.steps import PAGES, ROOT, commands, items, steps, walk

HERE = Path(__file__).parent


def own(page):
    """Return the test file of a page, which need not exist."""
    return HERE / f"test_{Path(page).stem.replace('-', '_')}.py"


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if not own(page).exists() and steps(page)])
def test_the_page_runs(page, tmp_path):
    walk(page, tmp_path)


def test_pages_with_a_separate_test_file_are_run_there():
    for page in PAGES:
        if own(page).exists():
            assert f'walk("{page}"' in own(page).read_text(encoding="utf-8"), page


def test_blocks_that_are_not_run_have_a_reason():
    for page in PAGES:
        for line, mark, said, _, _ in items(page):
            if mark == "run by":
                name = Path(page).name
                assert name in (ROOT / said).read_text(encoding="utf-8"), f"{page}:{line}: {said} does not name {name}"
            elif mark == "not run":
                assert len(said.split()) > 3, f"{page}:{line}: {said}"


def test_commands_are_in_fenced_blocks():
    """Indented blocks have no language and are not run."""
    for page in PAGES:
        text = re.sub(r"(?ms)^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"))
        assert not re.search(r"(?m)^    +(fnlkit|python|pip|bash|import|from|>>>) ", text), page


def test_blocks_are_split_into_steps(tmp_path):
    assert commands("a \\\n  b |\n  c\n\n# no\nd\n") == ["a b | c", "d"]
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- shorter: train --rounds 1; audit --x -->\n```sh\nfnlkit a | fnlkit train b | fnlkit c && fnlkit train\n```\n"
        "<!-- not run: it takes a whole day -->\n```sh\nrm\n```\n```text\nshown\n```\n```python\n# mine.py\nx = 1\n```\n"
        "```python\n>>> 1\n1\n```\n```python\ny = 1\n```\n"
    )
    found = steps(page)
    assert found[0].text == "fnlkit a | fnlkit train b --rounds 1 | fnlkit c && fnlkit train --rounds 1"
    assert [(step.line, step.kind) for step in found] == [(2, "command"), (12, "file"), (16, "session"), (20, "code")]


@pytest.mark.parametrize(
    "text", ["```sh\nfnlkit info nowhere.npz\n```", "```python\n>>> 1 + 1\n3\n```", "```python\nraise ValueError\n```"]
)
def test_a_failing_block_fails_the_test(text, tmp_path):
    (tmp_path / "page.md").write_text(f"{text}\n")
    with pytest.raises((AssertionError, ValueError)):
        walk(tmp_path / "page.md", tmp_path)
