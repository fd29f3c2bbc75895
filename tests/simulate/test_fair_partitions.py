"""What every scheme guarantees: each row once, and neither the order of rows nor the position of a client matters."""

import numpy as np
import pytest
from scipy import stats

from fnlkit.simulate.partitioning import FIXED, SCHEMES, partition
from tests.simulate.test_partitioning import SPECS

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
