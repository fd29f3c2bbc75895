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
among the first 100 samples to review.  The audit does not use the true labels.
"""

import argparse
from dataclasses import replace

import numpy as np

from fnlkit import datasets
from fnlkit.audits.audit import audit
from fnlkit.datasets import partitioning

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


def once(seed, swap, share, of):
    """Return the results of one repetition as a dict of numbers and arrays."""
    federation, data = world(seed, swap, share, of)
    found = audit(federation, data, seed=seed)
    rows = sorted(found.sites, key=lambda row: row.client)
    true = np.array([(federation.given[part] != data.y_train[part]).mean() for part in federation.clients])
    low, high = np.array([row.low for row in rows]), np.array([row.high for row in rows])
    named = {row.client for row in rows if row.noisier}
    first = rows[SWAPPED].confused[:2]
    pair = {(c.true, c.given) for c in first} == {tuple(map(str, PAIR)), tuple(map(str, PAIR[::-1]))}
    pair_inside = pair and all(c.low <= confused(federation, data, c) <= c.high for c in first)
    held = federation.client_indices
    wrong = federation.given[held] != data.y_train[held]
    inside = (low <= true) & (true <= high)
    return {
        "inside": inside,
        "width": high - low,
        "both": {SWAPPED, RANDOM} <= named,
        "others": len(named - {SWAPPED, RANDOM}),
        "pair": pair,
        "pair inside": pair_inside,
        "all": {SWAPPED, RANDOM} == named and pair_inside and bool(inside[[SWAPPED, RANDOM]].all()),
        "error": np.abs(found.judgment.level - true),
        "hits": hits(wrong, -found.judgment.issue),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, help="default: 100, and 200 with --shifts")
    parser.add_argument("--swap", type=float, default=0.25, help="share of the pair's labels that are swapped")
    parser.add_argument("--random", type=float, default=0.1, help="share of random labels")
    parser.add_argument("--keep", help="folder for the results of --shifts; existing files are not computed again")
    parser.add_argument("--of", choices=("pair", "site"), default="pair", help="labels that --swap is a share of")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first repetition")
    parser.add_argument("--shifts", action="store_true", help="sites with other inputs or classes; see benchmarks/shifts.py")
    parser.add_argument("--mixed", action="store_true", help="with --shifts: tables with missing cells and categories")
    parser.add_argument("--jobs", type=int, default=1, help="processes of --shifts")
    options = parser.parse_args()
    if options.shifts:
        from benchmarks import shifts

        combinations = shifts.MIXED if options.mixed else shifts.COMBINATIONS
        given = options.first, options.repetitions or 200, options.jobs, options.keep, print, combinations
        print("\n".join(shifts.report(*given)))
        return
    options.repetitions = options.repetitions or 100
    given = options.swap, options.random, options.of
    seeds = range(options.first, options.first + options.repetitions)
    found = [once(seed, *given) for seed in seeds]

    def mean(name):
        return np.mean([one[name] for one in found if name in one], 0)

    size = round(len(digits(options.of).y_train) / 5)
    print(f"{options.repetitions} repetitions, 5 sites of {size} digits")
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
    print(f"wrong among the first 30 and 100                 {' and '.join(f'{v:.3f}' for v in mean('hits'))}")


if __name__ == "__main__":
    main()
