"""Calibration of the confidence of suggested labels: how many suggestions are right, by stated confidence.

    python -m benchmarks.confidence --only digits --first 100 --seeds 1
    python -m benchmarks.confidence --only digits,spoken-digits --first 0 --seeds 1

The first command is the development, which chose fnlkit.estimators.em.TOO_CERTAIN; the second has other seeds and data.

Each audit has five sites, or the sites of the data set.  Shares of wrong labels rise from 0 to 40 % over the sites.  With noise
`uniform`, a wrong label is a random other class; with noise `similar`, it is the most probable other class of a linear
classifier, and samples with the least certain prediction get it: a model cannot tell these labels from right ones.  The audit
does not use the true labels.
"""

import argparse

import numpy as np

from fnlkit import datasets
from fnlkit.audits.audit import audit
from fnlkit.datasets import partitioning

EDGES = (0.0, 0.5, 0.65, 0.8, 0.9, 1.0)
MOST_WRONG = 0.4


def world(name, kind, seed):
    """Return (Federation with wrong labels, Dataset, true labels (n,))."""
    data, rng = datasets.load(name), np.random.default_rng([seed, 43])
    scheme = {"scheme": "sites"} if "site" in data.fields else {"clients": 5}
    federation = partitioning.federation(data, labels="observed", seed=seed, holdout=0, **scheme)
    true, given = np.array(federation.given), federation.given
    order = rng.permutation(len(federation))
    if kind == "similar":
        margin, other = _most_similar(data, true, seed)
    for rank, k in enumerate(order):
        held = federation.clients[k]
        count = round(MOST_WRONG * rank / max(1, len(order) - 1) * len(held))
        if kind == "uniform":
            here = rng.permutation(held)[:count]
            given[here] = (true[here] + rng.integers(1, federation.classes, count)) % federation.classes
        else:
            here = held[np.argsort(margin[held] + 0.1 * rng.random(len(held)))[:count]]
            given[here] = other[here]
    return federation, data, true


def _most_similar(data, true, seed):
    """Return (probability of the true class (n,), most probable other class (n,)) by a cross-validated linear classifier."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = np.asarray(data.x_train, np.float64).reshape(len(true), -1)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.05, max_iter=200))
    p = cross_val_predict(model, x, true, cv=StratifiedKFold(3, shuffle=True, random_state=seed), method="predict_proba")
    each = np.arange(len(true))
    mine = p[each, true]
    p[each, true] = -1
    return mine, p.argmax(1)


def suggestions(name, kind, seed):
    """Return (confidence (s,), right (s,)) of all suggested labels of an audit."""
    federation, data, true = world(name, kind, seed)
    found = audit(federation, data, seed=seed, detectors=(), warm_up={"rounds": 15, "fraction": 1.0}).arrays(federation)
    flagged = found["estimate_flagged"]
    return found["estimate_confidence"][flagged], (found["estimate_suggested_label"] == true)[flagged]


def table(confidence, right):
    """Yield a line for each range of the confidence, and one for 0.8 to 1."""
    for low, high in [*zip(EDGES, EDGES[1:], strict=False), (0.8, 1.0)]:
        chosen = (confidence >= low) & (confidence <= high if high == 1 else confidence < high)
        if chosen.any():
            count, stated, share = chosen.sum(), 100 * confidence[chosen].mean(), 100 * right[chosen].mean()
            yield f"  {low:4.2f} to {high:4.2f}: {count:5} suggestions, stated {stated:5.1f} %, right {share:5.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="digits,spoken-digits", help="data sets")
    parser.add_argument("--kinds", default="uniform,similar")
    parser.add_argument("--first", type=int, default=0, help="first seed; development: 100")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    for kind in given.kinds.split(","):
        parts = []
        for name in given.only.split(","):
            for seed in range(given.first, given.first + given.seeds):
                parts.append(suggestions(name, kind, seed))
                right = parts[-1][1]
                print(f"{name}, {kind}, seed {seed}: {len(right)} suggestions, {int(right.sum())} right", flush=True)
        print(kind)
        print("\n".join(table(*(np.concatenate(each) for each in zip(*parts, strict=True)))), flush=True)


if __name__ == "__main__":
    main()
