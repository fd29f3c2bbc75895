"""Classifiers from sums of the other sites: discriminant analysis beside ridge regression and sums without wrong labels.

    python -m benchmarks.classifiers > benchmarks/results/classifiers.txt
    python -m benchmarks.classifiers --groups > benchmarks/results/score-groups.txt

Ridge regression of the classes has a closed form from the same sums (Hastie, Tibshirani, Friedman 2009, equation 3.44).  One
round of reweighting would estimate the class sums without wrong labels from the transitions of the first round; `sums of true
labels` bounds what it can gain.  Printed are means over the federations: the share of the samples whose true class is
predicted, and the AUC with which 1 - p(given label) ranks the wrong labels of a site.  Federations of benchmarks.shifts, one
for each combination, and tables of scikit-learn in three sites, with 20 % random wrong labels at the second one.  All seeds
are for development.

`--groups`: the share of wrong labels from counts by score group.  A group contains the samples whose largest probability is
between two of GROUPS.  The share of contradicted labels of a group, beyond that of the other sites without the noisiest one,
states a share of wrong labels; the groups are averaged by their variances.  Error, width and coverage of the 95 % range are
printed beside those of the audit, of sites whose inputs do not differ and whose share is estimated.  `rounded`: the same from
multiples of 5, as a file could have them.
"""

import argparse
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from benchmarks import shifts
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits import quick, rounding, summaries
from fnlkit.client.client_list import ClientList
from fnlkit.client.inputs import Inputs, intake
from fnlkit.client.scaling import Moments, pool_moments, reply_moments
from fnlkit.estimators.em import NORMAL, softmax

TABLES = "breast_cancer", "wine"
# Factor of the regression's outputs, which are near 0 and 1, before the softmax.
STEEP = 10.0
GROUPS = (0.5, 0.7, 0.85, 0.95, 0.99)


def regress(counts, by_class, moments, *, penalty):
    """Return (coefficients (C, D), offsets (C,)) of ridge regression of the classes; see fnlkit.audits.summaries.discriminant.

    The penalty is a multiple of the mean variance of the features.
    """
    total, shares = max(1.0, counts.sum()), counts / max(1.0, counts.sum())
    mean = by_class.sum(0) / total
    values, vectors = np.linalg.eigh(moments / total - np.outer(mean, mean))
    values = np.maximum(values, 0)
    cross = by_class / total - shares[:, None] * mean
    coefficients = STEEP * (cross @ (vectors / (values + penalty * values.mean() + 1e-9)) @ vectors.T)
    offsets = STEEP * shares - coefficients @ mean
    return np.where(counts[:, None] > 0, coefficients, 0), np.where(counts > 0, offsets, -1e3)


def average(counts, by_class, moments):
    """Return the mean of both classifiers, as `regress`."""
    both = summaries.discriminant(counts, by_class, moments), regress(counts, by_class, moments, penalty=0.1)
    return tuple((one + other) / 2 for one, other in zip(*both, strict=True))


CLASSIFIERS = {f"discriminant analysis, shrinkage {s}": partial(summaries.discriminant, shrinkage=s) for s in (0.02, 0.1, 0.3)}
CLASSIFIERS |= {f"ridge regression, penalty {penalty}": partial(regress, penalty=penalty) for penalty in (0.01, 0.1, 1.0)}
CLASSIFIERS |= {"mean of both": average, "sums of true labels": summaries.discriminant}


def table(name, seed):
    """Return (Federation, Dataset with the true labels) of a table of scikit-learn."""
    from sklearn import datasets as included

    found, rng = getattr(included, f"load_{name}")(), np.random.default_rng(seed)
    order = rng.permutation(len(found.target))
    x, y = found.data[order].astype(np.float32), found.target[order].astype(np.int64)
    parts, given, classes = np.array_split(np.arange(len(y)), 3), y.copy(), int(y.max()) + 1
    wrong = parts[1][rng.random(len(parts[1])) < 0.2]
    given[wrong] = (given[wrong] + rng.integers(1, classes, len(wrong))) % classes
    names = [str(c) for c in range(classes)]
    data = datasets.Dataset("simulated", "vector", y, y[:0], names, lambda: (x, x[:0]), observed=True)
    return Federation("simulated", classes, np.cumsum([0, *map(len, parts)]), np.arange(len(y)), given), data


def sites_of(made, data):
    """Return (list of Clients, scale) of a federation."""
    whole, (x, _, _, image) = made.whole(), intake(data)
    members = ClientList(x, whole.client_offsets, whole.client_indices, whole.given, whole.classes, Inputs(image))
    clients, scale = [quick.take(members, k) for k in range(len(members))], None
    if data.kind == "vector":
        moments = [{name: values.numpy() for name, values in reply_moments(c, None, {}).items()} for c in clients]
        scale = summaries.scale_of(*pool_moments(Moments(m["known"], m["total"], m["squares"]) for m in moments))
    return clients, scale


def compare(made, data):
    """Return {classifier: (accuracy on true labels, AUC of wrong labels or NaN)} of a federation."""
    from sklearn.metrics import roc_auc_score

    clients, scale = sites_of(made, data)
    true = [torch.from_numpy(np.asarray(data.y_train)[part]).long() for part in made.clients]
    right = [replace(c, y=y.clone(), given=y) for c, y in zip(clients, true, strict=True)]
    points = [summaries.features(client, scale) for client in clients]
    out = {}
    for name, classify in CLASSIFIERS.items():
        senders = right if name == "sums of true labels" else clients
        heads = summaries.make_heads([summaries.summarize(client, scale) for client in senders], scale, classify)
        accuracy, auc = [], []
        for k, (client, y, z) in enumerate(zip(clients, true, points, strict=True)):
            size = int(heads["sizes"][k])
            p = softmax(z[:, :size] @ heads["coefficients"][k, :, :size].T + heads["offsets"][k])
            wrong, given = (client.y != y).numpy(), client.y.numpy()
            accuracy.append((p.argmax(1) == y.numpy()).mean())
            if 5 <= wrong.sum() < len(wrong):
                auc.append(roc_auc_score(wrong, -p[np.arange(len(p)), given]))
        out[name] = np.mean(accuracy), np.mean(auc) if auc else np.nan
    return out


