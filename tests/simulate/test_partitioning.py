"""Partitions: each sample in at most one client, and each scheme does what its paper says."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import fnlkit as package
from benchmarks import conventions
from fnlkit import datasets
from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from fnlkit.core.spec import Spec
from fnlkit.kernels.streams import stream
from fnlkit.simulate import noise, partitioning
from fnlkit.simulate.holdout import read_gold, set_apart
from fnlkit.simulate.partitioning import FIXED, SCHEMES, empty, federation, partition
from fnlkit.simulate.schemes import bernoulli_dirichlet
from tests.commands import refuse_call

SPECS = [
    "iid", "iid(balanced=true)", "shards(per_client=2)", "sizes(sigma=0.25)", "sizes(sigma=3)",
    "dirichlet(alpha=0.5)", "dirichlet(alpha=1e-3)", "dirichlet(alpha=0.5, balanced=true)", "dirichlet(alpha=0.5, by=client)",
    "bernoulli-dirichlet(p=0.7, alpha=10)", "bernoulli-dirichlet(p=0.2, alpha=1, at_least_one=true)",
    "openset(q=0.5)", "openset(q=0.4, uniform=false)",
]  # fmt: skip
LABELS = np.repeat(np.arange(10), 500)


def split(scheme, clients=20, seed=0, labels=LABELS, classes=10, **options):
    return partition(labels, classes, scheme, clients=clients, seed=seed, **options)


@pytest.mark.parametrize("scheme", SPECS)
def test_same_seed_same_split_and_another_seed_another(scheme):
    first, again, other = (split(scheme, 5, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("classes", "each", "clients", "alpha"), [(100, 5, 20, 100), (44, 12, 30, 10_000), (20, 8, 20, 10_000)]
)
def test_a_large_alpha_is_nearly_even_also_for_small_classes(classes, each, clients, alpha):
    labels = np.repeat(np.arange(classes), each)
    mean, expected = len(labels) / clients, each / clients
    for seed in range(5):
        parts = split(f"dirichlet(alpha={alpha})", clients, seed, labels, classes)
        assert all(0.5 * mean < len(part) < 1.6 * mean for part in parts)
        counts = np.array([np.bincount(labels[part], minlength=classes) for part in parts])
        assert alpha == 100 or (abs(counts - expected) < 1.2).all()


def test_balanced_iid_gives_every_client_equally_many_of_every_class():
    counts = np.array([np.bincount(LABELS[part], minlength=10) for part in split("iid(balanced=true)", 20)])
    assert (counts == 25).all()
    assert np.ptp([np.bincount(LABELS[part], minlength=10) for part in split("iid", 20)]) > 5
    odd = np.repeat(np.arange(4), [7, 12, 1, 33])  # up to 1 where it does not come out even, in the sizes too
    parts = split("iid(balanced=true)", 5, labels=odd, classes=4)
    counts = np.array([np.bincount(odd[part], minlength=4) for part in parts])
    assert np.ptp(counts, axis=0).max() <= 1 and np.ptp(counts.sum(1)) <= 1 and counts.sum() == 53


def test_shards_give_few_classes():
    held = [len(np.unique(LABELS[part])) for part in split("shards(per_client=2)", 100)]
    assert max(held) <= 4 and np.mean(held) < 2.5


@pytest.mark.parametrize(("alpha", "low", "high"), [(0.05, 0.6, 1.0), (0.5, 0.25, 0.6), (1000, 0.1, 0.15)])
def test_dirichlet_skews_labels(alpha, low, high):
    # A split by blocks of sorted indices instead of labels (FedRN's public code) has a top share of 0.125 at alpha 0.5.
    parts = split(f"dirichlet(alpha={alpha})")
    assert low < np.mean([np.bincount(LABELS[part], minlength=10).max() / len(part) for part in parts]) < high


def test_bernoulli_dirichlet_assigns_a_share_p_of_the_classes():
    held = [np.bincount(LABELS[part], minlength=10) > 0 for part in split("bernoulli-dirichlet(p=0.3, alpha=100)", 100)]
    assert abs(np.mean(held) - 0.3) < 0.05 and np.all(np.any(held, 0))


def test_a_class_that_no_client_has_is_drawn_again_with_the_same_probability():
    parts = bernoulli_dirichlet(np.repeat(np.arange(2000), 20), 2000, 2, stream(0, "x"), p=0.5, alpha=1000)
    held = [np.bincount(part // 20, minlength=2000) > 0 for part in parts]
    assert abs(np.mean(held[0] & held[1]) - 1 / 3) < 0.04  # p^2 / (1 - (1 - p)^2)


def test_at_least_one_sample_of_each_class():
    few = np.repeat(np.arange(10), 40)
    counts = {}
    for option in (False, True):
        parts = bernoulli_dirichlet(few, 10, 30, stream(0, "x"), p=0.8, alpha=0.05, at_least_one=option)
        counts[option] = np.mean([[(few[part] == label).any() for label in range(10)] for part in parts])
    assert counts[True] > 0.7 and counts[False] < 0.3


@pytest.mark.parametrize("uniform", ["true", "false"])
def test_openset_hides_classes_from_everybody(uniform):
    parts = split(f"openset(q=0.6, uniform={uniform})", 40)
    held = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
    assert (held > 0).any(1).all() and not (held > 0).all(1).any()
    spread = np.array([np.ptp(column[column > 0]) for column in held.T])
    assert (spread <= 1).all() if uniform == "true" else (spread > 20).all()


def test_sizes_spread_by_sigma():
    # The public code's multinomial sizes spread by 3 % at 30 clients of CIFAR-10; the paper says 25 %.
    found = np.array([len(part) for part in split("sizes(sigma=0.25)", 100, labels=np.zeros(50_000, int))])
    assert 0.2 < found.std() / found.mean() < 0.3 and found.sum() == 50_000


def test_natural_clients():
    who = np.array(["ann", "bob", "cy"])[np.arange(5000) % 3]
    parts = split("field(name=speaker)", None, fields={"speaker": who})
    assert [set(who[part]) for part in parts] == [{"ann"}, {"bob"}, {"cy"}]
    assert len(split("field(name=speaker)", 2, fields={"speaker": who})) == 2
    refuse_call("has 3 values, fewer than `clients` 4", split, "field(name=speaker)", 4, fields={"speaker": who})
    for gaps in (np.array(["ann", None] * 2500, object), np.array([1, np.nan] * 2500)):
        refuse_call("missing for sample 1 .2,500 in all", split, "field(name=speaker)", None, fields={"speaker": gaps})
    numbers = split("field(name=speaker)", None, fields={"speaker": np.array([10, 2] * 2500, object)})
    assert [part[0] for part in numbers] == [1, 0]  # 2 comes before 10
    refuse_call("no field 'spaeker'; it has: speaker", split, "field(name=spaeker)", None, fields={"speaker": who})


def test_a_split_from_a_file(tmp_path):
    owner = np.arange(5000) % 3
    owner[7] = -1
    np.save(tmp_path / "a.npy", owner)
    parts = split(f'file(path="{tmp_path}/a.npy")', None)
    assert len(parts) == 3 and sum(map(len, parts)) == 4999 and 7 not in np.concatenate(parts)
    np.savez(tmp_path / "b.npz", site=owner, other=owner)
    assert len(split(f'file(path="{tmp_path}/b.npz", key=site)', None)) == 3
    refuse_call("add key=NAME with one of other, site", split, f'file(path="{tmp_path}/b.npz")', None)
    refuse_call("not `clients` 4", split, f'file(path="{tmp_path}/a.npy")', 4)
    refuse_call("a client number for each of 6", split, f'file(path="{tmp_path}/a.npy")', None, labels=np.zeros(6, int))
    np.save(tmp_path / "c.npy", np.array([0, 2, 2, 0]))
    refuse_call("smallest client has 0 .*without gaps", split, f'file(path="{tmp_path}/c.npy")', None, labels=np.zeros(4, int))
    data = datasets.load("digits")
    federation(data, "dirichlet", clients=7).write(tmp_path / "fed.npz")
    again = federation(data, f'file(path="{tmp_path}/fed.npz")')
    assert [p.tolist() for p in again.clients] == [p.tolist() for p in federation(data, "dirichlet", clients=7).clients]


@pytest.mark.parametrize(("scheme", "options", "message"), [
    ("dirichlet(alpha=0)", {}, "'alpha' is 0.0; write a number above 0"),
    ("openset(q=1)", {}, "write a number above 0 and below 1"),
    ("iid", dict(clients=6000), "6,000 clients of at least 1 samples each need 6,000, there are 5,000"),
    ("iid", dict(min_samples=251), "lower `clients` or `min_samples`"),
    ("iid", dict(clients=None), "needs `clients`"),
    ("iid", dict(min_samples=0), "needs at least 1 sample"),
    ("dirichlet(alpha=0.01)", dict(min_samples=10, labels=LABELS[::25]), "in 1,000 draws the smallest of 20 clients"),
    ("bernoulli-dirichlet(p=0.000000001)", {}, "raise p"),
    ("sizes(sigma=3)", dict(clients=10, min_samples=45, labels=LABELS[::10]), "lower `clients` or `min_samples`"),
    ("field(name=x)", dict(clients=None), "it has: none"),
    ("dirichlet(by=client, balanced=true)", {}, "leave out `balanced`"),
])  # fmt: skip
def test_partition_errors_name_the_parameter(scheme, options, message):
    refuse_call(message, split, scheme, **options)


def mine(labels, classes, clients, rng, *, stop=10):
    """A scheme of the user's, wrong unless told to stop early."""
    return [np.arange(stop), np.arange(5, 20)]


