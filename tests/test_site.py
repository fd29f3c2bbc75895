"""The site builds without a warning, says all that the library says of itself, and fetches nothing.

One build for all, eight seconds in a process of its own: mkdocs sets up logging and imports its hooks by path.
"""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fnlkit import kernels, noise
from fnlkit.cli import COMMANDS, group
from fnlkit.cli import parts as kinds
from fnlkit.components import registry

ROOT = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
for package in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(package, reason="needs the extra `docs`")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    return folder


class Fetched(HTMLParser):
    """What a browser would fetch for a page by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        at = known.get("src") if tag in ("script", "img", "iframe", "source") else known.get("href") if tag == "link" else None
        self.found += [at] if at else []


def test_no_page_fetches_anything_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
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


def test_every_method_has_a_page_and_every_other_part_an_entry(site):
    for name in registry.METHODS:
        text = text_of(site / f"method/{name}.html")
        assert all(head in text for head in ("How it works", "What leaves a client", "Measured")), name
    for kind, each in kinds.KINDS.items():
        if kind != "method":
            found = [p for p in (site / "parts").glob("*.html") if p.stem.startswith(kind) or kind == "model"]
            for name in each.parts():
                assert any(f'<h2 id="{name}"' in p.read_text(encoding="utf-8") for p in found), (kind, name)


def test_what_is_measured_stands_on_the_methods_page(site):
    rows = re.findall(
        r"^\| ([^|]+) \| `(\w+)` \| ([^|]+) \|", (ROOT / "docs/results.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 10
    for regime, method, figure in rows:
        text = text_of(site / f"method/{method}.html")
        assert regime in text and figure in text, (method, regime)
    assert "fedcorr/table10 21" in text_of(site / "method/fedcorr.html")  # all rows of it


def test_notes_of_the_methods_page_reach_their_methods(site):
    assert "It ranks and splits by the local model's losses" in text_of(site / "method/fedcorr.html")
    assert "are as good as the embedding" in text_of(site / "method/akd.html")
    assert "In a batch without disagreement" in text_of(site / "method/coteaching-plus.html")


def test_every_noise_model_is_drawn(site):
    page = (site / "noise.html").read_text(encoding="utf-8")
    drawn = {label.partition("(")[0] for label in re.findall(r'class="matrices" role="group" aria-label="([^"]+)"', page)}
    assert drawn == {*noise.MODELS} - {"matrix", "labels", "none"}
    # symmetric(eta=0.4): 0.6 on the diagonal, 0.4 / 9 beside it.
    assert "<title>3 given as 3: 0.60</title>" in page and "<title>3 given as 4: 0.04</title>" in page


def test_the_kernels_are_in_the_reference_with_their_examples(site):
    text = text_of(site / "library/kernels.html")
    assert all(name in text for name in kernels.__all__) and "&gt;&gt;&gt; " in text


SHOWN = ("index", "tutorial", "noise", "method/fedcorr", "commands/train", "library/kernels", "results")


@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_it_on_a_phone_and_on_a_wide_screen(site, dark):
    """No error in the console, nothing wider than the screen, colors as the reader asked for."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (extra `browser`)")
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if not (chromium and driver):
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-sync"
    for flag in f"{flags} disable-component-update".split():
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as browser:
        asked = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [asked]})
        for width in (400, 1400):
            screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            for page in SHOWN:
                browser.get((site / f"{page}.html").as_uri())
                assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"), (page, width)
                ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
                assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 384) == dark, (page, ground)
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
