#!/usr/bin/env bash
# Package: flwr 1.42.0, DifferentialPrivacyServerSideAdaptiveClipping, here without noise.
# Guess: the clipping norm approaches the median norm of the updates from below and from above, as in the paper that the class
#   cites (Andrew et al. 2021), where it grows while more updates are clipped than the target.
# Behavior: it moves away from the median. The share of clipped updates stands where the paper has the share of those that are
#   not clipped, with the same sign. With norms between 0.5 and 1.5 and a start at the recommended 0.1, the norm is below 1e-5
#   after 100 rounds, and the model stands still; from 0.9 it falls, too; from 1.1 it exceeds 1,000, and nothing is clipped.
# Source: flwr/serverapp/strategy/dp_adaptive_clipping.py, _geometric_update; flwr/supercore/differential_privacy.py,
#   adaptive_clip_inputs_inplace; arXiv 1905.03871, Algorithm 1.
"$(dirname "$0")/fresh" flwr==1.42.0 numpy==2.4.6 <<'PYTHON'
import logging
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg

logging.disable()
CLIENTS, ROUNDS = 20, 100


def reply(weights):
    record = ArrayRecord({"weight": Array(weights)})
    content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 100})})
    return SimpleNamespace(content=content, has_error=lambda: False)


def last_norm(start):
    """Return the clipping norm after 100 rounds in which the median norm of the updates is 1."""
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(fraction_train=0.0), noise_multiplier=0.0, num_sampled_clients=CLIENTS, initial_clipping_norm=start
    )
    rng, weights = np.random.default_rng(0), np.zeros(10)
    for number in range(1, ROUNDS + 1):
        strategy.configure_train(number, ArrayRecord({"weight": Array(weights)}), ConfigRecord(), grid=None)
        updates = rng.normal(size=(CLIENTS, 10))
        updates *= (rng.uniform(0.5, 1.5, CLIENTS) / np.linalg.norm(updates, axis=1))[:, None]
        strategy.aggregate_train(number, [reply(weights + update) for update in updates])
    return strategy.clipping_norm


norms = {start: last_norm(start) for start in (0.1, 0.9, 1.1, 10.0)}
for start, norm in norms.items():
    print(f"flwr {version('flwr')}: norms of updates 0.5 to 1.5, clipping norm {start} at the start, {norm:.3g} after {ROUNDS} rounds")
if max(norms[0.1], norms[0.9]) > 1e-3 or min(norms[1.1], norms[10.0]) < 1000:
    raise SystemExit(f"the behavior has changed: {norms}")
PYTHON
