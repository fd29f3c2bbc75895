"""Ranking of suspects on six data sets, by an audit and by cleanlab on the same samples.

    python -m benchmarks.ranking --real FOLDER [--first 700] [--seeds 3]

Prints the area under the ROC curve and the share of wrong labels among the first 50 suspects of all sites, by the audit from
sums and by cleanlab (label quality of cross-validated logistic regression on all sites' samples in one place).  The labels of
JIRA (nine projects as sites, 500 files of each) and of LabelMe (one answer per image, five random sites) are wrong in reality.
In the other sets, 20 % random labels are wrong at every second site.  FOLDER contains jira/jira.npz (Yatish et al. 2019) and
labelme/ (Rodrigues and Pereira 2018), which are not part of this repository.
"""

import argparse

import numpy as np

from benchmarks.audit import simulated
from benchmarks.small_tables import small_table
from fnlkit import datasets
from fnlkit.audits.audit import audit
from fnlkit.kernels.streams import stream

INCLUDED = "heart", "mriqc", "digits", "spoken-digits"
CURVED = "hastie", "circles", "shells", "swiss-roll"  # six sites of 200 rows; run by --only
FIRST = 50


def federation_of(name, seed, real=None):
    """Return (Federation, Dataset with the true labels, embeddings or None) of a data set.

    Parameters
    ----------
    name : str
        jira, labelme, or an included data set.
    seed : int
    real : str, optional
        Folder of jira and labelme.
    """
    rng, embeddings = stream(seed, "ranking"), None
    if name == "jira":
        with np.load(f"{real}/jira/jira.npz") as table:
            x, given, true, group = (table[key] for key in ("x", "given", "true", "project"))
        held = np.concatenate([rng.permutation(np.flatnonzero(group == one))[:500] for one in np.unique(group)])
        x, given, true, group = x[held], given[held], true[held], group[held]
        x = (np.sign(x) * np.log1p(np.abs(x))).astype(np.float32)
    elif name == "labelme":
        x = np.load(f"{real}/labelme/LabelMe_VGG_avg_train.npy").reshape(-1, 512).astype(np.float32)
        true = np.loadtxt(f"{real}/labelme/LabelMe_Z_train.txt", dtype=int)
        answers = np.loadtxt(f"{real}/labelme/answers.txt", dtype=int)
        given = np.array([rng.choice(row[row >= 0]) if (row >= 0).any() else -1 for row in answers])
        x, true, given = x[given >= 0], true[given >= 0], given[given >= 0]
        group, embeddings = rng.permutation(len(x)) % 5, x
    else:
        if name in CURVED:
            table = small_table(name, sites=6, rows=200)
            x, true, site_names = (table[f"{key}_train"] for key in ("x", "y", "site"))
        else:
            data = datasets.load(name)
            x, true, site_names = np.asarray(data.x_train), data.y_train, data.fields.get("site") if data.fields else None
        group = rng.permutation(len(x)) % 5 if site_names is None else np.asarray(site_names)
        names = sorted(one for one in np.unique(group) if (group == one).sum() >= 30)
        held = np.isin(group, names)
        x, true, group, given = x[held], true[held], group[held], true[held].copy()
        classes = int(true.max()) + 1
        wrong = np.isin(group, names[1::2]) & (rng.random(len(x)) < 0.2)
        given[wrong] = (given[wrong] + rng.integers(1, classes, wrong.sum())) % classes
    parts = [np.flatnonzero(group == one) for one in np.unique(group)]
    return *simulated(x, np.asarray(true, np.int64), np.asarray(given, np.int64), parts), embeddings


def rank(name, seed, real=None):
    """Return {audit: (AUC, share of wrong labels among the first)} of the suspects of a data set."""
    from sklearn.metrics import roc_auc_score

    made, data, embeddings = federation_of(name, seed, real)
    held, given = made.client_indices, made.given[made.client_indices]
    wrong = given != data.y_train[held]
    scores = {
        "from sums": audit(made, data, embeddings=embeddings, seed=seed).judgment.issue,
        "cleanlab": -label_quality(np.asarray(data.x_train)[held].reshape(len(held), -1), given),
    }
    hits = {key: wrong[np.argsort(-score, kind="stable")[:FIRST]].mean() for key, score in scores.items()}
    return {key: (roc_auc_score(wrong, score), hits[key]) for key, score in scores.items()}


def label_quality(points, given):
    """Return cleanlab's label quality (n,) of cross-validated logistic regression."""
    from cleanlab.rank import get_label_quality_scores
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300, C=0.1))
    return get_label_quality_scores(given, cross_val_predict(model, points, given, cv=5, method="predict_proba"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--real", metavar="FOLDER", help="folder of jira and labelme; without it they are left out")
    parser.add_argument("--only", help="data sets, separated by commas")
    parser.add_argument("--first", type=int, default=700, help="first seed")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    names = (("jira", "labelme") if options.real else ()) + INCLUDED
    print(f"AUC / share of wrong labels among the first {FIRST}, mean of seeds {seeds[0]} to {seeds[-1]}")
    for name in options.only.split(",") if options.only else names:
        found = [rank(name, seed, options.real) for seed in seeds]
        means = {key: np.mean([one[key] for one in found], 0) for key in found[0]}
        print(f"{name:14}" + "  ".join(f"{key} {a:.3f} / {100 * b:3.0f} %" for key, (a, b) in means.items()), flush=True)


if __name__ == "__main__":
    main()
