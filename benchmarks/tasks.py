"""Audits of simulated sites whose labels are no classes: false accusations, named sites, coverage of the ranges.

    python -m benchmarks.tasks --federations 80

Each federation has five sites of 60, 150 or 300 samples with shifted inputs, and at most one noisy site with 20 or 40 % wrong
labels: numbers drawn from all numbers, or one of three labels flipped or missing.
"""

import argparse

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.audits.tasks.audit import audit
from fnlkit.datasets.dataset import Dataset

SITES = 5


def simulated(task, seed):
    """Return (federation, dataset, share of wrong labels (N, L))."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([60, 150, 300]))
    site = np.repeat(np.arange(SITES), size)
    x = rng.normal(size=(SITES * size, 6)) + 0.3 * rng.normal(size=(SITES, 6))[site]
    noisy = (site == rng.integers(SITES)) & (rng.random(len(x)) < rng.choice([0, 0.2, 0.4]))
    if task == "regression":
        names, errors = ["number"], rng.standard_t(rng.choice([3, 30]), size=len(x)) * (1 + 0.5 * (site == 0))
        true = 3 * x[:, 0] + 2 * np.sin(2 * x[:, 1]) + x[:, 2] * x[:, 3] + rng.choice([0.3, 1.0, 2.0]) * errors
        given = np.where(noisy, rng.choice(true, len(x)), true)
    else:
        names, errors = ["a", "b", "c"], rng.normal(size=(3, len(x)))
        scores = x[:, 0] + 0.4 * x[:, 1] * x[:, 2] + rng.choice([0.2, 0.6]) * errors[0], x[:, 1] + 0.3 * errors[1] - 1.4
        true = np.stack([*(s > 0 for s in scores), x[:, 3] + 0.5 * errors[2] > 0.5], 1).astype(np.int8)
        given, label = true.copy(), rng.integers(3)
        given[noisy, label] = 1 - true[noisy, label] if rng.random() < 0.5 else 0
    meta = {"task": task, "class_names": names}
    federation = Federation("simulated", len(names), np.arange(SITES + 1) * size, np.arange(len(x)), given, meta=meta)
    x = x.astype(np.float32)
    data = Dataset("simulated", "vector", given, given[:0], names, samples=lambda: (x, x[:0]), task=task, observed=True)
    wrong = (given != true).reshape(len(x), -1)
    return federation, data, np.stack([wrong[site == k].mean(0) for k in range(SITES)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=80)
    count = parser.parse_args().federations
    for task in ("multilabel", "regression"):
        rows = []
        for seed in range(count):
            federation, data, share = simulated(task, seed)
            for row in audit(federation, data, seed=seed)[0]:
                for j, one in enumerate(row["labels"]):
                    true = share[row["client"], j]
                    rows.append(
                        (true, one["noisier"], one["judge"] is not None, one["low"] - 1e-6 <= true <= one["high"] + 1e-6)
                    )
        true, named, judged, inside = np.array(rows).T
        clean, noisy, judged = true == 0, true >= 0.1, judged.astype(bool)
        print(f"{task}: {named[clean].sum():.0f} of {clean.sum()} clean labels named")
        print(f"  {named[noisy].sum():.0f} of {noisy.sum()} labels with 10 % or more wrong named")
        print(f"  {(~judged).sum()} of {len(true)} not judged; ranges contain the share in {inside[judged].mean():.3f}")


if __name__ == "__main__":
    main()
