"""Votes to labels: by hand where that is possible, by simulation where it is not; agreement as published examples have it."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pandas
import pandas as pd
import pytest
from scipy.stats import spearmanr

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits import crowd
from fnlkit.audits.audit import audit
from fnlkit.audits.consensus import consensus, expected_shares, fleiss, infer, krippendorff, shares
from fnlkit.audits.report import describe_shared_samples
from fnlkit.audits.site.samples import Samples
from fnlkit.audits.votes import read_votes
from fnlkit.datasets.labels import vote_finder
from fnlkit.simulate import partitioning
from tests.commands import refuse, refuse_call, succeed
from tests.methods.test_annotators import crowd as people
from tests.toy import CLASSES, toy


def simulated(rng, n=1500, classes=4, reliable=(0.95, 0.55, 0.55, 0.55, 0.55), missing=0.2):
    true = rng.integers(0, classes, n)
    right = rng.random((n, len(reliable))) < np.array(reliable)
    votes = np.where(right, true[:, None], (true[:, None] + rng.integers(1, classes, right.shape)) % classes)
    votes[rng.random(votes.shape) < missing] = -1
    votes[(votes < 0).all(1), 0] = true[(votes < 0).all(1)]
    return votes, true


def test_one_reliable_annotator_outweighs_many_who_guess():
    votes, true = simulated(np.random.default_rng(0))
    posterior = infer(votes, 4).posterior
    learned, plain = (posterior.argmax(1) == true).mean(), (shares(votes, 4).argmax(1) == true).mean()
    assert learned > plain + 0.04
    quality = expected_shares(votes, posterior)
    assert quality.argmax() == 0 and abs(quality[0] - 0.95) < 0.1


@pytest.mark.parametrize("votes", [[[0, -1], [-1, 1]], [[1, 1]], [[1, 1], [1, 1], [0, -1]], np.zeros((0, 2))])
def test_agreement_is_undefined_without_votes_of_two_classes_on_shared_samples(votes):
    votes = np.array(votes, np.int64)
    assert krippendorff(votes, 2) is None and fleiss(votes[(votes >= 0).all(1)], 2) is None


def test_alpha_is_that_of_its_definition():
    """1 - D_o / D_e over all pairs of votes, Krippendorff 2011; samples with one vote do not count."""
    rng = np.random.default_rng(4)
    votes = np.where(rng.random((30, 5)) < 0.6, rng.integers(0, 3, (30, 5)), -1)
    units = [row[row >= 0] for row in votes if (row >= 0).sum() > 1]
    values = np.concatenate(units)
    observed = sum(2 * sum(a != b for i, a in enumerate(unit) for b in unit[:i]) / (len(unit) - 1) for unit in units)
    expected = sum(2 * (a != b) for i, a in enumerate(values) for b in values[:i]) / (len(values) - 1)
    assert krippendorff(votes, 3) == pytest.approx(1 - observed / expected, abs=1e-12)
    assert krippendorff(votes[rng.permutation(30)][:, rng.permutation(5)], 3) == krippendorff(votes, 3)


def test_fleiss_as_published():
    """Fourteen raters, ten subjects, five categories (the example of Fleiss's kappa in the literature): 0.210."""
    counts = [[0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
              [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7]]  # fmt: skip
    votes = np.array([np.repeat(np.arange(5), row) for row in counts])
    assert fleiss(votes, 5) == pytest.approx(0.210, abs=5e-4)
    assert fleiss(np.array([[0, 1], [0, -1]]), 2) is None


@pytest.fixture(scope="module")
def world():
    data, rng = datasets.load("digits"), np.random.default_rng(1)
    federation = partitioning.federation(data, clients=3, labels="observed", holdout=0.2)
    votes = np.stack([np.where(rng.random(1438) < q, data.y_train, rng.integers(0, 10, 1438)) for q in (0.95, 0.8, 0.8)], 1)
    return federation, votes, data.y_train


def test_labels_become_the_consensus_and_nothing_is_lost(world):
    federation, votes, true = world
    some = votes.copy()
    some[5] = -1
    federation = replace(federation, extra=federation.extra | {"reviewed": np.arange(1438) == 7})
    out, facts = consensus(federation, some)
    assert (out.given == true).mean() > 0.9 and out.given[5] == federation.given[5] and out.given[7] == federation.given[7]
    assert (out.extra["received"] == federation.given).all() and (out.extra["votes"] == some).all()
    assert out.extra["consensus_confidence"][5] == 0
    assert [row["samples"] for row in facts] == [len(client) for client in federation.whole().clients]
    assert all(row["accuracies"]["0"] > row["accuracies"]["1"] for row in facts)
    assert facts[0]["alpha"] == pytest.approx(krippendorff(some[federation.whole().clients[0]], 10))
    refuse_call("crowdlab needs a model", consensus, federation, votes, "crowdlab")
    refuse_call("expected labels", consensus, federation, votes[:5])


@pytest.mark.parametrize("kind", ["float", "text", "object", "npz", "csv", "frame", "long frame"])
def test_votes_of_all_kinds_are_the_same(world, tmp_path, kind):
    """Whole floats are classes, as pandas writes numbers beside gaps."""
    federation, votes, _ = world
    some = np.where(np.random.default_rng(3).random(votes.shape) < 0.3, -1, votes)
    expected = fnlkit.consensus(federation, some, "majority")
    floats = np.where(some < 0, np.nan, some)
    found: object = floats
    if kind == "text":
        found = np.where(some < 0, "NA", some.astype(str))
    elif kind == "object":
        found = np.where(some < 0, None, some.astype(object))
    elif kind == "npz":
        found = tmp_path / "votes.npz"
        np.savez(found, votes=floats, annotators=np.array(["0", "1", "2"]))
    elif kind == "csv":
        found, gaps = tmp_path / "votes.csv", itertools.cycle(["", "nan", "NA", "<NA>", "-1", "-1.0", "None"])
        rows = [",".join(next(gaps) if vote < 0 else f"{vote}.0" for vote in row) for row in some.tolist()]
        found.write_text("\n".join(["id,0,1,2", *(f"{i},{row}" for i, row in enumerate(rows))]) + "\n")
    elif "frame" in kind:
        found = pandas.DataFrame(floats, columns=["0", "1", "2"])
        if kind == "long frame":
            found = found.rename_axis("task").reset_index().melt("task", var_name="worker", value_name="label")
    out = fnlkit.consensus(federation, found, "majority")
    assert (out.federation.given == expected.federation.given).all() and out.sites == expected.sites
    assert (out.federation.extra["votes"] == some).all() and out.annotators == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("votes", "message"),
    [(np.full((1438, 2), 1.5), "1.5"), (np.full((1438, 2), "cat"), "'cat'"), (np.full((1438, 2), np.inf), "inf"),
     (np.full((1438, 2), 12.0), "12"), (np.zeros((1438, 0)), "expected labels"), (np.zeros((1438, 2), bool), "bool")],
)  # fmt: skip
def test_values_that_are_no_votes_are_refused(world, votes, message):
    refuse_call(message, fnlkit.consensus, world[0], votes)


def test_a_class_can_have_the_name_of_a_gap():
    """`None` and -1 are no votes unless they are classes; `1.0` is the class 1."""
    vote = vote_finder(["none", "1", "x"])
    assert [vote(text) for text in ("None", "", "nan", "-1", "1.0", "X", "cat")] == [0, -1, -1, -1, 1, 2, None]
    vote = vote_finder(["-1", "0", "1"])
    assert [vote(text) for text in ("-1", "1.0", "1.5", "", "-0.0")] == [0, 2, None, -1, 1]


@pytest.mark.peers
def test_crowdlab_at_a_site_with_one_vote_per_sample(world, tmp_path):
    """The others get the consensus of cleanlab; this one keeps its votes with probabilities of the model; a line names it."""
    pytest.importorskip("cleanlab.multiannotator", reason="needs cleanlab (extra `consensus`)")
    federation, votes, true = world
    site = federation.whole().clients[1]
    some = votes.copy()
    some[site] = np.where(np.arange(3) == site[:, None] % 3, votes[site], -1)
    probabilities = np.full((1438, 10), 0.02)
    probabilities[np.arange(1438), true] = 0.82
    out, facts = consensus(federation, some, "crowdlab", probabilities=probabilities)
    full, _ = consensus(federation, votes, "crowdlab", probabilities=probabilities)
    others = np.concatenate([federation.whole().clients[k] for k in (0, 2)])
    assert (out.given[others] == full.given[others]).all() and (out.given[site] == some[site].max(1)).all()
    right = some[site].max(1) == true[site]
    np.testing.assert_allclose(out.extra["consensus_confidence"][site][right], 0.82)
    assert (out.extra["consensus_confidence"][site][~right] < 0.5).all() and [row["shared"] for row in facts] == [479, 0, 479]
    federation.write(tmp_path / "fed.npz")
    np.savez(tmp_path / "votes.npz", votes=some)
    np.savez(tmp_path / "p.npz", probabilities=probabilities)
    done = succeed("fnlkit consensus fed.npz votes.npz --method crowdlab --probs p.npz -o a.npz", tmp_path)
    assert f"no sample has two votes at {federation.names[1]}:" in done.stdout
    one, _ = consensus(federation, votes[:, :1], "crowdlab", probabilities=probabilities)
    assert (one.given == votes[:, 0]).all()


def test_votes_from_a_table(world, tmp_path):
    federation, votes, true = world
    federation.write(str(tmp_path / "fed.npz"))
    lines = ["id,Ada,Ben,Cem", *(f"{i},{a},,{c}" for i, (a, b, c) in enumerate(votes.tolist()))]
    (tmp_path / "votes.csv").write_text("\n".join(lines) + "\n")
    done = succeed("fnlkit consensus fed.npz votes.csv --json -o agreed.npz", tmp_path)
    assert json.loads(done.stdout)["annotators"] == ["Ada", "Ben", "Cem"]
    out = Federation.read(str(tmp_path / "agreed.npz"))
    assert (out.given == true).mean() > 0.85 and (out.extra["votes"][:, 1] == -1).all()
    (tmp_path / "bad.csv").write_text("id,Ada\n0,cat\n")
    refuse("fnlkit consensus fed.npz bad.csv -o x.npz", tmp_path, "row 2", "'cat'")


@pytest.mark.parametrize(
    "header",
    ["id,annotator,label", "Sample ID;Rater;Label", "image,annotator_id,class", "task,worker,label", "task,annotator,label"],
)
def test_votes_with_a_row_each_are_those_with_a_column_each(world, tmp_path, header):
    federation, votes, _ = world
    mark = ";" if ";" in header else ","
    wide = ["ID,Ada,Ben", *(f"{i},{a},{b if i % 3 else ''}" for i, (a, b, _) in enumerate(votes.tolist()))]
    (tmp_path / "wide.csv").write_text("\n".join(wide) + "\n")
    rows = [(i, name, vote) for i, (a, b, _) in enumerate(votes.tolist()) for name, vote in (("Ada", a), ("Ben", b))]
    long = [header, *(mark.join(map(str, row)) for row in rows if row[0] % 3 or row[1] == "Ada")]
    (tmp_path / "long.csv").write_text("\n".join(long) + "\n")
    expected, found = (read_votes(tmp_path / name, federation) for name in ("wide.csv", "long.csv"))
    assert found[1] == expected[1] == ["Ada", "Ben"] and (found[0] == expected[0]).all() and (found[0] >= 0).sum() > 2000


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["id,annotator,label", "0,Ada,1", "0,Ada,2"], "row 3: Ada has a vote on '0' in an earlier row"),
        (["id,annotator,label", "0,Ada,1", "9999,Ben,2"], "row 3: no sample '9999'"),
        (["id,annotator,label", "0,Ada,cat"], "row 2: label 'cat' of 'label' is not a class"),
        (["id,annotator,label", "0,,1"], "row 2: no annotator"),
        (["who,annotator,label", "0,Ada,1"], "no column names the samples; 'who' has numbers"),
        (["id,Ada", "0,1", "0,2"], "row 3: Ada has a vote on '0' in an earlier row"),
    ],
)
def test_votes_that_do_not_fit_are_refused(world, tmp_path, lines, message):
    (tmp_path / "votes.csv").write_text("\n".join(lines) + "\n")
    refuse_call(f"votes.csv.*{message}", read_votes, tmp_path / "votes.csv", world[0])


