#!/usr/bin/env bash
# Package: fluke-fl 0.8.1, DataSplitter.label_dirichlet_skew with balanced=True (distribution "dir" of a configuration).
# Guess: a balanced Dirichlet split is a partition: each training sample belongs to exactly one client, and all clients are equal
#   in size.
# Behavior: sizes are equal, but large clients drop samples, and small ones are filled with samples that are not yet at an earlier
#   client, which includes those of later clients and their own. Of 10,000 samples, 8 to 17 % are at no client, 7 to 16 % at two or
#   more, and some twice at one client, so that a client's copies weigh double. With balanced=False each sample has one client.
# Source: fluke/data/__init__.py, label_dirichlet_skew, step 5.
"$(dirname "$0")/fresh" fluke-fl==0.8.1 torch==2.14.1 numpy==2.4.6 <<'PYTHON'
import warnings
from importlib.metadata import version

import numpy as np
import torch
from fluke.data import DataSplitter

warnings.simplefilter("ignore")
y, x = torch.arange(10_000) % 10, torch.zeros(10_000, 1)


def owners(clients, beta, balanced):
    """Return the shares of samples at no client and at two or more, and the number of repeated samples within clients."""
    np.random.seed(0)
    parts, _ = DataSplitter.label_dirichlet_skew(x, y, None, None, clients, beta=beta, balanced=balanced)
    count = sum(np.isin(np.arange(len(y)), part).astype(int) for part in parts)
    return (count == 0).mean(), (count > 1).mean(), sum(len(part) - len(np.unique(part)) for part in parts)


wrong = False
for clients, beta in ((10, 0.1), (50, 0.1), (10, 1.0), (50, 1.0)):
    none, several, repeated = owners(clients, beta, True)
    print(f"fluke {version('fluke-fl')}, {clients} clients, beta {beta}, balanced: {none:.1%} of the samples at no client, "
          f"{several:.1%} at two or more, {repeated} repeated within a client")
    wrong |= min(none, several) < 0.05 or repeated < 10 or owners(clients, beta, False) != (0, 0, 0)
if wrong:
    raise SystemExit("the behavior has changed")
PYTHON
