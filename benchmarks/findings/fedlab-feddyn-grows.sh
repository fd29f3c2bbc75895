#!/usr/bin/env bash
# Package: fedlab 1.3.0, FedDynServerHandler.
# Guess: if all clients send the server's model back unchanged, FedDyn leaves it as it is, as FedAvg does; the state h of the paper
#   then stays zero.
# Behavior: the norm of the model doubles in the first round, and is 33 times as large after four rounds with 100 clients. The server
#   subtracts its model once from the sum of all clients' models, instead of from each of them, so that h changes by nearly the
#   model itself; the clients' states L, whose mean it stands for, stay zero. With a tenth of the clients in each round the norm is
#   twice as large after four rounds. On the client, the two terms of FedDyn's loss have no gradient, because they are computed
#   from copies of the weights: two rounds of training are equal for each alpha.
# Source: fedlab/contrib/algorithm/feddyn.py, global_update and train; arXiv 2111.04263, Algorithm 1.
"$(dirname "$0")/fresh" fedlab==1.3.0 torch==2.14.1 numpy==2.4.6 <<'PYTHON'
import logging
from importlib.metadata import version

import torch
from fedlab.contrib.algorithm import FedAvgServerHandler, FedDynSerialClientTrainer, FedDynServerHandler

logging.disable()
CLIENTS, ROUNDS = 100, 4
torch.manual_seed(0)
network = torch.nn.Linear(4, 2)
growth = {}
for kind, share in ((FedAvgServerHandler, 1.0), (FedDynServerHandler, 1.0), (FedDynServerHandler, 0.1)):
    server = kind(network, global_round=ROUNDS, sample_ratio=share)
    server.num_clients = CLIENTS
    if kind is FedDynServerHandler:
        server.setup_optim(alpha=0.1)
    norms = [server.model_parameters.norm().item()]
    for _ in range(ROUNDS):
        (weights,) = server.downlink_package
        for _ in server.sample_clients():
            server.load([weights.clone()])
        norms.append(server.model_parameters.norm().item())
    growth[kind.__name__, share] = [norm / norms[0] for norm in norms[1:]]
    print(f"fedlab {version('fedlab')}: {kind.__name__}, {share:.0%} of {CLIENTS} clients send the model back: norm after rounds "
          f"1 to {ROUNDS}, of the first: {[round(value, 2) for value in growth[kind.__name__, share]]}")

rows, trained = [(torch.randn(8, 4), torch.arange(8) % 2)], []
for alpha in (0.001, 10.0):
    trainer = FedDynSerialClientTrainer(network, num_clients=1)
    trainer.setup_optim(epochs=20, batch_size=8, lr=0.05, alpha=alpha)
    start = torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    first = trainer.train(0, start.clone(), rows)[0]
    trained.append(trainer.train(0, first.clone(), rows)[0])
same = torch.equal(*trained)
print(f"weights of a client after two rounds are equal with alpha 0.001 and 10: {same}")
still, all_take_part, tenth = growth.values()
if abs(still[-1] - 1) > 1e-3 or all_take_part[-1] < 30 or not 1.5 < tenth[-1] < 3 or not same:
    raise SystemExit("the behavior has changed")
PYTHON
