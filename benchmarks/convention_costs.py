"""Measure by how many points of accuracy runs with the same words differ.

    python -m benchmarks.convention_costs --dataset cifar10.npz >> benchmarks/results/convention-costs.jsonl
    python -m benchmarks.pages                       # the first table of docs/conventions.md

A convention has readings, of which the first is the reference.  Each reading is run with FedAvg and with the paper's method, on
features of a frozen network; two conventions also with LeNet-5.  A line has a reading, a method, a network, a seed and the
scores in points.  Lines of ``--known FILE`` are not repeated.  Data: images 4,000 to 8,000 of CIFAR-10, 20 clients, 2,000 test
images.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fnlkit
from benchmarks.regimes import part
from fnlkit import datasets

CLIENTS, IMAGES, TESTED = 20, 4_000, 2_000
SCORES = ("best", "last", "late")
TRAIN = {"fraction": 0.5, "epochs": 5, "batch_size": 10, "workers": 1}
NETWORKS = {
    "features": {"backbone": "efficientnet-lite0(size=64)", "rounds": 30, "eval_every": 3},
    "lenet5": {"backbone": "none", "model": "lenet5", "rounds": 30, "eval_every": 3},
}
LENET5 = ("Dirichlet(0.5)", "40 % noise")  # of these, FedAvg alone is also run with LeNet-5
OPEN_SET = "openset(uniform=false)"


@dataclass(frozen=True)
class Convention:
    """The same words with several readings, as changes of `split`, `noise`, `first` (noise first), `method` or `options`."""

    words: str
    readings: dict[str, dict[str, Any]]
    methods: tuple[str, ...] = ("fedavg", "fedcorr")
    setting: dict[str, Any] = field(default_factory=dict)


def variants(method, *arguments):
    """Return readings of a method: without arguments, and with each of them."""
    return {"the default": {"method": method}} | {text: {"method": f"{method}({text})"} for text in arguments}


CORR = {"split": "iid", "noise": "clients(rho=0.6, tau=0.5)"}
EFC = {"split": "bernoulli-dirichlet(p=0.5, alpha=10)", "noise": "sparse(level=0.4, sparsity=0.8)", "first": True}
LN = {"split": "sizes(sigma=0.25)", "noise": "sparse(level=0.7, sparsity=0, per_client=true, noisy_share=0.8)"}
FLR = {"split": "iid(balanced=true)", "noise": "clients(rho=0.8, tau=0, exact=true)"}
DP = {"split": OPEN_SET, "noise": "random(eta=0.4)", "first": True}
SPLITS = ("dirichlet(alpha=0.5)", "dirichlet(alpha=0.5, balanced=true)", "dirichlet(alpha=0.5, by=client)", "iid")
CONVENTIONS = (
    Convention(
        "Dirichlet(0.5)",
        {split: {"split": split} for split in SPLITS},
        setting=CORR,
    ),
    Convention(
        "40 % noise",
        {
            "40 % wrong, uniform": {"noise": "symmetric(eta=0.4)"},
            "the true class is a candidate": {"noise": "symmetric(eta=0.36)"},
            "one random matrix (cleanlab)": {"noise": "sparse(level=0.4, sparsity=0)"},
            "pairs of classes": {"noise": "pairflip(eta=0.4)"},
        },
        ("fedavg", "fedefc"),
    ),
    Convention(
        "noise (0.4, 0.8)",
        {
            "one matrix, uneven (FedEFC)": {},
            "one matrix, even": {"noise": "sparse(level=0.4, sparsity=0.8, construction=fedln)"},
            "a matrix per client, even (FedLN)": {"noise": "sparse(level=0.4, sparsity=0.8, per_client=true)", "first": False},
        },
        ("fedavg", "fedefc", "nnc"),
        EFC,
    ),
    Convention(
        "noise and Dirichlet(0.5)",
        {"noise first": {"first": True}, "split first": {"first": False}},
        ("fedavg", "fedefc"),
        {"split": "dirichlet(alpha=0.5)", "noise": EFC["noise"]},
    ),
    Convention(
        "noise (rho 0.6, tau 0.5)",
        {
            "each drawn (FedCorr's code)": {},
            "exact shares of samples": {"noise": "clients(rho=0.6, tau=0.5, exact_samples=true)"},
            "exact shares of clients and samples (FLR)": {"noise": "clients(rho=0.6, tau=0.5, exact=true)"},
        },
        setting=CORR,
    ),
    Convention(
        "FedAvg's weights",
        {"samples": {}, "equal": {"options": {"aggregator": f"{__file__}:equal_mean"}}},
        setting={"split": "dirichlet(alpha=0.5)", "noise": CORR["noise"]},
    ),
    Convention(
        "accuracy",
        {"test split, true labels": {}, "held-out samples, given labels": {"options": {"measure": "holdout"}}},
        ("fedavg", "fedefc"),
        {"split": "iid", "noise": "symmetric(eta=0.4)", "holdout": 0.2},
    ),
    Convention(
        "FedCorr",
        variants(
            "fedcorr",
            *(f"code=[{name}]" for name in ("mixup", "proximal", "ranking", "lid", "losses", "relabeled", "strict")),
            "code=all",
            "copies=once",
        ),
        (),
        CORR,
    ),  # fmt: skip
    Convention(
        "FedEFC",
        variants(
            "fedefc", "rule=cleanlab", "weighting=paper", "weighting=public", "clip=true", "compare=previous", "accuracy=local"
        ),
        (),
        EFC,
    ),
    Convention("NNC", variants("nnc", "include_self=true", "ties=lowest", "least=0.15"), (), LN),
    Convention("NA-FedAvg", variants("na-fedavg", "side=above", "weighting=public", "threshold=own"), (), LN),
    Convention("FLR", variants("flr", "warm=server", "warm=schedule", "rates=constant", "start=zero", "clamp=0.0001"), (), FLR),
    Convention("FedDPCont", variants("feddpcont", "expected=true", "delay=-1, length=-1", "floor=0", "simplex=clip"), (), DP),
)


def equal_mean(stacked, weights):
    """Return the mean (P,) of the models (K, P), each with the same weight."""
    from fnlkit.server.aggregation import mean

    return mean(stacked, weights.new_ones(len(weights)))


def cells():
    """Yield (convention, reading, method, network, setting) of all runs."""
    for each in CONVENTIONS:
        for reading, changes in each.readings.items():
            setting = {"split": "iid", **each.setting, **changes}
            for method in each.methods or (changes["method"],):
                yield each.words, reading, method, "features", setting
            if each.words in LENET5:
                yield each.words, reading, "fedavg", "lenet5", setting


def run(method, network, setting, seed, dataset):
    """Return {score: points} of a run."""
    steps = [
        lambda fed: fnlkit.partition(
            fed, clients=CLIENTS, scheme=setting["split"], holdout=setting.get("holdout", 0), seed=seed, say=None
        ),  # fmt: skip
        lambda fed: fnlkit.inject_noise(fed, setting["noise"], seed=seed, say=None),
    ]
    federation = dataset
    for step in reversed(steps) if setting.get("first") else steps:
        federation = step(federation)
    options = TRAIN | NETWORKS[network] | setting.get("options", {})
    trained = fnlkit.train(federation, method, dataset=dataset, seed=seed, say=None, **options)
    facts = trained.summary()
    name = "agreement" if options.get("measure") == "holdout" and "agreement_late" in facts else "accuracy"
    return {score: round(100 * facts[f"{name}_{score}"], 2) for score in SCORES}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", required=True, help="CIFAR-10, as for `fnlkit partition --dataset`")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--known", type=Path, help="lines of an earlier call")
    options = parser.parse_args()
    key = ("words", "reading", "method", "network", "seed")
    lines = options.known.read_text(encoding="utf-8").splitlines() if options.known else []
    known = {tuple(json.loads(line)[name] for name in key) for line in lines}
    with tempfile.TemporaryDirectory() as folder:
        arrays = part(datasets.load(options.dataset), False, IMAGES)
        np.savez(path := f"{folder}/images.npz", **{k: v[: TESTED if "test" in k else None] for k, v in arrays.items()})
        for seed in range(options.seeds):
            for *names, setting in cells():
                line = dict(zip(key, (*names, seed), strict=True))
                if tuple(line.values()) not in known:
                    print(json.dumps(line | run(line["method"], line["network"], setting, seed, path)), flush=True)


if __name__ == "__main__":
    main()
