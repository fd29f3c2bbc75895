"""Schemes against the values of other tools, stored by `python -m benchmarks.conventions --json`."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import conventions
from fnlkit.datasets.partitioning import partition
from fnlkit.errors import InputError

RESULTS = Path(__file__).parents[2] / "benchmarks/results/conventions.jsonl"
STORED = {(row["package"], row["partition"]): row for row in map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())}
CLASS, FULL, CLIENT = "dirichlet(alpha=0.5)", "dirichlet(alpha=0.5, balanced=true)", "dirichlet(alpha=0.5, by=client)"
SAME = [
    ("flwr-datasets", "DirichletPartitioner(self_balancing=False)", CLASS),
    ("flwr-datasets", "DirichletPartitioner(self_balancing=True)", FULL),
    ("fedlab", "hetero_dir_partition", FULL),
    ("FedArtML", "dirichlet_method", FULL),
    ("declearn", "split_multi_classif_dataset(scheme=dirichlet)", CLASS),
    ("fluke-fl", "label_dirichlet_skew(balanced=False)", CLASS),
    ("pfl", "partition_by_dirichlet_class_distribution", CLIENT),
]


@pytest.fixture(scope="module")
def measured():
    """Return the values of 100 seeds by scheme."""
    return {
        each.name: conventions.measure(each, 100) for each in conventions.PARTITIONERS if each.name in (CLASS, FULL, CLIENT)
    }


def p_value(one, two):
    """Return the p-value of equal distributions of client sizes and of class distances, the smaller one."""
    return min(stats.ks_2samp(one[name], two[name]).pvalue for name in ("deviation", "distance"))


@pytest.mark.parametrize(("package", "partitioner", "scheme"), SAME)
def test_a_scheme_has_the_distribution_of_another_tool_and_the_two_others_do_not(package, partitioner, scheme, measured):
    stored = STORED[package, partitioner]
    assert p_value(stored, measured[scheme]) > 1e-3
    assert all(p_value(stored, measured[other]) < 1e-3 for other in {CLASS, FULL, CLIENT} - {scheme})


def test_the_stored_values_of_the_schemes_are_those_of_this_version(measured):
    for scheme, values in measured.items():
        stored = STORED["fnlkit", scheme]
        assert all(stored[name] == values[name][: len(stored[name])] for name in values)


def test_each_row_is_used_once_and_neither_the_last_client_nor_neighbors_are_special(measured):
    for values in measured.values():
        assert not any(values["lost"]) and not any(values["twice"])
        assert stats.ttest_1samp(values["neighbors"], 0).pvalue > 1e-3
        assert stats.ttest_1samp(values["last_rare"], 1 / conventions.CLIENTS).pvalue > 1e-3
        assert stats.ttest_rel(values["first"], values["last"]).pvalue > 1e-3


def test_the_classes_of_a_balanced_split_have_equally_many_clients():
    # In label order the last class belongs to fewer clients, because the others are full.
    held = []
    for seed in range(100):
        parts = partition(conventions.LABELS, 10, FULL, clients=20, seed=seed)
        held.append([sum(label in conventions.LABELS[part] for part in parts) for label in (0, 9)])
    first, last = np.transpose(held)
    assert stats.ttest_rel(first, last).pvalue > 1e-3


def test_equal_sizes_cannot_be_balanced():
    with pytest.raises(InputError, match="leave out `balanced`"):
        partition(conventions.LABELS, 10, "dirichlet(by=client, balanced=true)", clients=20, seed=0)
