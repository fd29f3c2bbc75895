"""Find sites whose inputs differ, from their statistics.

Wrong labels do not change inputs.  Each site describes its inputs by the means of a few features for each given label and
by their covariance.  Two sites are compared without trusting labels: if only the class shares differ, the mean of a site is
a mixture of the other site's class means for some shares.  The distance to the nearest mixture is the difference.  It is
expressed as the area under the ROC curve (AUC) of the linear classifier that recognizes the site: 0.5 for equal inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import chdtri, ndtr

from fnlkit.audits.changes import Change
from fnlkit.audits.messages import LEAST, classes_to_describe
from fnlkit.audits.records import ColumnDifference, InputDifference
from fnlkit.kernels.streams import stream

# Sites that a linear classifier recognizes with at least this AUC have different inputs.
DIFFERENT = 0.75
# A test of a difference needs a p-value below this.
SIGNIFICANT = 1e-3
# Sites are compared with at least this many samples of classes that both describe, and with at most this many other sites.
LEAST_COMPARED, MOST_COMPARED = 8, 30


@dataclass
class Compared:
    """Differences of the sites' inputs.

    Attributes
    ----------
    changes : sequence of Change
        The first one changes nothing.
    auc : (N, changes)
        For each site and change, the median over the other sites (the lower one) of the AUC.
    columns : list of list of ColumnDifference
        For each site the columns that differ.
    """

    changes: Sequence[Change]
    auc: np.ndarray
    columns: list[list[ColumnDifference]]

    @property
    def differ(self) -> np.ndarray:
        """Mask (N,) of sites with different inputs."""
        return (self.auc[:, 0] >= DIFFERENT) | np.array([bool(found) for found in self.columns])

    @property
    def common(self) -> bool:
        """Whether most sites differ: then no site is the reference, and a difference can have any cause."""
        return bool(self.differ.sum() > (len(self.auc) - 1) / 2)

    def likely(self, k: int) -> int:
        """Number of the change with the smallest remaining difference of site k; 0 if none is clearly smaller."""
        order = [int(t) for t in np.argsort(self.auc[k], kind="stable") if t and self.auc[k, t] < self.auc[k, 0] - 0.02]
        return order[0] if order else 0

    def after(self, chosen: np.ndarray) -> np.ndarray:
        """AUC (N,) of each site after the chosen change (N,); 1 if a difference of columns is not undone."""
        auc = self.auc[np.arange(len(self.auc)), chosen].copy()
        for k, columns in enumerate(self.columns):
            # The values of a constant column cannot be restored.
            if columns and (not chosen[k] or any(one.kind == "missing" for one in columns)):
                auc[k] = 1.0
        return auc

    def at(self, k: int, chosen: np.ndarray, names: list[str] | None = None) -> InputDifference:
        """Finding about the inputs of site k.

        Parameters
        ----------
        k : int
        chosen : int (N,)
        names : list of str, optional
            Names of the columns.
        """
        names = names or []
        columns = [replace(one, name=str(names[one.column] if one.column < len(names) else one.column))
                   for one in self.columns[k]]  # fmt: skip
        after, change = float(self.after(chosen)[k]), self.changes[chosen[k]]
        differ = bool(self.differ[k] or change)
        return InputDifference(
            differ=differ,
            common=self.common,
            auc=float(self.auc[k, 0]),
            auc_after=after,
            columns=columns,
            undone=differ and bool(change) and after < DIFFERENT,
            equal_features=False,
            words=change.words,
        )


@dataclass
class Encoded(Compared):
    """Differences of the samples and of their embeddings, by which the models judge.

    Differences of the samples are named, but not undone, because the embeddings are fixed.

    Attributes
    ----------
    embedding_auc : (N,)
        As `auc`, of the embeddings.
    """

    embedding_auc: np.ndarray

    @property
    def differ(self) -> np.ndarray:
        """Mask (N,) of sites with different samples or embeddings."""
        return super().differ | (self.embedding_auc >= DIFFERENT)

    def after(self, chosen: np.ndarray) -> np.ndarray:
        """AUC (N,) of the embeddings."""
        return self.embedding_auc

    def at(self, k: int, chosen: np.ndarray, names: list[str] | None = None) -> InputDifference:
        """Finding about the inputs of site k, as `Compared.at` does; the change that fits best names it."""
        compared = super().at(k, np.zeros(len(self.auc), int), names)
        likely = self.likely(k)
        words = self.changes[likely].words if self.auc[k, likely] < DIFFERENT <= self.auc[k, 0] else []
        auc, equal = max(compared.auc, float(self.embedding_auc[k])), bool(self.embedding_auc[k] < DIFFERENT)
        return replace(compared, auc=auc, undone=False, equal_features=compared.differ and equal, words=words)


def fill_missing(statistics: np.ndarray, counts: np.ndarray, least: int = LEAST) -> np.ndarray:
    """Fill statistics (N, ...) of sites with fewer than `least` samples, which send zeros, with the others' median.

    Parameters
    ----------
    statistics : (N, ...)
    counts : int (N, C)
    least : int
    """
    enough = counts.sum(1) >= least
    filled = np.array(statistics)
    if enough.any():
        filled[~enough] = np.median(filled[enough], 0)
    return filled


def compare_inputs(replies: dict[str, Any], counts: np.ndarray, changes: Sequence[Sequence[int]]) -> np.ndarray:
    """AUC (N, T) of each site's inputs under some changes against the unchanged inputs of the others.

    Of more than `MOST_COMPARED` other sites, the same random ones are compared with each site.  Changes that are not compared
    have the AUC of no change.

    Parameters
    ----------
    replies : dict
        class_means (N, T, C, D), covariances (N, T, D, D).
    counts : (N, C)
    changes : sequence of N sequences of int
        Numbers of the changes to compare at each site, the first of which is 0.
    """
    means, within = np.asarray(replies["class_means"]), np.asarray(replies["covariances"])
    sites = len(means)
    auc = np.full((sites, means.shape[1]), 0.5)
    large = np.array([c[classes_to_describe(c)].sum() >= LEAST_COMPARED for c in counts], bool)
    order = (
        stream(0, "compared").permutation(np.flatnonzero(large)) if large.sum() > MOST_COMPARED + 1 else np.flatnonzero(large)
    )
    for k in np.flatnonzero(large).tolist():
        others = [j for j in order if j != k][:MOST_COMPARED]
        for t in dict.fromkeys(changes[k]):
            pairs = [_auc(means[k, t], within[k, t], counts[k], means[j, 0], within[j, 0], counts[j]) for j in others]
            pairs = sorted(value for value in pairs if value is not None)
            if pairs:
                auc[k, t] = pairs[(len(pairs) - 1) // 2]
        auc[k, [t for t in range(auc.shape[1]) if t not in changes[k]]] = auc[k, 0]
    return auc


def _auc(mine, own_within, own_counts, other, other_within, other_counts):
    """AUC of the linear classifier between two sites, for the class shares that make the sites most alike.

    None if they share no class. A difference that is not significant counts as 0.5.
    """
    shared = classes_to_describe(own_counts) & classes_to_describe(other_counts)
    n, m = own_counts[shared].sum(), other_counts[shared].sum()
    if not shared.any() or min(n, m) < LEAST_COMPARED:
        return None
    shares, others = own_counts[shared] / n, other_counts[shared] / m
    mine, other = mine[shared], other[shared]
    mean = shares @ mine
    total = own_within + (mine - mean).T @ ((mine - mean) * shares[:, None])
    center = others @ other
    reference = other_within + (other - center).T @ ((other - center) * others[:, None])
    root = np.linalg.cholesky(np.linalg.inv(_regularize((total + reference) / 2)))
    targets, points = root.T @ mean, root.T @ other.T
    size, limit = len(mean), chdtri(len(mean), SIGNIFICANT)
    # The given labels have these shares, and wrong labels change them little: most sites need no search.
    for find in (lambda: shares, lambda: _nearest_mixture(points, targets)):
        mixture = find()
        squared = float(((points @ mixture - targets) ** 2).sum())
        error = 1 / n + float((mixture**2 / other_counts[shared]).sum())
        if squared / error < limit:
            return 0.5
    squared = max(0.0, squared * max(0.1, 1 - size / (n + m)) - size * error)
    return float(ndtr(np.sqrt(squared / 2)))


def _regularize(covariance):
    return covariance + np.diag(1e-4 * np.diag(covariance) + 1e-12)


def is_covariance(matrix: np.ndarray) -> bool:
    """Whether a matrix (D, D) is symmetric and, but for rounding, positive semidefinite."""
    try:
        np.linalg.cholesky(_regularize(matrix))
    except np.linalg.LinAlgError:
        return False
    return np.allclose(matrix, matrix.T)


def _nearest_mixture(points, target):
    """Find weights (C,), at least 0 with the sum 1, of the columns of points (D, C) whose mixture is nearest to target."""
    from scipy.optimize import nnls

    heavy = 1e3 * max(1.0, np.abs(points).max())
    rows = np.vstack([points, np.full(points.shape[1], heavy)])
    return nnls(rows, np.append(target, heavy), maxiter=max(1000, 10 * points.shape[1]))[0]
