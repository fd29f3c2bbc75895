"""Reliability of the audit on repeated federations of five sites, two of which have wrong labels.

    python -m benchmarks.audit --repetitions 100
    python -m benchmarks.audit --repetitions 100 --of site

Each repetition splits the embedded digits over five sites.  Labels of two classes are swapped at one site, and 10 % of the
labels of another site are replaced by random wrong labels.  The shares are exact, rounded to whole samples; the samples are
drawn at random.  "25 % of a site's labels swapped between two classes" has two readings.  ``--of pair``: a quarter of the
labels of each of two out of ten classes is swapped, which is 5 % of the site's labels.  ``--of site``: the data are the
digits 4, 7 and 9 only, and a quarter of all labels of the site are swapped between two of the three classes, which is 3 of 8
labels of these classes.

Prints how often both noisy sites and no others are flagged, how often the swapped pair is ranked first, how often the 95 %
intervals contain the true noise level of a site and the true shares of the two confusions, and the share of wrong labels
among the first 100 samples to review.  The last is compared with cleanlab's ranking of the same probabilities (extra
`bench`).  The audit does not use the true labels.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from fnlkit import datasets
from fnlkit.audits.confusions import find_confusions
from fnlkit.audits.statistics import SIGNIFICANT, noisier_than_others
from fnlkit.datasets import partitioning
from fnlkit.estimators import em
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.warmup import cross_validated
from fnlkit.kernels.streams import stream

SWAPPED, RANDOM = 1, 3
PAIR, THREE = (4, 9), (4, 7, 9)


def digits(of):
    """Return the digits, or those of three classes if `of` is "site"."""
    data = datasets.load("digits")
    if of == "pair":
        return data
    train, test = (np.flatnonzero(np.isin(y, THREE)) for y in (data.y_train, data.y_test))
    return replace(
        data,
        y_train=np.searchsorted(THREE, data.y_train[train]),
        y_test=np.searchsorted(THREE, data.y_test[test]),
        class_names=[data.class_names[c] for c in THREE],
        samples=lambda: (data.x_train[train], data.x_test[test]),
    )


def world(seed, swap, share, of="pair"):
    """Return a federation with observed labels, and the data set with the true labels.

    Parameters
    ----------
    seed : int
    swap, share : float
        Share of labels swapped at one site (see `of`), and share of random wrong labels at another site.
    of : "pair" or "site"
        Unit of `swap`: labels of the pair of classes, or all labels of the site.
    """
    data, rng = digits(of), np.random.default_rng(seed)
    federation = partitioning.federation(data, clients=5, labels="observed", seed=seed)
    true, given, pair = data.y_train, federation.given, [data.class_names.index(str(c)) for c in PAIR]
    one, three = federation.clients[SWAPPED], federation.clients[RANDOM]
    in_class = [rng.permutation(one[true[one] == c]) for c in pair]
    of_class = swap if of == "pair" else swap * len(one) / sum(map(len, in_class))
    for members, other in zip(in_class, pair[::-1], strict=True):
        given[members[: round(of_class * len(members))]] = other
    here = rng.permutation(three)[: round(share * len(three))]
    given[here] = (true[here] + rng.integers(1, data.classes, len(here))) % data.classes
    return federation, data


def confused(federation, data, one):
    """Return the observed share of one confusion at the site with the swapped pair.

    The share is that of the samples of the true class that have the other class as given label.
    """
    true, given = data.class_names.index(one.true), data.class_names.index(one.given)
    held = federation.clients[SWAPPED]
    return (federation.given[held][data.y_train[held] == true] == given).mean()


def hits(wrong, order):
    """Return the shares of wrong labels among the first 30 and the first 100 samples in ascending `order`."""
    first = wrong[np.argsort(order, kind="stable")]
    return np.array([first[:30].mean(), first[:100].mean()])


def scores(federation, data, rounds, seed, keep):
    """Return probabilities (m, C) of each site's samples by models trained on the others; read them from `keep` if possible."""
    place = keep and Path(keep) / f"{seed}.npz"
    if place and place.exists():
        return np.load(place)["probabilities"]
    warm_up = {"rounds": rounds, "fraction": 1.0}
    found = cross_validated(EstimatorInputs(federation, data, warm_up=warm_up, seed=seed), folds=5)
    if place:
        np.savez_compressed(place, probabilities=found)
    return found


