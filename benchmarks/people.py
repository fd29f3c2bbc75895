"""The league of people: methods on labels of human annotators, and the audit of these labels.

    python -m benchmarks.people --data DIR --cache DIR [--seeds 5] [--only labelme] [--methods fedavg,oracle,fedem]
    python -m benchmarks.people --data DIR --cache DIR --choose --methods 'fedem;fedem(ridge=1)'
    python -m benchmarks.people --data DIR --cache DIR --audit

DIR contains labelme/ (Rodrigues 2018) and yoruba/ (Hedderich 2020) as their authors publish them; mriqc and digits come with
fnlkit.  All methods (default: all of the registry) have the settings of docs/league.md and their own defaults.  Finished runs
are kept in the cache, so that a second call continues.

labelme: 44 annotators with at least 10 labels are clients.  simulated: digits, 40 annotators drawn from the noise model that
was fitted to people.  spammers, for audits only: the same, and every tenth annotator answers at random; blurred: the same with
noise in the pixels, so that the classifier is often wrong.  mriqc: 17 sites with
the ratings of three raters; the published rating counts as true.  yoruba: titles of news as hashed n-grams, labels of a weak
labeler, 20 clients drawn at random.
"""

import argparse
import csv
import itertools
import json
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from fnlkit import datasets, noise, pipeline
from fnlkit.artifacts import saving
from fnlkit.audits.audit import audit
from fnlkit.client.inputs import Inputs
from fnlkit.client.network import predict
from fnlkit.components import registry
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.votes import by_vote
from fnlkit.errors import InputError
from fnlkit.experiment.network import network_of
from fnlkit.results.evaluation import late_score

SETTINGS = {"model": "mlp(hidden=[128])", "rounds": 60, "fraction": 0.1, "epochs": 5, "batch_size": 10, "lr": 0.01,
            "momentum": 0.5, "eval_every": 2}  # fmt: skip
ANNOTATORS, VOTES, WIDTH = 40, 2.5, 1024
# An audit's intervals are compared for annotators with this many labels; shares of wrong labels of bad and clean annotators.
LEAST, WORST, CLEAN = 40, 0.6, 0.1
# Errors of levels are stated for annotators with numbers of labels between these bounds.
BOUNDS = (10, 20, 40, 80, 100_000)
SUMMED = ("error", "error pooled", "width")
BLUR = 2.0
# First seed of runs that choose options; the league has seeds from 0 on.
DEVELOPMENT = 100


def labelme(folder, seed):
    """Return (Dataset with votes, scheme, clients) of LabelMe's 1,000 images as VGG features."""
    folder = folder / "labelme"
    x = {part: np.load(folder / f"LabelMe_VGG_avg_{part}.npy") for part in ("train", "test")}
    true = {part: np.loadtxt(folder / f"LabelMe_Z_{part}.txt", dtype=np.int64) for part in ("train", "test")}
    votes = np.loadtxt(folder / "answers.txt", dtype=np.int64)
    data = of_arrays("labelme", x, true, 8)
    data.votes, data.annotators = votes, list(map(str, range(votes.shape[1])))
    return by_vote(data), "annotators(least=10)", None


def simulated(folder, seed, blur=0.0):
    """Return digits with 2.5 votes a sample of 40 annotators, before the noise of the labels.

    `blur` is the standard deviation of noise that is added to the pixels, in units of theirs.
    """
    data, rng = datasets.load("digits"), np.random.default_rng([seed, 40])
    flat = {"train": data.x_train.reshape(len(data.y_train), -1), "test": data.x_test.reshape(len(data.y_test), -1)}
    if blur:
        draws, scale = np.random.default_rng([seed, 42]), blur * flat["train"].std()
        flat = {part: x + draws.normal(0, scale, x.shape) for part, x in flat.items()}
    size = rng.lognormal(0, 0.9, ANNOTATORS)
    size = np.maximum(10, size / size.sum() * len(data.y_train) * VOTES).astype(int)
    votes = np.full((len(data.y_train), ANNOTATORS), -1)
    for a, number in enumerate(size):
        here = rng.choice(len(votes), min(number, len(votes)), replace=False)
        votes[here, a] = data.y_train[here]
    out = of_arrays("simulated", flat, {"train": data.y_train, "test": data.y_test}, 10)
    out.votes, out.annotators = votes, list(map(str, range(ANNOTATORS)))
    return by_vote(out), "annotators", None


def mriqc(folder, seed):
    """Return the scans with a row per rating."""
    data = datasets.load("mriqc")
    data.y_train_true = data.y_train
    return by_vote(data), "sites", None


