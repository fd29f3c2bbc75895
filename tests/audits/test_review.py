"""A review lists what buys most, says what it found without overclaiming, and its labels stay for good."""

import base64
import io
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fnlkit import datasets
from fnlkit.audits import decisions, page
from fnlkit.audits.correct import correct
from fnlkit.audits.suspects import choose, client_of, find_reviewed, neighbors_of, points_of
from fnlkit.simulate import partitioning
from tests.commands import refuse_call
from tests.tables import format_csv, parse_csv
from tests.toy import toy


@pytest.fixture(scope="module")
def world():
    """Digits over 4 clients, a quarter of client 1's labels wrong; issue scores that find most of them."""
    data, rng = datasets.load("digits"), np.random.default_rng(0)
    clean = partitioning.federation(data, clients=4, labels="observed")
    given, held = clean.given.copy(), clean.clients[1]
    wrong = rng.permutation(held)[: len(held) // 4]
    given[wrong] = (given[wrong] + 1) % 10
    score = rng.random(len(given)) * 0.6
    score[wrong] += 0.35
    suggested = np.where(score > 0.5, data.y_train, given)
    arrays = {"issue_score": score, "flagged": suggested != given, "suggested_label": suggested}
    return replace(clean, given=given, extra={f"estimate_{k}": v for k, v in arrays.items()}), data, wrong


def reviewed_by(federation, data, selection, client=1, limit=None):
    """Return the table as a person who knows the truth fills it in, from the top, `limit` rows."""
    rows = parse_csv(decisions.decision_template(federation, data, client, selection))
    for row in rows[:limit]:
        truth = data.class_names[data.y_train[int(row["position"])]]
        row |= {"decision": "keep"} if truth == row["given"] else {"decision": "relabel", "label": truth}
        row["reviewer"] = "Ada"
    return format_csv(rows, lineterminator="\r\n")


def test_the_most_suspicious_and_a_random_sample_of_the_rest(world):
    federation, data, wrong = world
    chosen = choose(federation, 1, budget=100, at_random=0.2)
    held = federation.clients[1]
    assert len(np.unique(chosen.positions)) == 100 and np.isin(chosen.positions, held).all() and chosen.suspect.sum() == 80
    score = federation.extra["estimate_issue_score"]
    top = held[np.argsort(-score[held])][:80]
    assert set(chosen.positions[chosen.suspect]) == set(top) and chosen.others == len(held) - 80
    assert abs((~chosen.suspect)[:50].sum() - 10) <= 1  # a review that ends early has some of both
    assert len(choose(federation, 1, budget=10**6).positions) == len(held)
    refuse_call("from 0 to 3", choose, federation, 4)
    refuse_call("no issue scores", choose, replace(federation, extra={}), 1)


def test_decisions_come_back_with_a_trail_and_a_level_that_covers(world):
    federation, data, wrong = world
    selection = choose(federation, 1, budget=120, at_random=0.4)
    found = decisions.read_decisions(reviewed_by(federation, data, selection), federation, data)
    out = decisions.decide(federation, found, when="2026-01-02")
    record, share = out.meta["reviews"][0], len(wrong) / len(federation.clients[1])
    assert record["who"] == ["Ada"] and record["decided"] == 120 and record["client"] == 1
    assert record["level"]["low"] <= share <= record["level"]["high"]
    assert (out.extra["received"] == federation.given).all() and find_reviewed(out).sum() == 120
    assert (out.given[selection.positions] == data.y_train[selection.positions]).all()
    untouched = ~find_reviewed(out)
    assert (out.given[untouched] == federation.given[untouched]).all()
    for position, before, after in record["changed"]:
        assert federation.given[position] == before != after == out.given[position]
    again = choose(out, 1, budget=120)
    assert not np.isin(again.positions, selection.positions).any()


def test_the_level_falls_with_the_review(world):
    """After 200 decisions what is left is what the random sample says of the rest; the interval holds the truth."""
    federation, data, wrong = world
    T = np.tile(0.75 * np.eye(10) + 0.025, (4, 1, 1))
    ends = {f"estimate_client_level{end}": np.full(4, v) for end, v in (("", 0.25), ("_low", 0.2), ("_high", 0.3))}
    extra = {**ends, "estimate_client_transition": T}
    federation = replace(federation, extra=federation.extra | extra)
    out = federation
    for budget in (100, 100):
        selection = choose(out, 1, budget=budget, at_random=0.4)
        found = decisions.read_decisions(reviewed_by(out, data, selection), out, data)
        out = decisions.decide(out, found, when="today")
    first, last = (record["after"] for record in out.meta["reviews"])
    held = out.clients[1]
    truly = (out.given[held] != data.y_train[held]).mean()
    assert 0.25 > first["level"] > last["level"] and last["low"] <= truly <= last["high"] < 0.25
    assert out.extra["estimate_client_level"].tolist() == [0.25, last["level"], 0.25, 0.25]
    T = out.extra["estimate_client_transition"]
    assert np.allclose(T.sum(2), 1) and T[1, 0, 0] > T[0, 0, 0] and T[1, 0, 1] == pytest.approx(0.025 * last["level"] / 0.25)
    out.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("position", "place"), "no column 'position'"),
        (lambda t: t.replace(",,,,\n", f",,,,{'x' * 140_000}\n", 1), "decisions"),
        (lambda t: t.replace(",,,,\n", ',,,,"note\n', 1), "decisions"),
        (lambda t: t.replace(",,,,\n", ",,,,a,b\n", 1), "decisions"),
        (lambda t: "", "empty"),
        (lambda t: t.splitlines()[0] + "\n", "no rows"),
        (lambda t: t.replace(",,,,\n", ",cat,,,\n", 1), "row 2: decision 'cat'"),
        (lambda t: t.replace(",,,,\n", ",relabel,,,\n", 1), "row 2: decision relabel"),
        (lambda t: t.replace(",,,,\n", ",relabel,cat,,\n", 1), "row 2: label 'cat'"),
        (lambda t: t.replace(",,,,\n", ",keep,7,,\n", 1), "row 2: decision 'keep' with the label '7'"),
        (lambda t: t.replace(",,,,\n", ",6,7,,\n", 1), "row 2: decision '6' with the label '7'"),
        (lambda t: t.replace(",suspect,", ",best,"), "part is 'best'"),
        (lambda t: t.replace(",1,suspect", ",7,suspect").replace(",1,random", ",7,random"), "one client of this federation"),
        (lambda t: t.replace(",1,suspect", ",one,suspect"), "row 2: client is 'one'"),
        (lambda t: t.splitlines()[0] + "\n99999,1,suspect,0,0,0,0.5,,keep,,,\n", "position is 99999"),
        (lambda t: "\n".join([*t.splitlines()[:2], t.splitlines()[1], ""]).replace(",,,,\n", ",keep,,,\n"), "listed twice"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(world, change, message):
    federation, data, _ = world
    text = decisions.decision_template(federation, data, 1, choose(federation, 1, budget=5))
    refuse_call(message, decisions.read_decisions, change(text), federation, data)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(",", ";"),
        lambda text: text.replace("position,client,part", "Position,CLIENT,Part").replace(",decision,", ",Decision,"),
        lambda text: text.replace("\r\n", "\r"),
        lambda text: text.replace("\r\n", "\n\n"),
    ],
    ids=["semicolons", "capitals", "old mac", "empty rows"],
)
def test_decisions_as_spreadsheets_save_them(world, change):
    federation, data, _ = world
    text = reviewed_by(federation, data, choose(federation, 1, budget=20, at_random=0.4), limit=15)
    expected, found = (decisions.read_decisions(each, federation, data) for each in (text, change(text)))
    assert found.positions.tolist() == expected.positions.tolist() and found.label.tolist() == expected.label.tolist()
    assert found.who == expected.who and found.rows_suspect.tolist() == expected.rows_suspect.tolist()


