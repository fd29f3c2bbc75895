"""Compare plans of a review: wrong labels per decision, and the gain of accuracy of a model trained on the result.

    python -m benchmarks.plan --data DIR --cache DIR [--only labelme,yoruba,digits-annotators] [--share 0.05]

DIR contains labelme/ and yoruba/ as their authors publish them; the scores are those of benchmarks.guarantee.  A share of all
labels of a cell is reviewed with the true labels.  Strategies:
- plan: as `fnlkit review plan` divides the reviews (find, certify); wrong labels in lists with a guarantee become right too.
- plan, without lists: the same scores, most probable first over all sites.
- audit, equal shares; cleanlab, equal shares; cleanlab, all sites: rankings.
- active label cleaning, equal shares: cross-entropy of the given label minus entropy (Bernhardt et al. 2022).
- random.
- wrong labels only: a random sample of the wrong labels, chosen with the true labels; no ranking can find more per decision.
Printed: wrong labels per decision, wrong labels removed, and the share of the gap between training on given and on true labels
that is closed.  Listed labels become the suggested label.  The model is logistic regression on all sites.  It is trained on one
random half of the labels and tested on the true labels of the other half, and vice versa.  Means over 10 draws.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np

from benchmarks.guarantee_cells import sites_of
from fnlkit.audits.guarantees import draw_reviews, find_guaranteed_list
from fnlkit.audits.planning import _division, calibrate, count_removed, expected_list
from fnlkit.kernels.streams import stream

Q = 0.2


def planned(sites, budget, rng, lists):
    """Return (reviewed, listed) masks of each site by the plan."""
    p = [calibrate(site.score, None) for site in sites]
    orders = [np.argsort(-each, kind="stable") for each in p]
    if not lists:
        return ranked([-each for each in p], budget, equal=False)
    numbers, out = _division([each[order] for each, order in zip(p, orders, strict=True)], budget, Q), []
    for site, each, order, number in zip(sites, p, orders, numbers, strict=True):
        reviewed, listed = np.zeros((2, len(order)), bool)
        _, purpose = count_removed(each[order], number, Q)
        if purpose == "find":
            reviewed[order[:number]] = True
        else:
            size = len(expected_list(each[order], number, Q)[0])
            top, drawn = order[:size], draw_reviews(size, number, rng)
            made = find_guaranteed_list(-np.arange(size), drawn, site.wrong[top], q=Q, groups=site.given[top])
            reviewed[top], listed[top] = drawn, made.listed
        out.append((reviewed, listed))
    return out


def ranked(qualities, budget, *, equal):
    """Return (reviewed, nothing) masks of the lowest qualities, with equal shares of the sites or over all of them."""
    sizes = [len(each) for each in qualities]
    if equal:
        parts = np.diff(np.linspace(0, budget, len(sizes) + 1).round().astype(int))
        masks = [np.argsort(np.argsort(each, kind="stable")) < n for each, n in zip(qualities, parts, strict=True)]
    else:
        first = np.argsort(np.argsort(np.concatenate(qualities), kind="stable")) < budget
        masks = np.split(first, np.cumsum(sizes)[:-1])
    return [(mask, np.zeros(len(mask), bool)) for mask in masks]


def strategies(sites, budget, rng):
    """Return {name: masks of each site}."""
    from cleanlab.rank import get_label_quality_scores

    quality = [get_label_quality_scores(site.given, site.probabilities) for site in sites]
    p = [np.clip(site.probabilities, 1e-9, 1) for site in sites]
    entropy = [-(each * np.log(each)).sum(1) for each in p]
    cleaning = [np.log(each[np.arange(len(each)), site.given]) + h for each, site, h in zip(p, sites, entropy, strict=True)]
    return {
        "plan": planned(sites, budget, rng, True),
        "plan, without lists": planned(sites, budget, rng, False),
        "audit, equal shares": ranked([-site.score for site in sites], budget, equal=True),
        "cleanlab, equal shares": ranked(quality, budget, equal=True),
        "cleanlab, all sites": ranked(quality, budget, equal=False),
        "active label cleaning": ranked(cleaning, budget, equal=True),
        "random": ranked([rng.random(len(site.given)) for site in sites], budget, equal=True),
        "wrong labels only": ranked([rng.random(len(site.given)) - site.wrong for site in sites], budget, equal=False),
    }


def accuracy(x, labels, true, half):
    """Return the mean accuracy on true labels of logistic regression, trained on one half and tested on the other."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    out = []
    for train in (half, ~half):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            made = LogisticRegression(C=0.1, max_iter=100).fit(x[train], labels[train])
        out.append((made.predict(x[~train]) == true[~train]).mean())
    return np.mean(out)


def once(sites, budget, rng):
    """Return {name: (wrong labels per decision, share of wrong labels removed, share of the gap)}."""
    x, given, true, suggested = (np.concatenate([getattr(site, name) for site in sites]) for name in
                                 ("x", "given", "true", "suggested"))  # fmt: skip
    spread, half, wrong = x.std(0), rng.random(len(given)) < 0.5, given != true
    x = (x - x.mean(0)) / np.where(spread > 1e-9, spread, 1.0)
    low, high = accuracy(x, given, true, half), accuracy(x, true, true, half)
    out = {}
    for name, masks in strategies(sites, budget, rng).items():
        reviewed, listed = (np.concatenate([mask[j] for mask in masks]) for j in (0, 1))
        labels = np.where(reviewed, true, np.where(listed, suggested, given))
        share = (accuracy(x, labels, true, half) - low) / (high - low)
        out[name] = (wrong & reviewed).sum() / reviewed.sum(), 1 - (labels != true).sum() / wrong.sum(), share
    return out, (low, high)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", default="labelme,yoruba,digits-annotators")
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--repetitions", type=int, default=10)
    options = parser.parse_args()
    for cell in options.only.split(","):
        sites = sites_of(cell, options.data, options.cache)
        size = sum(len(site.given) for site in sites)
        budget = round(options.share * size)
        rows = [once(sites, budget, stream(i, f"benchmark plan {cell}")) for i in range(options.repetitions)]
        low, high = 100 * np.mean([ends for _, ends in rows], 0)
        ends = f"accuracy {low:.1f} % if trained on given labels, {high:.1f} % on true labels"
        print(f"\n{cell}: {len(sites)} sites, {size:,} labels, {budget} decisions; {ends}")
        print(f"  {'':24}{'wrong per decision':>20}{'wrong removed, %':>20}{'gap closed, %':>20}")
        for name in rows[0][0]:
            values = np.array([row[name] for row, _ in rows]) * (1, 100, 100)
            means, halves = values.mean(0), 1.96 * values.std(0, ddof=1) / np.sqrt(len(values))
            print(f"  {name:24}" + "".join(f"{m:13.2f} ± {h:4.2f}" if j == 0 else f"{m:13.1f} ± {h:4.1f}" for j, (m, h) in
                                           enumerate(zip(means, halves, strict=True))), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
