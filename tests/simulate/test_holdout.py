"""Samples that nobody trains on stay at their clients: a share of each, and those that somebody verified."""

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import InputError
from fnlkit.simulate import noise, partitioning
from fnlkit.simulate.holdout import read_gold, set_apart


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


def test_a_share_of_each_label_is_held_out_at_its_client(digits):
    before = partitioning.federation(digits, "dirichlet(alpha=0.3)", clients=8, seed=1)
    after = partitioning.federation(digits, "dirichlet(alpha=0.3)", clients=8, seed=1, holdout=0.25)
    for was, rest, out in zip(before.clients, after.clients, after.held_out, strict=True):
        assert np.array_equal(np.sort(np.concatenate([rest, out])), was)
        assert abs(len(out) - len(was) / 4) < 1
        counts = [np.bincount(before.given[part], minlength=10) for part in (was, out)]
        assert (np.abs(counts[1] - counts[0] / 4) < 1 + 1e-9).all()  # of every label alike
    assert after.whole().client_indices.tolist() == before.client_indices.tolist()
    assert before.whole() is before and not sum(map(len, before.held_out))


def test_without_test_samples_a_fifth_is_held_out(digits, tmp_path):
    np.savez(tmp_path / "own.npz", x_train=digits.x_train, y_train=digits.y_train)
    own = datasets.load(tmp_path / "own.npz")
    assert len(own.x_test) == 0 and own.x_test.shape[1:] == (8, 8, 1) and len(own.checksum) == 64
    federation = partitioning.federation(own, clients=5)
    assert sum(map(len, federation.held_out)) == pytest.approx(1438 / 5, abs=5)
    assert not sum(map(len, partitioning.federation(own, clients=5, holdout=0).held_out))
    assert not sum(map(len, partitioning.federation(digits, clients=5).held_out))


def test_a_client_keeps_a_sample_to_train_on():
    federation = Federation("x", 2, np.array([0, 1, 3]), np.arange(3), np.array([0, 1, 1]))
    out = set_apart(federation, holdout=0.9)
    assert [len(part) for part in out.clients] == [1, 1] and [len(part) for part in out.held_out] == [0, 1]
    with pytest.raises(InputError, match="`holdout` 1.0"):
        set_apart(federation, holdout=1.0)


def test_verified_samples_are_apart_from_both(digits, tmp_path):
    (tmp_path / "gold.csv").write_text("id,label\n3,7\n10,1\n")
    gold = tmp_path / "gold.csv"
    federation = partitioning.federation(digits, clients=4, holdout=0.2, gold=str(gold))
    assert not np.isin([3, 10], federation.client_indices).any()
    assert federation.extra["gold_label"][[3, 10]].tolist() == [7, 1] and (federation.extra["gold_label"] >= 0).sum() == 2
    assert (federation.extra["holdout_client"][[3, 10]] >= 0).all() and (federation.given == digits.y_train).all()
    federation.write(str(tmp_path / "fed.npz"))
    again = Federation.read(str(tmp_path / "fed.npz"))
    assert all(np.array_equal(a, b) for a, b in zip(again.held_out, federation.held_out, strict=True))


@pytest.mark.parametrize(
    ("text", "encoding"), [("id;label\n3;7\n10;1\n", "utf-8-sig"), ("Label\tnote\tId\r7\t\t3\r1\t\t10\r", "utf-16")]
)
def test_verified_samples_in_a_table_of_a_spreadsheet(digits, tmp_path, text, encoding):
    (tmp_path / "gold.csv").write_bytes(text.encode(encoding))
    positions, labels = read_gold(str(tmp_path / "gold.csv"), digits)
    assert positions.tolist() == [3, 10] and labels.tolist() == [7, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,label\n3,7\n3,7\n", "listed twice"),
        ("id,label\n99999,7\n", "row 2: no sample '99999'"),
        ("id,label\n3,cat\n", "row 2: no class 'cat'"),
        ("sample,class\n3,7\n", "the columns id and label"),
        ("", "gold.csv: is empty"),
    ],
)
def test_a_table_of_verified_samples_that_does_not_fit(digits, tmp_path, text, says):
    (tmp_path / "gold.csv").write_text(text)
    with pytest.raises(InputError, match=says):
        read_gold(str(tmp_path / "gold.csv"), digits)


def test_held_out_labels_go_wrong_as_the_others_do(digits):
    federation = partitioning.federation(digits, clients=4, holdout=0.3)
    noisy = noise.inject(federation, "clients(rho=1.0, tau=0.5)", seed=0)
    wrong = noisy.given != noisy.true
    out = np.concatenate(noisy.held_out)
    shares = wrong[out].mean(), wrong[noisy.client_indices].mean()
    assert min(shares) > 0.2 and shares[0] == pytest.approx(shares[1], abs=0.08)


def test_held_out_samples_are_never_trained_on(digits):
    federation = partitioning.federation(digits, clients=4, holdout=0.3)
    federation.extra["holdout_client"][federation.client_indices[0]] = 0
    with pytest.raises(InputError, match="contains samples that clients train on"):
        federation.check()
    federation = partitioning.federation(digits, clients=4, holdout=0.3)
    federation.extra["holdout_client"][0] = 4
    with pytest.raises(InputError, match="from -1 to 3"):
        federation.check()
