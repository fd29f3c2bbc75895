#!/usr/bin/env bash
# Package: flwr 1.42.0, selection of Krum and MultiKrum.
# Guess: a client whose step is ten times as long as the others' is never chosen by Krum, in float32 as
#   in float64, and a counter that is equal for all clients changes nothing.
# Behavior: with a model of norm 100 and steps of norm 0.001 Krum chooses it in more than 10 of 100
#   runs in float32, since the distances are differences of large squared norms; in float64 never. One
#   integer entry (the counter of a batch norm layer) turns the joined vectors into float64 and heals
#   it, so that a state with such a counter is guarded and the same state without it is not.
# Source: flwr/serverapp/strategy/multikrum.py, compute_distances.
"$(dirname "$0")/fresh" flwr==1.42.0 numpy==2.4.6 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.multikrum import select_multikrum


def times_chosen(dtype, extra):
    chosen = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        model = generator.normal(size=10_000)
        steps = generator.normal(size=(10, 10_000))
        steps *= 0.001 / np.linalg.norm(steps, axis=1, keepdims=True)
        steps[3] *= 10
        replies = [
            RecordDict(
                {
                    "arrays": ArrayRecord([(model + step).astype(dtype), *extra]),
                    "metrics": MetricRecord({"num-examples": 10}),
                }
            )
            for step in steps
        ]
        selected = select_multikrum(replies, num_malicious_nodes=1, num_nodes_to_select=1)
        chosen += selected[0] is replies[3]
    return chosen


seen = {
    "float32": times_chosen(np.float32, []),
    "float64": times_chosen(np.float64, []),
    "float32 with a counter": times_chosen(np.float32, [np.array(5)]),
}
print(f"flwr {version('flwr')}: times that Krum chose the client with the long step, of 100: {seen}")
expected = {"float32": True, "float64": False, "float32 with a counter": False}
if {name: count > 10 for name, count in seen.items()} != expected or seen["float64"] > 0:
    raise SystemExit(f"the behavior has changed: {seen}, more than 10: {expected}")
PYTHON
