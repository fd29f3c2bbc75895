"""Run one federation in pfl-research or Flower; print (seconds, CPU seconds) of each round as JSON.

python benchmarks/training_peers.py pfl|flower ROUNDS CLIENTS COHORT SAMPLES
"""

import json
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class LeNet5(nn.Module):
    """The network of the comparison, as users of these libraries write it."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def now():
    """Return the wall time, and the CPU seconds of this process and all its children."""
    import psutil

    me, busy = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            busy += sum(process.cpu_times()[:2])
        except psutil.Error:
            pass
    return time.perf_counter(), busy


def samples(client, count):
    """Return (x (n, 3, 32, 32) float32, y (n,)) of one client, normalized."""
    rng = np.random.default_rng(client)
    x = torch.from_numpy(rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)).float()
    return x.div_(255).sub_(0.5).div_(0.25), torch.from_numpy(rng.integers(0, 10, count))


def pfl(rounds, clients, cohort, count):
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Model(LeNet5):
        def loss(self, x, y, eval=False):
            return F.cross_entropy(self(x), y)

        def metrics(self, x, y, eval=False):
            return {"loss": Weighted(F.cross_entropy(self(x), y, reduction="sum").item(), len(y))}

    held = {str(i): samples(i, count) for i in range(clients)}

    def dataset(user):
        return Dataset(raw_data=list(held[user]), user_id=user)

    sampler = get_user_sampler("random", list(held))
    data = FederatedDataset(dataset, sampler)
    network = Model()
    model = PyTorchModel(
        network,
        local_optimizer_create=lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.5),
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    stamps = []  # (wall time, CPU seconds)

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            stamps.append(now())
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1, evaluation_frequency=10**9, train_cohort_size=cohort, val_cohort_size=0
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.03, local_batch_size=10),
        NNEvalHyperParams(local_batch_size=500),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    return np.diff(stamps, axis=0).tolist()


def flower(rounds, clients, cohort, count):
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    app, server, stamps = ClientApp(), ServerApp(), []

    @app.train()
    def train(message: Any, context: Context) -> Message:
        torch.set_num_threads(1)
        network = LeNet5()
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = samples(int(context.node_config["partition-id"]), count)
        fit(network, x, y)
        metrics = MetricRecord({"num-examples": count})
        return Message(content=RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message)

    class Clocked(FedAvg):
        def aggregate_train(self, server_round, replies):
            out = super().aggregate_train(server_round, replies)
            stamps.append(now())
            return out

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Clocked(fraction_train=cohort / clients, fraction_evaluate=0.0, min_available_nodes=clients)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(LeNet5().state_dict()), num_rounds=rounds + 1)

    run_simulation(server, app, clients, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    return np.diff(stamps, axis=0).tolist()


def fit(network, x, y):
    """Train for one epoch of batches of ten with the plain loop."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.03, momentum=0.5)
    for index in torch.randperm(len(y)).split(10):
        optimizer.zero_grad()
        F.cross_entropy(network(x[index]), y[index]).backward()
        optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    which, *numbers = sys.argv[1:]
    print(json.dumps({"pfl": pfl, "flower": flower}[which](*map(int, numbers))))
