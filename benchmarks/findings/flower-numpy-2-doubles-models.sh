#!/usr/bin/env bash
# Package: flwr 1.42.0 with numpy 2.4.6, strategies FedAvg, FedAdam and QFedAvg.
# Guess: a model of float32 stays one on the server, whatever the strategy; only FedAvg's mean would need more digits.
# Behavior: FedAvg keeps float32. FedAdam and QFedAvg multiply arrays with scalars of numpy, which count as float64 since
#   numpy 2 (NEP 50) and did not before: from the second round on the server sends a model of twice the bytes, in float64.
# Source: flwr/serverapp/strategy/fedadam.py and qfedavg.py, aggregate_train; NEP 50.
"$(dirname "$0")/fresh" flwr==1.42.0 numpy==2.4.6 <<'PYTHON'
import logging
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, QFedAvg

logging.disable()
no_messages = {"fraction_train": 0.0}  # configure_train notes the arrays and makes no message, since there is no grid


def reply(value):
    arrays = ArrayRecord({"weight": Array(np.full(1000, value, np.float32))})
    metrics = MetricRecord({"num-examples": 100, "train_loss": 1.0})
    return SimpleNamespace(content=RecordDict({"arrays": arrays, "metrics": metrics}), has_error=lambda: False)


strategies = {
    "FedAvg": FedAvg(**no_messages),
    "FedAdam": FedAdam(**no_messages),
    "QFedAvg": QFedAvg(client_learning_rate=0.1, **no_messages),
}
seen = {}
for name, strategy in strategies.items():
    arrays = ArrayRecord({"weight": Array(np.zeros(1000, np.float32))})
    before = len(arrays["weight"].data)
    strategy.configure_train(1, arrays, ConfigRecord(), grid=None)
    merged, _ = strategy.aggregate_train(1, [reply(0.1), reply(0.3)])
    seen[name] = str(merged["weight"].numpy().dtype)
    print(f"flwr {version('flwr')}, numpy {np.__version__}: {name}: {before:,} to {len(merged['weight'].data):,} bytes, {seen[name]}")
if seen != {"FedAvg": "float32", "FedAdam": "float64", "QFedAvg": "float64"}:
    raise SystemExit(f"the behavior has changed: {seen}")
PYTHON
