"""Print what the partitions of other tools do, on the same labels as fnlkit's schemes.

    pip install 'fnlkit[conventions]'
    python -m benchmarks.conventions                 # the table of docs/conventions.md
    python -m benchmarks.conventions --json          # one line per partition, with the values of each seed

Splits 10 classes of 500 rows, and the same rows with 50 classes of one row, over 20 clients with alpha 0.5.  Tools that are not
installed have no rows in the table.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from fnlkit.simulate.partitioning import partition

CLIENTS = 20
ALPHA = 0.5
LABELS = np.repeat(np.arange(10), 500)
RARE = np.concatenate([LABELS, np.arange(10, 60)])
# Distances of the first and of the last clients show whether the position of a client matters.
ENDS = 4
COLUMNS = ("deviation", "distance", "first", "last", "neighbors", "lost", "twice", "last_rare")


@dataclass(frozen=True)
class Partitioner:
    """A partitioner of a package; `split` returns the rows (n_k,) of each client for labels (n,) and a seed."""

    package: str
    name: str
    split: Callable[[np.ndarray, int], list[np.ndarray]]


def fnlkit_scheme(labels, seed, *, scheme):
    return partition(labels, int(labels.max()) + 1, scheme, clients=CLIENTS, seed=seed)


def flower(labels, seed, *, name, **options):
    import datasets
    from flwr_datasets import partitioner

    rows = datasets.Dataset.from_dict({"label": labels, "row": np.arange(len(labels))})
    if name == "InnerDirichletPartitioner":
        options["partition_sizes"] = _sizes(len(labels))
    else:
        options["num_partitions"] = CLIENTS
    if name != "IidPartitioner":
        options |= {"partition_by": "label", "seed": seed}
    if "Dirichlet" in name:
        options["alpha"] = ALPHA
    split = getattr(partitioner, name)(**options)
    split.dataset = rows
    return [np.array(split.load_partition(k)["row"], np.int64) for k in range(CLIENTS)]


def flower_partitioner(name, **options):
    arguments = ", ".join(f"{key}={value}" for key, value in options.items())
    return Partitioner("flwr-datasets", f"{name}({arguments})" if options else name, partial(flower, name=name, **options))


def fedlab(labels, seed, *, name):
    from fedlab.utils.dataset import functional

    np.random.seed(seed)  # noqa: NPY002 - FedLab, pfl and fluke draw from numpy's global generator
    classes = int(labels.max()) + 1
    if name == "shards":
        parts = functional.shards_partition(labels, CLIENTS, 2 * CLIENTS)
    elif name == "hetero_dir":
        parts = functional.hetero_dir_partition(labels, CLIENTS, classes, ALPHA, 1)
    else:
        parts = functional.client_inner_dirichlet_partition(
            labels, CLIENTS, classes, ALPHA, np.array(_sizes(len(labels))), False
        )
    return [np.asarray(parts[k], np.int64) for k in range(CLIENTS)]


def pfl(labels, seed):
    from pfl.data.partition import partition_by_dirichlet_class_distribution

    np.random.seed(seed)  # noqa: NPY002
    return [np.array(part) for part in partition_by_dirichlet_class_distribution(labels, ALPHA, lambda: len(labels) // CLIENTS)]


def declearn(labels, seed):
    from declearn.dataset.utils import split_multi_classif_dataset

    rows = np.arange(len(labels))[:, None]
    parts = split_multi_classif_dataset((rows, labels), CLIENTS, "dirichlet", p_valid=0.2, seed=seed, alpha=ALPHA)
    return [np.concatenate([train[0], held_out[0]])[:, 0] for train, held_out in parts]


def fluke(labels, seed, *, balanced):
    import torch
    from fluke.data import DataSplitter

    np.random.seed(seed)  # noqa: NPY002
    y = torch.as_tensor(labels)
    parts, _ = DataSplitter.label_dirichlet_skew(
        y[:, None], y, None, None, CLIENTS, beta=ALPHA, min_ex_class=0, balanced=balanced
    )
    return parts


def fedartml(labels, seed):
    from fedartml import SplitAsFederatedData

    _, _, rows, _ = SplitAsFederatedData.dirichlet_method(labels=labels, local_nodes=CLIENTS, alpha=ALPHA, random_state=seed)
    return [np.array(part) for part in rows]


def _sizes(n):
    return [n // CLIENTS + (k < n % CLIENTS) for k in range(CLIENTS)]


SCHEMES = (
    "iid",
    "sizes(sigma=0.25)",
    "shards(per_client=2)",
    "dirichlet(alpha=0.5)",
    "dirichlet(alpha=0.5, balanced=true)",
    "dirichlet(alpha=0.5, by=client)",
    "bernoulli-dirichlet(p=0.7, alpha=0.5)",
    "openset(q=0.5)",
)
PARTITIONERS = (
    *(Partitioner("fnlkit", scheme, partial(fnlkit_scheme, scheme=scheme)) for scheme in SCHEMES),
    flower_partitioner("IidPartitioner"),
    flower_partitioner("ShardPartitioner", num_shards_per_partition=2),
    flower_partitioner("DirichletPartitioner", self_balancing=False),
    flower_partitioner("DirichletPartitioner", self_balancing=True),
    flower_partitioner("InnerDirichletPartitioner"),
    Partitioner("fedlab", "shards_partition", partial(fedlab, name="shards")),
    Partitioner("fedlab", "hetero_dir_partition", partial(fedlab, name="hetero_dir")),
    Partitioner("fedlab", "client_inner_dirichlet_partition", partial(fedlab, name="inner")),
    Partitioner("pfl", "partition_by_dirichlet_class_distribution", pfl),
    Partitioner("declearn", "split_multi_classif_dataset(scheme=dirichlet)", declearn),
    Partitioner("fluke-fl", "label_dirichlet_skew(balanced=False)", partial(fluke, balanced=False)),
    Partitioner("fluke-fl", "label_dirichlet_skew(balanced=True)", partial(fluke, balanced=True)),
    Partitioner("FedArtML", "dirichlet_method", fedartml),
)


def measure(partitioner, seeds):
    """Return the values of `measure_split` for each seed: (seeds,) lists by name."""
    rows = [measure_split(partitioner, seed) for seed in range(seeds)]
    return {name: [row[name] for row in rows] for name in COLUMNS}


def measure_split(partitioner, seed):
    """Return the values of a split by name.

    ``deviation``: standard deviation of client sizes.  ``distance``: mean distance (total variation) of a client's class shares
    from the whole.  ``first``, ``last``: the same of the first and of the last 4 clients.  ``neighbors``: share of neighboring
    rows of a class with the same client, minus the share after a shuffle.  ``lost``, ``twice``: rows without a client, and rows
    of several.  ``last_rare``: share of the classes of one row that the last client has; a fair share is 0.05.
    """
    rng = np.random.default_rng(seed)
    parts, rare = (partitioner.split(labels, seed) for labels in (LABELS, RARE))
    counts = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
    distances = np.abs(counts / counts.sum(1, keepdims=True) - 0.1).sum(1) / 2
    owner = np.full(len(LABELS), -1)
    for k, part in enumerate(parts):
        owner[part] = k
    shuffled = np.concatenate([rng.permutation(owner[LABELS == label]) for label in range(10)])
    inside = LABELS[1:] == LABELS[:-1]
    used = np.bincount(np.concatenate(rare), minlength=len(RARE))
    values = {
        "deviation": counts.sum(1).std(),
        "distance": distances.mean(),
        "first": distances[:ENDS].mean(),
        "last": distances[-ENDS:].mean(),
        "neighbors": (owner[1:] == owner[:-1])[inside].mean() - (shuffled[1:] == shuffled[:-1])[inside].mean(),
        "lost": (used == 0).sum(),
        "twice": (used > 1).sum(),
        "last_rare": np.isin(np.arange(len(LABELS), len(RARE)), rare[-1]).mean(),
    }
    return {name: round(float(value), 4) for name, value in values.items()}


def find_version(package):
    """Return the version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print the values of each seed, one line per partition")
    args = parser.parse_args()
    if not args.json:
        print(f"{len(LABELS):,} rows, 10 classes, {CLIENTS} clients, alpha {ALPHA}, {args.seeds} seeds; means over the seeds")
        print("lost, twice, last_rare: with 50 more classes of one row")
        print("  ".join([f"{'package':<22}", f"{'partition':<46}", *(f"{name:>9}" for name in COLUMNS)]))
    missing = []
    for each in PARTITIONERS:
        number = "" if each.package == "fnlkit" else find_version(each.package)
        if number is None:
            missing.append(each.package)
            continue
        values = measure(each, args.seeds)
        if args.json:
            line = {"package": each.package, "version": number, "partition": each.name, **values}
            print(json.dumps(line), flush=True)
            continue
        means = [f"{np.mean(values[name]):>9.{1 if name in ('deviation', 'lost', 'twice') else 3}f}" for name in COLUMNS]
        print("  ".join([f"{each.package + ' ' + number:<22}", f"{each.name:<46}", *means]), flush=True)
    if missing:
        print(f"not installed: {', '.join(dict.fromkeys(missing))}", file=sys.stderr)


if __name__ == "__main__":
    main()
