"""Partitions: each sample in at most one client, and each scheme does what its paper says."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import conventions
from fnlkit import datasets
from fnlkit.artifacts import files
from fnlkit.core.errors import InputError
from fnlkit.core.spec import Spec
from fnlkit.kernels.streams import stream
from fnlkit.simulate import noise
from fnlkit.simulate.partitioning import empty, federation, partition
from fnlkit.simulate.schemes import bernoulli_dirichlet

SPECS = [
    "iid",
    "iid(balanced=true)",
    "shards(per_client=2)",
    "dirichlet(alpha=0.5)",
    "dirichlet(alpha=1e-3)",
    "dirichlet(alpha=0.5, balanced=true)",
    "dirichlet(alpha=0.5, by=client)",
    "bernoulli-dirichlet(p=0.7, alpha=10)",
    "bernoulli-dirichlet(p=0.2, alpha=1, at_least_one=true)",
    "openset(q=0.5)",
    "openset(q=0.4, uniform=false)",
    "sizes(sigma=0.25)",
    "sizes(sigma=3)",
]
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


def test_bernoulli_dirichlet_redraws_empty_rows_and_columns():
    for seed in range(20):
        assert len(split("bernoulli-dirichlet(p=0.05, alpha=1)", 4, seed)) == 4


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
    with pytest.raises(InputError, match="has 3 values, fewer than `clients` 4"):
        split("field(name=speaker)", 4, fields={"speaker": who})
    with pytest.raises(InputError, match="no field 'spaeker'; it has: speaker"):
        split("field(name=spaeker)", None, fields={"speaker": who})


def test_a_split_from_a_file(tmp_path):
    owner = np.arange(5000) % 3
    owner[7] = -1
    np.save(tmp_path / "a.npy", owner)
    parts = split(f'file(path="{tmp_path}/a.npy")', None)
    assert len(parts) == 3 and sum(map(len, parts)) == 4999 and 7 not in np.concatenate(parts)
    np.savez(tmp_path / "b.npz", site=owner, other=owner)
    assert len(split(f'file(path="{tmp_path}/b.npz", key=site)', None)) == 3
    with pytest.raises(InputError, match="add key=NAME with one of other, site"):
        split(f'file(path="{tmp_path}/b.npz")', None)
    with pytest.raises(InputError, match="not `clients` 4"):
        split(f'file(path="{tmp_path}/a.npy")', 4)
    with pytest.raises(InputError, match="a client number for each of 6 training samples"):
        split(f'file(path="{tmp_path}/a.npy")', None, labels=np.zeros(6, int))
    np.save(tmp_path / "c.npy", np.array([0, 2, 2, 0]))
    with pytest.raises(InputError, match="smallest client has 0"):
        split(f'file(path="{tmp_path}/c.npy")', None, labels=np.zeros(4, int))
    data = datasets.load("digits")
    federation(data, "dirichlet", clients=7).write(tmp_path / "fed.npz")
    again = federation(data, f'file(path="{tmp_path}/fed.npz")')
    assert [p.tolist() for p in again.clients] == [p.tolist() for p in federation(data, "dirichlet", clients=7).clients]


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("dirichlet(alpha=0)", {}, "'alpha' is 0.0; write a number above 0"),
        ("openset(q=1)", {}, "write a number above 0 and below 1"),
        ("iid", dict(clients=6000), "6,000 clients of at least 1 samples each need 6,000, there are 5,000"),
        ("iid", dict(min_samples=251), "lower `clients` or `min_samples`"),
        ("iid", dict(clients=None), "needs `clients`"),
        ("iid", dict(min_samples=0), "needs at least 1 sample"),
        ("dirichlet(alpha=0.01)", dict(min_samples=10, labels=LABELS[::25]), "in 1,000 draws the smallest of 20 clients"),
        ("field(name=x)", dict(clients=None), "it has: none"),
        ("dirichlet(by=client, balanced=true)", {}, "leave out `balanced`"),
    ],
)
def test_partition_errors_name_the_parameter(scheme, options, message):
    with pytest.raises(InputError) as error:
        split(scheme, **options)
    assert message in str(error.value)


def mine(labels, classes, clients, rng, *, stop=10):
    """A scheme of the user's, wrong unless told to stop early."""
    return [np.arange(stop), np.arange(5, 20)]


def test_schemes_of_the_user():
    parts = partition(LABELS, 10, Spec("tests.simulate.test_partitioning:mine", {"stop": 5}), clients=2, seed=0)
    assert [len(part) for part in parts] == [5, 15]
    with pytest.raises(InputError, match="belongs to two clients"):
        partition(LABELS, 10, "tests.simulate.test_partitioning:mine", clients=2, seed=0)


def test_a_federation_of_a_data_set():
    data = datasets.load("digits")
    fed = federation(data)
    assert len(fed) == 20 and fed.dataset == "digits" and fed.meta["dataset_checksum"] == data.checksum
    assert np.array_equal(fed.given, data.y_train) and np.array_equal(fed.true, data.y_train)
    assert fed.noise_client_level is None
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
    with pytest.raises(InputError, match="already partitioned over 10 clients"):
        federation(data, noisy=fed)
    noisy.given = noisy.given[:-1]
    with pytest.raises(InputError, match="labels 1,437 samples but digits has 1,438"):
        federation(data, noisy=noisy)


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
    with pytest.raises(InputError, match="write auto, observed or true"):
        empty(mine, "wrong")


def test_clients_that_are_values_of_a_field_carry_their_names(tmp_path):
    x, y = np.zeros((30, 4), np.float32), np.arange(30) % 3
    site = np.array(["Aix", "Bonn", "Cork"])[np.arange(30) // 10]
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y, site_train=site)
    mine = datasets.load(tmp_path / "mine.npz")
    for scheme in ("field(name=site)", "sites"):
        assert federation(mine, scheme).meta["client_names"] == ["Aix", "Bonn", "Cork"]
    with pytest.raises(InputError, match="names no sites; give a table"):
        federation(datasets.load("digits"), "sites")
    assert "client_names" not in federation(mine, clients=3).meta


# ---- schemes against the values of other tools, stored by `python -m benchmarks.conventions --json`
RESULTS = Path(__file__).parents[2] / "benchmarks/results/conventions.jsonl"


@pytest.mark.parametrize("scheme", [each for each in conventions.PARTITIONERS if each.package == "fnlkit"])
def test_the_values_stored_beside_those_of_other_tools_are_of_this_version(scheme):
    rows = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    (stored,) = [row for row in rows if (row["package"], row["partition"]) == ("fnlkit", scheme.name)]
    for name, values in conventions.measure(scheme, 20).items():
        assert stored[name][:20] == values
