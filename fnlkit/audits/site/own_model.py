"""Model of a site itself: predictions of each label without the sample and its group, for the ranking and as a second opinion.

Models are compared on the site's labels: shrunken discriminant analysis, whose cross-validation needs no second pass over the
samples; the vote of the nearest other samples; and, for tables, boosted trees and logistic regression of scikit-learn.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fnlkit.audits.site.samples import Samples
from fnlkit.evidence.gaussian import discriminant, softmax
from fnlkit.kernels.streams import stream

FOLDS = 5
# Neighbors that vote, and prior counts of the class shares; larger sites are not searched for a vote.
NEIGHBORS, PRIOR, MOST_VOTING = 10, 0.5, 10_000
# Trees and regressions are trained on at most this many cells of a table (samples x columns x classes) in each fold.
MOST_CELLS, TREES = 400_000, 50
# Inverse strength of the regularization of logistic regression, on columns with standard deviation 1.
PENALTY = 0.01


def most_neighbors(size: int, classes: int) -> int:
    """Number of neighbors of each sample that are needed: 0 at a site that is not searched."""
    return 0 if size > MOST_VOTING else max(NEIGHBORS, voters(size, classes))


def voters(size: int, classes: int) -> int:
    """Number of neighbors of the detector `knn`: 0.6 times the samples per class, from 5 to 20."""
    return int(np.clip(np.rint(0.6 * size / classes), 5, 20))


def cross_fitted(
    points: np.ndarray,
    labels: np.ndarray,
    classes: int,
    rng: np.random.Generator,
    *,
    groups: np.ndarray | None = None,
    near: np.ndarray | None = None,
    table: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Predict probabilities (n, C) by each model, without the sample itself or its group.

    Parameters
    ----------
    points : (n, D)
    labels : int (n,)
    classes : int
    rng : numpy.random.Generator
    groups : int (n,), optional
    near : int (n, k), optional
        Nearest other samples. Default: no votes.
    table : (n, d), optional
        Columns for boosted trees and logistic regression. Default: neither.
    """
    points, held = standardize(points), np.bincount(labels, minlength=classes) / len(labels)
    if not points.shape[1] or len(labels) < 2 * FOLDS:
        return [np.tile(held, (len(labels), 1))]
    fold = folds_of(len(labels), groups, rng)
    tried = [predict_by_sums(points, labels, classes, fold)]
    if near is not None and near.shape[1]:
        tried.append(predict_by_votes(labels, classes, near[:, :NEIGHBORS], groups))
    if table is not None and table.size * classes <= MOST_CELLS:
        tried.append(predict_by_folds(table, labels, classes, fold, _trees(int(rng.integers(2**31)))))
        tried.append(predict_by_folds(standardize(table), labels, classes, fold, _regression()))
    return tried


def best_of(models: Sequence[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Choose the probabilities (n, C) of the model that predicts most labels (n,)."""
    return models[int(np.argmax([(p.argmax(1) == labels).sum() for p in models]))]


def detect(name: str, samples: Samples, points: np.ndarray, p: np.ndarray, near: np.ndarray | None, seed: int) -> np.ndarray:
    """Select labels (n,) that a detector of fnlkit.estimators.DETECTORS flags; none if it needs neighbors that are unknown.

    Parameters
    ----------
    name : str
    samples : Samples
    points : (n, D)
    p : (n, C)
        Probabilities of the classifier of the other sites.
    near : int (n, k) or None
        Nearest other samples.
    seed : int
    """
    labels, classes = samples.y, samples.classes
    if name == "confident":
        held = np.bincount(labels, minlength=classes)
        limits = np.bincount(labels, p[np.arange(len(p)), labels], classes) / np.maximum(held, 1)
        sure = np.where((p >= np.maximum(limits, 1e-9)) & (held > 0), p, -1)
        return (sure.max(1) >= 0) & (sure.argmax(1) != labels)
    if name == "aum":
        from fnlkit.estimators.aum import margins

        margin, guess, _ = margins(points, labels, classes, stream(seed, "aum", client=samples.number), groups=samples.groups)
        return (margin < 0) & (guess != labels)
    if near is None or not near.shape[1]:
        return np.zeros(len(labels), bool)
    counts = _votes(labels, classes, near[:, : voters(len(labels), classes)], samples.groups)
    return counts.max(1) > counts[np.arange(len(labels)), labels]


def _votes(labels, classes, near, groups):
    """Count the nearest other samples (n, C) by class, without those of the same group."""
    votes = np.eye(classes)[labels[near]]
    return (votes if groups is None else votes * (groups[near] != groups[:, None])[..., None]).sum(1)


def folds_of(size: int, groups: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Assign each sample (n,) to a fold; groups are not divided."""
    group = np.arange(size) if groups is None else np.unique(groups, return_inverse=True)[1]
    return (rng.permutation(int(group.max()) + 1) % FOLDS)[group]


def standardize(points: np.ndarray) -> np.ndarray:
    """Scale points (n, D) to standard deviation 1, without constant columns."""
    spread = points.std(0)
    return (points - points.mean(0))[:, spread > 1e-12] / spread[spread > 1e-12]


def predict_by_sums(points: np.ndarray, labels: np.ndarray, classes: int, fold: np.ndarray) -> np.ndarray:
    """Predict probabilities (n, C) by discriminant analysis of the other folds, from sums by fold."""
    one_hot = np.eye(classes)[labels]
    parts = [np.flatnonzero(fold == each) for each in range(FOLDS)]
    counts = np.stack([one_hot[part].sum(0) for part in parts])
    sums = np.stack([one_hot[part].T @ points[part] for part in parts])
    moments = np.stack([points[part].T @ points[part] for part in parts])
    predicted = np.empty((len(labels), classes))
    for k, part in enumerate(parts):
        if len(part):
            coefficients, offsets = discriminant(*(values.sum(0) - values[k] for values in (counts, sums, moments)))
            predicted[part] = softmax(points[part] @ coefficients.T + offsets)
    return predicted


def predict_by_votes(labels: np.ndarray, classes: int, near: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Predict probabilities (n, C) by the votes of the nearest other samples (n, k) of other groups."""
    shares = np.bincount(labels, minlength=classes) / len(labels)
    counts = _votes(labels, classes, near, groups) + PRIOR * shares
    return counts / counts.sum(1, keepdims=True)


def predict_by_folds(points: np.ndarray, labels: np.ndarray, classes: int, fold: np.ndarray, model: Any) -> np.ndarray:
    """Predict probabilities (n, C) by a classifier of scikit-learn that is trained on the other folds."""
    import threadpoolctl

    predicted = np.tile(np.bincount(labels, minlength=classes) / len(labels), (len(labels), 1))
    # Beside a busy process, two threads of OpenMP that wait for each other take a hundred times the CPU seconds of the trees.
    with threadpoolctl.threadpool_limits(1, "openmp"):
        for each in range(FOLDS):
            here, there = fold == each, np.flatnonzero(fold != each)
            if not here.any() or not points.shape[1] or len(np.unique(labels[there])) < 2:
                continue
            model.fit(points[there], labels[there])
            predicted[here] = 0
            predicted[np.ix_(here, model.classes_)] = model.predict_proba(points[here])
    return predicted


def _trees(seed):
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        max_iter=TREES, learning_rate=0.1, max_leaf_nodes=8, min_samples_leaf=10, l2_regularization=1.0,
        early_stopping=False, random_state=seed,
    )  # fmt: skip


def _regression():
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=PENALTY, max_iter=300)
