"""Methods on labels of annotators: development worlds, on which `fedem` was designed, and reported worlds.

    python -m benchmarks.annotators [--labelme DIR]
    python -m benchmarks.annotators --cache DIR --develop [--images CIFAR10.npz --worlds WORLDS]
    python -m benchmarks.annotators --cache DIR --worlds WORLDS [--seeds 3] [--methods fedem,fedavg]

Without --cache, the consensus of votes is compared with crowd-kit and cleanlab (benchmarks.votes).

WORLDS is the folder that `python -m benchmarks.worlds` wrote (annotators.npz, text.npz, speech.npz); CIFAR10.npz contains
x_train, y_train, x_test and y_test.  Finished runs are kept in the cache, so that a second call continues.

Reported: labelme, people's labels of photographs; speech, six speakers with the errors of people; and two worlds that were
not used before the design was frozen: audio, 700 spoken digits with votes of 44 annotators, and hearts, patients of four
hospitals with votes of 20 annotators.

Limits of any method: `fedavg` trained on the majority vote, on the labels of Dawid and Skene's model over all votes in one
place, and on the most likely labels if the matrices of the annotators are known ("known matrices").

Annotators: skills of `coin` are drawn from Beta(3, 2), with equal wrong labels (Dawid 1979 with one parameter); `hammer`: 55 %
are right in 90 % and the others answer at random or by a constant distribution (Karger 2011); `confuser`: right in 92 %, but
for one to C/3 classes that are mistaken for another in 75 %; `mixture`: 45 % coins of Beta(8, 2), 20 % at random, 35 %
confusers; `people`: matrices fitted to LabelMe (fnlkit/noise/people.py); `hard`: as `people`, and 12 % of the samples, those
near another class, have a common wrong label, which each annotator gives in 71 % (the noise model `difficult`).
"""

import argparse
import json
import sys
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks import votes
from benchmarks.features import components
from benchmarks.people import of_arrays
from fnlkit import datasets, noise, pipeline
from fnlkit.artifacts import saving
from fnlkit.audits.consensus import consensus_of_rows
from fnlkit.datasets.votes import by_vote
from fnlkit.noise.people import FITTED, margins
from fnlkit.results.evaluation import late_score

SETTINGS = {"model": "mlp(hidden=[128])", "rounds": 60, "fraction": 0.5, "epochs": 5, "batch_size": 10, "lr": 0.01,
            "momentum": 0.5, "eval_every": 3}  # fmt: skip
# World: data, samples, annotators, votes for each sample, skills.
DEVELOPMENT = {
    "digits-people": ("digits", 1438, 40, 2.5, "people"),
    "digits-blur-mix": ("digits-blur", 1000, 40, 3, "mixture"),
    "digits-blur-coin12": ("digits-blur", 1000, 12, 1, "coin"),
    "cifar-people": ("cifar", 700, 44, 4.2, "people"),
    "cifar-coin": ("cifar", 700, 44, 4.2, "coin"),
    "cifar-hammer": ("cifar", 2000, 60, 1.5, "hammer"),
    "cifar-mix": ("cifar", 1500, 25, 1, "mixture"),
    "text-people": ("text", 1340, 30, 2, "people"),
    "text-coin": ("text", 1340, 40, 3, "coin"),
    "text-confuser": ("text", 1340, 60, 3, "confuser"),
    "clusters-mix": ("clusters", 1000, 20, 2, "mixture"),
    "clusters-hammer": ("clusters", 600, 40, 4, "hammer"),
    "wave-coin": ("wave", 1200, 20, 2, "coin"),
    "wave-people": ("wave", 1200, 40, 1, "people"),
}
# Added after the design was frozen: hard samples have a common wrong label.
HARD = {
    "cifar-hard": ("cifar", 700, 44, 3, "hard"),
    "text-hard": ("text", 1340, 40, 3, "hard"),
    "clusters-hard": ("clusters", 1000, 40, 2.5, "hard"),
    "digits-hard": ("digits-blur", 1000, 40, 2.5, "hard"),
}
UNSEEN = {"audio": ("speech", 700, 44, 4.2, "mixture"), "hearts": ("heart", 700, 20, 3, "coin")}
REPORTED = ("labelme", "speech", *UNSEEN)
FIRST_SEED = 100  # of development
LIMITS = ("majority vote", "dawid-skene", "known matrices")
SHARING = ("fedem(combine=true)", *LIMITS[:2])  # they need samples of several clients
METHODS = ("fedem", "fedem(combine=true)", *LIMITS, "fedelc", "flr-plus", "fedgr", "fedsir", "maskedoptim", "fedreda", "fedrg")


