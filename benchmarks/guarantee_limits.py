"""Limits of lists and ranges: what the true labels, one list for all sites, and perfect probabilities would allow.

    python -m benchmarks.guarantee_limits --data DIR --cache DIR [--only jira-development,jira]

Data and scores are those of benchmarks.guarantee.  Printed for each cell:
- best prefix: share of the wrong labels in the longest prefix with at most 20 % right labels, chosen with the true labels,
  without reviews, as a mean over sites.  The order comes from the audit's scores, from boosted trees that learn which labels of
  the other sites are wrong, or from trees that learn it from two thirds of the site itself.  Trees get the inputs, the given
  label and the audit's score.
- one list for all sites: each candidate of every site is reviewed with the same probability, 100 per site on average; the list
  has the guarantee for all sites together.  The order is that of the ranks, updated by site and class.
- narrowest range: the width of a 95 % normal interval of a site's share of wrong labels after 100 reviews, if the probability
  that a label is wrong were known for each score (isotonic regression on the true labels) and each sample were reviewed with
  the best probability; beside it the width for uniform reviews.  An exact range is wider.
"""

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from benchmarks.guarantee import BUDGET, Q, best_prefix, candidates_of, interval, report_cells
from fnlkit.audits.guarantees import update_scores
from fnlkit.kernels.streams import stream


class Ranked:
    """Wrong labels of a site with other scores, for `best_prefix`."""

    def __init__(self, wrong, score):
        self.wrong, self.score = wrong, score


def found_by_prefix(wrong, score):
    """Return the share of the wrong labels in the best prefix."""
    return wrong[best_prefix(Ranked(wrong, score), wrong)].sum() / max(1, wrong.sum())


def trees():
    return HistGradientBoostingClassifier(max_iter=60, learning_rate=0.15)


def prefixes(sites):
    """Return shares (3,) found by the audit's scores, the other sites' true labels and the site's own true labels."""
    inputs = [np.column_stack([site.x, site.given, site.score]) for site in sites]
    rows = []
    for k, site in enumerate(sites):
        others = [j for j in range(len(sites)) if j != k]
        made = trees().fit(np.concatenate([inputs[j] for j in others]), np.concatenate([sites[j].wrong for j in others]))
        folds = StratifiedKFold(3, shuffle=False)
        own = cross_val_predict(trees(), inputs[k], site.wrong, cv=folds, method="predict_proba")[:, 1]
        rows.append([found_by_prefix(site.wrong, s) for s in (site.score, made.predict_proba(inputs[k])[:, 1], own)])
    return np.mean(rows, 0)


def one_list_for_all(sites, rng):
    """Return (share of right labels in the list, at each site, share of the wrong labels found as a mean over sites)."""
    tops = [candidates_of(site, BUDGET) for site in sites]
    place = np.concatenate([np.full(len(top), k) for k, top in enumerate(tops)])
    wrong, given = (np.concatenate([getattr(site, name)[top] for site, top in zip(sites, tops, strict=True)]) for name in
                    ("wrong", "given"))  # fmt: skip
    rate = min(1.0, BUDGET * len(sites) / len(place))
    drawn = rng.random(len(place)) < rate
    ranks = -np.concatenate([np.arange(len(top)) / len(top) for top in tops])
    order = np.argsort(-update_scores(ranks, drawn & wrong, place * (given.max() + 1) + given), kind="stable")
    right, unreviewed = np.cumsum((drawn & ~wrong)[order]), np.cumsum(~drawn[order])
    good = np.flatnonzero((1 - rate) / rate * (1 + right) <= Q * unreviewed)
    listed = np.zeros(len(place), bool)
    listed[order[: good[-1] + 1 if len(good) else 0]] = True
    listed &= ~drawn
    right_share = [
        np.mean(~wrong[part]) if part.any() else 0.0 for part in (listed, *(listed & (place == k) for k in range(len(sites))))
    ]
    found = [(wrong & (listed | drawn) & (place == k)).sum() / max(1, site.wrong.sum()) for k, site in enumerate(sites)]
    return right_share[0], np.array(right_share[1:]), np.mean(found)


def narrowest(site):
    """Return widths of normal intervals: uniform reviews, and the best probabilities of review for these scores."""
    p = IsotonicRegression().fit_transform(site.score, site.wrong)
    size, reviews, spread = len(p), min(BUDGET, len(p)), np.sqrt(p * (1 - p))
    drawn = np.minimum(1.0, reviews * spread / spread.sum())
    for _ in range(50):  # the probabilities add up to the number of reviews, and none is above 1
        free = drawn < 1
        drawn[free] = np.minimum(1.0, (reviews - (~free).sum()) * spread[free] / max(spread[free].sum(), 1e-12))
    best = (p * (1 - p) * (1 / np.maximum(drawn, 1e-9) - 1) * (spread > 0)).sum() / size**2
    share = site.wrong.mean()
    return 2 * 1.96 * np.sqrt([share * (1 - share) / reviews * (1 - reviews / size), best])


def report(cell, sites, repetitions):
    print(f"\n{cell}: {len(sites)} sites; in % or points")
    names = "audit's scores", "true labels of the other sites", "two thirds of the site's true labels"
    print(
        "  best prefix, found:           "
        + "; ".join(f"{n} {100 * v:.1f}" for n, v in zip(names, prefixes(sites), strict=True))
    )
    rows = [one_list_for_all(sites, stream(i, f"benchmark all sites {cell}")) for i in range(repetitions)]
    (right, half), (found, spread) = (interval(100 * np.array([row[j] for row in rows])) for j in (0, 2))
    worst = 100 * np.mean([row[1] for row in rows], 0).max()
    print(
        f"  one list for all sites:       right {right:.1f} ± {half:.1f}, largest site {worst:.1f}; "
        f"found {found:.1f} ± {spread:.1f}"
    )
    uniform, best = 100 * np.mean([narrowest(site) for site in sites], 0)
    print(f"  narrowest range, normal:      uniform {uniform:.1f}; best reviews {best:.1f}", flush=True)


if __name__ == "__main__":
    report_cells(report, __doc__)
