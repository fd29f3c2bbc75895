#!/usr/bin/env bash
# Package: flwr 1.42.0, strategies FedAvgM and FedAdam, with a model that has a batch norm layer.
# Guess: running variances stay positive on the server, since those of all clients are; the server's step at most delays them.
# Behavior: the step acts on all arrays, and also on statistics. From torch's initial 1 toward clients' variances of 0.05 to
#   0.15, FedAvgM with momentum 0.9 makes running_var negative in round 2, and in 15 of 60 rounds; FedAdam with its defaults
#   in round 13, and in 14 of 60. Evaluation is NaN in these rounds. Clients' training is not, since it reads the statistics
#   of batches, and it heals the variance. FedAvg has none of these rounds.
# Source: flwr/serverapp/strategy/fedavgm.py and fedadam.py, aggregate_train.
"$(dirname "$0")/fresh" flwr==1.42.0 numpy==2.4.6 <<'PYTHON'
import logging
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

logging.disable()
ROUNDS, BATCHES, EPS = 60, 20, 1e-5
variances = [0.05, 0.08, 0.1, 0.12, 0.15]
no_messages = {"fraction_train": 0.0}  # configure_train notes the arrays and makes no message, since there is no grid


def reply(running, variance):
    """Return what a client sends whose batches all have this variance; torch's momentum is 0.1."""
    kept = 0.9**BATCHES
    arrays = {"bn.weight": np.ones(4, np.float32), "bn.running_var": (kept * running + (1 - kept) * variance)}
    record = ArrayRecord({name: Array(values.astype(np.float32)) for name, values in arrays.items()})
    content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 100})})
    return SimpleNamespace(content=content, has_error=lambda: False)


def rounds_with_nan(strategy):
    """Return the rounds after which a batch norm in evaluation divides by the root of a negative number."""
    arrays = ArrayRecord({name: Array(np.ones(4, np.float32)) for name in ("bn.weight", "bn.running_var")})
    found = []
    for number in range(1, ROUNDS + 1):
        strategy.configure_train(number, arrays, ConfigRecord(), grid=None)
        running = arrays["bn.running_var"].numpy()
        arrays, _ = strategy.aggregate_train(number, [reply(running, variance) for variance in variances])
        with np.errstate(invalid="ignore"):
            if np.isnan(np.sqrt(arrays["bn.running_var"].numpy() + EPS)).any():
                found.append(number)
    return found


strategies = {
    "FedAvg": FedAvg(**no_messages),
    "FedAvgM": FedAvgM(server_momentum=0.9, **no_messages),
    "FedAdam": FedAdam(**no_messages),
}
seen = {}
for name, strategy in strategies.items():
    found = rounds_with_nan(strategy)
    seen[name] = (len(found), min(found, default=None))
    print(f"flwr {version('flwr')}: {name}: {len(found)} of {ROUNDS} rounds evaluate to NaN: {found}")
expected = {"FedAvg": (0, None), "FedAvgM": (15, 2), "FedAdam": (14, 13)}
if seen != expected:
    raise SystemExit(f"the behavior has changed: {seen} instead of {expected}")
PYTHON