@pytest.mark.parametrize("parts", [[0, 1], [], [np.arange(5) + 0.5], [LABELS == 0], [np.zeros((2, 2), int)]])
def test_positions_of_a_users_scheme_are_lists_of_whole_numbers(parts, monkeypatch):
    monkeypatch.setattr(f"{__name__}.mine", lambda labels, classes, clients, rng: parts)
    refuse_call("list of each client's", partition, LABELS, 10, "tests.simulate.test_partitioning:mine", clients=2, seed=0)


def test_one_client_has_all_samples_also_with_classes_of_none():
    for seed in range(8):
        assert len(split("dirichlet(balanced=true)", clients=1, seed=seed, classes=20)[0]) == len(LABELS)


def test_a_public_set_has_samples(digits):
    refuse_call("is none; raise it", federation, digits, public=1e-5)
    assert len(federation(digits, public=0.001).client_indices) == len(digits.y_train) - 1


def test_schemes_of_the_user():
    parts = partition(LABELS, 10, Spec("tests.simulate.test_partitioning:mine", {"stop": 5}), clients=2, seed=0)
    assert [len(part) for part in parts] == [5, 15]
    refuse_call("belongs to two clients", partition, LABELS, 10, "tests.simulate.test_partitioning:mine", clients=2, seed=0)
    message = "returned 2 clients, expected 3; write `clients=2`"
    refuse_call(message, partition, LABELS, 10, "tests.simulate.test_partitioning:mine(stop=5)", clients=3, seed=0)


