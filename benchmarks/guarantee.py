"""Lists of wrong labels with a guarantee, and ranges after a review, on real and simulated noise.

    python -m benchmarks.guarantee --data DIR --cache DIR [--only jira,labelme] [--repetitions 200]

DIR contains jira/, labelme/ and yoruba/ as their authors publish them; mriqc and digits come with fnlkit.  For each site of a
cell, a review of 100 samples is drawn again in each repetition; the scores are those of one audit.  The reviewer decides by the
true labels.  Options were chosen on four projects of JIRA (`jira-development`); the other cells were not used before.

Printed for each cell, as means over sites and repetitions with 95 % intervals over the repetitions: the share of right labels
in the list, its largest mean at a site, and the share of the wrong labels that are listed or reviewed.
- guaranteed list: q = 0.2 on average; the same with 95 % probability; twice 50 reviews, both lists together.
- reviewer: the same list with 5 % of the right labels called wrong, at random or always those with the highest scores.
- conformal: p-values from 100 uniformly drawn reviews, Benjamini-Hochberg at 0.2 (Jin, Candes 2023).
- cleanlab: its list and the first 100 of its ranking, from logistic regression on the other sites (extra `bench`).
- uniform: 100 uniformly drawn reviews, no list.
- best prefix: the longest prefix by score with at most 20 % right labels, chosen with the true labels, without reviews.
Then the coverage and the width of 95 % ranges: the share of wrong labels from 30 reviewed candidates and 70 other samples, from
100 uniform reviews, the share of a class, and the accuracy of a model on true labels.
"""

import argparse
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.guarantee_cells import CELLS, sites_of
from fnlkit.audits.designs import MOST, MULTIPLE
from fnlkit.audits.guarantees import draw_reviews, find_guaranteed_list
from fnlkit.estimators.ranges import share_range
from fnlkit.kernels.streams import stream

BUDGET, Q, ERRORS = 100, 0.2, 0.05
# Of the reviews for a range, this share is drawn from the samples that are not candidates.
OUTSIDE = 0.7
ranges = lru_cache(maxsize=None)(share_range)


def candidates_of(site, reviews):
    """Return the candidates of a site, highest scores first, as `fnlkit review export --guarantee` does."""
    order = np.argsort(-site.score, kind="stable")
    return order[: max(reviews, min(MULTIPLE * reviews, int(np.ceil(MOST * len(order)))))]


def measures(wrong, listed, reviewed):
    """Return (share of right labels in the list, share of the wrong labels that are listed or reviewed)."""
    return (~wrong[listed]).mean() if listed.any() else 0.0, (wrong & (listed | reviewed)).sum() / max(1, wrong.sum())


def one_list(site, wrong, rng, *, reviews=BUDGET, top=None, called=None, **options):
    """Return (listed, reviewed), masks (n,), of a review with a guarantee."""
    top = candidates_of(site, reviews) if top is None else top
    drawn, decided = draw_reviews(len(top), min(reviews, len(top)), rng), (wrong if called is None else called)[top]
    made = find_guaranteed_list(-np.arange(len(top)), drawn, decided, q=Q, groups=site.given[top], **options)
    listed, reviewed = np.zeros(len(wrong), bool), np.zeros(len(wrong), bool)
    listed[top], reviewed[top] = made.listed, drawn
    return listed, reviewed


