"""Digests of a fixed set of small runs, to check that two versions of the code give equal results to the bit.

    python -m benchmarks.digests [--only TEXT] > digests.txt

Digests are comparable only on the same machine with the same versions of the libraries: compare commits, not computers.
"""

import argparse
import hashlib
import tempfile
from pathlib import Path

import torch

from fnlkit.cli import main as fnlkit

# (name, commands that create the federation, options of train)
CLIENTS = (["partition", "--scheme", "iid", "--clients", "8"], ["inject-noise", "--noise", "clients(rho=0.6, tau=0.5)"])
SKEWED = (["partition", "--scheme", "dirichlet(alpha=1.0)", "--clients", "8"], ["inject-noise", "--noise", "sparse(level=0.4)"])
METHODS = [
    "fedavg", "fedcorr", "fedcorr(usual=flr())", "fedefc", "feddpcont", "flr", "flr-plus", "elr", "slr", "er", "nnc(k=10)",
    "akd(k=10)", "akd(source=logits)", "na-fedavg", "forward", "confident-learning",
    "fednoro", "fedelc", "rofl", "feddiv", "fedgr", "fedreda", "fedrg", "jointopt", "selfie", "coteaching", "dividemix",
    "fedem",
    "auto(folds=2)",
]  # fmt: skip
SHORT = ["--rounds", "12", "--fraction", "0.5", "--epochs", "1", "--eval-every", "12"]
RUNS = [(f"{m} {e}", CLIENTS, ["--method", m, "--engine", e]) for m in METHODS for e in ("sequential", "fused")]
RUNS += [(f"{m} stacked", SKEWED, ["--method", m, "--engine", "stacked"]) for m in METHODS[:6]]
RUNS += [
    ("fedprox", SKEWED, ["--optimizer", "fedprox(mu=0.1)"]),
    ("feddyn median", SKEWED, ["--optimizer", "feddyn(alpha=0.1)", "--aggregator", "median"]),
    ("power-of-choice trimmed-mean", SKEWED, ["--selector", "power-of-choice(d=6)", "--aggregator", "trimmed-mean"]),
    ("lenet5 augmented", SKEWED, ["--model", "lenet5(upsample=true)", "--augment", "augment(flip=true)", "--rounds", "2"]),
    ("workers", SKEWED, ["--engine", "workers", "--workers", "2"]),
    ("adam mixup fp64", SKEWED, ["--client-optimizer", "adam", "--lr", "0.001", "--method", "fedcorr", "--precision", "fp64"]),
]
NOISES = [
    "clients(rho=0.6, tau=0.5)", "clients(exact=true)", "symmetric(eta=0.4)", "pairflip(eta=0.45)", "asymmetric(eta=0.4)",
    "random(eta=0.4)", "sparse(level=0.4)", "sparse(per_client=true, noisy_share=0.8)", "instance(eta=0.4)", "none",
]  # fmt: skip
SCHEMES = ["iid", "shards", "dirichlet", "bernoulli-dirichlet", "openset"]
ESTIMATORS = ["knn(k=10)", "confident", "lid", "loss", "energy", "anchor"]


def call(arguments):
    """Run one command in this process; return the exit code."""
    try:
        fnlkit(list(map(str, arguments)))
    except SystemExit as end:
        return end.code or 0
    return 0


def digest_of(path):
    """Return the SHA-256 of the arrays of a federation or of the weights of a run."""
    if path.suffix == ".pt":
        weights = torch.load(path, weights_only=True)["tensors"]["weights"]
        return hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]
    import numpy as np

    total = hashlib.sha256()
    with np.load(path, allow_pickle=False) as arrays:
        for name in sorted(set(arrays.files) - {"meta", "sha256"}):  # version information, and the sum that includes it
            total.update(name.encode() + arrays[name].tobytes())
    return total.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        a, b, run = place / "a.npz", place / "b.npz", place / "run.pt"

        def line(name, target, *commands):
            if only not in name:
                return
            codes = [call(command) for command in commands]
            print(f"{name:45} {digest_of(target) if not any(codes) else codes}", flush=True)

        for scheme in SCHEMES:
            line(f"scheme {scheme}", a, ["partition", "--scheme", scheme, "--clients", "7", "-o", a])
        split = ["partition", "--scheme", "iid", "--clients", "7", "-o", a]
        for noise in NOISES:
            line(f"noise {noise}", b, split, ["inject-noise", a, "--noise", noise, "-o", b])
        noisy = ["inject-noise", a, "-o", b]
        for estimator in ESTIMATORS:
            command = ["estimate-noise", b, "--estimator", estimator, "-o", place / "c.npz"]
            line(f"estimator {estimator}", place / "c.npz", split, noisy, command)
        for name, (partition, noise), options in RUNS:
            commands = [*partition, "-o", a], [noise[0], a, *noise[1:], "-o", b], ["train", b, *SHORT, *options, "-o", run]
            line(f"run {name}", run, *commands)


if __name__ == "__main__":
    main()