def test_one_table_of_votes_is_data_and_votes(tmp_path):
    """The manifest takes the majority; the same table then gives `consensus` the votes of its training samples."""
    casts = {"a": "xxy", "b": "yyx", "c": "zyx", "d": "xx", "e": "", "f": "yyy", "g": "xxx"}
    lines = ["id,site,split,annotator,label,age,when"]
    for i, (name, cast) in enumerate(casts.items()):
        split = "test" if name in "fg" else "train"
        lines += [f"{name},s{i % 2},{split},r{k},{vote},{30 + i},{k}" for k, vote in enumerate(cast or [""])]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    data = datasets.load(f'manifest(file="{tmp_path}/t.csv", drop=[when])')
    assert data.class_names == ["x", "y", "z"] and data.columns == ["age"] and "when" not in data.fields
    assert data.ids.tolist() == [*"abcd"] and data.y_train.tolist() == [0, 1, 0, 0] and data.y_test.tolist() == [1, 0]
    assert data.unlabeled.ids == ["e"] and any("1 ties" in note for note in data.notes)
    federation = partitioning.federation(data, "sites", labels="observed", holdout=0.0)
    votes, names = read_votes(tmp_path / "t.csv", federation)
    assert names == ["r0", "r1", "r2"] and votes.tolist() == [[0, 0, 1], [1, 1, 0], [2, 1, 0], [0, 0, -1]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,r0,x,30", "row 4: annotator 'r0' votes twice on this sample"),
        ("a,r2,x,31", "row 4: age is '31', in row 2 '30'"),
        ("a,,x,30", "row 4: no annotator"),
    ],
)
def test_rows_that_are_no_votes_on_one_sample_are_refused(tmp_path, row, message):
    (tmp_path / "t.csv").write_text("\n".join(["id,annotator,label,age", "a,r0,x,30", "a,r1,y,30", row, "b,r0,y,30"]) + "\n")
    refuse_call(message, datasets.load, tmp_path / "t.csv")


