"""Make mriqc.npz and heart.npz from the published tables.

python data/make_sites.py FOLDER OUT

FOLDER contains mriqc/abide.tsv and mriqc/ds030.tsv (package mriqc-learn) and heart/processed.*.{csv,data} (UCI).
"""

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

VOTES = {"-1": "exclude", "0": "doubtful", "1": "accept", "n/a": ""}
HEART = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal num".split()
# Rated by both raters, and in the authors' table of labels, but its metrics were not published.
UNPUBLISHED = "50818"


def tsv(path):
    """Return the rows of a TSV file as dicts."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def vote(text):
    """Return the word of a rating, which the source also writes as a decimal number."""
    return VOTES[text.removesuffix(".0")]


def published(rows):
    """Return the rating of each scan in the published evaluation.

    Scans with ratings of raters 1 and 2 get one of them at random, drawn as in mriqc 0.9.7, `read_labels`.
    """
    both = sorted([row["subject_id"] for row in rows if "n/a" not in (row["rater_1"], row["rater_2"])] + [UNPUBLISHED])
    second = set(np.random.RandomState(42).choice(both, len(both) // 2, replace=False).tolist())
    first = [row["rater_2"] == "n/a" or (row["rater_1"] != "n/a" and row["subject_id"] not in second) for row in rows]
    return [vote(row["rater_1" if one else "rater_2"]) for row, one in zip(rows, first, strict=True)]


def mriqc(folder):
    """Return the arrays of mriqc.npz: 1,101 scans of ABIDE, then 265 of DS030, the test set."""
    train, test = tsv(folder / "abide.tsv"), tsv(folder / "ds030.tsv")
    metrics = list(train[0])[list(train[0]).index("cjv") :]
    both = train + test
    out = {f"rater_{i}": [vote(row.get(f"rater_{i}", "n/a")) for row in both] for i in (1, 2, 3)}
    out |= {"published": published(train) + out["rater_1"][len(train) :], "site": [row["site"] for row in both]}
    out |= {"id": [row["subject_id"] for row in both], "split": ["train"] * len(train) + ["test"] * len(test)}
    # A row per metric: equal values lie next to each other, which halves the compressed size.
    return out | {"metrics": metrics, "x": np.array([[row[name] for row in both] for name in metrics], np.float32)}


def heart(folder):
    """Return the arrays of heart.npz: 920 patients, with the test set of FLamby (fed_heart_disease)."""
    rows, sites, split = [], [], []
    for site, name in (("cleveland", "csv"), ("hungarian", "data"), ("switzerland", "data"), ("va", "data")):
        with open(folder / f"processed.{site}.{name}", newline="", encoding="utf-8") as file:
            own = np.array([[cell.replace("?", "nan") for cell in row] for row in csv.reader(file)], np.float64)
        complete = np.flatnonzero(~np.isnan(own[:, :10]).any(1))
        ill = own[complete, -1] > 0
        strata = ill if min(ill.sum(), (~ill).sum()) > 2 else None
        how = {"train_size": 0.66, "test_size": 1 - 0.66, "random_state": 43}
        _, test = train_test_split(np.arange(len(complete)), stratify=strata, **how)
        split.append(np.where(np.isin(np.arange(len(own)), complete[test]), "test", "train"))
        rows.append(own)
        sites += [site] * len(own)
    x = np.concatenate(rows).astype(np.float32)
    return {"site": sites, "split": np.concatenate(split), "columns": HEART, "x": x.T}


if __name__ == "__main__":
    source, out = map(Path, sys.argv[1:])
    np.savez_compressed(out / "mriqc.npz", **mriqc(source / "mriqc"))
    np.savez_compressed(out / "heart.npz", **heart(source / "heart"))
