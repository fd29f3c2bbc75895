#!/usr/bin/env bash
# Package: fedlab 1.3.0, FedNovaServerHandler with its default option weighted_scale.
# Guess: with equal numbers of local steps FedNova is FedAvg, also if a part of the clients takes part in a round.
# Behavior: with 10 of 100 clients in a round its step is ten times that of FedAvg, with 50 of them twice; with all of them it is
#   equal. The clients of a round have the weight 1 / 10, which sums to 1, and the sum is scaled by 100 / 10 once more, which fits
#   weights of 1 / 100. A training that converges if all clients take part diverges if a tenth does, without a message.
# Source: fedlab/contrib/algorithm/fednova.py, global_update.
"$(dirname "$0")/fresh" fedlab==1.3.0 torch==2.14.1 numpy==2.4.6 <<'PYTHON'
import logging
from importlib.metadata import version

import torch
from fedlab.contrib.algorithm import FedAvgServerHandler, FedNovaServerHandler

logging.disable()
torch.manual_seed(0)
network, goal = torch.nn.Linear(4, 2), torch.full((10,), 3.0)


def distances(kind, share, rounds=5):
    """Return the distances to the goal after each round, of the first one; each client goes three tenths of the way."""
    server = kind(network, global_round=rounds, sample_ratio=share)
    server.num_clients = 100
    if kind is FedNovaServerHandler:
        server.setup_optim()
    start = (goal - server.model_parameters).norm()
    found = []
    for _ in range(rounds):
        (weights,) = server.downlink_package
        update = weights + 0.3 * (goal - weights)
        for _ in server.sample_clients():
            server.load([update.clone(), torch.tensor([5.0])] if kind is FedNovaServerHandler else [update.clone()])
        found.append(round(float((goal - server.model_parameters).norm() / start), 2))
    return found


seen = {}
for kind in (FedAvgServerHandler, FedNovaServerHandler):
    for share in (1.0, 0.5, 0.1):
        seen[kind.__name__, share] = distances(kind, share)
        print(f"fedlab {version('fedlab')}: {kind.__name__}, {share:.0%} of the clients: distance to the goal after rounds 1 to 5: "
              f"{seen[kind.__name__, share]}")
average = [round(0.7**number, 2) for number in range(1, 6)]
wanted = {("FedNovaServerHandler", 0.5): [round(0.4**number, 2) for number in range(1, 6)], ("FedNovaServerHandler", 0.1): [2, 4, 8, 16, 32]}
if any(values != wanted.get(key, average) for key, values in seen.items()):
    raise SystemExit(f"the behavior has changed: {seen}")
PYTHON
