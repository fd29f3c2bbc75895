"""Rows without a label in a test split, names of rows, and tables of votes as tools write them."""

import csv

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.datasets.dates import read_times
from fnlkit.datasets.votes import by_vote

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
    long = write(
        tmp_path / "l.csv", [name, "annotator", "label"], [[f"{1000 + i}.0", who, "p"] for i in range(SIZE) for who in "ab"]
    )
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
        with pytest.raises(fnlkit.InputError, match=r"row 42.*earlier row.*'updated_at' holds '27\?'.*2024-03-31 14:05"):
            fnlkit.consensus(federation, path)


def test_times_whose_day_and_month_are_in_doubt_are_not_read():
    assert np.isnat(read_times(["05/01/2024 10:00", "06/01/2024 10:00"])).all()
    assert np.diff(read_times(["31/01/2024 10:00", "05/02/2024 10:00"])).astype("timedelta64[D]").tolist()[0].days == 5
    assert np.isnat(read_times(["", "2024-01-05"])).tolist() == [True, False]