def yoruba(folder, seed):
    """Return news titles as hashed n-grams with the labels of a weak labeler."""
    rows = {name: titles(folder / "yoruba" / f"{name}.tsv") for name in ("train_clean_noisy_labels", "train_clean", "test")}
    given, true, test = rows.values()
    names = sorted({label for _, label in true + test})
    x = {"train": np.stack([grams(text) for text, _ in given]), "test": np.stack([grams(text) for text, _ in test])}
    labels = {"train": [names.index(dict(true)[text]) for text, _ in given], "test": [names.index(label) for _, label in test]}
    data = of_arrays("yoruba", x, {part: np.array(values, np.int64) for part, values in labels.items()}, len(names))
    data.y_train_true, data.observed = data.y_train, True
    data.y_train = np.array([names.index(label) for _, label in given], np.int64)
    return data, "iid", 20


LEAGUE = "labelme,simulated,mriqc,yoruba"
ANNOTATED = ("labelme", "simulated", "spammers", "blurred")
SETS = {"labelme": labelme, "simulated": simulated, "mriqc": mriqc, "yoruba": yoruba, "spammers": simulated,
        "blurred": partial(simulated, blur=BLUR)}  # fmt: skip


def of_arrays(name, x, y, classes):
    """Return a Dataset of vectors in memory with true labels."""
    x = {part: np.asarray(values, np.float32) for part, values in x.items()}
    return Dataset(name, "vector", y["train"], y["test"], list(map(str, range(classes))), lambda: (x["train"], x["test"]))