def once(seed, rounds, swap, share, of, keep):
    """Return the results of one repetition as a dict of numbers and arrays.

    The estimator `em` on these probabilities gives the same numbers as `fnlkit.audits.audit`; a test compares both.
    """
    federation, data = world(seed, swap, share, of)
    probabilities, bounds = scores(federation, data, rounds, seed, keep), federation.client_offsets[1:-1]
    pairs = list(zip(np.split(em.scores_of(probabilities), bounds), map(federation.given_of, range(5)), strict=True))
    sites = [em.fit(z, y, rng=stream(seed, "em", client=k)) for k, (z, y) in enumerate(pairs)]
    replies = [em.in_whole_numbers(one, y, federation.classes) for one, (_, y) in zip(sites, pairs, strict=True)]
    estimates = em.estimates_of(*(np.array([reply[name] for reply in replies]) for name in ("low", "high", "counts")))
    level, low, high = (estimates[name] for name in ("level", "low", "high"))
    low = np.minimum(em.allowing_for_mistakes(low, high), level)
    true = np.array([(federation.given[part] != data.y_train[part]).mean() for part in federation.clients])
    p = noisier_than_others(level, estimates["deviation"])
    named = set(np.flatnonzero(p < SIGNIFICANT).tolist())
    first = find_confusions(estimates["counts"][SWAPPED], data.class_names)[:2]
    pair = {(c.true, c.given) for c in first} == {tuple(map(str, PAIR)), tuple(map(str, PAIR[::-1]))}
    pair_inside = pair and all(c.low <= confused(federation, data, c) <= c.high for c in first)
    held = federation.client_indices
    given, wrong = federation.given[held], federation.given[held] != data.y_train[held]
    issue = 1 - np.concatenate([one["posterior"] for one in sites])[np.arange(len(held)), given]
    inside = (low <= true) & (true <= np.maximum(high, level))
    out = {
        "inside": inside,
        "width": high - low,
        "both": {SWAPPED, RANDOM} <= named,
        "others": len(named - {SWAPPED, RANDOM}),
        "pair": pair,
        "pair inside": pair_inside,
        "all": {SWAPPED, RANDOM} == named and pair_inside and bool(inside[[SWAPPED, RANDOM]].all()),
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
    parser.add_argument("--repetitions", type=int, help="default: 100, and 200 with --shifts")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--swap", type=float, default=0.25, help="share of the pair's labels that are swapped")
    parser.add_argument("--random", type=float, default=0.1, help="share of random labels")
    parser.add_argument("--keep", help="folder for the results of repetitions; existing files are not computed again")
    parser.add_argument("--of", choices=("pair", "site"), default="pair", help="labels that --swap is a share of")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first repetition")
    parser.add_argument("--shifts", action="store_true", help="sites with other inputs or classes; see benchmarks/shifts.py")
    parser.add_argument("--mixed", action="store_true", help="with --shifts: tables with missing cells and categories")
    parser.add_argument("--quick", action="store_true", help="with --shifts: audit from sums, as fnlkit audit --quick")
    parser.add_argument("--jobs", type=int, default=1, help="processes of --shifts")
    options = parser.parse_args()
    if options.shifts:
        from benchmarks import shifts

        combinations = shifts.MIXED if options.mixed else shifts.COMBINATIONS
        given = options.first, options.repetitions or 200, options.jobs, options.keep, print, combinations, options.quick
        print("\n".join(shifts.report(*given)))
        return
    options.repetitions = options.repetitions or 100
    given = options.rounds, options.swap, options.random, options.of, options.keep
    seeds = range(options.first, options.first + options.repetitions)
    found = [once(seed, *given) for seed in seeds]

    def mean(name):
        return np.mean([one[name] for one in found if name in one], 0)

    size = round(len(digits(options.of).y_train) / 5)
    print(f"{options.repetitions} repetitions, 5 sites of {size} digits, {options.rounds} rounds per model, 5 models")
    print(f"both noisy sites flagged                 {mean('both'):.2f}")
    print(f"clean sites flagged per repetition       {mean('others'):.2f}")
    print(f"the swapped pair is ranked first         {mean('pair'):.2f}")
    print(f"and its two shares are in their ranges   {mean('pair inside'):.2f}")
    print(f"all of this, and both levels in range    {mean('all'):.2f}")
    print(f"seeds of the other repetitions: {[seed for seed, one in zip(seeds, found, strict=True) if not one['all']]}")
    cover, error, width = mean("inside"), mean("error"), mean("width")
    clean = [k for k in range(5) if k not in (SWAPPED, RANDOM)]
    for k, site in ((SWAPPED, "site with the swapped pair"), (RANDOM, "site with random labels"), (clean, "a clean site")):
        details = f"error of the level {100 * error[k].mean():.1f} points, width {100 * width[k].mean():.1f}"
        print(f"level in range, {site:27} {cover[k].mean():.2f}   {details}")
    for name, ranking in (("hits", "the audit's ranking"), ("cleanlab", "cleanlab's, same probabilities")):
        if any(name in one for one in found):
            print(f"wrong among the first 30 and 100, {ranking:31} {' and '.join(f'{v:.3f}' for v in mean(name))}")


if __name__ == "__main__":
    main()
