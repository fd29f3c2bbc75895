"""Errors of the estimators on the embedded digits: `python -m benchmarks.estimators > benchmarks/results/estimators.jsonl`.

20 clients, `clients(rho=0.6, tau=0.5)`, default options, three seeds of partition,
noise and training.  A line has an estimator, a seed and the comparison with the true labels (fnlkit.estimators.judgment).
"""

import argparse
import json

import fnlkit
from fnlkit.estimators.judgment import compare

SPECS = ("knn", "knn(across=true)", "confident", "lid", "loss", "loss(scope=client)", "energy", "em", "anchor")
SEEDS = (0, 1, 2)
FACTS = ("sample_auc", "client_auc", "level_error", "level_bias", "level_coverage", "flag_precision", "flag_recall",
         "label_accuracy", "suggested_accuracy", "transition_cosine", "transition_error")  # fmt: skip


def measure(spec, seed):
    """Return the errors of an estimator by name, rounded to four digits."""
    noisy = fnlkit.inject_noise(fnlkit.partition("digits", seed=seed), "clients(rho=0.6, tau=0.5)", seed=seed)
    facts = compare(fnlkit.estimate_noise(noisy, spec, seed=seed, say=None))
    return {name: round(float(facts[name]), 4) for name in FACTS}


def main():
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    for spec in SPECS:
        for seed in SEEDS:
            print(json.dumps({"estimator": spec, "seed": seed} | measure(spec, seed)), flush=True)


if __name__ == "__main__":
    main()
