"""What each method costs beside FedAvg, by its own meter: `python -m benchmarks.costs > data/costs.toml`.

Digits on 20 clients of which a fifth takes part in a round, half of them noisy; 20 rounds, a perceptron of 19,210 weights.
Of larger networks the replies beside weights are a smaller part.
"""

import sys

from fnlkit import catalogue, datasets, noise, partitioning
from fnlkit.experiment import Experiment, Settings

SETTINGS = {"rounds": 20, "fraction": 0.2, "epochs": 1, "batch_size": 32, "model": "mlp(hidden=256)", "eval_every": 1000}


def spent(method):
    """Return (client-rounds, bytes sent by clients, bytes sent to them) of a method on the federation above."""
    digits = datasets.load("digits")
    public = 0.05 if "public" in catalogue.needs(method) else 0.0
    federation = noise.inject(partitioning.federation(digits, clients=20, public=public), "clients(rho=0.5, tau=0.5)", seed=0)
    traffic = Experiment(federation, digits, Settings(method=method, **SETTINGS), engine="sequential").run().traffic
    return traffic.client_rounds, traffic.bytes_up, traffic.bytes_down


def relative(method, plain):
    """Return the three numbers of a method over FedAvg's, to a hundredth."""
    return [round(mine / theirs, 2) for mine, theirs in zip(spent(method), plain, strict=True)]


def main():
    plain = spent("fedavg")
    print("# Client-rounds, bytes up and bytes down over FedAvg's at equal --rounds: python -m benchmarks.costs")
    for method in catalogue.METHODS:
        rounds, up, down = relative(method, plain)
        print(f"{method} = {{client_rounds = {rounds}, up = {up}, down = {down}}}", flush=True)
        print(method, rounds, up, down, file=sys.stderr)


if __name__ == "__main__":
    main()