def test_a_federation_of_a_data_set():
    data = datasets.load("digits")
    fed = federation(data)
    assert len(fed) == 20 and fed.dataset == "digits" and fed.meta["dataset_checksum"] == data.checksum
    assert np.array_equal(fed.given, data.y_train) and np.array_equal(fed.true, data.y_train)
    assert fed.noise_client_level is None and len(fed.with_clients([])) == 0
    assert b"".join(files.encode(fed.to_artifact())) == b"".join(files.encode(federation(data).to_artifact()))
    assert b"".join(files.encode(fed.to_artifact())) != b"".join(files.encode(federation(data, seed=1).to_artifact()))


def test_noise_first_and_then_the_split_on_given_labels():
    # FedEFC and FedDPCont corrupt the whole training set and split on what the labels became.
    data = datasets.load("digits")
    noisy = noise.inject(empty(data), "symmetric(eta=0.5)", seed=0)
    fed = federation(data, "openset(q=0.4)", clients=10, noisy=noisy)
    assert np.array_equal(fed.given, noisy.given) and np.array_equal(fed.true, data.y_train)
    assert all(len(np.unique(fed.given_of(k))) < 10 for k in range(10))
    assert max(len(np.unique(fed.true[part])) for part in fed.clients) == 10
    np.testing.assert_array_equal(fed.noise_client_level, [(fed.given != fed.true)[part].mean() for part in fed.clients])
    assert fed.noise_transition.shape == (10, 10) and fed.meta["noise"] == noisy.meta["noise"]
    refuse_call("already partitioned over 10 clients", federation, data, noisy=fed)
    noisy.given = noisy.given[:-1]
    refuse_call("labels 1,437 samples but digits has 1,438", federation, data, noisy=noisy)


