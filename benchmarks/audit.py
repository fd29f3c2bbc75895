"""How far an audit can be believed: five sites, two of them with wrong labels, many times; nobody tells it the truth.

    python -m benchmarks.audit --repetitions 100

Each time the embedded digits are split over five sites anew, a quarter of the labels of two classes are swapped at one site
and 10 % of the labels of another are random.  Printed: how often the two sites are named and others are not, how often the
swapped pair is named first, how often a site's 95 % interval holds its true level, and how many of the first 100 samples to
review are wrong, beside cleanlab's ranking of the same probabilities (extra `bench`).
"""

import argparse
from pathlib import Path

import numpy as np

from fnlkit import datasets, partitioning
from fnlkit.estimators import em
from fnlkit.estimators.evidence import Evidence
from fnlkit.estimators.warmup import cross_validated
from fnlkit.review.audit import SIGNIFICANT, confusions, noisier_than_others
from fnlkit.streams import stream

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


def scores(federation, data, rounds, seed, keep):
    """Return probabilities (m, C) of each site's samples by models trained on the others, kept from an earlier time."""
    place = keep and Path(keep) / f"{seed}.npz"
    if place and place.exists():
        return np.load(place)["probabilities"]
    warm_up = {"rounds": rounds, "fraction": 1.0}
    found = cross_validated(Evidence(federation, data, warm_up=warm_up, seed=seed), folds=5)
    if place:
        np.savez_compressed(place, probabilities=found)
    return found


def once(seed, rounds, swap, share, keep):
    """Return the facts of one repetition as a dict of numbers and arrays.

    The estimator `em` on these probabilities gives the numbers that `fnlkit.review.audit` gives site by site: a test compares.
    """
    federation, data = world(seed, swap, share)
    probabilities, bounds = scores(federation, data, rounds, seed, keep), federation.client_offsets[1:-1]
    pairs = list(zip(np.split(em.scores_of(probabilities), bounds), map(federation.given_of, range(5)), strict=True))
    temper = em.best_temper(np.sum([em.log_likelihoods(z, y) for z, y in pairs], 0))
    sites = [em.fit(z, y, temper, rng=stream(seed, "em", client=k)) for k, (z, y) in enumerate(pairs)]
    level, low, high = (np.array([one[name] for one in sites]) for name in ("level", "low", "high"))
    low = np.minimum(em.allowing_for_mistakes(low, high), level)
    true = np.array([(federation.given[part] != data.y_train[part]).mean() for part in federation.clients])
    p = noisier_than_others(level, np.array([one["draws"].std() for one in sites]))
    named = set(np.flatnonzero(p < SIGNIFICANT).tolist())
    first = {(c["true"], c["given"]) for c in confusions(sites[SWAPPED]["counts"], data.class_names)[:2]}
    pair = {tuple(map(str, PAIR)), tuple(map(str, PAIR[::-1]))}
    held = federation.client_indices
    given, wrong = federation.given[held], federation.given[held] != data.y_train[held]
    issue = 1 - np.concatenate([one["posterior"] for one in sites])[np.arange(len(held)), given]
    inside = (low <= true) & (true <= np.maximum(high, level))
    out = {
        "inside": inside,
        "width": high - low,
        "both": {SWAPPED, RANDOM} <= named,
        "others": len(named - {SWAPPED, RANDOM}),
        "pair": first == pair,
        "all": {SWAPPED, RANDOM} == named and first == pair and bool(inside[[SWAPPED, RANDOM]].all()),
        "error": np.abs(level - true),
        "hits": hits(wrong, -issue),
    }
    try:
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        return out
    return out | {"cleanlab": hits(wrong, get_label_quality_scores(given, probabilities))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--swap", type=float, default=0.25, help="share of the pair's labels that are swapped")
    parser.add_argument("--random", type=float, default=0.1, help="share of random labels")
    parser.add_argument("--keep", help="folder of the models' probabilities: what is there is not trained again")
    options = parser.parse_args()
    given = options.rounds, options.swap, options.random, options.keep
    found = [once(seed, *given) for seed in range(options.repetitions)]

    def mean(name):
        return np.mean([one[name] for one in found if name in one], 0)

    print(f"{options.repetitions} repetitions, 5 sites of 288 digits, {options.rounds} rounds a model, 5 models")
    print(f"both noisy sites named                  {mean('both'):.2f}")
    print(f"clean sites named, a repetition          {mean('others'):.2f}")
    print(f"the swapped pair is named first          {mean('pair'):.2f}")
    print(f"all of it, and both their ranges hold    {mean('all'):.2f}")
    cover, error, width = mean("inside"), mean("error"), mean("width")
    clean = [k for k in range(5) if k not in (SWAPPED, RANDOM)]
    for k, what in ((SWAPPED, "site with the swapped pair"), (RANDOM, "site with random labels"), (clean, "a clean site")):
        said = f"error of the level {100 * error[k].mean():.1f} points, width {100 * width[k].mean():.1f}"
        print(f"range holds the level, {what:27} {cover[k].mean():.2f}   {said}")
    for name, who in (("hits", "the audit's ranking"), ("cleanlab", "cleanlab's, same probabilities")):
        if any(name in one for one in found):
            print(f"wrong among the first 30 and 100, {who:31} {' and '.join(f'{v:.3f}' for v in mean(name))}")


if __name__ == "__main__":
    main()
