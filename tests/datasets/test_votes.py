"""Votes of annotators: rows per vote, annotators as clients, held-out samples, and consensus of the own votes."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.consensus import consensus_of_rows
from fnlkit.datasets.dates import read_times
from fnlkit.datasets.votes import by_vote
from fnlkit.simulate import partitioning
from tests.commands import refuse, refuse_call, succeed

VOTES = np.array([[0, 0, 1, -1], [1, -1, 1, -1], [2, 1, -1, -1], [-1, 0, 0, 2], [-1, -1, -1, 1], [0, 2, -1, -1]])


def written(folder, **more):
    """Write a data set of six samples with the votes of four annotators; return the path."""
    arrays = {"x_train": np.arange(12.0, dtype=np.float32).reshape(6, 2), "votes_train": VOTES}
    arrays |= {"x_test": np.ones((3, 2), np.float32), "y_test": np.array([0, 1, 2])}
    np.savez(folder / "data.npz", **arrays | more)
    return folder / "data.npz"


def test_each_vote_is_a_row_with_the_sample_of_its_number(tmp_path):
    data = datasets.load(written(tmp_path, y_train_true=np.array([0, 1, 2, 0, 1, 2]), ids_train=np.array(list("abcdef"))))
    assert data.y_train.tolist() == [0, 1, 1, 0, 1, 0]  # the majority, ties to the lower class
    rows = by_vote(data)
    assert len(rows.y_train) == (VOTES >= 0).sum() and by_vote(rows) is rows
    for i, (label, sample) in enumerate(zip(rows.y_train, rows.sample_of, strict=True)):
        who = int(rows.fields["annotator"][i])
        assert VOTES[sample, who] == label and (rows.x_train[i] == data.x_train[sample]).all()
        assert rows.truth[i] == [0, 1, 2, 0, 1, 2][sample] and rows.ids[i] == f"{'abcdef'[sample]} by {who}"
    again = datasets.load(rows.name)  # a federation finds the rows by this name
    assert again.checksum == rows.checksum != data.checksum and (again.sample_of == rows.sample_of).all()


def test_annotators_are_clients_who_share_samples(tmp_path):
    written(tmp_path, annotators=np.array(["Ada", "Ben", "Cem", "Dee"]))
    succeed("fnlkit partition --dataset data.npz --scheme annotators -o fed.npz", tmp_path)
    fed = Federation.read(str(tmp_path / "fed.npz"))
    assert fed.names == ["Ada", "Ben", "Cem", "Dee"]
    for a, part in enumerate(fed.clients):
        assert fed.extra["sample_of"][part].tolist() == np.flatnonzero(VOTES[:, a] >= 0).tolist()
        assert fed.given[part].tolist() == VOTES[VOTES[:, a] >= 0, a].tolist()
    train = "fnlkit train fed.npz --rounds 1 --fraction 1 --model 'mlp(hidden=[4])' --engine sequential"
    succeed(f"{train} -o run.pt && fnlkit evaluate run.pt", tmp_path)
    succeed("fnlkit partition --dataset data.npz --scheme 'annotators(least=3)' -o few.npz", tmp_path)
    assert Federation.read(str(tmp_path / "few.npz")).names == ["Ada", "Ben", "Cem"]
    for line, named in (
        ("fnlkit partition --dataset data.npz --scheme 'annotators(least=9)' -o no.npz", "least"),
        ("fnlkit partition --dataset digits --scheme annotators -o no.npz", "votes_train"),
    ):
        refuse(line, tmp_path, named)
        assert not (tmp_path / "no.npz").exists()


def test_all_votes_on_a_sample_are_held_out_together(tmp_path):
    data, rng = datasets.load("digits"), np.random.default_rng(0)
    votes = np.where(rng.random((len(data.y_train), 8)) < 0.3, data.y_train[:, None], -1)
    data.votes, data.annotators = votes, list("abcdefgh")
    fed = partitioning.federation(data, "annotators", holdout=0.25, public=0.1)
    sample = fed.extra["sample_of"]
    trained, apart = set(sample[fed.client_indices]), set(sample[np.concatenate(fed.held_out)])
    public = set(range(len(votes))) - trained - apart
    assert not trained & apart and len(apart) == pytest.approx(0.25 * len(trained | apart), rel=0.05)
    assert len(public) >= 0.1 * len(votes)
    assert (fed.given == fed.true).all()


def test_a_client_keeps_a_sample_although_others_would_hold_it_out(tmp_path):
    data = datasets.load(written(tmp_path))
    fed = partitioning.federation(data, "annotators", holdout=0.9)
    sample = fed.extra["sample_of"]
    assert all(map(len, fed.clients))
    assert not set(sample[fed.client_indices]) & set(sample[np.concatenate(fed.held_out)])


def test_sites_keep_the_votes_of_several_raters(tmp_path):
    lines = ["id,site,annotator,label,age,split"]
    for i, cast in enumerate(("xxy", "yyx", "xyx", "xx", "yyy", "xxx")):
        lines += [f"s{i},h{i % 2},r{k},{vote},{i},{'test' if i > 4 else 'train'}" for k, vote in enumerate(cast)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    succeed("fnlkit partition --dataset t.csv --scheme sites --holdout 0 -o fed.npz", tmp_path)
    fed = Federation.read(str(tmp_path / "fed.npz"))
    assert fed.extra["votes"].tolist() == [[0, 0, 1], [1, 1, 0], [0, 1, 0], [0, 0, -1], [1, 1, 1]]
    done = succeed("fnlkit consensus fed.npz --method dawid-skene --json -o agreed.npz", tmp_path)
    sites = json.loads(done.stdout)["sites"]
    assert [row["votes"] for row in sites] == [{"r0": 3, "r1": 3, "r2": 3}, {"r0": 2, "r1": 2, "r2": 1}]
    assert all(0 <= share <= 1 for row in sites for share in row["accuracies"].values())
    succeed("fnlkit partition --dataset 'votes(data=t.csv)' --scheme sites --holdout 0 -o rows.npz", tmp_path)
    assert np.diff(Federation.read(str(tmp_path / "rows.npz")).client_offsets).tolist() == [9, 5]


def test_consensus_of_rows_decides_each_sample_once():
    """Nine reliable annotators and one who always answers 0: all rows of a sample get the label of the nine."""
    rng, n = np.random.default_rng(1), 200
    data = datasets.load("digits")
    votes = np.full((len(data.y_train), 10), -1)
    true = data.y_train[:n]
    for a in range(10):
        votes[:n, a] = np.where(rng.random(n) < 0.8, true, rng.integers(0, 10, n)) if a else 0
    data.votes, data.annotators = votes, [f"r{a}" for a in range(10)]
    fed = partitioning.federation(data, "annotators", labels="observed")
    out, (facts,) = consensus_of_rows(fed)
    sample = out.extra["sample_of"]
    for i in range(0, n, 17):
        assert len(set(out.given[sample == i])) == 1
    assert (out.given == data.y_train[sample]).mean() > 0.97 and (out.extra["received"] == fed.given).all()
    assert min(facts["accuracies"], key=facts["accuracies"].get) == "r0" and facts["votes"]["r3"] == n
    reviewed = replace(fed, extra=fed.extra | {"reviewed": np.ones(len(fed.given), bool)})
    kept, (unchanged,) = consensus_of_rows(reviewed)
    assert unchanged["changed"] == 0 < facts["changed"] and np.array_equal(kept.given, fed.given)
    refuse_call("crowdlab", consensus_of_rows, fed, "crowdlab")


@pytest.mark.parametrize(
    "votes", [VOTES[:5], VOTES + 0.5, np.where(VOTES == 2, -2, VOTES), np.full((6, 2), -1), np.where(VOTES == 2, 10**9, VOTES)]
)
def test_votes_that_do_not_fit_are_refused(tmp_path, votes):
    """Counts of a vote 999999999, a code of a missing vote, did not fit into memory."""
    # Without labels and votes nothing is known.
    labels = {} if (votes == -1).all() or votes.max() > 9 else {"y_train": np.arange(6) % 3}
    refuse_call("votes_train", datasets.load, written(tmp_path, votes_train=votes, **labels))


def test_votes_with_nan_are_those_with_minus_one(tmp_path):
    """pandas and numpy store whole numbers with gaps as floats."""
    floats = np.where(VOTES < 0, np.nan, VOTES)
    assert np.array_equal(datasets.load(written(tmp_path, votes_train=floats)).votes, VOTES)
    written(tmp_path, votes_train=np.where(VOTES == 2, 1.5, floats))
    refuse_call("expected whole numbers", datasets.load, tmp_path / "data.npz")


@pytest.mark.parametrize(
    ("sample", "annotator", "label"),
    [
        ("question_id", "_worker_id", "judgment"),
        ("sample_id", "annotator", "label"),
        ("HITId", "worker", "answer"),
    ],
)
def test_names_of_platforms_for_samples_annotators_and_labels(sample, annotator, label, tmp_path):
    """Rows are votes if they name samples that repeat with other annotators; the number of a vote is no sample."""
    lines = [f"id,{sample},{annotator},{label},age"] if sample != "sample_id" else [f"{sample},{annotator},{label},age"]
    for i in range(12):
        for a in range(3):
            number = "" if sample == "sample_id" else f"v{3 * i + a},"
            lines.append(f"{number}q{i},w{a},{'yes' if (i + (a == 2 and i < 4)) % 2 else 'no'},{20.5 + i}")
    (tmp_path / "votes.csv").write_text("\n".join(lines))
    data = datasets.load(str(tmp_path / "votes.csv"))
    assert data.columns == ["age"] and data.x_train[:, 0].tolist() == [20.5 + i for i in range(12)]
    assert data.ids.tolist() == [f"q{i}" for i in range(12)] and data.annotators == ["w0", "w1", "w2"]
    assert data.y_train.tolist() == [i % 2 for i in range(12)]
    assert data.votes.tolist() == [[i % 2, i % 2, (i + (i < 4)) % 2] for i in range(12)]
    assert len(by_vote(data).y_train) == 36


@pytest.mark.parametrize("count", [12, 24])
def test_tables_of_samples_with_a_task_and_a_rater_are_no_votes(count, tmp_path):
    """A task is a feature if nothing describes it, or if rows of a task have the same rater."""
    rows = [f"{i % 4},r{i % 3},{'yes' if i % 2 else 'no'},{i * 1.5}" for i in range(count)]
    (tmp_path / "tests.csv").write_text("\n".join(["task,worker,label,seconds", *rows]))
    data = datasets.load(str(tmp_path / "tests.csv"))
    assert len(data.y_train) == count and data.votes is None and data.columns[0] == "task"


# ---- rows without a label in a test split, names of rows, and tables of votes as tools write them
SIZE = 40


def write(path, columns, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return str(path)


@pytest.mark.parametrize("word", ["-1", "?", "", "unknown"])
def test_test_rows_without_a_label_are_predicted_and_not_scored(tmp_path, word):
    rows = [[i % 7 / 2, "pq"[i % 2], "test" if i > 29 else "train"] for i in range(SIZE)]
    for row in rows[35:]:
        row[1] = word
    data = datasets.load(write(tmp_path / "t.csv", ["x", "label", "split"], rows))
    assert (data.class_names, len(data.y_train), len(data.y_test), len(data.unlabeled.ids)) == (["p", "q"], 30, 5, 5)
    assert any("5 test samples" in note for note in data.notes) == bool(word)
    np.testing.assert_array_equal(np.asarray(data.unlabeled.samples())[:, 0], [row[0] for row in rows[35:]])


def test_a_class_minus_one_stays_if_training_rows_have_it(tmp_path):
    rows = [[i % 7 / 2, (-1, 1)[i % 2], "test" if i > 29 else "train"] for i in range(SIZE)]
    data = datasets.load(write(tmp_path / "t.csv", ["x", "label", "split"], rows))
    assert data.class_names == ["-1", "1"] and len(data.y_test) == 10


def test_test_samples_of_an_npz_without_a_label_are_unlabeled(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(SIZE, 3)).astype(np.float32), np.arange(SIZE) % 2
    for labels, left in ((np.where(np.arange(10) < 4, -1, y[30:]), 4), (np.full(10, -1), 10), (np.full(10, np.nan), 10)):
        train = y[:30].copy()
        train[3] = -1
        np.savez(tmp_path / "t.npz", x_train=x[:30], y_train=train, x_test=x[30:], y_test=labels)
        data = datasets.load(tmp_path / "t.npz")
        assert (len(data.y_test), len(data.x_test), len(data.unlabeled.ids)) == (10 - left, 10 - left, left + 1)
        np.testing.assert_array_equal(np.asarray(data.unlabeled.samples()), x[[3, *range(30, 30 + left)]])


def test_rows_are_named_by_their_column_of_identifiers(tmp_path):
    rows = [[f"V{500 + 7 * i}", i % 7 / 2, "pq"[i % 2]] for i in range(SIZE)]
    path = write(tmp_path / "t.csv", ["visit_id", "x", "label"], rows)
    data = datasets.load(path)
    assert "visit_id" not in data.columns and data.ids.tolist() == [row[0] for row in rows]
    trained = fnlkit.train(fnlkit.partition(path, clients=2, say=None), rounds=1, output=tmp_path / "a.pt", say=None)
    assert [row[0] for row in fnlkit.predict(trained, path).rows] == [row[0] for row in rows]
    # A column that the spec names is the id of new rows, too.
    path = write(tmp_path / "u.csv", ["key", "x", "label"], [[f"{i % 20} {i // 20}", *row[1:]] for i, row in enumerate(rows)])
    federation = fnlkit.partition(f'manifest(file="{path}", id=key)', clients=2, say=None)
    trained = fnlkit.train(federation, rounds=1, output=tmp_path / "b.pt", say=None)
    assert fnlkit.predict(trained, path).rows[21][0] == "1 1"


@pytest.mark.parametrize("name", ["doc_id", "id", "tweet_id", "DocID", "case no"])
@pytest.mark.parametrize("time", [None, "{:02d}.03.2024 14:05", "3/{}/2024 2:05 PM", "2024-03-{:02d}T14:05:00Z"])
def test_tables_of_votes_are_found_by_their_column_of_samples(tmp_path, name, time):
    rows = [[f"d{i}", who, "pq"[(i + len(who)) % 2], f"a text on {i}"] for i in range(SIZE) for who in ("ann", "ben", "zoe")]
    if time:
        rows = [[*row, time.format(1 + place % 28)] for place, row in enumerate(rows)]
    columns = [name, "annotator", "label", "title", *(["written"] if time else [])]
    path = write(tmp_path / "t.csv", columns, rows)
    data = by_vote(datasets.load(f'manifest(file="{path}", text=[title])'))
    assert len(data.y_train) == len(data.x_train) == 3 * SIZE and "written" not in data.columns
    encoded = data.encode(data.table)
    np.testing.assert_array_equal(encoded[0], data.x_train)


def test_a_patient_with_several_rows_of_an_annotator_is_no_sample(tmp_path):
    rows = [[f"p{i // 4}", "ann" if i % 2 else "ben", "pq"[i % 2], i % 7] for i in range(SIZE)]
    data = datasets.load(write(tmp_path / "t.csv", ["patient_id", "annotator", "label", "x"], rows))
    assert data.votes is None and data.roles["group"] == "patient_id"


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    rows = [[1000 + i, i % 7 / 2, "pq"[i % 2]] for i in range(SIZE)]
    return fnlkit.partition(write(tmp_path_factory.mktemp("f") / "t.csv", ["id", "x", "label"], rows), clients=2, say=None)


@pytest.mark.parametrize("name", ["doc_id", "Number", "nr"])
def test_numeric_ids_are_found_by_the_name_of_their_column(tmp_path, federation, name):
    wide = write(tmp_path / "w.csv", [name, "ann", "ben"], [[1000 + i, "pq"[i % 2], "p"] for i in range(SIZE)])
    rows = [[f"{1000 + i}.0", who, "p"] for i in range(SIZE) for who in "ab"]
    long = write(tmp_path / "l.csv", [name, "annotator", "label"], rows)
    for path in (wide, long):
        assert fnlkit.consensus(federation, path).federation.extra["votes"].shape == (SIZE, 2)


@pytest.mark.parametrize(
    ("form", "newest"),
    [("{:02d}.03.2024 14:05", True), ("3/{}/2024 2:05 PM", True), ("2024-03-{:02d}T14:05:00Z", True), ("{}?", False)],
)
def test_the_newest_vote_counts_if_the_times_can_be_read(tmp_path, federation, form, newest):
    rows = [[1000 + i, "ann", "p", form.format(1 + i % 20)] for i in range(SIZE)] + [[1000, "ann", "q", form.format(27)]]
    path = write(tmp_path / "l.csv", ["id", "annotator", "label", "updated_at"], rows)
    if newest:
        votes = fnlkit.consensus(federation, path).federation.extra["votes"]
        assert votes[0, 0] == 1
    else:
        refuse_call(r"row 42.*earlier row.*'updated_at' holds '27\?'.*2024-03-31 14:05", fnlkit.consensus, federation, path)


def test_a_time_in_doubt_decides_about_its_own_vote_only(tmp_path, federation):
    """A cell 05.01.24 made all times unknown, and the message blamed another cell."""
    rows = [[1000 + i, "ann", "p", "2024-01-05 10:00"] for i in range(SIZE)] + [[1000, "ann", "q", "2024-01-06 10:00"]]
    rows[1][3] = "05.01.24"
    path = write(tmp_path / "l.csv", ["id", "annotator", "label", "updated_at"], rows)
    assert fnlkit.consensus(federation, path).federation.extra["votes"][0, 0] == 1
    path = write(tmp_path / "l.csv", ["id", "annotator", "label", "updated_at"], [*rows, [1001, "ann", "q", "2024-01-06"]])
    refuse_call("'updated_at' holds '05.01.24'", fnlkit.consensus, federation, path)


def test_times_whose_day_and_month_are_in_doubt_are_not_read():
    assert np.isnat(read_times(["05/01/2024 10:00", "06/01/2024 10:00"])).all()
    assert np.isnat(read_times(["05/01/24 10:00", "13.01.99 10:00", "2024-01-05"])).tolist() == [True, False, False]
    assert np.isnat(read_times(["24/01/31 10:00", "24/02/01 10:00", "05.01.24"])).all()  # they were in 2031 and 2001
    assert read_times(["13.01.24"]).astype("datetime64[D]").astype(str).tolist() == ["2024-01-13"]
    assert np.isnat(read_times(["05/01/2024", "2024-01-06"])).tolist() == [True, False] and not len(read_times([]))
    assert np.isnat(read_times(["10:30", "2024-01-05 10:00"])).tolist() == [True, False]
    assert np.diff(read_times(["10:30", "11:30", ""])[:2]) == np.timedelta64(1, "h")
    assert np.diff(read_times(["31/01/2024 10:00", "05/02/2024 10:00"])).astype("timedelta64[D]").tolist()[0].days == 5
    assert np.isnat(read_times(["", "2024-01-05"])).tolist() == [True, False]
    days = [f"{day}/01/2024" for day in range(10, 31)]
    for text in ("2024-01-06", "2024-01-06 1:00 PM", "2024-01-06 10:00 UTC", "2024-01-06, 10:00", "2024/01/06 9:05 AM"):
        mixed = read_times([*days, text]).astype("datetime64[D]").astype(str)
        assert max(mixed) == "2024-01-30" and mixed[-1] == "2024-01-06"
    assert np.isnat(read_times([*days, "24/01/31"])).nonzero()[0].tolist() == [21]