def test_truth_is_declared_never_assumed(tmp_path):
    x, y = np.zeros((30, 4), np.float32), np.arange(30) % 3
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    np.savez(tmp_path / "mine.npz", **arrays)
    np.savez(tmp_path / "declared.npz", y_train_true=(y + (np.arange(30) < 6)) % 3, **arrays)
    mine, declared = (datasets.load(tmp_path / name) for name in ("mine.npz", "declared.npz"))
    assert mine.truth is None and federation(mine, clients=3).true is None
    assert (federation(mine, clients=3, labels="true").true == y).all()
    found = federation(declared, clients=3)
    assert (found.given == y).all() and (found.given != found.true).sum() == 6 and found.noise_client_level.max() > 0
    assert federation(declared, clients=3, labels="observed").true is None
    digits = datasets.load("digits")
    assert (federation(digits, clients=3).true == digits.y_train).all()
    refuse_call("write auto, observed or true", empty, mine, "wrong")


def test_clients_that_are_values_of_a_field_carry_their_names(tmp_path):
    x, y = np.zeros((30, 4), np.float32), np.arange(30) % 3
    site = np.array(["Aix", "Bonn", "Cork"])[np.arange(30) // 10]
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y, site_train=site)
    mine = datasets.load(tmp_path / "mine.npz")
    for scheme in ("field(name=site)", "sites"):
        assert federation(mine, scheme).meta["client_names"] == ["Aix", "Bonn", "Cork"]
    refuse_call("names no sites; give a table", federation, datasets.load("digits"), "sites")
    assert "client_names" not in federation(mine, clients=3).meta


# ---- schemes against the values of other tools, stored by `python -m benchmarks.conventions --json`
RESULTS = Path(__file__).parents[2] / "benchmarks/results/conventions.jsonl"


@pytest.mark.parametrize("scheme", [each for each in conventions.PARTITIONERS if each.package == "fnlkit"])
def test_the_values_stored_beside_those_of_other_tools_are_of_this_version(scheme):
    rows = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    (stored,) = [row for row in rows if (row["package"], row["partition"]) == ("fnlkit", scheme.name)]
    for name, values in conventions.measure(scheme, 20).items():
        assert stored[name][:20] == values


# ---- what every scheme guarantees
CLIENTS = 4
# 43 rows; two classes have fewer rows than there are clients.
SMALL = np.repeat(np.arange(5), [2, 3, 9, 12, 17])


def owners(labels, scheme, seed, clients=CLIENTS, **options):
    """Return the client (n,) of each row, and raise unless each row has one client."""
    parts = partition(labels, int(labels.max()) + 1, scheme, clients=clients, seed=seed, **options)
    owner = np.full(len(labels), -1)
    for k, part in enumerate(parts):
        assert (owner[part] == -1).all() and len(part)
        owner[part] = k
    assert (owner >= 0).all()
    return owner


def table(labels, owner, clients=CLIENTS):
    """Return the number (N, C) of rows of each class by client."""
    return np.array([np.bincount(labels[owner == k], minlength=int(labels.max()) + 1) for k in range(clients)])


