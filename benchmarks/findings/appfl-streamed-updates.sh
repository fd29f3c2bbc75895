#!/usr/bin/env bash
# Package: appfl 1.12.0, FedAdamAggregator, FedYogiAggregator, FedAdagradAggregator and FedAvgMAggregator with streamed updates
#   (use_model_chunking of the gRPC server, meant for models that are too large for one message).
# Guess: streaming changes how updates travel, not the step of the server; where it is not supported, the server stops at the start,
#   as it does for other aggregators.
# Behavior: streamed updates are averaged, whatever the aggregator: all four make exactly FedAvg's step. FedAdam with a server learning
#   rate of 0.01 moves the weights by 0.009 in the first round if updates arrive whole, and by 0.18, twenty times as far, if they are
#   streamed. Learning rate and momentum have no effect. The check at the start passes, because the four derive from
#   FedAvgAggregator, the one that is supported. No message. The same configuration thus is another method for a larger model.
# Source: appfl/algorithm/aggregator/fedavg_aggregator.py, aggregate and _compute_chunk_steps, which does not call compute_steps;
#   appfl/comm/grpc/grpc_server_communicator.py, supported_aggregators.
"$(dirname "$0")/fresh" appfl==1.12.0 torch==2.13.0 omegaconf==2.3.1 <<'PYTHON'
from importlib.metadata import version

import torch
from appfl.algorithm.aggregator import (
    FedAdagradAggregator,
    FedAdamAggregator,
    FedAvgAggregator,
    FedAvgMAggregator,
    FedYogiAggregator,
)
from omegaconf import OmegaConf

OPTIONS = {
    "server_learning_rate": 0.01, "server_adapt_param": 0.001, "server_momentum_param_1": 0.9, "server_momentum_param_2": 0.99,
}
CLIENTS, ROUNDS = ("a", "b", "c"), 3


def run(aggregator_class, streamed):
    """Return the weights after three rounds and the mean length of the first step, with the same updates for all aggregators."""
    torch.manual_seed(0)
    model = torch.nn.Linear(10, 2)
    aggregator = aggregator_class(model, OmegaConf.create(OPTIONS))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    steps = []
    for _ in range(ROUNDS):
        replies = {c: {name: v + 0.2 + 0.1 * torch.randn(v.shape) for name, v in state.items()} for c in CLIENTS}
        if streamed:  # one chunk per tensor, with the metadata by client, as the scheduler passes them
            new = {}
            for number, name in enumerate(state):
                metadata = {"_chunk_idx": number, "_total_chunks": len(state), "_chunk_keys": [name]}
                chunk = {c: {name: reply[name]} for c, reply in replies.items()}
                new |= aggregator.aggregate(chunk, **{key: dict.fromkeys(CLIENTS, value) for key, value in metadata.items()})
        else:
            new = aggregator.aggregate(replies)
        steps.append(float((new["weight"] - state["weight"]).abs().mean()))
        state = {name: value.clone() for name, value in new.items()}
    return state["weight"], steps[0]


average, _ = run(FedAvgAggregator, streamed=False)
equal, ratios = {}, {}
for kind in (FedAvgAggregator, FedAvgMAggregator, FedAdamAggregator, FedYogiAggregator, FedAdagradAggregator):
    (whole, step), (streamed, streamed_step) = run(kind, streamed=False), run(kind, streamed=True)
    equal[kind.__name__] = torch.allclose(whole, average, atol=1e-5), torch.allclose(streamed, average, atol=1e-5)
    ratios[kind.__name__] = streamed_step / step
    print(f"appfl {version('appfl')}: {kind.__name__}: first step {step:.4f} with whole updates, {streamed_step:.4f} with streamed ones; "
          f"after {ROUNDS} rounds the model of FedAvg: {equal[kind.__name__][0]} and {equal[kind.__name__][1]}")
others = [name for name in equal if name != "FedAvgAggregator"]
if any(equal[name] != (False, True) for name in others) or ratios["FedAdamAggregator"] < 10:
    raise SystemExit(f"the behavior has changed: {equal}, {ratios}")
PYTHON