# ---- data
@cache
def base(name, images, worlds):
    """Return (x, y, classes) with x and y by part."""
    if name.startswith("digits"):
        data = datasets.load("digits")
        x, y = as_vectors(data), {"train": data.y_train, "test": data.y_test}
        if name == "digits-blur":
            rng, scale = np.random.default_rng(5), 1.2 * x["train"].std()
            x = {part: values + rng.normal(0, scale, values.shape) for part, values in x.items()}
        return x, y, 10
    if name in ("clusters", "wave"):
        from sklearn.datasets import make_classification, make_gaussian_quantiles

        if name == "clusters":
            x, y = make_classification(3000, 20, n_informative=10, n_classes=6, n_clusters_per_class=2, class_sep=1.3,
                                       random_state=3)  # fmt: skip
            cut = 1500
        else:
            x, y = make_gaussian_quantiles(n_samples=2600, n_features=6, n_classes=4, random_state=4)
            cut = 1200
        return {"train": x[:cut], "test": x[cut:]}, {"train": y[:cut], "test": y[cut:]}, int(y.max()) + 1
    if name == "heart":
        data = datasets.load("heart")
        return as_vectors(data), {"train": data.y_train, "test": data.y_test}, 2
    pack = patches(images) if name == "cifar" else np.load(worlds / f"{name}.npz")
    x, y = ({part: pack[f"{of}_{part}"] for part in ("train", "test")} for of in "xy")
    return x, y, int(y["test"].max()) + 1


def as_vectors(data):
    return {
        "train": np.asarray(data.x_train).reshape(len(data.y_train), -1),
        "test": np.asarray(data.x_test).reshape(len(data.y_test), -1),
    }


