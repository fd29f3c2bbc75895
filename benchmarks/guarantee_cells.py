"""Data of benchmarks.guarantee: sites with given labels, true labels, the audit's scores and other probabilities."""

import warnings
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from benchmarks import worlds
from fnlkit import datasets, noise, pipeline
from fnlkit.datasets.dataset import Dataset
from fnlkit.kernels.streams import stream

# Projects of JIRA on which options were chosen; they are not part of the final evidence.
DEVELOPMENT = "activemq", "derby", "hbase", "jruby"
CELLS = (
    "jira-development", "jira", "labelme", "yoruba", "mriqc", "digits-class-dependent", "digits-instance-dependent",
    "digits-annotators",
)  # fmt: skip
NOISE = {"digits-class-dependent": "random(eta=0.2)", "digits-instance-dependent": "instance(eta=0.2)",
         "digits-annotators": "annotators"}  # fmt: skip
# Number of sites of data without real sites.
SITES = 4


@dataclass
class Site:
    """A site of a cell: arrays (n,), and probabilities (n, C) of logistic regression on the other sites' given labels."""

    name: str
    given: np.ndarray
    true: np.ndarray
    score: np.ndarray
    suggested: np.ndarray
    probabilities: np.ndarray
    x: np.ndarray

    @property
    def wrong(self):
        return self.given != self.true


def of_arrays(name, x, given, true, site):
    """Return a Dataset of vectors with observed labels and a site per sample."""
    x = np.asarray(x, np.float32)
    classes = int(max(given.max(), true.max())) + 1
    data = Dataset(name, "vector", given, given[:0], list(map(str, range(classes))), lambda: (x, x[:0]), observed=True)
    data.y_train_true, data.fields = true, {"site": np.asarray(site).astype(str)}
    return data


def jira(folder, development):
    """Return files of software projects; `given` is the usual heuristic, `true` the label by affected releases."""
    z = np.load(folder / "jira" / "jira.npz")
    x = np.sign(z["x"]) * np.log1p(np.abs(z["x"]))
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-9)
    return of_arrays("jira", x, z["given"].astype(np.int64), z["true"].astype(np.int64), z["project"])


def labelme(folder, seed):
    """Return a row per answer; the site is a group of annotators."""
    folder = folder / "labelme"
    votes, true = np.loadtxt(folder / "answers.txt", dtype=np.int64), np.loadtxt(folder / "LabelMe_Z_train.txt", dtype=np.int64)
    x = np.load(folder / "LabelMe_VGG_avg_train.npy")
    sample, who = np.nonzero(votes >= 0)
    group = stream(seed, "groups").permutation(votes.shape[1]) % SITES
    return of_arrays("labelme", x[sample], votes[sample, who], true[sample], group[who])


def yoruba(folder, seed):
    """Return titles with labels of a weak labeler, on sites drawn at random."""
    made = worlds.titles(SimpleNamespace(data=folder), "train_clean_noisy_labels")
    site = stream(seed, "groups").permutation(len(made["y_train"])) % SITES
    return of_arrays("yoruba", made["x_train"] / np.sqrt(worlds.WIDTH), made["y_train"], made["y_train_true"], site)


def mriqc(folder, seed):
    """Return scans; `given` is rater 3, `true` rater 1 or 2. Neighboring acquisition sites form a site."""
    data, other = datasets.load("mriqc"), datasets.load("mriqc(label=rater_3)")
    names = {name: code for code, name in enumerate(data.class_names)}
    given = np.array([names[other.class_names[label]] for label in other.y_train])
    place = np.unique(data.fields["site"], return_inverse=True)[1] * SITES // len(np.unique(data.fields["site"]))
    x = np.asarray(data.x_train)
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-9)
    return of_arrays("mriqc", np.clip(x, -8, 8), given.astype(np.int64), data.y_train, place)


def digits(name, seed):
    """Return digits on sites drawn at random, with 20 % noise of a kind."""
    data = datasets.load("digits")
    fed = pipeline.partition(data, "iid", clients=SITES - 1, holdout=0, seed=seed, say=None)
    fed = noise.inject(fed, NOISE[name], x=data.x_train, seed=seed)
    site = np.empty(len(data.y_train), int)
    for k, part in enumerate(fed.clients):
        site[part] = k
    return of_arrays(name, np.asarray(data.x_train).reshape(len(site), -1), fed.given.astype(np.int64), data.y_train, site)


def sites_of(cell, folder, cache, seed=0):
    """Return the Sites of a cell; the audit's scores are stored in the cache."""
    name = cell.removesuffix("-development")
    path = cache / f"{name}-{seed}.npz"
    if name == "jira":
        data = jira(folder, cell)
    elif name in NOISE:
        data = digits(name, seed)
    else:
        data = {"labelme": labelme, "yoruba": yoruba, "mriqc": mriqc}[name](folder, seed)
    if not path.exists():
        _judge(data, path, seed)
    found, out = np.load(path), []
    for site, part in _parts(data):
        if name == "jira" and (site in DEVELOPMENT) != cell.endswith("-development"):
            continue
        arrays = data.y_train, np.asarray(data.y_train_true), found["score"], found["suggested"], found["probabilities"]
        out.append(Site(site, *(values[part] for values in arrays), np.asarray(data.x_train)[part]))
    return out


def _parts(data):
    return [(site, np.flatnonzero(data.fields["site"] == site)) for site in np.unique(data.fields["site"])]


def _judge(data, path, seed):
    """Write the audit's scores, and probabilities of logistic regression on the given labels of the other sites."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    fed = pipeline.partition(data, "sites", holdout=0, seed=seed, say=None)
    size = len(data.y_train)
    judged = pipeline.audit(fed, dataset=data, seed=seed, detectors=(), say=None).federation
    p, x = np.full((size, fed.classes), 1e-6), np.asarray(data.x_train)
    for site, part in _parts(data):
        others = stream(seed, "others").permutation(np.flatnonzero(data.fields["site"] != site))[:8000]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            made = LogisticRegression(C=0.1, max_iter=200).fit(x[others], data.y_train[others])
        p[np.ix_(part, made.classes_)] = made.predict_proba(x[part])
    arrays = {name: judged.extra[f"estimate_{key}"] for name, key in
              (("score", "issue_score"), ("suggested", "suggested_label"))}  # fmt: skip
    np.savez_compressed(path, **arrays, probabilities=p / p.sum(1, keepdims=True))
