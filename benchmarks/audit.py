"""How far an audit can be believed: five sites, two of them with wrong labels, many times; nobody tells it the truth.

    python -m benchmarks.audit --repetitions 100

Each time the embedded digits are split over five sites anew, a quarter of the labels of two classes are swapped at one site
and 10 % of the labels of another are random.  Printed: how often the two sites are named and others are not, how often the
swapped pair is named first, how often a site's 95 % interval holds its true level, and how many of the first 100 samples to
review are wrong, beside cleanlab's ranking of the same probabilities (extra `bench`).
"""

import argparse

import numpy as np

from fnlkit import datasets, partitioning
from fnlkit.estimators.evidence import Evidence
from fnlkit.estimators.warmup import cross_validated
from fnlkit.review.audit import audit

SWAPPED, RANDOM = 1, 3
PAIR = (4, 9)


def world(seed, swap, share):
    """Return a federation with observed labels, and the truth."""
    data, rng = datasets.load("digits"), np.random.default_rng(seed)
    federation = partitioning.federation(data, clients=5, labels="observed", seed=seed)
    true, given = data.y_train, federation.given
    one, three = federation.clients[SWAPPED], federation.clients[RANDOM]
    here = one[np.isin(true[one], PAIR) & (rng.random(len(one)) < swap)]
    given[here] = sum(PAIR) - true[here]
    here = three[rng.random(len(three)) < share]
    given[here] = (true[here] + rng.integers(1, 10, len(here))) % 10
    return federation, data


def hits(wrong, order):
    """Return the shares of wrong labels among the first 30 and the first 100 samples in ascending `order`."""
    first = wrong[np.argsort(order, kind="stable")]
    return np.array([first[:30].mean(), first[:100].mean()])


def once(seed, rounds, swap, share):
    """Return the facts of one repetition as a dict of numbers and arrays."""
    federation, data = world(seed, swap, share)
    warm_up = {"rounds": rounds, "fraction": 1.0}
    found = audit(federation, data, warm_up=warm_up, seed=seed)
    rows = sorted(found.sites, key=lambda row: row["client"])
    level = np.array([(federation.given[part] != data.y_train[part]).mean() for part in federation.clients])
    inside = [row["low"] <= true <= row["high"] for row, true in zip(rows, level, strict=True)]
    named = {row["client"] for row in rows if row["noisier"]}
    first = {(c["true"], c["given"]) for c in rows[SWAPPED]["confused"][:2]}
    pair = {tuple(map(str, PAIR)), tuple(map(str, PAIR[::-1]))}
    wrong = federation.given != data.y_train
    score = found.judgement.arrays(federation)["estimate_issue_score"]
    out = {
        "inside": inside,
        "both": {SWAPPED, RANDOM} <= named,
        "others": len(named - {SWAPPED, RANDOM}),
        "pair": first == pair,
        "error": np.abs([row["level"] for row in rows] - level),
        "hits": hits(wrong, -score),
    }
    try:
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        return out
    probabilities = cross_validated(Evidence(federation, data, warm_up=warm_up, seed=seed), folds=5)
    held = federation.client_indices
    quality = get_label_quality_scores(federation.given[held], probabilities)
    return out | {"cleanlab": hits(wrong[held], quality)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--swap", type=float, default=0.25, help="share of the pair's labels that are swapped")
    parser.add_argument("--random", type=float, default=0.1, help="share of random labels")
    options = parser.parse_args()
    found = [once(seed, options.rounds, options.swap, options.random) for seed in range(options.repetitions)]

    def mean(name):
        return np.mean([one[name] for one in found if name in one], 0)

    print(f"{options.repetitions} repetitions, 5 sites of 288 digits, {options.rounds} rounds a model, 5 models")
    print(f"both noisy sites named                  {mean('both'):.2f}")
    print(f"clean sites named, a repetition          {mean('others'):.2f}")
    print(f"the swapped pair is named first          {mean('pair'):.2f}")
    cover, error = mean("inside"), mean("error")
    for k, what in ((SWAPPED, "site with the swapped pair"), (RANDOM, "site with random labels"), (0, "a clean site")):
        print(f"interval holds the level, {what:27} {cover[k]:.2f}   error of the level {100 * error[k]:.1f} points")
    for name, who in (("hits", "the audit's ranking"), ("cleanlab", "cleanlab's, same probabilities")):
        if any(name in one for one in found):
            print(f"wrong among the first 30 and 100, {who:31} {' and '.join(f'{v:.3f}' for v in mean(name))}")


if __name__ == "__main__":
    main()
