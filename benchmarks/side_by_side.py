"""Ranking of wrong labels by `fnlkit audit`, cleanlab and Datalab on six data sets.

    python -m benchmarks.side_by_side --cifar cifar.npz --fsdd fsdd.npz --yoruba train_clean.tsv,train_clean_noisy_labels.tsv

Data sets without a file are left out. The npz files contain x_train and y_train, and fsdd.npz also speaker_train.

Sites: random fifths, the four hospitals of `heart`, and the speakers of fsdd. One site has 20 % random wrong labels, and
another one 30 % of the labels of two classes swapped. In the simulated table, 2 % of the samples are positive, and 40 % of
the positives of one site have a negative label. The Yoruba titles have the labels of a weak labeler (Hedderich et al. 2020).

cleanlab, Datalab and ``audit --probs`` get the same probabilities: logistic regression, cross-validated in five parts on all
samples in one place. ``audit`` trains without moving samples, and never on the site that it judges. Precision at 50 is the
share of wrong labels among the 50 most suspicious, or among as many as are wrong if fewer. The time includes the training,
and excludes the features of the pretrained network, which all methods use.
"""

import argparse
import csv
import io
import time
import warnings
from contextlib import redirect_stdout
from types import SimpleNamespace

import numpy as np

from fnlkit import audit_samples, datasets
from fnlkit.kernels.scores import auc

SEEDS = (0, 1, 2)


def world(name, args, seed):
    """Return a namespace with x (for fnlkit), features (for cleanlab), true and given labels, and sites; or None."""
    rng, sites, embeddings = np.random.default_rng(seed), None, None
    if name == "images (digits)":
        data = datasets.load("digits")
        x, true, features = data.x_train, data.y_train, data.x_train.reshape(len(data.x_train), -1) / 16.0
    elif name == "photos (CIFAR-10, features)" and args.cifar:
        arrays = np.load(args.cifar)
        x, true = arrays["x_train"][: args.photos], arrays["y_train"][: args.photos]
        embeddings = features = photo_features(x)
    elif name == "table, missing values (heart)":
        data = datasets.load("heart")
        x, true, features, sites = data.x_train, data.y_train, data.x_train, data.fields["site"]
    elif name == "2 % positives (simulated)":
        x, true = rare(rng)
        features = x
    elif name == "audio (spoken digits)" and args.fsdd:
        from fnlkit.models.spectrograms import log_mel

        arrays = np.load(args.fsdd)
        true, sites = arrays["y_train"], arrays["speaker_train"].astype(str)
        mel = log_mel(arrays["x_train"], 8000).reshape(len(true), 64, -1)
        x = features = np.concatenate([part.mean(-1) for part in np.array_split(mel, 6, -1)], -1)
    elif name == "text (Yoruba titles)" and args.yoruba:
        x, true, given = titles(*args.yoruba.split(","))
        sites = rng.integers(0, 5, len(true)).astype(str)
        return SimpleNamespace(x=x, features=x, true=true, given=given, sites=sites, embeddings=None)
    else:
        return None
    true = np.unique(true, return_inverse=True)[1]
    sites = rng.integers(0, 5, len(true)).astype(str) if sites is None else np.asarray(sites).astype(str)
    given = missed(true, sites, rng) if "positives" in name else wronged(true, sites, rng)
    return SimpleNamespace(x=x, features=features, true=true, given=given, sites=sites, embeddings=embeddings)


def wronged(true, sites, rng):
    """Return labels with 20 % random wrong labels at one site and 30 % of two classes swapped at another."""
    given, classes, names = true.copy(), int(true.max()) + 1, sorted(set(sites))
    random, swapped = (np.flatnonzero(sites == names[k]) for k in (1, 3))
    here = rng.permutation(random)[: round(0.2 * len(random))]
    given[here] = (true[here] + rng.integers(1, classes, len(here))) % classes
    pair = (classes // 2, classes // 2 - 1)
    for one, other in (pair, pair[::-1]):
        of = rng.permutation(swapped[true[swapped] == one])
        given[of[: round(0.3 * len(of))]] = other
    return given


def missed(true, sites, rng):
    """Return labels without 40 % of the positives of one site."""
    given, positives = true.copy(), rng.permutation(np.flatnonzero((sites == "1") & (true == 1)))
    given[positives[: round(0.4 * len(positives))]] = 0
    return given


def rare(rng, size=10_000, width=12):
    """Return (x (n, d), labels (n,)): two groups of positives, 2 % of all, at a distance of 3.5 standard deviations."""
    true = (rng.random(size) < 0.02).astype(np.int64)
    centers = rng.standard_normal((2, width))
    centers *= 3.5 / np.linalg.norm(centers, axis=1, keepdims=True)
    shift = np.where(true[:, None] == 1, centers[rng.integers(0, 2, size)], 0)
    return (rng.standard_normal((size, width)) + shift).astype(np.float32), true


def photo_features(x):
    from fnlkit.pipeline.auditing import embed_for_audit

    data = datasets.Dataset("photos", "image", np.zeros(len(x), int), np.zeros(0, int), ["a", "b"], lambda: (x, x[:0]))
    return np.asarray(embed_for_audit(data, "efficientnet-lite0", say=None)[0])


def titles(clean, noisy):
    """Return (hashed character n-grams (n, 512), true labels, given labels) of titles."""
    from sklearn.feature_extraction.text import HashingVectorizer

    rows = [list(csv.DictReader(open(path, encoding="utf-8"), delimiter="\t")) for path in (clean, noisy)]
    names = sorted({row["label"] for part in rows for row in part})
    labels = [np.array([names.index(row["label"]) for row in part]) for part in rows]
    hashed = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), n_features=512, alternate_sign=False)
    return hashed.transform([row["news_title"] for row in rows[0]]).toarray().astype(np.float32), *labels