def patches(path, centers=300):
    """Return 128 components of patch features of CIFAR-10 (Coates 2011): distances to `centers` of k-means, in quarters."""
    pack, rng = np.load(path), np.random.default_rng(0)
    x = {"train": pack["x_train"][:6000] / np.float32(255), "test": pack["x_test"][:2000] / np.float32(255)}

    def pieces(images):
        view = np.lib.stride_tricks.sliding_window_view(images, (6, 6), axis=(1, 2))[:, ::2, ::2]
        flat = view.reshape(*view.shape[:3], -1)
        return (flat - flat.mean(-1, keepdims=True)) / np.sqrt(flat.var(-1, keepdims=True) + 0.01)

    sample = pieces(x["train"][:1500]).reshape(-1, 108)
    sample = sample[rng.choice(len(sample), 40_000, replace=False)]
    middle = sample.mean(0)
    basis, scale, _ = np.linalg.svd(np.cov((sample - middle).T))
    whiten = basis / np.sqrt(scale + 0.1) @ basis.T
    sample = (sample - middle) @ whiten
    center = sample[rng.choice(len(sample), centers, replace=False)]
    for _ in range(8):
        nearest = (sample @ center.T - 0.5 * (center**2).sum(1)).argmax(1)
        for k in np.unique(nearest):
            center[k] = sample[nearest == k].mean(0)

    def features(images):
        out = []
        for block in np.array_split(images, max(1, len(images) // 200)):
            z = (pieces(block) - middle) @ whiten
            distance = np.sqrt(np.maximum((z**2).sum(-1, keepdims=True) + (center**2).sum(1) - 2 * z @ center.T, 0))
            near = np.maximum(distance.mean(-1, keepdims=True) - distance, 0)
            out.append(np.concatenate([near[:, i : i + 7, j : j + 7].sum((1, 2)) for i in (0, 7) for j in (0, 7)], 1))
        return np.concatenate(out)

    train, test = components(features(x["train"]), features(x["test"]), 128)
    return {"x_train": train, "x_test": test, "y_train": pack["y_train"][:6000], "y_test": pack["y_test"][:2000]}


def matrices(skills, people, classes, rng):
    """Return T (A, C, C) of annotators with these skills."""
    same = np.eye(classes)

    def coin(right):
        return right * same + (1 - right) * (1 - same) / (classes - 1)

    def spammer():
        if rng.random() < 0.5:
            return np.full((classes, classes), 1 / classes)
        return np.tile(rng.dirichlet(np.full(classes, 0.2)), (classes, 1))

    def confuser():
        out = coin(0.92)
        for _ in range(int(rng.integers(1, max(2, classes // 3) + 1))):
            a, b = rng.choice(classes, 2, replace=False)
            out[a] = 0.05 / classes
            out[a, b], out[a, a] = 0.75, 0.2
            out[a] /= out[a].sum()
        return out

    def anyone():
        draw = rng.random()
        return coin(rng.beta(8, 2)) if draw < 0.45 else spammer() if draw < 0.65 else confuser()

    if skills in ("people", "hard"):
        fitted, common = FITTED["labelme"], np.zeros((classes, classes))
        for c in range(classes):
            right = rng.beta(*fitted["right"])
            common[c] = np.insert((1 - right) * rng.dirichlet(np.full(classes - 1, fitted["wrong"])), c, right)
        return np.array([[rng.dirichlet(fitted["strength"] * row + 1e-3) for row in common] for _ in range(people)])
    draw = {"coin": lambda: coin(rng.beta(3, 2)), "hammer": lambda: coin(0.9) if rng.random() < 0.55 else spammer(),
            "confuser": confuser, "mixture": anyone}[skills]  # fmt: skip
    return np.array([draw() for _ in range(people)])


def simulated(name, seed, options):
    """Return (federation, data, settings) of a world with simulated annotators."""
    source, n, people, mean, skills = (DEVELOPMENT | HARD | UNSEEN)[name]
    x, y, classes = base(source, options.images, options.worlds)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    chosen = rng.permutation(len(y["train"]))[:n]
    true, n = y["train"][chosen], len(chosen)
    size = rng.lognormal(0, 0.9, people)
    size = np.clip(size / size.sum() * n * mean, 10, n).astype(int)
    T, votes = matrices(skills, people, classes, rng), np.full((n, people), -1)
    for a, number in enumerate(size):
        here = rng.choice(n, number, replace=False)
        votes[here, a] = [rng.choice(classes, p=T[a, z] / T[a, z].sum()) for z in true[here]]
    if skills == "hard":
        margin, other = margins(np.asarray(x["train"], np.float32)[chosen], true, classes)
        hard = (margin <= np.quantile(margin, FITTED["labelme"]["hard"]))[:, None]
        common = (votes >= 0) & hard & (rng.random(votes.shape) < FITTED["labelme"]["agree"])
        votes = np.where(common, other[:, None], votes)
    data = of_arrays(name, {"train": x["train"][chosen], "test": x["test"]}, {"train": true, "test": y["test"]}, classes)
    data.votes, data.annotators, data.y_train_true = votes, list(map(str, range(people))), true
    data = by_vote(data)
    federation = pipeline.partition(data, "annotators", seed=seed, say=None)
    return federation, data, SETTINGS | {"fraction": 0.5 if people <= 12 else 0.2}


def world(name, seed, options):
    if name == "labelme":
        data = by_vote(datasets.load(str(options.worlds / "annotators.npz")))
        return pipeline.partition(data, "annotators(least=10)", seed=seed, say=None), data, SETTINGS | {"fraction": 0.2}
    if name == "speech":
        data = datasets.load("spoken-digits")
        federation = pipeline.partition(data, "sites", seed=seed, say=None)
        return noise.inject(federation, "annotators(like=labelme)", seed=seed), data, SETTINGS
    return simulated(name, seed, options)


# ---- limits
def agreed(federation, how):
    """Return the federation with one label per sample by all votes in one place."""
    if how != "known matrices":
        return consensus_of_rows(federation, {"majority vote": "majority"}.get(how, how))[0]
    rows, classes = np.asarray(federation.client_indices), federation.classes
    owner = np.repeat(np.arange(len(federation)), np.diff(federation.client_offsets))
    counts = np.zeros((len(federation), classes, classes))
    np.add.at(counts, (owner, federation.true[rows], federation.given[rows]), 1)
    pooled = counts.sum(0) + 0.01
    # A row of an annotator without samples of this class is that of all annotators.
    T = counts + 0.3 * pooled / pooled.sum(1, keepdims=True)
    T /= T.sum(2, keepdims=True)
    sample = federation.extra["sample_of"][rows] if "sample_of" in federation.extra else rows
    score = np.zeros((sample.max() + 1, classes)) + np.log(np.bincount(federation.true[rows], minlength=classes) + 1)
    np.add.at(score, sample, np.log(T[owner, :, federation.given[rows]]))
    federation.given[rows] = score.argmax(1)[sample]
    return federation


# ---- runs
def late(name, method, seed, options):
    """Return the late accuracy in %, from the cache if the run has finished before."""
    path = options.cache / f"{name}-{method.replace('/', '_')}-{seed}.json"
    if path.exists():
        return json.loads(path.read_text())["late"]
    federation, data, settings = world(name, seed, options)
    if method in SHARING and "sample_of" not in federation.extra:
        return np.nan
    if method in LIMITS:
        federation = agreed(federation, method)
    run = pipeline.train(federation, method="fedavg" if method in LIMITS else method, dataset=data, seed=seed, ledger="none",
                         say=None, **settings)  # fmt: skip
    found = 100 * late_score(run.history)
    saving.write_bytes([json.dumps({"late": found, "method": method, "seed": seed}).encode()], str(path))
    return found


def main():
    if "--cache" not in sys.argv and not {"-h", "--help"} & {*sys.argv}:
        votes.main()
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder for finished runs")
    parser.add_argument("--worlds", type=Path, required=True, help="folder that benchmarks.worlds wrote")
    parser.add_argument("--images", help="CIFAR-10 as npz, for development")
    parser.add_argument("--develop", action="store_true", help="development worlds instead of the reported ones")
    parser.add_argument("--only", help="worlds, separated by commas")
    parser.add_argument("--methods", default=";".join(METHODS), help="specs, separated by ;")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    names = options.only.split(",") if options.only else tuple(DEVELOPMENT) if options.develop else REPORTED
    first, methods = FIRST_SEED if options.develop else 0, options.methods.split(";")
    shares = {method: [] for method in methods}
    for name in names:
        each = {method: np.array([late(name, method, s, options) for s in range(first, first + options.seeds)])
                for method in ("fedavg", "oracle", *methods)}  # fmt: skip
        federation, _, _ = world(name, first, options)
        gap = (each["oracle"] - each["fedavg"]).mean()
        sizes = np.diff(federation.client_offsets)
        wrong = 100 * np.average(federation.wrong_share(), weights=sizes)
        print(f"{name}: {len(sizes)} clients, {sizes.sum():,} labels, {wrong:.0f} % wrong, {options.seeds} seeds; "
              f"fedavg {each['fedavg'].mean():.1f} %, oracle +{gap:.1f}")  # fmt: skip
        for method in methods:
            ahead = each[method] - each["fedavg"]
            if not np.isnan(ahead).any():
                error = f" ± {ahead.std(ddof=1) / np.sqrt(len(ahead)):.1f}" if len(ahead) > 1 else ""
                shares[method].append(100 * ahead.mean() / gap)
                print(f"  {method:22} {ahead.mean():+5.1f}{error}   {shares[method][-1]:4.0f} % of the gap", flush=True)
    print("mean share of the gap, and smallest")
    for method, values in shares.items():
        print(f"  {method:22} {np.mean(values):4.0f} % {np.min(values):5.0f} %   of {len(values)} worlds")


if __name__ == "__main__":
    main()