def test_with_one_annotator_per_sample_the_annotator_is_a_field(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(["id,annotator,label,age", *(f"{i},r{i % 2},{i % 2},{i}" for i in range(6))]))
    data = datasets.load(tmp_path / "t.csv")
    assert data.columns == ["age"] and data.fields["annotator"].tolist() == ["r0", "r1"] * 3


def sites_of_votes(votes, classes=2):
    """Return a federation with a site per list of votes, and the votes of all sites."""
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in votes])])
    given, meta = np.zeros(offsets[-1], np.int64), {"client_names": [*"pqrst"][: len(votes)]}
    return Federation("d", classes, offsets, np.arange(offsets[-1]), given, meta=meta), np.concatenate(votes)


def test_no_share_is_estimated_without_evidence():
    """Site p: nobody shares a sample; q: two agree mostly, the third is alone; r: all votes are of one class."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, 200)[:, None]
    alone, pair = (np.where(rng.random((200, 3)) < 0.8, true, 1 - true) for _ in range(2))
    alone[np.arange(3) != np.arange(200)[:, None] % 3] = -1
    pair[:100, 2], pair[100:, :2] = -1, -1
    federation, votes = sites_of_votes([alone, pair, np.ones((50, 3), int)])
    agreed = fnlkit.consensus(federation, votes, annotators=["a", "b", "c"])
    p, q, r = (row["accuracies"] for row in agreed.sites)
    assert set(p.values()) == {None} == set(r.values()) and q["c"] is None and all(0.5 < q[name] < 1 for name in "ab")
    assert [(row["shared"], row["alpha"] is None) for row in agreed.sites] == [(0, True), (100, False), (50, True)]
    assert [row["accuracy"] is None for row in agreed.quality()] == [True] * 3 + [False] * 2 + [True] * 4


def test_the_command_prints_no_share_without_evidence(tmp_path):
    alone, pairs = np.array([[0, -1], [-1, 1], [1, -1], [-1, 0]]), np.array([[0, 0], [1, 1], [1, 0], [0, 0]])
    federation, votes = sites_of_votes([alone, pairs])
    federation.write(tmp_path / "fed.npz")
    np.savez(tmp_path / "votes.npz", votes=votes)
    printed = succeed("fnlkit consensus fed.npz votes.npz -o a.npz", tmp_path).stdout
    lines = [line.split() for line in printed.splitlines() if line.split()[:1] == ["p"]]
    assert [line[1:] for line in lines] == [["4", "4", "2"], ["0", "2"], ["1", "2"]]
    assert "no sample has two votes at p" in printed
    rows, who = np.nonzero(alone >= 0)
    extra = {"annotator": np.array(["a", "b"])[who], "sample_of": rows}
    by_row = Federation("d", 2, np.array([0, 4]), np.arange(4), alone[rows, who], extra=extra)
    assert set(fnlkit.consensus(by_row).sites[0]["accuracies"].values()) == {None}


# ---- consensus labels as a table of samples, labels and probabilities
WORDS = np.array(["cat", "dog"])


@pytest.fixture
def voted(tmp_path):
    rng = np.random.default_rng(0)
    true, rows = rng.integers(0, 2, 30), []
    for i in range(30):
        for name, right in (("ann", 0.95), ("bob", 0.9), ("eve", 0.8)):
            vote = true[i] if rng.random() < right else 1 - true[i]
            rows.append((f"s{i}", name, WORDS[vote], i + 0.5 * true[i], (7 * i) % 11))
    pd.DataFrame(rows, columns=["id", "annotator", "label", "a", "b"]).to_csv(tmp_path / "votes.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("scheme", ["iid", "annotators"])
def test_every_voted_sample_has_a_label_and_a_probability(voted, scheme):
    more = "--scheme annotators" if scheme == "annotators" else "--clients 2"
    succeed(f"fnlkit partition --dataset votes.csv {more} --holdout 0 -o fed.npz", voted)
    succeed("fnlkit consensus fed.npz --csv out.csv -o agreed.npz", voted)
    found, fed = pd.read_csv(voted / "out.csv"), fnlkit.load(str(voted / "agreed.npz"))
    assert found.columns.tolist() == ["sample", "class", "name", "probability"]
    assert sorted(found["sample"]) == sorted(f"s{i}" for i in range(30)) and found["probability"].between(0.5, 1).all()
    assert (found["name"] == WORDS[found["class"]]).all()
    labels = dict(zip(found["sample"], found["class"], strict=True))
    assert all(labels[str(i).split(" by ")[0]] == c for i, c in zip(fed.extra["sample_id"], fed.given, strict=True))


# ---- audit of annotators who share samples
def judged(change=None):
    """Return (Samples of the clients, probabilities of each); `change` edits their labels before."""
    sites = [Samples.of(client) for client in toy()[0].members]
    for site in sites:
        site.y = site.y.copy()
        if change:
            change(site)
    return sites, crowd.judge_together(sites)


def of_fold(site, fold=0):
    codes = [crowd.zlib.crc32(np.ascontiguousarray(each).tobytes()) % crowd.FOLDS for each in site.x]
    return np.array(codes) == fold


def test_labels_of_a_fold_do_not_reach_the_classifier_that_judges_it(monkeypatch):
    """With one pass; further passes share the matrices of the clients, which have few parameters."""

    def rotate(site):
        site.y[of_fold(site)] = (site.y[of_fold(site)] + 1) % CLASSES

    monkeypatch.setattr(crowd, "PASSES", 1)
    monkeypatch.setattr(crowd, "RIDGES", (1.0,))
    (sites, before), (_, after) = judged(), judged(rotate)
    changed = 0
    for site, one, two in zip(sites, before, after, strict=True):
        here = of_fold(site)
        np.testing.assert_allclose(one[here], two[here], atol=1e-9)
        changed += np.abs(one[~here] - two[~here]).sum()
    assert changed > 1


def test_the_judgment_has_a_probability_for_each_class():
    for site, p in zip(*judged(), strict=True):
        assert p.shape == (len(site), CLASSES) and np.allclose(p.sum(-1), 1)


@pytest.fixture(scope="module")
def audited(few_trees_of_a_module):
    data, federation = people(np.random.default_rng(3))
    return federation, audit(federation, data)


def test_bad_annotators_are_named_and_clean_ones_are_not(audited):
    """Annotators 0 to 2 give 70 % wrong labels, the others 10 %."""
    federation, found = audited
    assert crowd.count_shared(federation)[0] > 100 and describe_shared_samples(federation)
    named = {row.client for row in found.sites if row.noisier}
    assert named == {0, 1, 2}


def test_levels_rank_the_annotators_and_ranges_cover_them(audited):
    federation, found = audited
    truth, rows = federation.wrong_share(), {row.client: row for row in found.sites}
    assert spearmanr(found.judgment.level, truth)[0] > 0.7
    assert np.abs(found.judgment.level - truth).mean() < 0.1
    assert sum(rows[k].low <= truth[k] <= rows[k].high for k in rows) >= 7
    assert not any(row.inputs.differ for row in found.sites)
