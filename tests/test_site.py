"""The site builds without a warning, has a page for every command, component and package, and fetches nothing.

One build serves all tests: ten seconds in a separate process, because mkdocs sets up logging.
"""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fnlkit import kernels
from fnlkit.cli import COMMANDS, group
from fnlkit.cli import parts as kinds
from fnlkit.core import registry
from fnlkit.simulate import noise

ROOT = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
for package in ("mkdocs", "material", "mkdocstrings", "mkdocs_gen_files", "mkdocs_literate_nav", "matplotlib"):
    pytest.importorskip(package, reason="needs the extra `docs`")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    return folder


class Fetched(HTMLParser):
    """Addresses that a browser fetches to show a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        at = known.get("src") if tag in ("script", "img", "iframe", "source") else known.get("href") if tag == "link" else None
        self.found += [at] if at else []


def test_no_page_fetches_anything_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(registry.METHODS) + len(COMMANDS)
    for page in pages:
        reader = Fetched()
        reader.feed(page.read_text(encoding="utf-8"))
        assert reader.found and not [at for at in reader.found if re.match(r"(https?:)?//", at)], page


def text_of(page):
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


def test_every_command_has_a_page_with_every_option(site):
    for name in COMMANDS:
        text, command = text_of(site / f"commands/{name}.html"), group.get_command(None, name)
        for each in [command, *getattr(command, "commands", {}).values()]:
            for option in each.params:
                for flag in option.opts if not option.param_type_name == "argument" and not option.hidden else ():
                    assert flag in text, (name, flag)


def test_every_method_has_a_page_with_its_parameters_and_replies(site):
    for name in registry.METHODS:
        ((kind, function), *_) = [found for found in kinds.find_all(name) if found[0] == "method"]
        text = text_of(site / f"method/{name}.html")
        for parameter, *_ in kinds.describe_parameters(kind, function):
            assert parameter in text, (name, parameter)
        assert "weights" in text


def test_every_other_component_has_an_entry(site):
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (site / "parts").glob("*.html")}
    for kind, each in kinds.KINDS.items():
        for name in each.parts() if kind != "method" else ():
            assert any(f'<h2 id="{name}"' in text for text in pages.values()), (kind, name)


def test_every_noise_model_is_drawn(site):
    page = (site / "noise.html").read_text(encoding="utf-8")
    drawn = re.findall(r'<img alt="[^"]* of (\w+)[^"]*" src="(noise/[^"]+\.svg)"', page)
    # A matrix of the user, labels of a file, no noise, and inputs of no class have no matrix to draw.
    assert {name for name, _ in drawn} == {*noise.MODELS} - {"matrix", "labels", "none"}
    assert all((site / path).stat().st_size > 1000 for _, path in drawn)


def test_the_kernels_are_in_the_reference_with_their_examples(site):
    text = text_of(site / "library/kernels.html")
    assert all(name in text for name in kernels.__all__) and "&gt;&gt;&gt; " in text


def test_links_to_repository_files_lead_to_copies(site):
    text = (site / "audits.html").read_text(encoding="utf-8")
    copied = re.findall(r'href="(files/[^"]+)"', text)
    assert copied and all((site / path).is_file() for path in copied)
