#!/usr/bin/env bash
# Package: flwr-datasets 0.6.1, IidPartitioner on a data set of one's own.
# Guess: each partition is a random sample, as the documentation states ("sampled randomly from the dataset"), so that all partitions
#   of a file that is sorted by class have about equal shares of the classes.
# Behavior: partition 0 gets the first rows, partition 1 the next ones, in the order of the file: of ten classes each of five partitions
#   has two, and no two partitions share a class, the opposite of IID. SizePartitioner and LinearPartitioner do the same. Only
#   FederatedDataset, which loads data by name, shuffles before; a partitioner whose `dataset` is assigned does not.
# Source: flwr_datasets/partitioner/iid_partitioner.py, load_partition (contiguous=True); federated_dataset.py, shuffle.
"$(dirname "$0")/fresh" flwr-datasets==0.6.1 datasets==4.8.5 numpy==2.4.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import IidPartitioner, LinearPartitioner, SizePartitioner

rows = Dataset.from_dict({"label": np.repeat(np.arange(10), 200).tolist()})
kinds = {
    "IidPartitioner": lambda: IidPartitioner(5),
    "SizePartitioner": lambda: SizePartitioner([400] * 5),
    "LinearPartitioner": lambda: LinearPartitioner(5),
}
seen = {}
for name, make in kinds.items():
    for order, data in (("sorted", rows), ("shuffled", rows.shuffle(seed=0))):
        partitioner = make()
        partitioner.dataset = data
        seen[name, order] = [len(set(partitioner.load_partition(j)["label"])) for j in range(5)]
        print(f"flwr-datasets {version('flwr-datasets')}: {name}, {order} rows: classes per partition {seen[name, order]}")
in_order = [seen[name, "sorted"] for name in kinds]
if in_order[:2] != [[2] * 5] * 2 or max(in_order[2]) > 5 or any(seen[name, "shuffled"] != [10] * 5 for name in kinds):
    raise SystemExit(f"the behavior has changed: {seen}")
PYTHON