def lines(title, federations):
    """Yield the lines of a group of federations."""
    rows = [compare(*one) for one in federations]
    yield f"{title}, {len(rows)} federations: accuracy in %, AUC"
    for name in CLASSIFIERS:
        accuracy, auc = (np.array([row[name][i] for row in rows]) for i in (0, 1))
        auc = auc[~np.isnan(auc)]
        yield f"  {name:36} {100 * accuracy.mean():6.2f}  {f'{auc.mean():.4f}' if len(auc) else '     -'}"


def levels_by_group(samples, contradicted, classes):
    """Return (level, standard deviation) (N,) of the share of wrong labels from counts (N, G) by score group."""
    rates, out = contradicted.sum(1) / np.maximum(samples.sum(1), 1), []
    for k in range(len(samples)):
        others = np.delete(np.arange(len(samples)), k)
        others = np.delete(others, rates[others].argmax())
        reference = (contradicted[others].sum(0) + 0.5) / (samples[others].sum(0) + 1)
        skill = np.maximum(1 - reference * classes / (classes - 1), 1e-3)
        n = np.maximum(samples[k], 1)
        variance = np.maximum(contradicted[k], 1) / n**2 + reference / np.maximum(samples[others].sum(0), 1)
        weights = np.where(samples[k] >= rounding.STEP, skill**2 / variance, 0)
        level = (weights * (contradicted[k] / n - reference) / skill).sum() / max(weights.sum(), 1e-9)
        out.append((np.clip(level, 0, 1), max(weights.sum(), 1e-9) ** -0.5))
    return np.array(out).T


def judge_by_group(made, data, seed):
    """Return rows (true share, row of the audit, {counts: (level, standard deviation)}) of the sites."""
    clients, scale = sites_of(made, data)
    heads = summaries.make_heads([summaries.summarize(client, scale) for client in clients], scale)
    counts = []
    for k, client in enumerate(clients):
        size = int(heads["sizes"][k])
        z = summaries.features(client, scale)[:, :size]
        p = softmax(z @ heads["coefficients"][k, :, :size].T + heads["offsets"][k])
        group, wrong = np.digitize(p.max(1), GROUPS), p.argmax(1) != client.y.numpy()
        counts.append([np.bincount(group[mask], minlength=len(GROUPS) + 1) for mask in (wrong | True, wrong)])
    samples, contradicted = np.array(counts).transpose(1, 0, 2)
    kinds = {"exact": (samples, contradicted), "rounded": (rounding.round_counts(samples), rounding.round_counts(contradicted))}
    found = {name: levels_by_group(*each, data.classes) for name, each in kinds.items()}
    rows = {row.client: row for row in quick.quick_audit(made, data, seed=seed).sites}
    true = [float((made.given[part] != data.y_train[part]).mean()) for part in made.clients]
    return [(true[k], rows[k], {name: pair[:, k] for name, pair in found.items()}) for k in range(len(clients))]


def group_lines(first):
    """Yield the lines of `--groups`."""
    rows = []
    for i, (kind, shift, noise) in enumerate(shifts.COMBINATIONS):
        rows += judge_by_group(*shifts.federation(kind, shift, noise, bool(i % 2), first + i), first + i)
    rows = [row for row in rows if row[1].level is not None and not row[1].inputs.differ]
    yield "share of wrong labels in points: mean error, width of the range, sites whose range contains it"
    for title, noisy in (("clean", False), ("noisy", True)):
        part = [row for row in rows if (row[0] > 0) == noisy]
        true = np.array([row[0] for row in part])
        audit = np.array([[row[1].level, row[1].low, row[1].high] for row in part]).T
        yield line_of(f"{len(part)} {title} sites, audit", true, *audit)
        for name in ("exact", "rounded"):
            level, deviation = np.array([row[2][name] for row in part]).T
            ends = np.maximum(level - NORMAL * deviation, 0), level + NORMAL * deviation
            yield line_of(f"{len(part)} {title} sites, score groups, {name}", true, level, *ends)


def line_of(title, true, level, low, high):
    inside = (low - 1e-9 <= true) & (true <= high + 1e-9)
    error, width = 100 * np.abs(level - true).mean(), 100 * (high - low).mean()
    return f"{title:42} {error:5.2f}  {width:5.2f}  {100 * inside.mean():5.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--first", type=int, default=100, help="first seed")
    parser.add_argument("--groups", action="store_true", help="shares of wrong labels from counts by score group")
    options = parser.parse_args()
    first = options.first
    torch.set_num_threads(1)
    if options.groups:
        print("\n".join(group_lines(first)))
        return
    groups = {}
    for i, (kind, shift, noise) in enumerate(shifts.COMBINATIONS):
        groups.setdefault(f"shifts, {kind}, {noise}", []).append(shifts.federation(kind, shift, noise, bool(i % 2), first + i))
    groups |= {name: [table(name, first + i) for i in range(10)] for name in TABLES}
    for title, federations in groups.items():
        print("\n".join(lines(title, federations)), flush=True)


if __name__ == "__main__":
    main()
