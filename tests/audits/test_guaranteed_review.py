"""A review with a guarantee: export, decide, import, correct exactly the list, and continue with a second review."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits import decisions, designs, reviews
from fnlkit.audits.designs import Design, rank_samples
from fnlkit.audits.guarantees import draw_reviews, find_guaranteed_list, right_with_confidence, shortest_list, update_scores
from fnlkit.audits.suspects import choose_guaranteed
from fnlkit.core.errors import InputError
from fnlkit.kernels.streams import stream
from fnlkit.pipeline import reviewing
from fnlkit.simulate import partitioning
from tests.commands import refuse, refuse_call, succeed
from tests.tables import format_csv, parse_csv


@pytest.fixture(scope="module")
def world():
    """Digits over 3 clients, 60 labels of client 1 wrong, mostly with high scores and right suggestions."""
    data, rng = datasets.load("digits"), np.random.default_rng(0)
    clean = partitioning.federation(data, clients=3, labels="observed")
    given, wrong = clean.given.copy(), rng.permutation(clean.clients[1])[:60]
    given[wrong] = (given[wrong] + 1) % 10
    score = rng.random(len(given)) * 0.6
    score[wrong] += 0.35
    arrays = {"issue_score": score, "flagged": score > 0.5, "suggested_label": data.y_train.copy()}
    return replace(clean, given=given, extra={f"estimate_{name}": values for name, values in arrays.items()}), data


def review(federation, data, undecided=(), **options):
    """Return (Selection, text of the table with the true labels as decisions)."""
    chosen = choose_guaranteed(federation, 1, **{"guarantee": 0.2, "budget": 40, "seed": 1} | options)
    rows = parse_csv(decisions.decision_template(federation, data, 1, chosen))
    for i, row in enumerate(rows):
        true = data.class_names[data.y_train[int(row["position"])]]
        if i not in undecided:
            row |= {"decision": "keep"} if true == row["given"] else {"decision": "relabel", "label": true}
    return chosen, format_csv(rows)


def imported(federation, data, text, when="2026-01-02"):
    return decisions.decide(federation, decisions.read_decisions(text, federation, data), when=when)


def test_the_review_is_drawn_from_the_candidates(world):
    federation, data = world
    chosen, _ = review(federation, data)
    top = rank_samples(federation, 1)[: chosen.design.candidates]
    assert chosen.candidates.tolist() == top.tolist() and chosen.suspect.sum() == chosen.design.reviews == 32
    assert np.isin(chosen.positions[chosen.suspect], top).all() and not np.isin(chosen.positions[~chosen.suspect], top).any()
    assert chosen.design.candidates == -(-len(federation.clients[1]) // 2)  # ten times the reviews are more than half
    other = choose_guaranteed(federation, 1, guarantee=0.2, budget=40, seed=0)
    assert set(other.positions.tolist()) != set(chosen.positions.tolist())
    assert Design.read(chosen.design.text(), "x") == chosen.design
    few = choose_guaranteed(federation, 1, guarantee=0.2, budget=40, at_random=0, candidates=50)
    assert few.design.candidates == 50 and few.suspect.all()


def test_the_list_is_stored_with_its_statement_and_ranges(world):
    federation, data = world
    chosen, text = review(federation, data)
    out = imported(federation, data, text)
    record = out.meta["reviews"][0]
    found, wrong = record["guarantee"], federation.given != data.y_train
    assert len(found["listed"]) > 25 and (~wrong[found["listed"]]).mean() <= 0.2
    assert not np.isin(found["listed"], chosen.positions).any() and found["right_at_most"] <= 0.2 * len(found["listed"])
    assert found["reviews"] == 32 and found["wrong"] == wrong[chosen.positions[chosen.suspect]].sum()
    share = wrong[federation.clients[1]].mean()
    assert record["level"]["low"] <= share <= record["level"]["high"] < share + 0.2 and record["basis"] == "random reviews"
    assert record["after"]["low"] <= record["after"]["level"] <= record["after"]["high"]
    covered = []
    for row in record["classes"]:
        members = federation.clients[1][federation.given[federation.clients[1]] == int(row["given"])]
        covered.append(row["low"] <= wrong[members].mean() <= row["high"])
    assert sum(covered) >= len(covered) - 1  # each range has a confidence of 95 %
    assert all(row["true"] == str((int(row["given"]) - 1) % 10) for row in record["pairs"]) and record["pairs"]


def test_samples_without_a_decision_count_as_right(world):
    federation, data = world
    lists = [imported(federation, data, review(federation, data, undecided=range(n))[1]).meta["reviews"][0] for n in (0, 12)]
    assert len(lists[1]["guarantee"]["listed"]) < len(lists[0]["guarantee"]["listed"])
    assert lists[1]["level"]["level"] is None and lists[1]["level"]["high"] > lists[0]["level"]["high"]


def test_a_second_review_continues(world):
    federation, data = world
    _, text = review(federation, data)
    first = imported(federation, data, text)
    listed = first.meta["reviews"][0]["guarantee"]["listed"]
    chosen, text = review(first, data, at_random=0.0)
    assert not np.isin(chosen.candidates, listed).any() and not first.extra["reviewed"][chosen.candidates].any()
    second = imported(first, data, text).meta["reviews"][1]["guarantee"]
    assert not np.isin(second["listed"], listed).any()
    assert second["together"]["labels"] == len(listed) + len(second["listed"]) and second["together"]["q"] == 0.4
    other = choose_guaranteed(first, 2, guarantee=0.2, budget=40)
    elsewhere = imported(first, data, decisions.decision_template(first, data, 2, other))
    assert elsewhere.meta["reviews"][1]["guarantee"]["together"]["q"] == 0.2  # another site
    _, sure = review(federation, data, confidence=0.95)
    assert imported(federation, data, sure).meta["reviews"][0]["guarantee"]["together"]["confidence"] == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[1:], "every row"),
        (lambda rows: [row | {"design": "q=2"} for row in rows], "column design"),
        (lambda rows: [rows[0] | {"design": rows[0]["design"].replace("q=0.2", "q=0.5")}, *rows[1:]], "two reviews"),
        (lambda rows: [row | {"design": row["design"][:-3] + "000"} for row in rows], "scores are not those"),
        (lambda rows: [row | {"part": "suspect"} for row in rows], "expected candidate or random"),
        (lambda rows: [row | {"part": "candidate"} for row in rows], "every row"),
    ],
)  # fmt: skip
def test_other_rows_than_those_of_the_export_are_refused(world, change, words):
    federation, data = world
    rows = parse_csv(review(federation, data)[1])
    refuse_call(words, decisions.read_decisions, format_csv(change(rows)), federation, data)


def test_the_commands_apply_exactly_the_list(world, tmp_path):
    federation, data = world
    federation.write(tmp_path / "judged.npz")
    export = "fnlkit review export judged.npz --dataset digits --client 1 --budget 40 --guarantee 0.2 --seed 1 -o review"
    assert "candidates" in succeed(export, tmp_path).stderr
    (tmp_path / "review/decisions.csv").write_text(review(federation, data)[1])
    done = succeed("fnlkit review import judged.npz review/decisions.csv --dataset digits -o reviewed.npz", tmp_path)
    assert "on average at most 20 % are right (32 of " in done.stderr
    succeed("fnlkit correct reviewed.npz --list --csv cleaned.csv -o corrected.npz", tmp_path)
    before, after = (fnlkit.load(tmp_path / name) for name in ("reviewed.npz", "corrected.npz"))
    listed = before.meta["reviews"][0]["guarantee"]["listed"]
    changed, kept = np.flatnonzero(after.given != before.given), np.isin(after.client_indices, listed).sum()
    assert set(changed) <= set(listed) and len(changed) == kept == after.meta["corrections"][0]["changed"]
    assert after.meta["corrections"][0]["dropped"] == len(listed) - kept  # right labels: the suggestion is the given label
    reasons = {row["sample"]: row["reason"] for row in parse_csv(tmp_path / "cleaned.csv")}
    text = reasons[before.ids_of([listed[0]])[0]]
    assert text.startswith(f"list 1 of {len(listed)} labels, at most 0.2 right on average (review of ")
    refuse("fnlkit correct reviewed.npz --list --above 0.5 -o twice.npz", tmp_path, "omit one of both")
    refuse("fnlkit correct corrected.npz --list -o twice.npz", tmp_path, "no list to apply")
    assert not (tmp_path / "twice.npz").exists()
    dropped = fnlkit.correct(before, listed=True, drop=True)
    assert not np.isin(dropped.client_indices, listed).any() and (dropped.given == before.given).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--guarantee 1.5", "between 0 and 1"),
        ("--guarantee 0.2 --confidence 2", "between 0 and 1"),
        ("--guarantee 0.2 --reviewer-errors 1", "below 1"),
        ("--guarantee 0.2 --reviewer-errors 0.1 --confidence 0.9", "omit --confidence"),
        ("--guarantee 0.2 --at-random 1", "lower --at-random"),
        ("--confidence 0.9", "need --guarantee"),
        ("--guarantee 0.2 --class ten", "is no class"),
    ],
)
def test_bad_options_are_refused_in_one_line(world, options, words, tmp_path):
    world[0].write(tmp_path / "judged.npz")
    refuse(f"fnlkit review export judged.npz --dataset digits --client 1 {options} -o review", tmp_path, words)
    assert not (tmp_path / "review/decisions.csv").exists()


def test_random_reviews_of_held_out_samples_give_an_exact_accuracy():
    """Every outcome of 4 random reviews of 10 held-out samples: the range contains the accuracy with 95 %."""
    from itertools import combinations

    from fnlkit.results.scores import by_reviews

    data = datasets.load("digits")
    federation = partitioning.federation(data, clients=2, labels="observed")
    held = np.arange(20)
    right = np.arange(20) % 10 < 7  # by the true labels
    predicted = np.where(right, federation.given[held], (federation.given[held] + 1) % 10)
    owner, covered, outcomes = np.repeat([0, 1], 10), 0, 0
    for drawn in combinations(range(10), 4):
        part = np.zeros(len(federation.given), np.int64)
        part[list(drawn)] = 2
        found = by_reviews(replace(federation, extra={"review_part": part}), held, predicted, owner)
        outcomes += 1
        covered += found["low"] <= 0.7 <= found["high"]
        assert found["samples"] == 10 and [row["site"] for row in found["sites"]] == ["client 0"]
    assert covered >= 0.95 * outcomes
    part[:10] = [1, 4, 2, 2, 2, 2, 2, 2, 2, 2]  # sample 1 was chosen by its score and is undecided
    found = by_reviews(replace(federation, extra={"review_part": part}), held, predicted, owner)
    assert [round(found[name], 9) for name in ("share", "low", "high")] == [0.65, 0.6, 0.7]
    assert by_reviews(federation, held, predicted, owner) is None


def test_parts_of_a_review_are_stored_for_runs(world, tmp_path):
    federation, data = world
    chosen, text = review(federation, data, undecided=range(5))
    once = imported(federation, data, text)
    part = once.extra["review_part"]
    table = {int(row["position"]): row for row in parse_csv(text)}
    for position, row in table.items():
        decided = bool(row["decision"])
        assert part[position] == ((1 if decided else 4) if row["part"] == "candidate" else (2 if decided else 3))
    assert part.astype(bool).sum() == 40
    again = imported(once, data, review(once, data)[1]).extra["review_part"]
    first = [position for position, row in table.items() if row["decision"]]
    assert (again[first] == 1).all()


def test_a_guarantee_about_one_class_of_a_site(world):
    federation, data = world
    chosen, text = review(federation, data, guarantee=0.8, given=3, at_random=0.7)
    top = chosen.candidates
    assert (federation.given[top] == 3).all()
    assert chosen.design.candidates <= (federation.given[federation.clients[1]] == 3).sum()
    record = imported(federation, data, text).meta["reviews"][0]["guarantee"]
    assert record["given"] == 3 and np.isin(record["listed"], top).all() and record["listed"]


def test_the_next_audit_shows_the_review_of_a_site(world):
    federation, data = world
    reviewed = imported(federation, data, review(federation, data)[1])
    found = fnlkit.audit(reviewed, dataset=data, detectors=(), backbone="none", say=None).facts["sites"]
    rows = {row["site"]: row for row in found}
    assert "on average at most 20 % are right (32 decisions)" in " ".join(rows["client 1"]["words"])
    assert "review" not in " ".join(rows["client 0"]["words"])


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["guarantee"].update(listed=[10**6]),
        lambda record: record.update(guarantee=[3]),
        lambda record: record.update(client=3),
    ],
)
def test_a_damaged_record_is_refused_in_one_line(world, change, tmp_path):
    federation, data = world
    out = imported(federation, data, review(federation, data)[1])
    change(out.meta["reviews"][0])
    out.write(tmp_path / "reviewed.npz")
    refuse("fnlkit correct reviewed.npz --list -o out.npz", tmp_path, "import the review again")


def test_a_list_states_its_groups(world, tmp_path):
    federation, data = world
    federation = replace(federation, extra={**federation.extra, "group": np.arange(len(federation.given)) // 4})
    federation.write(tmp_path / "judged.npz")
    notes = []
    exported = fnlkit.export_review(federation, 1, tmp_path / "review", guarantee=0.2, budget=60, say=notes.append)
    count = len(np.unique(exported.candidates // 4))
    assert any(f"{len(exported.candidates):,} candidates belong to {count:,} groups" in note for note in notes)
    _, text = review(federation, data, budget=60, seed=0)
    (tmp_path / "decisions.csv").write_text(text)
    done = succeed("fnlkit review import judged.npz decisions.csv -o out.npz", tmp_path)
    listed = np.array(reviews.read_reviews(Federation.read(tmp_path / "out.npz"))[-1].guarantee.listed)
    assert len(listed) and f"they belong to {len(np.unique(listed // 4))} groups" in done.stderr + done.stdout


def test_groups_with_a_right_label_are_at_most_as_many_as_right_labels():
    assert "of which on average at most 8 have" in designs.statement_on_groups(40, 20, 0.2, None)
    assert "each of which can" in designs.statement_on_groups(40, 8, 0.2, None)
    assert "with a probability of 95 % at most 3 have" in designs.statement_on_groups(30, 20, 0.1, 0.95)


@pytest.mark.parametrize(("budget", "guarantee", "empty"), [(150, 0.2, False), (30, 0.05, True)])
def test_a_note_before_the_review_states_whether_a_list_is_likely(world, budget, guarantee, empty, tmp_path):
    federation, notes = world[0], []
    levels = {"estimate_client_level": np.array([0.0, 60 / len(federation.clients[1]), 0.0])}
    federation = replace(federation, extra=federation.extra | levels)
    fnlkit.export_review(federation, 1, tmp_path / "review", say=notes.append, budget=budget, guarantee=guarantee)
    (note,) = [text for text in notes if "expected to be wrong" in text or "no list is possible" in text]
    assert ("empty" in note or "no list" in note) == empty, note


def test_reviews_of_all_candidates_advise_fewer_reviews(world, tmp_path):
    """The note advised to raise the budget, with which no list is possible either."""
    notes = []
    fnlkit.export_review(world[0], 1, tmp_path / "review", say=notes.append, budget=10**4, guarantee=0.2)
    assert any("no list is possible" in note and "lower `budget`" in note for note in notes), notes


# ---- the share of right labels in a guaranteed list is bounded for every world
def draws(candidates, reviews):
    """Yield the masks of all possible reviews."""
    for members in combinations(range(candidates), reviews):
        mask = np.zeros(candidates, bool)
        mask[list(members)] = True
        yield mask


def false_share(found, wrong):
    return (~wrong[found.listed]).mean() if found.listed.any() else 0.0


def worlds(number):
    """Yield (scores, wrong, groups, reviews, q): noise that depends on the score, on the group, on both, or on nothing."""
    for k in range(number):
        rng = stream(k, "world")
        size = int(rng.integers(5, 9))
        scores, groups = rng.random(size), rng.integers(0, 3, size)
        chance = [rng.random(size), (scores > 0.5) * rng.random(), (groups == 0) * 0.9, (scores < 0.5) * 1.0, 0 * scores][k % 5]
        yield scores, rng.random(size) < chance, groups, int(rng.integers(2, size - 1)), float(rng.uniform(0.3, 0.9))


def worst_excess(number):
    """Return the largest mean false share minus q over random worlds, exactly, and the longest list."""
    excess, longest = -1.0, 0
    for k, (scores, wrong, groups, reviewed, q) in enumerate(worlds(number)):
        lists = [
            find_guaranteed_list(scores, mask, wrong, q=q, groups=groups if k % 2 else None)
            for mask in draws(len(scores), reviewed)
        ]
        excess = max(excess, np.mean([false_share(found, wrong) for found in lists]) - q)
        longest = max(longest, *(int(found.listed.sum()) for found in lists))
    return excess, longest


def test_the_mean_false_share_is_at_most_q_in_every_world():
    excess, longest = worst_excess(40)
    assert excess <= 1e-12 and longest >= 3


def test_the_bound_is_attained():
    """Only right labels, two reviews of four, q = 2/3: a prefix needs at least 1 + c unreviewed labels.

    Of the six pairs of reviewed labels, 1 2 and 1 3 give an empty list; the four others list at least one label.
    """
    wrong = np.zeros(4, bool)
    shares = [false_share(find_guaranteed_list([4, 3, 2, 1], mask, wrong, q=2 / 3), wrong) for mask in draws(4, 2)]
    assert shares == [0, 0, 1, 1, 1, 1]


def test_a_reviewer_with_random_errors():
    """Right labels are called wrong with probability 0.3; the stated rate keeps the bound, rate 0 exceeds it."""
    wrong, scores, q = np.arange(60) < 6, np.arange(60, 0, -1), 0.5
    rng, stated, ignored = stream(1, "reviewer"), [], []
    for _ in range(600):
        mask = draw_reviews(60, 30, rng)
        called = wrong | (rng.random(60) < 0.3)
        stated.append(false_share(find_guaranteed_list(scores, mask, called, q=q, errors=0.3), wrong))
        ignored.append(false_share(find_guaranteed_list(scores, mask, called, q=q), wrong))
    assert np.mean(stated) < q + 0.02 and np.mean(ignored) > np.mean(stated) + 0.05


def test_the_probability_of_an_excess_is_at_most_the_error():
    """All labels are right: the number of unreviewed ones of any prefix exceeds its bound in at most 10 % of all 924 draws."""
    bound, excess = right_with_confidence(12, 6, 0.1), 0
    for mask in draws(12, 6):
        excess += (np.cumsum(~mask) > bound[np.cumsum(mask)]).any()
    assert 0.02 < excess / 924 <= 0.1
    assert (np.diff(bound) >= 0).all() and bound[-1] == 6


def test_the_updated_order_does_not_depend_on_which_right_labels_were_reviewed():
    rng = stream(2, "order")
    scores, groups, wrong = rng.random(50), rng.integers(0, 2, 50), np.zeros(50, bool)
    wrong[groups == 1] = True
    found = draw_reviews(50, 25, rng) & wrong
    updated = update_scores(scores, found, groups)
    assert updated[groups == 1].mean() > updated[groups == 0].mean() + 0.5
    inside = groups == 1
    assert (np.argsort(updated[inside]) == np.argsort(scores[inside])).all()
    assert (update_scores(scores, found, None) == scores).all()


def test_degenerate_reviews():
    ones = np.ones(5, bool)
    assert find_guaranteed_list(np.arange(5), ones, ones, q=0.1).listed.sum() == 0  # everything is reviewed
    assert find_guaranteed_list(np.arange(5), ~ones, ones, q=0.9).listed.sum() == 0  # nothing is reviewed
    assert find_guaranteed_list([0.5], ~ones[:1], ones[:1], groups=np.zeros(1)).listed.sum() == 0
    for options in ({"q": 0.0}, {"q": 1.0}, {"errors": 1.0}, {"confidence": 1.5}, {"confidence": 0.9, "errors": 0.1}):
        refuse_call("expected", find_guaranteed_list, np.arange(5), ones, ones, **options)


@pytest.mark.parametrize("confidence", [None, 0.9])
@pytest.mark.parametrize(("candidates", "reviews", "q"), [(200, 100, 0.2), (300, 60, 0.2), (60, 20, 0.1), (40, 30, 0.01)])
def test_the_shortest_list_is_reached_without_a_right_label_and_no_shorter_one_exists(candidates, reviews, q, confidence):
    length = shortest_list(candidates, reviews, q, confidence=confidence)
    lengths = set()
    for seed in range(20):
        reviewed = draw_reviews(candidates, reviews, np.random.default_rng(seed))
        unreviewed = np.cumsum(~reviewed)
        for count in range(1, candidates + 1, 3):  # labels before the first right one
            wrong = np.arange(candidates) < count
            found = find_guaranteed_list(-np.arange(candidates), reviewed, wrong, q=q, confidence=confidence)
            lengths.add(int(found.listed.sum()))
            if length is not None and unreviewed[count - 1] >= length:
                assert found.listed.sum() >= length
    assert (lengths == {0}) if length is None else (min(lengths - {0}) >= length)


@pytest.mark.parametrize("earlier", [True, False])
def test_a_review_that_cannot_be_written_removes_only_its_own_files(world, earlier, monkeypatch, tmp_path):
    world[0].write(tmp_path / "judged.npz")
    folder = tmp_path / "review"
    if earlier:
        folder.mkdir()
        (folder / "review.html").write_text("an earlier page")

    def full(parts, path):
        if path.name == "decisions.csv":
            raise InputError("no space left")
        path.write_bytes(b"".join(parts))

    monkeypatch.setattr(reviewing.saving, "write_bytes", full)
    refuse_call("no space left", fnlkit.export_review, Federation.read(tmp_path / "judged.npz"), 1, folder, budget=5, say=None)
    assert (folder / "review.html").exists() == folder.exists() == earlier