def test_labels_that_changed_since_are_not_overwritten(world):
    federation, data, _ = world
    text = decisions.decision_template(federation, data, 1, choose(federation, 1, budget=5))
    other = replace(federation, given=(federation.given + 1) % 10)
    refuse_call("export the review again", decisions.read_decisions, text, other, data)


def test_corrections_keep_reviewed_labels(world):
    federation, data, _ = world
    mask = np.zeros(len(federation.given), bool)
    flagged = np.flatnonzero(federation.extra["estimate_flagged"] & (federation.extra["estimate_issue_score"] >= 0.6))
    mask[flagged[:3]] = True
    some = replace(federation, extra={**federation.extra, "reviewed": mask})
    out, facts = correct(some, above=0.6)
    assert facts["reviewed"] == 3 and facts["changed"] == len(flagged) - 3 == sum(facts["per_client"])
    assert (out.given[flagged[3:]] == data.y_train[flagged[3:]]).all() and (out.given[mask] == federation.given[mask]).all()
    dropped, facts = correct(some, above=0.6, drop=True)
    assert len(dropped.client_indices) == len(federation.client_indices) - facts["dropped"] and facts["dropped"] > 0
    assert (dropped.given == federation.given).all()
    refuse_call("no noise estimate", correct, replace(federation, extra={}))


def overwrite(client, model, received):
    client.y.zero_()


def test_no_method_changes_a_reviewed_label():
    clients, model = toy()
    for client in clients.members:
        client.reviewed = torch.arange(len(client)) % 2 == 0
    clients.round(range(len(clients)), model, overwrite)
    clients.close()
    for client in clients.members:
        assert torch.equal(client.y[client.reviewed], client.given[client.reviewed]) and not client.y[~client.reviewed].any()


