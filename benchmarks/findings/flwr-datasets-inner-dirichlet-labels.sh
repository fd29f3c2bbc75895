#!/usr/bin/env bash
# Package: flwr-datasets 0.6.1, InnerDirichletPartitioner.
# Guess: labels 1 to 10 are divided as labels 0 to 9 are, since the partitioner asks the data set for its labels, and the
#   documentation of `partition_by` names a column of labels only.
# Behavior: no partition gets a sample of label 10, without a message about it. The partitioner counts the distinct labels, and then
#   looks for 0, 1, ..., 9; the places of the missing class are filled with the other ones. DirichletPartitioner, on the same
#   data, uses all ten.
# Source: flwr_datasets/partitioner/inner_dirichlet_partitioner.py, _determine_partition_id_to_indices_if_needed (idx_list).
"$(dirname "$0")/fresh" flwr-datasets==0.6.1 datasets==4.8.5 numpy==2.4.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner, InnerDirichletPartitioner

seen = {}
for first in (0, 1):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(first, first + 10), 200))
    data = Dataset.from_dict({"label": labels.tolist()})
    kinds = {
        "InnerDirichlet": InnerDirichletPartitioner([120] * 10, partition_by="label", alpha=1.0),
        "Dirichlet": DirichletPartitioner(10, partition_by="label", alpha=1.0),
    }
    for name, partitioner in kinds.items():
        partitioner.dataset = data
        used = np.concatenate([partitioner.load_partition(j)["label"] for j in range(10)])
        counts = np.bincount(used, minlength=first + 10)[first:]
        seen[name, first] = (int((counts > 0).sum()), int(counts[-1]))
        print(f"flwr-datasets {version('flwr-datasets')}: {name}, labels {first} to {first + 9}: used per label {counts.tolist()}")
others = [value for key, value in seen.items() if key != ("InnerDirichlet", 1)]
if seen["InnerDirichlet", 1] != (9, 0) or any(classes != 10 for classes, _ in others):
    raise SystemExit(f"the behavior has changed: {seen}")
PYTHON
