"""Costs of each method relative to FedAvg: `python -m benchmarks.costs > data/costs.toml`.

Digits on 20 clients of which half are noisy; 4 clients per round; 20 rounds; a
perceptron of 19,210 weights.  In larger networks, replies other than weights are a smaller share of the traffic.
"""

import sys

from fnlkit import datasets, noise
from fnlkit.components import registry
from fnlkit.datasets import partitioning
from fnlkit.experiment import Settings
from fnlkit.experiment.crossfit import make_experiment

SETTINGS = {"rounds": 20, "fraction": 0.2, "epochs": 1, "batch_size": 32, "model": "mlp(hidden=256)", "eval_every": 1000}


def spent(method):
    """Return (client-rounds, bytes sent by clients, bytes received by clients) of a method."""
    digits = datasets.load("digits")
    public = 0.05 if "public" in registry.needs(method) else 0.0
    federation = noise.inject(partitioning.federation(digits, clients=20, public=public), "clients(rho=0.5, tau=0.5)", seed=0)
    traffic = make_experiment(federation, digits, Settings(method=method, **SETTINGS), engine="sequential").run().traffic
    return traffic.client_rounds, traffic.bytes_up, traffic.bytes_down


def relative(method, plain):
    """Return the three costs of a method divided by those of FedAvg, rounded to 0.01.

    Parameters
    ----------
    method : str
    plain : (client-rounds, bytes, bytes)
        Of FedAvg.
    """
    return [round(mine / theirs, 2) for mine, theirs in zip(spent(method), plain, strict=True)]


def main():
    plain = spent("fedavg")
    print("# Client-rounds, bytes up and bytes down relative to FedAvg with equal --rounds: python -m benchmarks.costs")
    for method in registry.METHODS:
        rounds, up, down = relative(method, plain)
        print(f"{method} = {{client_rounds = {rounds}, up = {up}, down = {down}}}", flush=True)
        print(method, rounds, up, down, file=sys.stderr)


if __name__ == "__main__":
    main()