def two_lists(site, wrong, rng):
    """Return (listed, reviewed) of two reviews of half the budget, the second on the samples that the first left open."""
    listed, reviewed = one_list(site, wrong, rng, reviews=BUDGET // 2)
    order = np.argsort(-site.score, kind="stable")
    order = order[~(listed | reviewed)[order]]
    again = one_list(
        site, wrong, rng, reviews=BUDGET // 2, top=order[: max(BUDGET // 2, min(MULTIPLE * BUDGET // 2, len(order)))]
    )
    return listed | again[0], reviewed | again[1]


def conformal(site, wrong, rng):
    """Return (listed, reviewed) by conformal p-values from uniform reviews and Benjamini-Hochberg."""
    reviewed = draw_reviews(len(wrong), min(BUDGET, len(wrong)), rng)
    right, rest = np.sort(site.score[reviewed & ~wrong]), np.flatnonzero(~reviewed)
    p = (1 + len(right) - np.searchsorted(right, site.score[rest], "left")) / (reviewed.sum() + 1)
    order = np.argsort(p, kind="stable")
    good = np.flatnonzero(p[order] <= Q * np.arange(1, len(rest) + 1) / max(1, len(rest)))
    listed = np.zeros(len(wrong), bool)
    listed[rest[order[: good[-1] + 1 if len(good) else 0]]] = True
    return listed, reviewed


def cleanlab(site, wrong):
    """Return (listed, first 100 of the ranking), masks (n,), by cleanlab."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    first = np.zeros(len(wrong), bool)
    first[np.argsort(get_label_quality_scores(site.given, site.probabilities), kind="stable")[:BUDGET]] = True
    return find_label_issues(site.given, site.probabilities, n_jobs=1), first


def best_prefix(site, wrong):
    """Return the mask (n,) of the longest prefix by score that contains at most a share Q of right labels."""
    order = np.argsort(-site.score, kind="stable")
    good = np.flatnonzero(np.cumsum(~wrong[order]) <= Q * np.arange(1, len(order) + 1))
    listed = np.zeros(len(wrong), bool)
    listed[order[: good[-1] + 1 if len(good) else 0]] = True
    return listed


def misled(site, wrong):
    """Return decisions of a reviewer who calls the 5 % right labels with the highest scores wrong."""
    right = np.flatnonzero(~wrong)
    out = wrong.copy()
    out[right[np.argsort(-site.score[right], kind="stable")[: round(ERRORS * len(right))]]] = True
    return out


def lists(site, rng):
    """Return {name: (false share, found share)} of one repetition."""
    wrong, random_errors = site.wrong, rng.random(len(site.given)) < ERRORS
    made = {
        "guaranteed, on average": one_list(site, wrong, rng),
        "guaranteed, 95 %": one_list(site, wrong, rng, confidence=0.95),
        "two reviews of 50": two_lists(site, wrong, rng),
        "5 % random errors": one_list(site, wrong, rng, called=wrong | random_errors),
        "5 % stated errors": one_list(site, wrong, rng, called=wrong | random_errors, errors=ERRORS),
        "5 % systematic errors": one_list(site, wrong, rng, called=misled(site, wrong)),
        "conformal": conformal(site, wrong, rng),
        "uniform": (np.zeros(len(wrong), bool), draw_reviews(len(wrong), min(BUDGET, len(wrong)), rng)),
    }
    return {name: measures(wrong, *each) for name, each in made.items()}


def covers(has, top, drawn, inside):
    """Return (covered, width) of the range of a share among the samples `inside`, from reviews in and outside `top`."""
    parts = [inside & top, inside & ~top]
    numbers = [tuple(int((part & more).sum()) for part in parts) for more in (has & drawn, drawn, inside)]
    found, share = ranges(*numbers), has[inside].mean()
    return found.low - 1e-12 <= share <= found.high + 1e-12, found.high - found.low


def all_ranges(site, rng):
    """Return {name: (covered, width)} of one repetition."""
    wrong, size = site.wrong, len(site.given)
    budget, outside = min(BUDGET, size), round(OUTSIDE * min(BUDGET, size))
    top = np.zeros(size, bool)
    top[np.argsort(-site.score, kind="stable")[: max(budget - outside, round(0.15 * size))]] = True
    drawn = np.zeros(size, bool)
    for part, number in ((top, budget - outside), (~top, outside)):
        drawn[rng.permutation(np.flatnonzero(part))[:number]] = True
    every, uniform, nothing = np.ones(size, bool), draw_reviews(size, budget, rng), np.zeros(size, bool)
    largest = site.given == np.bincount(site.given).argmax()
    return {
        "share, by scores": covers(wrong, top, drawn, every),
        "share, uniform": covers(wrong, nothing, uniform, every),
        "share of the largest class": covers(wrong, top, drawn, largest),
        "accuracy of a model": covers(site.probabilities.argmax(1) == site.true, top, drawn, every),
    }


def interval(values):
    """Return (mean, half of a 95 % interval) over repetitions."""
    return values.mean(), 1.96 * values.std(ddof=1) / np.sqrt(len(values))


def report(cell, sites, repetitions):
    sizes, wrong = np.array([len(site.given) for site in sites]), np.array([site.wrong.mean() for site in sites])
    print(f"\n{cell}: {len(sites)} sites of {sizes.min():,} to {sizes.max():,} labels, {100 * wrong.min():.1f} to "
          f"{100 * wrong.max():.1f} % wrong; {BUDGET} reviews per site, {repetitions} repetitions")  # fmt: skip
    found, spans = {}, {}
    for k, site in enumerate(sites):
        for i in range(repetitions):
            rng = stream(i, f"benchmark {cell}", client=k)
            for name, values in lists(site, rng).items():
                found.setdefault(name, np.zeros((repetitions, len(sites), 2)))[i, k] = values
            if i < repetitions // 2:
                for name, values in all_ranges(site, rng).items():
                    spans.setdefault(name, np.zeros((repetitions // 2, len(sites), 2)))[i, k] = values
    print(f"  {'in %':24}{'right in the list':>20}{'largest site':>16}{'above q':>8}{'found':>16}")
    for name, values in found.items():
        (false, half), (share, spread) = (interval(100 * values[..., j].mean(1)) for j in (0, 1))
        at = values[..., 0].mean(0).argmax()
        (worst, wide), above = interval(100 * values[:, at, 0]), 100 * (values[..., 0] > Q).mean()
        print(f"  {name:24}{false:13.1f} ± {half:3.1f}{worst:10.1f} ± {wide:3.1f}{above:8.1f}{share:10.1f} ± {spread:3.1f}")
    best = [measures(site.wrong, best_prefix(site, site.wrong), np.zeros(len(site.given), bool)) for site in sites]
    false, share = 100 * np.mean(best, 0)
    print(f"  {'best prefix':24}{false:13.1f}      {100 * np.max(best, 0)[0]:10.1f}{'':14}{share:10.1f}")
    try:
        made = [(site.wrong, *cleanlab(site, site.wrong)) for site in sites]
    except ImportError:
        made = []
    if made:
        nothing = [np.zeros(len(one[0]), bool) for one in made]
        rows = np.array([measures(w, listed, none) for (w, listed, _), none in zip(made, nothing, strict=True)])
        ranking = np.mean([measures(w, none, first)[1] for (w, _, first), none in zip(made, nothing, strict=True)])
        false, share = 100 * rows.mean(0)
        print(f"  {'cleanlab, its list':24}{false:13.1f}      {100 * rows[:, 0].max():10.1f}{'':14}{share:10.1f}")
        print(f"  {'cleanlab, first 100':24}{'-':>13}      {'-':>10}{'':14}{100 * ranking:10.1f}")
    print(f"  {'95 % ranges':28}{'coverage in %':>20}{'smallest site':>15}{'width in points':>18}")
    for name, values in spans.items():
        (inside, half), (width, spread) = (interval(100 * values[..., j].mean(1)) for j in (0, 1))
        print(f"  {name:28}{inside:13.1f} ± {half:3.1f}{100 * values[..., 0].mean(0).min():15.1f}{width:11.1f} ± {spread:3.1f}",
              flush=True)  # fmt: skip


def report_cells(report, title):
    """Call report(cell, sites, repetitions) for each cell of the command line."""
    parser = argparse.ArgumentParser(description=title.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with jira/, labelme/ and yoruba/")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the scores of finished audits")
    parser.add_argument("--only", default=",".join(CELLS))
    parser.add_argument("--repetitions", type=int, default=200)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    for cell in options.only.split(","):
        report(cell, sites_of(cell, options.data, options.cache), options.repetitions)


if __name__ == "__main__":
    report_cells(report, __doc__)
