"""A person reviews with the keyboard in a real browser, without a network; what the page saves is what is taken in."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from fnlkit import datasets, partitioning
from fnlkit.review import decisions, page
from fnlkit.review.suspects import choose, neighbours_of

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (extra `browser`)")
CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    flags = "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-sync"
    for flag in f"{flags} disable-component-update window-size=1100,900".split():
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def test_keyboard_review(browser, tmp_path):
    data = datasets.load("digits")
    clean = partitioning.federation(data, clients=4, labels="observed")
    rng = np.random.default_rng(0)
    suggested = (clean.given + 1) % 10
    arrays = {
        "issue_score": rng.random(len(clean.given)),
        "flagged": np.ones(len(clean.given), bool),
        "suggested_label": suggested,
    }
    federation = replace(clean, extra={f"estimate_{k}": v for k, v in arrays.items()})
    chosen = choose(federation, 2, budget=8)
    first, held, of = int(chosen.positions[0]), clean.clients[2], np.full(len(clean.given), -1)
    of[held[held != first][0]] = first
    federation.extra["estimate_copy_of"] = of
    near = neighbours_of(data.x_train.reshape(len(data.x_train), -1), chosen.positions, federation.clients[2])
    file = tmp_path / "review.html"
    file.write_text(page.page(federation, data, 2, chosen, near, "Bonn"), encoding="utf-8")
    browser.get(file.as_uri())
    body = browser.find_element("tag name", "body")
    browser.find_element("id", "who").send_keys("Ada, née Byron")
    browser.execute_script("document.activeElement.blur()")
    assert [len(browser.find_elements("css selector", f"{at} img")) for at in ("#copies", "#pairs")] == [1, 2]
    browser.find_element("tag name", "summary").click()  # shows the pairs
    assert browser.find_element("id", "pairs").is_displayed()
    browser.execute_script("document.activeElement.blur()")
    body.send_keys("k")  # 0 keeps
    assert not browser.find_element("id", "copied").is_displayed()
    body.send_keys("a")  # 1 is changed
    body.send_keys("d")  # 2 is left out
    body.send_keys("a", "\ue012", "u", "\ue014")  # 3 is changed, back, undone, forward: undecided
    assert f"5 of 8, 3 decided: sample {chosen.positions[4]}" in browser.find_element("id", "state").text
    browser.find_element("id", "classes").send_keys("7")
    shown = browser.execute_script("return [...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert shown and not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    browser.refresh()  # decisions and the name stay in the browser, and the review goes on at the first open sample
    assert f"4 of 8, 4 decided: sample {chosen.positions[3]}" in browser.find_element("id", "state").text
    found = decisions.read(browser.execute_script("return csv()"), federation, data)
    p, given = chosen.positions, federation.given
    labels = dict(zip(found.positions.tolist(), found.label.tolist(), strict=True))
    assert labels[p[0]] == given[p[0]] and labels[p[1]] == suggested[p[1]] and labels[p[2]] == -1 and p[3] not in labels
    assert labels[p[4]] == 7 and found.who == ["Ada, née Byron"] and found.client == 2
    browser.save_screenshot(str(tmp_path / "page.png"))
