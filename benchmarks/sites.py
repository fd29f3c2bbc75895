"""Models on the real sites that come with fnlkit, next to the published numbers of the same data.

    python -m benchmarks.sites [--seeds 5] [--only mriqc|audit|heart]

mriqc: logistic regression by FedAvg and three methods against label noise.  Leave one site out: train on 16 of the 17 sites and
test on the remaining one; the mean over the seeds is a site's number.  Unseen sites: train on all 17 sites and test on the 265
scans of two other sites.  heart: logistic regression on FLamby's patients, attributes and split, and on all patients and
attributes with the same test patients.  Settings that are not listed are the defaults of `fnlkit train`.

audit: the labels of each rater of mriqc are audited with the defaults of `fnlkit audit`.  A
suspect is confirmed if the majority of the other raters disagrees with the label; scans on which the others tie do not count.
"""

import argparse
from dataclasses import replace

import numpy as np
from scipy import stats

from fnlkit import datasets, pipeline
from fnlkit.datasets.embedded import RATERS
from fnlkit.estimators.intervals import wilson
from fnlkit.results.scores import measure_run

SETTINGS = {"model": "mlp(hidden=[])", "rounds": 30, "fraction": 1.0, "epochs": 1, "eval_every": 30}
# Method and engine: the fused engine runs no pair of networks, and gives the same results.
METHODS = {"fedavg": "fused", "fedcorr": "fused", "coteaching": "auto", "fednoro": "auto"}
FOLD_SEEDS = 2  # of leaving one site out, which trains 17 models per method and seed
PUBLISHED = {"FedAvg": 0.748, "FedAdam": 0.779, "pooled training": 0.795}
HEART = {
    "FedAvg": {},
    "FedAdam": {"optimizer": "fedadam"},
    "pooled training": {"method": "centralized"},
}


def without(data, site):
    """Return the data set whose test set is one of the sites, and whose training set is all others."""
    out = data.fields["site"] == site
    return replace(
        data,
        y_train=data.y_train[~out],
        y_test=data.y_train[out],
        samples=lambda: (data.x_train[~out], data.x_train[out]),
        fields={name: values[~out] for name, values in data.fields.items()},
        ids=data.ids[~out],
    )


def tested(data, seed, **settings):
    """Return the counts (C, C) of test samples by label and prediction, after training with one client per site."""
    fed = pipeline.partition(data, "sites", seed=seed, say=None)
    run = pipeline.train(fed, dataset=data, seed=seed, ledger="none", say=None, **{**SETTINGS, **settings})
    return measure_run(run, data)["test"]["confusion"]


def of(method):
    """Return the method and its engine as keywords of `tested`."""
    return {"method": method, "engine": METHODS[method]}


def right(counts):
    """Return the shares of right predictions in counts (..., C, C)."""
    return np.trace(counts, axis1=-2, axis2=-1) / counts.sum((-2, -1))


def balanced(counts):
    """Return the mean recall of the classes in counts (C, C)."""
    return (np.diag(counts) / counts.sum(1)).mean()


