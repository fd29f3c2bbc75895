#!/usr/bin/env bash
# Package: flwr 1.42.0, DifferentialPrivacyServerSideFixedClipping, here without noise, with a model that has batch norm layers.
# Guess: an update is clipped by the norm of the change of its weights. The counters num_batches_tracked are integers, are used by no
#   layer in its defaults, and change nothing.
# Behavior: the counters are a part of the norm. With 20 batch norm layers (as a ResNet-18 has) and 50 local batches their norm is
#   224, so that an update of norm 0.5 is multiplied by 0.0045 although the clipping norm is 1. The weights hardly move, and they
#   move less the more a client trains. The state without the counters is not clipped. No message. What `model.state_dict()` holds
#   is what the examples send.
# Source: flwr/supercore/differential_privacy.py, get_norm and compute_clip_model_update, over all arrays of the record.
"$(dirname "$0")/fresh" flwr==1.42.0 numpy==2.4.6 <<'PYTHON'
import logging
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

logging.disable()
CLIENTS, ROUNDS = 4, 10


def record(state):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in state.items()})


def reply(state):
    content = RecordDict({"arrays": record(state), "metrics": MetricRecord({"num-examples": 100})})
    return SimpleNamespace(content=content, has_error=lambda: False)


def distance(layers, batches):
    """Return how far the weights move in 10 rounds if each client moves them by 0.5 in the same direction."""
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_train=0.0), noise_multiplier=0.0, clipping_norm=1.0, num_sampled_clients=CLIENTS
    )
    state = {"weight": np.zeros(100, np.float32)}
    state |= {f"norm{i}.num_batches_tracked": np.array(0, np.int64) for i in range(layers)}
    for number in range(1, ROUNDS + 1):
        strategy.configure_train(number, record(state), ConfigRecord(), grid=None)
        trained = {name: value + (batches if "tracked" in name else np.float32(0.05)) for name, value in state.items()}
        arrays, _ = strategy.aggregate_train(number, [reply(trained) for _ in range(CLIENTS)])
        # A client stores the counters as integers again, as load_state_dict of torch does.
        state = {name: array.numpy().astype(state[name].dtype) for name, array in arrays.items()}
    return float(np.linalg.norm(state["weight"]))


seen = {}
for layers, batches in ((0, 50), (1, 50), (20, 5), (20, 50), (20, 500)):
    seen[layers, batches] = distance(layers, batches)
    print(f"flwr {version('flwr')}: clipping norm 1, {ROUNDS} updates of norm 0.5, {layers} batch norm layers, {batches} local batches: "
          f"the weights move by {seen[layers, batches]:.4f}")
wanted = {(0, 50): 5.0, (1, 50): 0.1, (20, 5): 0.2236, (20, 50): 0.0224, (20, 500): 0.0022}
if not all(abs(seen[key] / value - 1) < 0.05 for key, value in wanted.items()):
    raise SystemExit(f"the behavior has changed: {seen}")
PYTHON
