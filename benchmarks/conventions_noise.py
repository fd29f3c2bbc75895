"""Print what noise generators and scores of public codes give for the same request, next to fnlkit's.

    python -m benchmarks.conventions_noise --repos DIR > benchmarks/results/conventions-noise.txt

DIR has clones FedCorr (Xu-Jingyi), FedEFC (bgbhbf), FedLN (FederatedML), FedNoisy (SMILELab-FL) and FNBench (Sprinter1999).
Their functions run as they are, without the rest of their files.  Rows of a code that is missing are left out.
"""

import argparse
import ast
import contextlib
import copy
import io
import random
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import fnlkit
from benchmarks.conventions import find_version
from fnlkit import datasets, noise
from fnlkit.artifacts.federation import Federation
from fnlkit.kernels import mixture

CLIENTS, REQUEST = 20, 0.4
TEN, HUNDRED = (np.random.default_rng(0).permutation(np.arange(50_000) % classes) for classes in (10, 100))
COLUMNS = ("achieved", "targets", "spread")


class Code:
    """Functions of a clone."""

    def __init__(self, folder, name):
        self.name, self.folder = name, folder / name

    def commit(self):
        done = subprocess.run(["git", "-C", self.folder, "describe", "--always"], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def functions(self, *files, **names):
        """Return the namespace of the top-level functions of files, which have numpy and `names` but no other imports."""
        space: dict[str, Any] = {"np": np, "random": random, "copy": copy, **names}
        for file in files:
            tree = ast.parse((self.folder / file).read_text(encoding="utf-8"))
            body = [ast.parse("from __future__ import annotations").body[0]]
            body += [node for node in tree.body if isinstance(node, ast.FunctionDef)]
            exec(compile(ast.Module(body, []), file, "exec"), space)
        return SimpleNamespace(**space)

    def loop(self, file, target):
        """Return the code of the first loop over the variables `target` in a file."""
        tree = ast.parse((self.folder / file).read_text(encoding="utf-8"))
        loops = (node for node in ast.walk(tree) if isinstance(node, ast.For) and ast.unparse(node.target) == target)
        return compile(ast.Module([next(loops)], []), file, "exec")


def split(labels):
    return np.array_split(np.arange(len(labels)), CLIENTS)


def fedcorr(code, labels, seed):
    add_noise = code.functions("util/util.py").add_noise
    args = SimpleNamespace(seed=seed, level_n_system=1.0, level_n_lowerb=1.0, num_users=CLIENTS)
    return add_noise(args, labels, dict(enumerate(split(labels))))[0]


def fedefc(code, labels, seed, *, level=REQUEST, sparsity=0.8):
    space = code.functions("util/noise_generation.py", "util/util.py", FLOATING_POINT_COMPARISON=1e-6, Dataset=object)
    return space.add_noise_to_data(SimpleNamespace(seed=seed, num_classes=labels.max() + 1), labels, labels, level, sparsity)


def fedln(code, labels, seed):
    inject = code.functions("src/utils/noise.py").noise_from_level_sparsity
    one = partial(inject, num_classes=10, noise_lvl=REQUEST, noise_spar=0.4, noise_seed=seed, as_one_hot=False)
    return np.concatenate([one(labels[part])[0] for part in split(labels)])


def fednoisy(code, labels, seed, *, mode):
    tree = ast.parse((code.folder / "fednoisy/data/__init__.py").read_text(encoding="utf-8"))
    changes = ast.literal_eval(next(node for node in tree.body if isinstance(node, ast.Assign)).value)
    generate = code.functions("fednoisy/data/NLLData/functional.py").generate_noisy_labels
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    return np.array(generate(labels.tolist(), mode, REQUEST, changes))


def fnbench(code, labels, seed):
    labels = labels.copy()
    space = {
        "user_noise_type_rates": [("symmetric", REQUEST)] * CLIENTS,
        "dict_users": split(labels),
        "client_noise_map": {},
        "dataset_train": SimpleNamespace(train_labels=labels),
        "args": SimpleNamespace(seed=seed, num_classes=10),
        "copy": copy,
        "random": random,
        "noisify_label": code.functions("utils/utils.py", torch=None, F=None).noisify_label,
    }
    exec(code.loop("main_fed_LNL.py", "(user, (user_noise_type, user_noise_rate))"), space)
    return labels


def cleanlab(code, labels, seed, *, level=REQUEST, sparsity=0.8):
    from cleanlab.benchmarking import noise_generation

    classes = int(labels.max()) + 1
    py = np.bincount(labels) / len(labels)
    T = noise_generation.generate_noise_matrix_from_trace(
        classes, (1 - level) * classes, py=py, frac_zero_noise_rates=sparsity, seed=seed
    )
    return noise_generation.generate_noisy_labels(labels, T)


def ours(code, labels, seed, *, spec):
    whole = np.concatenate(split(labels))
    ends = np.cumsum([0, *map(len, split(labels))])
    fed = Federation(
        dataset="labels", classes=int(labels.max()) + 1, given=labels, true=labels, client_indices=whole, client_offsets=ends
    )
    return noise.inject(fed, spec, seed=seed).given


@dataclass(frozen=True)
class Generator:
    """A generator: the code (a clone, a package or fnlkit), the request, and the labels it corrupts."""

    code: str
    request: str
    corrupt: Any
    labels: np.ndarray


SMALL = TEN[:4_000]
GENERATORS = (
    Generator("fnlkit", "symmetric(eta=0.4)", partial(ours, spec="symmetric(eta=0.4)"), TEN),
    Generator("fnlkit", "clients(rho=1, tau=1)", partial(ours, spec="clients(rho=1, tau=1)"), TEN),
    Generator("FedCorr", "rho 1, tau 1, 10 classes", fedcorr, TEN),
    Generator("FedCorr", "rho 1, tau 1, 100 classes", fedcorr, HUNDRED),
    Generator("fnlkit", "sparse(level=0.4, sparsity=0.8)", partial(ours, spec="sparse(level=0.4, sparsity=0.8)"), TEN),
    Generator("cleanlab", "0.4, 0.8, 10 classes", cleanlab, TEN),
    Generator("FedEFC", "0.4, 0.8, 10 classes", fedefc, TEN),
    Generator("FedEFC", "0.4, 0.8, 100 classes", fedefc, HUNDRED),
    Generator("FedEFC", "0.1, 0, 100 classes", partial(fedefc, level=0.1, sparsity=0.0), HUNDRED),
    Generator(
        "fnlkit", "sparse(sparsity=0.4, per_client=true)", partial(ours, spec="sparse(sparsity=0.4, per_client=true)"), TEN
    ),
    Generator("FedLN", "0.4, 0.4, 10 classes", fedln, TEN),
    Generator("FedNoisy", "symmetric 0.4", partial(fednoisy, mode="sym"), SMALL),
    Generator("FedNoisy", "asymmetric 0.4", partial(fednoisy, mode="asym"), SMALL),
    Generator("FNBench", "symmetric 0.4", fnbench, TEN),
)


def measure(labels, given):
    """Return the share of wrong labels, the mean number of wrong classes of a class, and the spread of the classes' shares."""
    wrong = given != labels
    pairs = np.unique(np.stack([labels[wrong], given[wrong]]), axis=1)
    shares = np.bincount(labels[wrong], minlength=labels.max() + 1) / np.bincount(labels)
    return dict(zip(COLUMNS, (wrong.mean(), pairs.shape[1] / (labels.max() + 1), shares.std()), strict=True))


def same_clients(labels, given):
    """Return whether the first two clients have the same wrong classes, or the same positions of wrong labels."""
    facts = [(set(zip(labels[c].tolist(), given[c].tolist(), strict=True)), labels[c] != given[c]) for c in split(labels)[:2]]
    one, two = facts
    return "classes" if len(one[0]) < 70 and one[0] == two[0] else "positions" if (one[1] == two[1]).all() else "no"


def print_generators(codes, seeds):
    print(f"Requested noise, {CLIENTS} clients, {seeds} seeds. targets: wrong classes per class; spread: over classes")
    print(f"{'code':<17}{'request':<40}{'achieved':>9}{'targets':>9}{'spread':>8}  same seeds  same clients")
    for each in GENERATORS:
        code = codes.get(each.code)
        number = code.commit() if code else find_version(each.code) if each.code == "cleanlab" else ""
        if number is None or (code and not code.folder.is_dir()):
            continue
        with contextlib.redirect_stdout(io.StringIO()):
            given = [each.corrupt(code, each.labels, seed) for seed in range(seeds)]
        rows = [measure(each.labels, one) for one in given]
        values = {name: [round(float(row[name]), 4) for row in rows] for name in COLUMNS}
        same = "yes" if (given[0] == given[1]).all() else "no"
        means = [np.mean(values[name]) for name in COLUMNS]
        cells = f"{means[0]:>9.3f}{means[1]:>9.1f}{means[2]:>8.3f}  {same:<10}  {same_clients(each.labels, given[0])}"
        print(f"{each.code + ' ' + number:<17}{each.request:<40}{cells}", flush=True)


def predictions():
    """Return (features, true labels, given labels, held-out probabilities) of the digits with 40 % wrong labels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    data = datasets.load("digits")
    x, true = np.asarray(data.x_train).reshape(len(data.y_train), -1) / 16.0, np.asarray(data.y_train)
    given = ours(None, true, 0, spec="symmetric(eta=0.4)")
    return (
        x,
        true,
        given,
        cross_val_predict(LogisticRegression(C=0.1, max_iter=1000), x, given, method="predict_proba"),
    )


def print_scores():
    from scipy.stats import spearmanr
    from sklearn.metrics import roc_auc_score

    x, true, given, p = predictions()
    wrong, rows = given != true, np.arange(len(true))
    print(
        f"\nScores on the digits with 40 % wrong labels, held-out probabilities of logistic regression, {len(true):,} samples"
    )

    def line(name, text):
        print(f"{name:<44}{text}")

    once = -np.log(p[rows, given])
    twice = np.log(np.exp(p).sum(1)) - p[rows, given]
    for name, loss in (("loss: cross entropy", once), ("loss: softmax of the softmax (FedCorr)", twice)):
        line(name, f"AUC {roc_auc_score(wrong, loss):.3f}, rank correlation {spearmanr(once, loss)[0]:.3f}")
    for rule in ("cleanlab", "largest"):
        counts = fnlkit.count_matrix(p, given, rule=rule)
        line(
            f"count_matrix(rule={rule})",
            f"counts {counts.sum() / len(true):.3f}, of these wrong {1 - np.trace(counts) / counts.sum():.3f}",
        )
    votes = partial(fnlkit.knn_vote, x, given, k=10)
    plain = votes()[0]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    for name, other in (
        ("knn_vote(ties=random), another seed", votes(seed=1)[0]),
        ("knn_vote(ties=lowest)", votes(ties="lowest")[0]),
        ("knn_vote(include_self=true) (FedLN)", votes(include_self=True)[0]),
        ("knn_vote of unit vectors (cosine)", fnlkit.knn_vote(unit, given, k=10)[0]),
    ):
        changed, right = (other != plain).mean(), (other == true).mean()
        line(name, f"other votes {changed:.3f}, right {right:.3f}; plain {(plain == true).mean():.3f}")
    upper = [mixture.two_components(np.random.default_rng(seed).normal(size=20))[0].mean() for seed in range(200)]
    line(
        "mixture of 20 equal clients, noisy share",
        f"mean {np.mean(upper):.3f}, none in {np.mean(np.array(upper) == 0):.3f} of 200 draws",
    )
    client = p[:200]
    batches = [fnlkit.lid(client[start : start + 50]).mean() for start in range(0, 200, 50)]
    for name, score in (
        ("LID of a client of 200", fnlkit.lid(client).mean()),
        ("the same, FedCorr's formula", fnlkit.lid(client, variant="fedcorr").mean()),
        ("the same, in batches of 50", np.mean(batches)),
        ("the same, 20 samples twice", fnlkit.lid(np.concatenate([client, client[:20]])).mean()),
    ):
        line(name, f"{score:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repos", type=Path, default=Path(), help="folder with clones of the authors' repositories")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    codes = {name: Code(options.repos, name) for name in ("FedCorr", "FedEFC", "FedLN", "FedNoisy", "FNBench")}
    print_generators(codes, options.seeds)
    print_scores()


if __name__ == "__main__":
    main()
