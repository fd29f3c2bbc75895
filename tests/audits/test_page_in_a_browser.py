"""A person reviews with the keyboard in a real browser, without a network; what the page saves is what is taken in."""

import base64
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.audits import decisions, page, report
from fnlkit.audits.server.verdict import AGREES
from fnlkit.audits.suspects import choose, choose_guaranteed, neighbors_of, points_of
from fnlkit.simulate import partitioning

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (extra `browser`)")
WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
RECORDED = Path(__file__).parent / "recorded.json"
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


@pytest.fixture(scope="module")
def digits():
    """Digits, some of whose classes are called as decisions and formulas are."""
    return replace(datasets.load("digits"), class_names=["keep", "drop", "=1+1", *"3456789"])


def opened(browser, folder, data, select=choose, *, copies=False, **options):
    """Show the page of a federation of two clients that suggests the next class everywhere; return (federation, selection)."""
    clean = partitioning.federation(data, clients=2, labels="observed", duplicates="allow")
    n = len(clean.given)
    arrays = {"issue_score": np.linspace(0, 1, n), "flagged": np.ones(n, bool), "copy_of": np.full(n, -1)}
    arrays["suggested_label"] = (clean.given + 1) % data.classes
    federation = replace(clean, extra={f"estimate_{name}": values for name, values in arrays.items()})
    chosen, held = select(federation, 1, **{"budget": 4, "at_random": 0.5} | options), clean.clients[1]
    if copies:
        arrays["copy_of"][held[held != chosen.positions[0]][0]] = chosen.positions[0]
    near = neighbors_of(points_of(data, np.arange(n)), chosen.positions, held)
    (folder / "review.html").write_text(page.page(federation, data, 1, chosen, near, "Bonn"), encoding="utf-8")
    browser.get((folder / "review.html").as_uri())
    return federation, chosen


def press(browser, *keys):
    browser.find_element("tag name", "body").send_keys(*keys)


def decided(browser, federation, data):
    """Return {position: decided label} of the table that the page would save."""
    found = decisions.read_decisions(browser.execute_script("return csv()"), federation, data)
    return dict(zip(found.positions.tolist(), found.label.tolist(), strict=True)), found