def titles(path):
    with open(path, newline="", encoding="utf-8") as file:
        return [(row["news_title"], row["label"]) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def grams(text):
    """Return hashed counts (WIDTH,) of words and of two to five characters, scaled to length 1."""
    out, text = np.zeros(WIDTH, np.float32), f" {' '.join(text.lower().split())} "
    pieces = [(text[i : i + n], 1) for n in range(2, 6) for i in range(len(text) - n + 1)]
    for piece, weight in [*pieces, *((f"word {word}", 2) for word in text.split())]:
        code = zlib.crc32(piece.encode())
        out[code % WIDTH] += weight * (1 - 2 * ((code >> 20) & 1))
    return out / np.linalg.norm(out)


def federation_of(name, folder, seed, holdout=None):
    data, scheme, clients = SETS[name](folder, seed)
    federation = pipeline.partition(data, scheme, clients=clients, holdout=holdout, seed=seed, say=None)
    if name in ("simulated", "spammers", "blurred"):
        federation = noise.inject(federation, "annotators", seed=seed)
    if name == "spammers":
        draws = np.random.default_rng([seed, 41])
        for part in federation.clients[::10]:
            federation.given[part] = draws.integers(0, federation.classes, len(part))
    return federation, data


def late(name, method, seed, folder, cache):
    """Return the late accuracy in %, from the cache if the run has finished before."""
    path = cache / f"{name}-{method.replace('/', '_')}-{seed}.json"
    if path.exists():
        return json.loads(path.read_text())["late"]
    federation, data = federation_of(name, folder, seed)
    run = pipeline.train(federation, method=method, dataset=data, seed=seed, ledger="none", say=None, **SETTINGS)
    found = 100 * late_score(run.history)
    saving.write_bytes([json.dumps({"late": found, "method": method, "seed": seed}).encode()], str(path))
    return found


def held_out_fit(name, method, seed, folder, cache):
    """Return the mean log likelihood of held-out noisy labels; true labels are not used.

    A fifth of the samples is held out with all votes.  The likelihood of a label y is sum_z p(z|x) T[z, y]: p is the final
    model, and T the matrix of the client, estimated from its training labels and p in the same way for all methods.
    """
    path = cache / f"fit-{name}-{method.replace('/', '_')}-{seed}.json"
    if path.exists():
        return json.loads(path.read_text())["fit"]
    federation, data = federation_of(name, folder, seed, holdout=0.2)
    run = pipeline.train(federation, method=method, dataset=data, seed=seed, ledger="none", say=None, **SETTINGS)
    network, about = network_of(run), run.meta["samples"]
    inputs = Inputs(False, tuple(about["mean"]), tuple(about["std"]), network.dtype)
    p = predict(network, None, torch.from_numpy(np.asarray(data.x_train)), inputs).double().softmax(-1).numpy()
    found, given = 0.0, federation.given
    matrices = matrices_of([p[part] for part in federation.clients], [given[part] for part in federation.clients])
    for part, T in zip(federation.held_out, matrices, strict=True):
        found += np.log((p[part] * T[:, given[part]].T).sum(1) + 1e-12).sum()
    fit = float(found / sum(map(len, federation.held_out)))
    saving.write_bytes([json.dumps({"fit": fit, "method": method, "seed": seed}).encode()], str(path))
    return fit


def matrices_of(predicted, given, strength=10.0, steps=10):
    """Return T (C, C) of each client by expectation maximization, shrunk to the matrix of all clients."""
    classes = predicted[0].shape[1]
    counts, common = [np.zeros((classes, classes))] * len(given), 0.6 * np.eye(classes) + 0.4 / classes
    for _ in range(steps):
        T = [(n + strength * common) / (n + strength * common).sum(1, keepdims=True) for n in counts]
        q = [p * t[:, y].T for p, t, y in zip(predicted, T, given, strict=True)]
        counts = [(w / w.sum(1, keepdims=True)).T @ np.eye(classes)[y] for w, y in zip(q, given, strict=True)]
        total = sum(counts) + 0.5 * np.eye(classes) + 0.01
        common = total / total.sum(1, keepdims=True)
    return T


def choose(names, methods, seeds, folder, cache):
    """Print the held-out fit of each spec: its mean by data set, and the difference from the first."""
    fits = {m: [[held_out_fit(n, m, s, folder, cache) for s in seeds] for n in names] for m in methods}
    print(f"{'log likelihood of held-out labels':42}", *(f"{name:>10}" for name in names), "  mean difference")
    for method, each in fits.items():
        ahead = np.mean(each) - np.mean(fits[methods[0]])
        print(f"{method:42}", *(f"{np.mean(values):10.4f}" for values in each), f"  {ahead:+.4f}", flush=True)


def league(names, methods, seeds, folder, cache):
    """Print a table per data set: late accuracy of fedavg, paired differences with 95 % intervals, and the gap closed."""
    closed, unfit = {method: {} for method in methods}, {}
    for name in names:
        found = {}
        for seed in range(seeds):
            for method in dict.fromkeys(("fedavg", "oracle", *methods)):
                try:
                    found.setdefault(method, []).append(late(name, method, seed, folder, cache))
                except InputError as error:  # a method that needs public samples
                    found.pop(method)
                    unfit[method] = str(error).split(",")[0]
        found = {method: np.array(values) for method, values in found.items()}
        federation, _ = federation_of(name, folder, 0)
        sizes, wrong = (
            np.diff(federation.client_offsets),
            np.average(federation.wrong_share(), weights=np.diff(federation.client_offsets)),
        )
        print(f"{name}: {len(sizes)} clients, {sizes.sum():,} labels, {100 * wrong:.1f} % wrong, {seeds} seeds")
        gap = found["oracle"] - found["fedavg"]
        for method, values in found.items():
            ahead = values - found["fedavg"]
            half = f" ± {stats.t.ppf(0.975, seeds - 1) * ahead.std(ddof=1) / np.sqrt(seeds):3.1f}" if seeds > 1 else ""
            share = 100 * ahead.mean() / gap.mean()
            spread = stats.t.ppf(0.975, seeds - 1) * gap.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else 0.0
            part = f"{share:5.0f} % of the gap" if gap.mean() > spread else "    no gap beyond its interval"
            closed.setdefault(method, {})[name] = share if gap.mean() > spread else None
            print(f"  {method:22} {values.mean():5.1f}   {ahead.mean():+5.1f}{half}   {part}", flush=True)
    print("mean share of the gap closed, over the sets with a gap")
    for method, shares in sorted(
        closed.items(), key=lambda item: -np.mean([v for v in item[1].values() if v is not None] or [0])
    ):
        known = [value for value in shares.values() if value is not None]
        if known and method not in ("fedavg", "oracle"):
            each = ", ".join(f"{name} {value:.0f}" for name, value in shares.items() if value is not None)
            print(f"  {method:22} {np.mean(known):5.0f} %   ({each})")
    for method, reason in unfit.items():
        print(f"  {method:22} not run: {reason}")


def audit_row(name, seed, folder, cache):
    """Return the measures of an audit of annotators, and of CROWDLAB on the pooled votes, from the cache if they are known."""
    path = cache / f"audited-{name}-{seed}.json"
    if path.exists():
        return json.loads(path.read_text())
    federation, data = federation_of(name, folder, seed)
    found = audit(federation, data, seed=seed)
    size, truth = np.diff(federation.client_offsets), federation.wrong_share()
    rows = sorted(found.sites, key=lambda row: row.client)
    low, high = (np.array([row[end] for row in rows]) for end in ("low", "high"))
    level, named = found.judgment.level, np.array([row.noisier for row in rows])
    many, worst, clean = size >= LEAST, truth > WORST, truth < CLEAN
    quality, who = crowdlab(federation, data)
    out = {"annotators": len(size), "many": int(many.sum()), "covered": int(((low <= truth) & (truth <= high))[many].sum()),
           "bias": 100 * float((level - truth)[many].mean()), "width": 100 * float((high - low)[many].mean()),
           "worst": int(worst.sum()), "worst named": int(named[worst].sum()), "clean": int(clean.sum()),
           "clean named": int(named[clean].sum()), "spearman": float(stats.spearmanr(level, truth)[0]),
           "crowdlab": float(stats.spearmanr(-quality, truth[who])[0])}  # fmt: skip
    for least, most in itertools.pairwise(BOUNDS):
        few = (least <= size) & (size < most)
        away = 100 * np.abs(level - truth)[few], 100 * np.abs(pooled(level, size) - truth)[few], 100 * (high - low)[few]
        out |= {f"{least}": int(few.sum()), **{f"{least} {what}": float(v.sum()) for what, v in zip(SUMMED, away, strict=True)}}
    saving.write_bytes([json.dumps(out).encode()], str(path))
    return out


def pooled(level, size):
    """Return levels shrunk to their mean by a beta-binomial model, fitted by the method of moments."""
    mean = np.average(level, weights=size)
    spread = max(np.average((level - mean) ** 2, weights=size) - mean * (1 - mean) * len(size) / size.sum(), 1e-6)
    strength = max(mean * (1 - mean) / spread - 1, 0.0)
    return (size * level + strength * mean) / (size + strength)


def crowdlab(federation, data):
    """Return (quality of each annotator, the annotators' clients) by cleanlab, with a cross-validated classifier on all votes.

    The classifier is logistic regression; a sample with all its votes is in one of five folds.
    """
    import pandas
    from cleanlab.multiannotator import get_label_quality_multiannotator
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    rows = federation.client_indices
    owner = np.repeat(np.arange(len(federation)), np.diff(federation.client_offsets))
    samples, first, number = np.unique(federation.extra["sample_of"][rows], return_index=True, return_inverse=True)
    x = np.asarray(data.x_train, np.float64)[rows].reshape(len(rows), -1)
    x, fold = StandardScaler().fit_transform(x), np.random.default_rng(0).integers(0, 5, len(samples))[number]
    p = np.zeros((len(rows), federation.classes))
    for k in range(5):
        made = LogisticRegression(C=0.01, max_iter=500).fit(x[fold != k], federation.given[rows][fold != k])
        p[np.ix_(fold == k, made.classes_)] = made.predict_proba(x[fold == k])
    votes = np.full((len(samples), len(federation)), np.nan)
    votes[number, owner] = federation.given[rows]
    done = get_label_quality_multiannotator(pandas.DataFrame(votes), p[first], verbose=False)["annotator_stats"]
    return done["annotator_quality"].to_numpy(), done.index.to_numpy()


def audits(names, seeds, folder, cache):
    """Print the measures of audits of annotators."""
    print(f"audit: annotators with at least {LEAST} labels; Spearman's correlation with the true share of wrong labels")
    for name in names:
        each = [audit_row(name, seed, folder, cache) for seed in seeds]
        total = {key: sum(row[key] for row in each) for key in each[0]}
        mean = {key: total[key] / len(each) for key in total}
        print(f"{name}: {len(each)} audits of {mean['annotators']:.0f} annotators")
        print(f"  intervals cover       {total['covered']} of {total['many']} ({100 * total['covered'] / total['many']:.0f} %)")
        print(f"  bias, mean width      {mean['bias']:+.1f}, {mean['width']:.1f} points")
        print(f"  more than {100 * WORST:.0f} % wrong   {total['worst named']} of {total['worst']} named")
        print(f"  less than {100 * CLEAN:.0f} % wrong   {total['clean named']} of {total['clean']} named")
        print(f"  Spearman              {mean['spearman']:.3f}, CROWDLAB {mean['crowdlab']:.3f}", flush=True)
        for least, most in itertools.pairwise(BOUNDS):
            count = total[f"{least}"]
            error, shrunk, width = (total[f"{least} {what}"] / max(count, 1) for what in SUMMED)
            sizes = f"{least} to {most - 1:,}" if most < BOUNDS[-1] else f"{least} and more"
            print(f"  {sizes:11} labels    {count:3} annotators: "
                  f"error of the level {error:.1f} points, pooled {shrunk:.1f}, width {width:.1f}", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with labelme/ and yoruba/")
    parser.add_argument("--cache", type=Path, required=True, help="folder for finished runs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default=LEAGUE, help="data sets")
    parser.add_argument("--methods", default=",".join(registry.METHODS))
    parser.add_argument("--audit", action="store_true", help="audit labelme, simulated and spammers instead of training")
    parser.add_argument("--choose", action="store_true", help="compare specs, separated by ;, by held-out noisy labels")
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    if given.choose:
        seeds = range(DEVELOPMENT, DEVELOPMENT + given.seeds)
        choose(given.only.split(","), given.methods.split(";"), seeds, given.data, given.cache)
        return
    if given.audit:
        audits(ANNOTATED if given.only == LEAGUE else given.only.split(","), range(given.seeds), given.data, given.cache)
        return
    league(given.only.split(","), given.methods.split(","), given.seeds, given.data, given.cache)


if __name__ == "__main__":
    main()