def test_the_page_contains_every_sample_and_escapes_names(world):
    federation, data, _ = world
    chosen = choose(federation, 1, budget=6)
    near = neighbors_of(data.x_train.reshape(len(data.x_train), -1), chosen.positions, federation.clients[1])
    assert all(1 <= len(found) <= 3 for found in near) and np.isin(np.concatenate(near), federation.clients[1]).all()
    assert not any(position in found for position, found in zip(chosen.positions, near, strict=True))
    named = replace(data, class_names=["</script><b>", *data.class_names[1:]])
    text = page.page(federation, named, 1, chosen, near, "<site> & co")
    assert "&lt;site&gt; &amp; co" in text and text.count("</script>") == 2 and "<b>" not in text
    assert all(f'"position": {p}' in text for p in chosen.positions)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_page_shows_copies_at_the_site_and_no_other_ones(world):
    """Both samples of a pair are shown, beside the sample that is reviewed and at the end, unlike labels first."""
    federation, data, _ = world
    chosen, held = choose(federation, 1, budget=6), federation.clients[1]
    first, given = int(chosen.positions[0]), federation.given
    rest = np.setdiff1d(held, chosen.positions).tolist()
    alike = next((a, b) for a in rest for b in rest if a < b and given[a] == given[b])
    unlike = next(b for b in rest if given[b] != given[first] and b not in alike)
    of, far = np.full(len(given), -1), np.arange(len(given)) == first
    of[alike[1]], of[unlike], of[federation.clients[2][3]] = alike[0], first, federation.clients[2][2]
    audited = replace(federation, extra=federation.extra | {"estimate_copy_of": of, "estimate_far": far})
    assert page.copies_of(audited, 1) == [(first, unlike), alike]
    text = page.page(audited, data, 1, chosen, [held[:1]] * 6, "Bonn")
    shown = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    item, *others = shown["items"]
    assert item["far"] and not any(other["far"] or other["copies"] for other in others)
    assert [copy["view"] for copy in item["copies"]] == [page.view(data, unlike)]
    views = [[page.view(data, j) for j in pair] for pair in page.copies_of(audited, 1)]
    assert [[side["view"] for side in pair] for pair in shown["pairs"]] == views and "copies at this site: 2;" in text
    # A sample that was left out since is shown no more; a federation that was not audited has none to show.
    left = audited.client_indices.copy()
    left[left == first] = left[0]
    assert page.copies_of(replace(audited, client_indices=left), 1) == [alike] and page.copies_of(federation, 1) == []


@pytest.mark.parametrize(("shape", "kind"), [((8, 8, 1), "uint8"), ((40, 20, 3), "float32"), ((300, 400, 3), "uint8")])
def test_thumbnails_are_pictures(shape, kind):
    image = (np.random.default_rng(0).random(shape) * 255).astype(kind)
    picture = Image.open(io.BytesIO(base64.b64decode(page.thumbnail(image).partition(",")[2])))
    assert max(picture.size) == page.SIDE


def test_waves_and_vectors_have_a_view():
    rng = np.random.default_rng(0)
    sound = rng.integers(-99, 99, (2, 4000)).astype(np.int16)
    waves = datasets.Dataset("w", "wave", np.zeros(2, int), np.zeros(2, int), ["a", "b"], lambda: (sound, sound))
    points = page.view(waves, 1)["wave"]
    assert len(points) == page.POINTS and all(-1 <= low <= high <= 1 for low, high in points)
    eye = np.eye(2, 5, dtype=np.float32)
    rows = datasets.Dataset("v", "vector", np.zeros(2, int), np.zeros(2, int), ["a", "b"], lambda: (eye, eye))
    assert page.view(rows, 1)["row"][1] == ["1", "1"]


def test_no_feature_decides_about_neighbors_by_its_unit():
    # Unscaled, the second feature alone would say who is near: row 2.  In standard deviations row 1 is (0.04, 0.7) away,
    # row 2 (2, 0).
    x = np.array([[0, 0], [0.1, 300], [5, 10], [5, 1000]], np.float32)
    data = SimpleNamespace(x_train=x, kind="vector")
    found = neighbors_of(points_of(data, np.arange(4)), np.array([0]), np.arange(4), count=1)
    assert [near.tolist() for near in found] == [[1]]


def test_a_site_is_found_by_its_name(world):
    federation = replace(world[0], meta={**world[0].meta, "client_names": ["1", "Bonn", "Cork", "Delft"]})
    assert [client_of(federation, name) for name in ("Cork", "1", "0", "3")] == [2, 0, 0, 3]
    refuse_call("is no site; did you mean 'Bonn'", client_of, federation, "bonn")
    refuse_call("from 0 to 3", client_of, world[0], "4")
