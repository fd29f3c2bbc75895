#!/usr/bin/env bash
# Package: flwr 1.42.0, strategies QFedAvg and FedTrimmedAvg.
# Guess: QFedAvg with q=0 and FedTrimmedAvg with beta=0 give FedAvg's model: q-FFL with q=0 is the objective of FedAvg (Li 2020),
#   and nothing is trimmed. Both take `weighted_by_key`.
# Behavior: both give the plain mean of the models. A site with 80 % of the samples has a third of the weight; the key acts on
#   metrics only. A baseline at q=0 or beta=0 therefore differs from FedAvg in two respects.
# Source: flwr/serverapp/strategy/qfedavg.py and fedtrimmedavg.py, aggregate_train.
"$(dirname "$0")/fresh" flwr==1.42.0 numpy==2.4.6 <<'PYTHON'
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedTrimmedAvg, QFedAvg

models, samples = [0.0, 1.0, 2.0], [10, 10, 80]


def combine(strategy):
    replies = []
    for value, count in zip(models, samples, strict=True):
        metrics = MetricRecord({"num-examples": count, "train_loss": 1.0})
        content = RecordDict({"arrays": ArrayRecord([np.full(3, value)]), "metrics": metrics})
        replies.append(SimpleNamespace(content=content, has_error=lambda: False))
    if isinstance(strategy, QFedAvg):
        strategy.current_arrays = ArrayRecord([np.zeros(3)])
    arrays, _ = strategy.aggregate_train(1, replies)
    return round(float(arrays.to_numpy_ndarrays()[0][0]), 6)


strategies = {
    "FedAvg": FedAvg(),
    "QFedAvg(q=0)": QFedAvg(client_learning_rate=0.1, q=0.0),
    "FedTrimmedAvg(beta=0)": FedTrimmedAvg(beta=0.0),
}
seen = {name: combine(strategy) for name, strategy in strategies.items()}
print(f"flwr {version('flwr')}: models {models} of {samples} samples: {seen}")
expected = {"FedAvg": 1.7, "QFedAvg(q=0)": 1.0, "FedTrimmedAvg(beta=0)": 1.0}
if seen != expected:
    raise SystemExit(f"the behavior has changed: {seen} instead of {expected}")
PYTHON
