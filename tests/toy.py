"""A tiny federation: 4 classes, 8 features, 12 clients of 5 to 40 samples, every other one 60 % noisy."""

import numpy as np
import torch
from torch import nn

from fnlkit.core import registry
from fnlkit.federated.client.client import Client, LocalModel
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines import make
from fnlkit.federated.server.clients import Public
from fnlkit.models.pair import Pair

CLASSES, FEATURES = 4, 8
# Methods that train a network in one session: `auto` runs a session for each training of other methods, and tests/methods/
# test_fedsums.py has those that compute a linear head.
IN_SESSION = [name for name in registry.METHODS if not {"folds", "linear"} & {*registry.needs(name)}]


class Net(nn.Module):
    """Two layers with the parts that fnlkit asks of a network."""

    width = 16

    def __init__(self):
        super().__init__()
        self.hidden, self.output = nn.Linear(FEATURES, self.width), nn.Linear(self.width, CLASSES)

    def features(self, x):
        return self.hidden(x).relu()

    def classify(self, features):
        return self.output(features)

    def forward(self, x):
        return self.classify(self.features(x))


def fitting(network, method):
    """Return the network (a callable that makes one) that a method takes: `network`, or a Pair of two that differ."""
    if "pair" not in registry.needs(method):
        return network

    def pair():
        first, second = network(), network()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            for p in second.parameters():
                p.add_(0.3 * torch.randn_like(p))
        return Pair(first, second)

    return pair


def clients(seed=0, count=12, dtype=torch.float64, device="cpu"):
    """Return Clients whose samples are Gaussian blobs."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(CLASSES, FEATURES)) * 1.4
    inputs, out = Inputs(False, dtype=dtype, device=device), []
    for i in range(count):
        n = int(rng.integers(5, 40))
        true = rng.integers(0, CLASSES, n)
        x = torch.from_numpy(centers[true] + rng.normal(size=(n, FEATURES))).to(dtype)
        noisy = rng.random(n) < (0.0 if i % 2 else 0.6)
        given = torch.from_numpy(np.where(noisy, rng.integers(0, CLASSES, n), true))
        out.append(Client(i, x, given.clone(), given, CLASSES, inputs, secret=bytes(32)))
    return out


def public(dtype=torch.float64):
    """Return a Public set of 30 samples of such blobs."""
    whole = clients(0, 2, dtype)
    return Public(torch.cat([c.x for c in whole])[:30] + 0.1, torch.cat([c.y for c in whole])[:30])


def toy(engine="sequential", *, seed=0, dtype=torch.float64, network=Net, count=12, device="cpu", **settings):
    """Return (federation, model) with weights that depend on nothing but the network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Network(network(), dtype=dtype, device=device)
    people = clients(seed, count, dtype, device)
    fed = make(engine, people, net, people[0].inputs, **settings)
    fed.public = public(dtype)
    return fed, Model(net, net.flat.clone())


def visit(count=1, who=0):
    """Return (federation, model, client, LocalModel) of a visit of the client `who` that received the model."""
    fed, model = toy(count=count)
    client = fed.members[who]
    return fed, model, client, LocalModel(fed.network, model.weights, model.weights, client.inputs)


def program(method, fed, model, *, rounds, fit, optimizer="fedavg", selector="uniform", fraction=0.5, **settings):
    """Return the generator of a method, a spec or a function; the rest is by name, and `settings` are the optimizer's."""
    make = registry.method(method) if isinstance(method, str) else method
    return make(
        fed, model, registry.optimizer(optimizer, fit, **settings), registry.selector(selector, fraction), rounds=rounds
    )


def train(
    engine="sequential",
    method="fedavg",
    optimizer="fedavg",
    selector="uniform",
    *,
    rounds=6,
    fit=None,
    aggregator="mean",
    fraction=0.25,
    **settings,
):
    """Run a method on the toy federation; return (federation, last model, rounds yielded)."""
    fed, model = toy(engine, **{"network": fitting(Net, method), **settings})
    fit = fit or Fit(epochs=2, lr=0.1, batch_size=20)
    names = {"optimizer": optimizer, "selector": selector, "fraction": fraction}
    run = program(method, fed, model, rounds=rounds, fit=fit, aggregate=registry.aggregator(aggregator), **names)
    steps = []
    while True:
        try:
            steps.append(next(run))
        except StopIteration as done:
            fed.close()
            return fed, done.value, steps