def test_keyboard_review(browser, digits, tmp_path):
    federation, chosen = opened(browser, tmp_path, digits, copies=True, budget=12)
    p, given = chosen.positions.tolist(), federation.given
    browser.find_element("id", "who").send_keys("Ada, née Byron")
    browser.execute_script("document.activeElement.blur()")
    assert [len(browser.find_elements("css selector", f"{at} img")) for at in ("#copies", "#pairs")] == [1, 2]
    browser.find_element("tag name", "summary").click()  # shows the pairs
    assert browser.find_element("id", "pairs").is_displayed()
    browser.execute_script("document.activeElement.blur()")
    press(browser, "k")  # 0 keeps
    assert not browser.find_element("id", "copied").is_displayed()
    assert not browser.find_element("id", "hinted").is_displayed()
    press(browser, "a")  # 1: shows the suggestion first
    assert browser.find_element("id", "hinted").is_displayed()
    press(browser, "a")  # 1 is changed
    assert not browser.find_element("id", "hinted").is_displayed()
    press(browser, "d")  # 2 is left out
    press(browser, "h", "a", "u", "\ue014")  # 3 is changed, undone, forward: undecided
    assert f"5 of 12, 3 decided: sample {p[4]}" in browser.find_element("id", "state").text
    browser.find_element("id", "classes").send_keys("7")
    shown = browser.execute_script("return [...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert shown and not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    browser.refresh()  # decisions and the name stay in the browser, and the review goes on at the first open sample
    goes_on = f"4 of 12, 4 decided: sample {p[3]}"
    WebDriverWait(browser, 20).until(lambda _: goes_on in browser.find_element("id", "state").text)
    wanted = {p[0]: given[p[0]], p[1]: (given[p[1]] + 1) % 10, p[2]: -1, p[4]: 7}
    press(browser, "\ue014", "\ue014")
    for i, position in enumerate(p[5:]):
        press(browser, *(["k"] if i % 2 else ["h", "a"]))
        wanted[position] = given[position] if i % 2 else (given[position] + 1) % 10
    labels, table = decided(browser, federation, digits)
    assert labels == wanted and {0, 1, 2} & {*labels.values()} and ",=1+1" not in browser.execute_script("return csv()")
    assert table.who == ["Ada, née Byron"] and table.client == 1


def test_undo_takes_back_the_last_decision_and_shows_its_sample(browser, digits, tmp_path):
    federation, chosen = opened(browser, tmp_path, digits)
    p, given = chosen.positions.tolist(), federation.given
    press(browser, "d", "u")
    assert decided(browser, federation, digits)[0] == {}
    assert browser.find_element("id", "state").text.startswith("1 of 4, 0 decided")
    press(browser, "k", "d", "n", "u", "u")  # back to the second sample
    assert decided(browser, federation, digits)[0] == {p[0]: given[p[0]]}
    assert browser.find_element("id", "state").text.startswith("2 of 4, 1 decided")
    browser.refresh()
    press(browser, "\ue012", "d", "u")  # the first sample is left out in place of kept, and kept again
    assert decided(browser, federation, digits)[0] == {p[0]: given[p[0]]}
    press(browser, "d", "k", "k", "d", "u")  # the last sample: the page has nowhere to go on to
    assert list(decided(browser, federation, digits)[0]) == p[:3]
    press(browser, "u", "u", "u", "u", "u", "u")
    assert decided(browser, federation, digits)[0] == {} and not browser.find_element("id", "undo").is_enabled()


def test_many_samples_are_reviewed_at_once(browser, digits, tmp_path):
    """A grid of 24 samples: marks are decisions, a page is kept by one key, and 60 samples need no 60 pictures at once."""
    federation, chosen = opened(browser, tmp_path, digits, budget=60)
    p, given = chosen.positions.tolist(), federation.given
    shown = lambda: browser.find_elements("css selector", "#tiles figure")  # noqa: E731
    press(browser, "g")
    assert len(shown()) == 24 and not browser.find_element("id", "card").is_displayed()
    press(browser, "d", "k")
    shown()[5].click()
    press(browser, "n")
    press(browser, "e")  # keeps the other 21 of the page, and turns it
    assert (
        browser.find_element("id", "part").text == "25 to 48 of 60" and "24 decided" in browser.find_element("id", "state").text
    )
    labels, table = decided(browser, federation, digits)
    assert labels == {p[0]: -1} | {x: given[x] for i, x in enumerate(p[:24]) if i not in (0, 5)}
    assert table.unsure.tolist() == [p[5]]
    press(browser, *"u" * 24)
    assert decided(browser, federation, digits)[0] == {}
    only = digits.class_names[given[p[30]]]
    browser.find_element("id", "only").send_keys(only)
    assert all(tile.text.split("\n")[0] == only for tile in shown()) and p[30] in [
        p[i] for i in browser.execute_script("return listed()")
    ]
    press(browser, "e")
    assert set(decided(browser, federation, digits)[0]) == {x for x in p if given[x] == given[p[30]]}
    press(browser, "g")
    assert browser.find_element("id", "card").is_displayed() and not browser.find_element("id", "tiles").is_displayed()


def test_two_tabs_do_not_overwrite_each_other(browser, tmp_path):
    """The second tab wrote all of its decisions, without those of the first one since it was opened."""
    data = datasets.load("digits")
    federation, chosen = opened(browser, tmp_path, data)
    p, given, first = chosen.positions.tolist(), federation.given, browser.current_window_handle
    page_address = browser.current_url
    browser.switch_to.new_window("tab")
    try:
        browser.get(page_address)
        second = browser.current_window_handle
        browser.switch_to.window(first)
        press(browser, "k", "d")  # the first two samples
        browser.switch_to.window(second)
        WebDriverWait(browser, 20).until(lambda _: "2 decided" in browser.find_element("id", "state").text)
        press(browser, "\ue014", "\ue014", "k")  # the third sample
        browser.switch_to.window(first)
        press(browser, "\ue014", "k")  # the fourth sample
        both = {p[0]: given[p[0]], p[1]: -1, p[2]: given[p[2]], p[3]: given[p[3]]}
        assert decided(browser, federation, data)[0] == both
        browser.switch_to.window(second)
        assert decided(browser, federation, data)[0] == both
        press(browser, "u", "u")  # the last decisions of both tabs
        assert list(decided(browser, federation, data)[0]) == p[:2]
        browser.close()
    finally:
        browser.switch_to.window(first)


def test_the_page_shows_the_progress_towards_the_guarantee(browser, tmp_path):
    """With all candidates decided, the length is that of the imported list; the table has the plan of the review."""
    data = datasets.load("digits")
    federation, _ = opened(browser, tmp_path, data, choose_guaranteed, guarantee=0.2, budget=12, at_random=0.25, candidates=60)
    assert browser.find_element("id", "promise").text == "0 of 12 decided"
    for _ in range(6):
        press(browser, "h", "a")
    early = browser.find_element("id", "promise").text
    browser.refresh()
    assert browser.find_element("id", "promise").text == early and "if the rest is alike" in early
    for _ in range(6):
        press(browser, "h", "a")
    found = decisions.read_decisions(browser.execute_script("return csv()"), federation, data)
    record = decisions.decide(federation, found, when="today").meta["reviews"][0]["guarantee"]
    assert len(record["listed"]) == 51
    assert browser.find_element("id", "promise").text == "12 of 12 decided; list of about 51 labels at 20 %"


def test_nothing_shows_which_samples_were_drawn_at_random(browser, tmp_path):
    """Suspects and random samples show the same words and buttons; scores appear on request alone."""
    data = datasets.load("digits")
    federation, chosen = opened(browser, tmp_path, data, budget=6)
    texts = []
    for position in chosen.positions:
        words = browser.find_element("id", "card").text.replace(str(federation.given[position]), "?")
        assert "score" not in words and "random" not in words and "change to" not in words
        texts.append([line for line in words.splitlines() if not line.strip().isdecimal()])
        press(browser, "h")
        assert "score" in browser.find_element("id", "hinted").text
        press(browser, "\ue014")
    assert 0 < chosen.suspect.sum() < 6 and all(len(one) >= 5 for one in texts)
    assert all(one[:8] == texts[0][:8] for one in texts)


def test_a_photo_is_enlarged_and_a_table_shows_names_and_gaps(browser, tmp_path):
    rng = np.random.default_rng(0)
    photos = np.clip(rng.normal(128, 40, (8, 1)) + np.arange(200 * 300).reshape(1, -1) / 1000, 0, 255)
    photos = np.repeat(photos.reshape(8, 200, 300, 1), 3, -1).astype(np.uint8)
    labels = np.arange(8) % 2
    picture = datasets.Dataset("p", "image", labels, labels[:0], ["a", "b"], lambda: (photos, photos[:0]), observed=True)
    opened(browser, tmp_path, picture, budget=2)
    large = "return document.querySelector('#sample img').naturalWidth"
    assert browser.execute_script(large) == 300
    press(browser, "z")
    until = "return document.getElementById('zoom').open && document.querySelector('#big img').getBoundingClientRect().width"
    WebDriverWait(browser, 5).until(lambda b: b.execute_script(until))
    first = browser.execute_script(until)
    press(browser, "+")
    assert browser.execute_script(until) == pytest.approx(1.5 * first, rel=0.02)
    press(browser, "z")
    assert not browser.execute_script(until)
    columns = [
        {"name": "age", "kind": "number", "fill": 50.5, "missing": True},
        {"name": "city", "kind": "one-hot", "levels": ["Aix", "Bonn", "(missing)"]},
        {"name": "grade", "kind": "rank", "levels": ["I", "II"], "fill": 0.5, "missing": False},
    ]
    x = np.array([[50.5, 1, 0, 1, 0, 1], [31, 0, 0, 0, 1, 0]] * 4, np.float32)
    table = datasets.Dataset("t", "vector", labels, labels[:0], ["a", "b"], lambda: (x, x[:0]), observed=True, table=columns)
    _, chosen = opened(browser, tmp_path, table, budget=4, at_random=0)
    seen = {}
    for position in chosen.positions:
        cells = browser.find_elements("css selector", "#sample td")
        seen[int(labels[position])] = [cell.text for cell in cells]
        press(browser, "\ue014")
    assert seen == {0: ["age", "missing", "city", "Bonn", "grade", "II"], 1: ["age", "31", "city", "missing", "grade", "I"]}


def test_a_picture_of_16_bits_has_window_and_level(browser, tmp_path):
    """Two gray levels that are 1/1000 of the range apart look alike until the window is narrow."""
    x = np.full((8, 90, 70, 1), 0.5, np.float32)
    x[:, :45] += 0.001
    x[:, 0, 0], x[:, 0, 1] = 0, 1
    labels = np.arange(8) % 2
    data = datasets.Dataset("p", "image", labels, labels[:0], ["a", "b"], lambda: (x, x[:0]), observed=True)
    federation, _ = opened(browser, tmp_path, data, budget=2)
    read = """const c = document.querySelector('#sample canvas'), x = c.getContext('2d');
        return c.raw && [x.getImageData(5, 20, 1, 1).data[0], x.getImageData(5, 80, 1, 1).data[0]]"""
    WebDriverWait(browser, 5).until(lambda b: b.execute_script(read))
    upper, lower = browser.execute_script(read)
    assert abs(upper - lower) <= 1 and 120 < upper < 135
    assert browser.find_element("id", "window").is_displayed()
    move = (
        "for (const [id, v] of [['level', 0.5], ['width', 0.01]]) { $(id).value = v; $(id).dispatchEvent(new Event('input')); }"
    )
    browser.execute_script(move)
    upper, lower = browser.execute_script(read)
    assert upper - lower > 20
    press(browser, "k", "z")
    WebDriverWait(browser, 5).until(lambda b: b.execute_script("return $('zoom').open"))
    press(browser, "u")  # works in the enlarged picture, too
    assert decided(browser, federation, data)[0] == {}
    browser.find_element("id", "whole").click()
    WebDriverWait(browser, 5).until(lambda b: b.execute_script(read))
    upper, lower = browser.execute_script(read)
    assert abs(upper - lower) <= 1 and not browser.execute_script("return $('zoom').open")


def audited():
    """Return the facts of an audit of three sites and two classes, the last one not noisy, and pictures of suspects."""
    facts = json.loads(RECORDED.read_text())["audit"] | {"classes": ["a", "b"], "assumptions": ["one"], "sent": {}}
    first, second, last = facts["sites"]
    for row in facts["sites"]:
        row |= {"matrix": [[90.0, 10], [0, 100]], "confused": [], "skill_by_class": [], "words": ["Wrong labels: about 10 %."]}
    first["site"], second["site"] = "University Hospital of Bonn", "x" * 80
    last |= {"noisier": False, "finding": AGREES, "words": ["0.0 to 2.0 % of the labels can be wrong."], "next": []}
    image = page.view(datasets.load("digits"), 0) | {"given": "3", "suggested": "5"}
    wave = {"wave": [[-0.5, 0.5], [-1, 1]], "given": "3", "suggested": "3"}
    return facts, {first["site"]: [image] * 5 + [wave]}


def test_the_audit_fits_a_phone_and_one_printed_page(browser, tmp_path):
    """No column is narrower than a word, and nothing is wider than the screen."""
    facts, suspects = audited()
    file = tmp_path / "audit.html"
    file.write_text(report.page(facts, "judged.npz", suspects), encoding="utf-8")
    try:
        for width in (390, 1200):
            size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get(file.as_uri())
            cells = "return [...document.querySelectorAll('.sites tbody td')].map(c => c.clientWidth)"
            assert min(browser.execute_script(cells)) > (300 if width == 390 else 25)
            if width == 390:
                assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            assert not browser.find_element("css selector", "details table").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    facts["sites"] = [row | {"site": f"{row['site'][:9]} {i}"} for i, row in enumerate(facts["sites"] * 2)]
    suspects = {row["site"]: next(iter(suspects.values())) for row in facts["sites"] if row["noisier"]}
    file.write_text(report.page(facts, "judged.npz", suspects), encoding="utf-8")
    browser.get(file.as_uri())
    assert len(browser.find_elements("css selector", "table.matrix")) == 6
    assert len(browser.find_elements("css selector", "figure")) == 24 and browser.find_elements("css selector", "figure path")
    assert browser.execute_script("return [...document.images].every(i => i.complete && i.naturalWidth > 0)")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})["data"]
    assert len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed))) == 1