def cross_validated(features, given):
    """Return out-of-sample probabilities (n, C) of logistic regression on the standardized features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    spread = features.std(0)
    z = (features - features.mean(0)) / np.where(spread > 1e-9, spread, 1)
    parts = StratifiedKFold(5, shuffle=True, random_state=0)
    return cross_val_predict(LogisticRegression(C=0.01, max_iter=500), z, given, cv=parts, method="predict_proba")


def methods(case, rounds, seed):
    """Yield (name, scores (n,) with higher for more suspicious, seconds)."""
    from cleanlab.rank import get_label_quality_scores

    names = list(map(str, range(int(case.given.max()) + 1)))
    how = {"classes": names, "seed": seed, "say": None, "rounds": rounds}
    how |= {} if case.embeddings is None else {"embeddings": case.embeddings}
    start = time.perf_counter()
    found = audit_samples(case.x, case.given, case.sites, **how)
    yield "audit", found.issues.score.to_numpy(), time.perf_counter() - start
    start = time.perf_counter()
    p = cross_validated(case.features, case.given)
    trained = time.perf_counter() - start
    start = time.perf_counter()
    found = audit_samples(case.x, case.given, case.sites, probabilities=p, **how)
    yield "audit --probs", found.issues.score.to_numpy(), trained + time.perf_counter() - start
    start = time.perf_counter()
    yield "cleanlab", 1 - get_label_quality_scores(case.given, p), trained + time.perf_counter() - start
    try:
        from cleanlab import Datalab
    except ImportError:
        return
    start = time.perf_counter()
    with redirect_stdout(io.StringIO()):
        lab = Datalab({"label": case.given}, label_name="label", verbosity=0)
        lab.find_issues(pred_probs=p, features=np.asarray(case.features, np.float64))
    yield "Datalab", 1 - lab.get_issues("label")["label_score"].to_numpy(), trained + time.perf_counter() - start


CASES = (
    "images (digits)", "photos (CIFAR-10, features)", "table, missing values (heart)", "2 % positives (simulated)",
    "audio (spoken digits)", "text (Yoruba titles)",
)  # fmt: skip


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", help="npz with x_train (n, 32, 32, 3) and y_train")
    parser.add_argument("--photos", type=int, default=1500, help="number of photos")
    parser.add_argument("--fsdd", help="npz with x_train (n, 8000), y_train and speaker_train")
    parser.add_argument("--yoruba", help="two tsv files, true and given labels, separated by a comma")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="data sets whose name contains this text")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'data set':32}{'samples':>8}{'wrong':>8}  {'method':16}{'precision at 50':>16}{'AUC':>8}{'seconds':>9}")
    for name in CASES:
        rows = {}
        for seed in SEEDS if args.only in name else ():
            case = world(name, args, seed)
            if case is None:
                break
            wrong = case.given != case.true
            for method, score, seconds in methods(case, args.rounds, seed):
                top = np.argsort(-score, kind="stable")[: min(50, int(wrong.sum()))]
                rows.setdefault(method, []).append((wrong[top].mean(), auc(score, wrong), seconds))
        for place, (method, found) in enumerate(rows.items()):
            head = f"{name:32}{len(wrong):>8,}{100 * wrong.mean():>6.1f} %" if not place else " " * 48
            precision, area, seconds = np.mean(found, 0)
            print(f"{head}  {method:16}{precision:>16.3f}{area:>8.3f}{seconds:>9.1f}", flush=True)


if __name__ == "__main__":
    main()