def distance(counts):
    """Return the mean distance (total variation) of the clients' class shares from the whole."""
    shares = counts / counts.sum(1, keepdims=True)
    return (np.abs(shares - counts.sum(0) / counts.sum()).sum(1) / 2).mean()


def p_of_mean_zero(values):
    """Return the p-value of a mean of 0; 1 for zeros."""
    return stats.ttest_1samp(values, 0).pvalue if np.any(values) else 1.0


def order_within_classes(labels, owner, rng):
    """Return two statistics with mean 0 if the rows of a class are exchangeable.

    The first is above 0 if neighbors in the file have the same client, the second if the first rows go to the first clients.
    """
    neighbors = ranks = 0.0
    for label in np.unique(labels):
        mine = owner[labels == label]
        shuffled = rng.permutation(mine)
        neighbors += (mine[1:] == mine[:-1]).sum() - (shuffled[1:] == shuffled[:-1]).sum()
        ranks += ((np.arange(len(mine)) - (len(mine) - 1) / 2) * mine).sum()
    return neighbors, ranks


@pytest.mark.parametrize("scheme", SPECS)
def test_each_row_is_dealt_once_whatever_its_place_in_the_file_and_whatever_the_position_of_a_client(scheme):
    rng, seeds = np.random.default_rng(0), 80
    order = rng.permutation(len(SMALL))  # another file with the same rows
    other = SMALL[order]
    first = [owners(SMALL, scheme, seed) for seed in range(seeds)]
    second = [owners(other, scheme, seeds + seed) for seed in range(seeds)]
    counts = np.array([table(SMALL, owner) for owner in first])
    assert (counts.sum(1) == np.bincount(SMALL)).all()  # no class is lost

    # A client's position: sizes, and each class, the two small ones included.
    for column in (counts.sum(2), *np.moveaxis(counts, 2, 0)):
        # Exchangeable counts with a fixed sum have the covariance s2 N / (N - 1) (I - 1/N), so this is chi-square with N - 1.
        squares = seeds * ((column.mean(0) - column.mean()) ** 2).sum()
        spread = column.var() * CLIENTS / (CLIENTS - 1)
        assert squares == 0 or stats.chi2.sf(squares / spread, CLIENTS - 1) > 1e-3

    # The place of a row among the rows of a class, in a file sorted by class and in a shuffled file.
    for labels, split in ((SMALL, first), (other, second)):
        neighbors, ranks = np.transpose([order_within_classes(labels, owner, rng) for owner in split])
        assert p_of_mean_zero(neighbors) > 1e-3 and p_of_mean_zero(ranks) > 1e-3

    # The order of the classes in the file.
    again = np.array([table(other, owner) for owner in second])
    for statistic in (lambda c: c.sum(1).std(), distance):
        one, two = ([round(statistic(c), 9) for c in tables] for tables in (counts, again))
        assert stats.ks_2samp(one, two).pvalue > 1e-3


@pytest.mark.parametrize("scheme", ["sites", "annotators(least=2)", "file"])
def test_clients_in_the_data_do_not_depend_on_the_order_of_rows(scheme, tmp_path):
    names = np.array(["b", "c", "a", "d"])[np.arange(len(SMALL)) % CLIENTS]
    order = np.random.default_rng(0).permutation(len(SMALL))
    split = []
    for number, rows in enumerate((np.arange(len(SMALL)), order)):
        np.save(tmp_path / f"{number}.npy", np.arange(len(SMALL))[rows] % CLIENTS)
        spec = f'file(path="{tmp_path}/{number}.npy")' if scheme == "file" else scheme
        fields = {"site": names[rows], "annotator": names[rows]}
        owner = np.empty(len(SMALL), int)
        owner[rows] = owners(SMALL[rows], spec, 0, None, fields=fields)
        split.append(owner)
    np.testing.assert_array_equal(*split)


def test_the_schemes_of_this_file_are_all_schemes():
    assert set(FIXED) == {"sites", "field", "annotators", "file"}
    assert {spec.split("(")[0] for spec in SPECS} | set(FIXED) == set(SCHEMES)


