#!/usr/bin/env bash
# Package: FedArtML 0.1.34, distances of SplitAsFederatedData.create_clients. It needs scikit-learn, which it does not name.
# Guess: all three reported distances between the clients' label distributions grow with percent_noniid, and are largest where
#   no two clients share a class.
# Behavior: the earth mover's distance is 0 there, below the 0.080 of a random split, while Jensen-Shannon and Hellinger are
#   1. It compares the clients' shares as sets of numbers, without the class that a share belongs to: clients with the same
#   shares of other classes are at distance 0.
# Source: fedartml/function_base.py, earth_movers_distance: shares are passed to scipy's wasserstein_distance as values.
"$(dirname "$0")/fresh" FedArtML==0.1.34 scikit-learn==1.9.1 numpy==2.4.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from fedartml import SplitAsFederatedData

labels = np.repeat(np.arange(10), 100)
rows = np.random.default_rng(0).normal(size=(len(labels), 4))
seen = {}
for percent in (0, 50, 100):
    split = SplitAsFederatedData(random_state=0)
    clients, _, _, distances = split.create_clients(
        rows, labels.tolist(), num_clients=5, method="percent_noniid", percent_noniid=percent
    )
    classes = [len({label for _, label in client}) for client in clients["without_class_completion"].values()]
    values = {name: round(float(value), 3) for name, value in distances["without_class_completion"].items()}
    seen[percent] = values["earth-movers"], values["jensen-shannon"], values["hellinger"], classes
    print(f"FedArtML {version('FedArtML')}: {percent} % non-IID, classes per client {classes}: {values}")
movers = {percent: values[0] for percent, values in seen.items()}
expected = {0: 0.08, 50: 0.096, 100: 0.0}
if movers != expected or seen[100][1:] != (1.0, 1.0, [2] * 5):
    raise SystemExit(f"the behavior has changed: {seen}, earth mover's distances {expected}")
PYTHON
