"""Coverage of the ranges that estimators print, on repeated federations of the embedded digits.

    python -m benchmarks.coverage --repetitions 5

`estimate-noise` prints a range for each noise level.  It is not called a 95 % interval, since it does not include the
estimator's bias.  For each estimator and noise model, this program prints the share of clients whose range contains their
true level, the mean estimated and true level, and the share of runs in which the estimator warned about its levels.
"""

import argparse

import numpy as np

from fnlkit import datasets, noise
from fnlkit.datasets import partitioning
from fnlkit.estimators import ESTIMATORS, estimate

WORLDS = ("none", "symmetric(eta=0.3)", "clients(rho=0.6, tau=0.5)")
WARNINGS = ("void: ", "not shares of wrong labels")


def once(data, estimator, world, clients, seed):
    """Return whether each client's range contains the level, estimated and true levels, and whether there was a warning."""
    federation = partitioning.federation(data, clients=clients, seed=seed)
    federation = noise.inject(federation, world, seed=seed)
    said = []
    found = estimate(federation, data, estimator, seed=seed, say=said.append)
    wrong = federation.given != data.y_train
    level = np.array([wrong[part].mean() for part in federation.clients])
    low, high = (found[f"estimate_client_level_{end}"] for end in ("low", "high"))
    warned = any(word in text for text in said for word in WARNINGS)
    return (low <= level) & (level <= high), found["estimate_client_level"], level, warned


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--only", default=",".join(ESTIMATORS), help="estimators, separated by commas")
    options = parser.parse_args()
    data = datasets.load("digits")
    print(f"digits over {options.clients} clients, {options.repetitions} repetitions")
    for world in WORLDS:
        print(f"{world:28} inside  level   true   warned")
        for name in options.only.split(","):
            found = [once(data, name, world, options.clients, seed) for seed in range(options.repetitions)]
            inside, level, true, warned = (np.mean([one[i] for one in found]) for i in range(4))
            print(f"    {name:24} {inside:5.2f}   {level:5.3f}  {true:5.3f}   {warned:5.2f}", flush=True)


if __name__ == "__main__":
    main()