@pytest.mark.parametrize("more", ["", ", balanced=true"])
def test_many_classes_of_one_row_are_dealt_evenly(more):
    # With shares near 1/10 each row goes to each client with about the same probability: 100 rows of 1,000.  Independent draws
    # have a standard deviation of 9.5; rounded cumulative shares give all rows to two clients.
    labels = np.arange(1000)
    for seed in range(5):
        sizes = [len(part) for part in partition(labels, 1000, f"dirichlet(alpha=100{more})", clients=10, seed=seed)]
        assert max(sizes) - min(sizes) <= (0 if more else 20) and sum(sizes) == 1000


@pytest.mark.parametrize("more", ["", ", balanced=true", ", by=client"])
def test_classes_of_one_row_beside_large_classes_belong_to_many_clients(more):
    # Equal weights of all classes, as in pfl-research, give the 50 rows to the first four clients.
    labels = np.concatenate([np.repeat(np.arange(10), 500), np.arange(10, 60)])
    for seed in range(5):
        parts = partition(labels, 60, f"dirichlet(alpha=0.5{more})", clients=20, seed=seed)
        rare = [np.sum(labels[part] >= 10) for part in parts]
        assert np.count_nonzero(rare) >= 10 and max(rare) <= 25


# ---- samples that nobody trains on stay at their clients
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
    refuse_call("`holdout` 1.0", set_apart, federation, holdout=1.0)


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


@pytest.mark.parametrize(("text", "says"), [
    ("id,label\n3,7\n3,7\n", "listed twice"),
    ("id,label\n99999,7\n", "row 2: no sample '99999'"),
    ("id,label\n3,cat\n", "row 2: no class 'cat'"),
    ("sample,class\n3,7\n", "a column that names the sample"),
    ("", "gold.csv: is empty"),
])  # fmt: skip
def test_a_table_of_verified_samples_that_does_not_fit(digits, tmp_path, text, says):
    (tmp_path / "gold.csv").write_text(text)
    refuse_call(says, read_gold, str(tmp_path / "gold.csv"), digits)


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
    refuse_call("contains samples that clients train on", federation.check)
    federation = partitioning.federation(digits, clients=4, holdout=0.3)
    federation.extra["holdout_client"][0] = 4
    refuse_call("from -1 to 3", federation.check)


# ---- the report of a partition
def write(folder):
    """Write 60 rows of two sites: 20 patients, a column of numbers with empty cells at one site, 6 rows without a label."""
    lines = ["exam_no,crp,ward,label,site,patient_id"]
    for i in range(60):
        crp = "" if i in (1, 3, 5) else f"{i / 7:.3f}"
        label = "" if i >= 54 else "ill" if i % 3 else "well"
        lines.append(
            f"{100000 + i},{crp},{'' if i == 4 else 'ab'[i % 2]},{label},{'Aix' if i % 2 else 'Bonn'},p{i // 6:02d}{i % 2}"
        )
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_counts_of_a_table(tmp_path):
    facts = {}
    federation = package.partition(str(write(tmp_path)), "sites", holdout=0, report=facts.update, say=None)
    assert facts["samples"] == {
        "training": 54, "held_out": 0, "verified": 0, "left_out": 0, "test": 0, "unlabeled": 6}  # fmt: skip
    assert facts["clients"] == {"count": 2, "smallest": 27, "largest": 27} and facts["sites"] == {"Aix": 27, "Bonn": 27}
    assert facts["groups"] == 18 and facts["classes"] == {"ill": 36, "well": 18}  # 3 rows of each patient
    assert facts["missing"] == {"crp": {"Aix": 3}, "ward": {"Bonn": 1}, "label": {"Aix": 3, "Bonn": 3}}
    assert facts["left_out"] == {"exam_no": "row numbers"} and facts["true_labels"] is False
    assert facts["columns"] == {
        "label": ["label"], "site": ["site"], "group": ["patient_id"], "number": ["crp"], "one-hot": ["ward"]}  # fmt: skip
    assert facts["samples"]["training"] == sum(map(len, federation.clients))