def with_interval(values):
    """Return the mean of values with the 95 % interval of Student's t, as text in %."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{100 * np.mean(values):5.1f} [{100 * (np.mean(values) - half):.1f} to {100 * (np.mean(values) + half):.1f}]"


def left_out(data):
    """Print the results of leaving one site out."""
    sites = np.unique(data.fields["site"])
    print(f"mriqc, leave one site out: {len(data.y_train):,} scans, {len(sites)} sites, {FOLD_SEEDS} seeds; in %")
    print("  method           mean ± SD of sites   mean [95 %, t over sites]   balanced, all scans   largest SD of seeds")
    print("  published        76.0 ± 13.0          (random forest, pooled sites)")
    accept = np.array([(data.y_train[data.fields["site"] == site] == 0).mean() for site in sites])
    shown("always accept", accept, 0.5, 0)
    by_site = {"always accept": accept}
    for method in METHODS:
        counts = np.array([[tested(without(data, site), seed, **of(method)) for seed in range(FOLD_SEEDS)] for site in sites])
        by_site[method] = right(counts).mean(1)
        shown(method, by_site[method], balanced(counts.sum((0, 1))), right(counts).std(1, ddof=1).max())
    for method in list(METHODS)[1:]:
        print(f"  {method} minus fedavg, paired over sites: {with_interval(by_site[method] - by_site['fedavg'])}")
    print("  by site         " + "".join(f"{name:>14}" for name in by_site))
    for i, site in enumerate(sites):
        print(f"    {site:14}" + "".join(f"{100 * values[i]:14.1f}" for values in by_site.values()))


def shown(name, sites, both, spread):
    sd = f"{100 * sites.mean():.1f} ± {100 * sites.std(ddof=1):.1f}"
    print(f"  {name:16} {sd:20} {with_interval(sites):28}{100 * both:.1f}                  {100 * spread:.1f}", flush=True)


def unseen(data, seeds):
    """Print the results on the sites of the test set."""
    total = len(data.y_test)
    print(
        f"mriqc, unseen sites: {len(data.y_train):,} scans of 17 sites, {total} test scans of two others, {seeds} seeds; in %"
    )
    print("  method           mean of seeds   SD    95 % of the mean's count (Wilson)   balanced   recall of exclude")
    print("  published        76.0")
    accept = np.array([[(data.y_test == 0).sum(), 0], [(data.y_test == 1).sum(), 0]])
    found = {"always accept": np.array([accept] * seeds)}
    found |= {method: np.array([tested(data, seed, **of(method)) for seed in range(seeds)]) for method in METHODS}
    for name, counts in found.items():
        shares, spread = right(counts), right(counts).std(ddof=1)
        low, high = wilson(round(shares.mean() * total), total)
        whole = counts.sum(0)
        print(
            f"  {name:16} {100 * shares.mean():5.1f}           {100 * spread:3.1f}   {100 * low:.1f} to {100 * high:.1f}"
            f"                        {100 * balanced(whole):.1f}       {100 * whole[1, 1] / whole[1].sum():.1f}"
        )


def hearts(seeds):
    """Print the results on the heart data next to FLamby's."""
    for name in ("heart(flamby=true)", "heart"):
        data = datasets.load(name)
        sizes = f"{len(data.y_train)} training and {len(data.y_test)} test patients, {data.x_train.shape[1]} features"
        print(f"{name}: {sizes}, {seeds} seeds; in %")
        print("  training          FLamby   mean of seeds [95 %, t]   SD    95 % of the mean's count (Wilson)")
        for how, settings in HEART.items():
            shares = right(np.array([tested(data, seed, **settings) for seed in range(seeds)]))
            low, high = wilson(round(shares.mean() * len(data.y_test)), len(data.y_test))
            print(
                f"  {how:16}  {100 * PUBLISHED[how]:.1f}     {with_interval(shares)}      {100 * shares.std(ddof=1):3.1f}   "
                f"{100 * low:.1f} to {100 * high:.1f}"
            )


def others_disagree(data, rater):
    """Return 1.0 where the majority of the other raters disagrees with the labels (n,), 0.0 where it agrees, else NaN."""
    votes = [
        np.select([data.fields[name] == "", data.fields[name] == "exclude"], [0, 1], -1) for name in RATERS if name != rater
    ]
    excluded = np.sum(votes, 0)
    return np.where(excluded == 0, np.nan, (excluded > 0) != (data.y_train == 1))


def audits(first=50):
    """Print how often the other raters confirm the first suspects of an audit, next to their rate on all scans."""
    print("mriqc, audit of each rater: share of labels with which the majority of the other raters disagrees, in %")
    print(f"  label     all scans   first {first} by score [95 %, Wilson]   at random, same labels")
    for rater in RATERS:
        data = datasets.load(f"mriqc(label={rater})")
        wrong, place = others_disagree(data, rater), {name: i for i, name in enumerate(data.ids)}
        usual = [np.nanmean(wrong[data.y_train == c]) for c in range(data.classes)]
        found = pipeline.audit(pipeline.partition(data, "sites", say=None), dataset=data, say=None)
        rows = pipeline.suspects(found.federation, every=True).rows
        top = np.array([place[row[0]] for row in rows[:first]])
        top = top[~np.isnan(wrong[top])]
        low, high = wilson(int(wrong[top].sum()), len(top))
        print(
            f"  {rater}   {100 * np.nanmean(wrong):4.1f}        {100 * wrong[top].mean():4.1f} "
            f"[{100 * low:.1f} to {100 * high:.1f}] of {len(top)}{'':15}"
            f"{100 * np.mean([usual[c] for c in data.y_train[top]]):4.1f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=("mriqc", "audit", "heart"))
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds: the spread needs at least 2")
    if options.only in (None, "heart"):
        hearts(options.seeds)
    if options.only in (None, "audit"):
        audits()
    if options.only in (None, "mriqc"):
        data = datasets.load("mriqc")
        unseen(data, options.seeds)
        left_out(data)


if __name__ == "__main__":
    main()
