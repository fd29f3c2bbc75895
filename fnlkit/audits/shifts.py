"""Find sites whose inputs differ, from declared statistics, and changes of the inputs that undo the difference.

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

from fnlkit.audits.records import ColumnDifference, InputDifference
from fnlkit.audits.samples import BLOCK, LEAST, Samples, plain
from fnlkit.core.declarations import Sent
from fnlkit.kernels.streams import stream

# Sites that a linear classifier recognizes with at least this AUC have different inputs.
DIFFERENT = 0.75
# A test of a difference needs a p-value below this.
SIGNIFICANT = 1e-3
# A site describes its columns only with at least this many samples, and each quantile is the mean of LEAST neighboring values.
LEAST_COLUMNS = 20
# Sites are compared with at least this many samples of classes that both describe, and with at most this many other sites.
LEAST_COMPARED, MOST_COMPARED = 8, 30
# Columns beyond this number are not compared one by one.
MOST_COLUMNS = 4096
# Of more pixels than this, only every k-th is used for their mean, deviation and quantiles.
MOST_VALUES = 10**6
# Values of columns are clipped to this many spreads from the center.
CLIPPED = 5
# Images are described by their means in GRID x GRID squares, vectors by at most MOST_FEATURES columns or projections.
GRID, MOST_FEATURES = 4, 16
# Of vectors with more columns, at most this many columns that seem to differ are described beside the projections.
MOST_SUSPECTS = 8
TURNS = {"": "", "mirrored": "h", "upside down": "v", "rotated by 180 degrees": "hv", "rotated by 90 degrees": "r",
         "rotated by 270 degrees": "rhv"}  # fmt: skip
TONES = {"": 0, "intensities look inverted": -1, "contrast or brightness differs": 1}
LIMIT: dict[str, Any] = {"low": -1e30, "high": 1e30}
SENDS = {
    "columns": Sent("mean, standard deviation, 10, 50 and 90 % quantile by column, of 20 samples or more, each quantile a mean "
                    "of 5 values; images: of all pixels", "once", (5, "columns"), **LIMIT),
    "class_columns": Sent("mean and standard deviation by given label (5 samples or more) and column; images: none", "once",
                          (2, "C", "columns"), **LIMIT),
    "class_means": Sent("means of a coarse description of the inputs by possible change and given label (5 samples or more)",
                        "once", ("changes", "C", "features"), **LIMIT),
    "covariances": Sent("covariances of this description within the given labels, by possible change", "once",
                        ("changes", "features", "features"), **LIMIT),
}  # fmt: skip


@dataclass
class Change:
    """A change of a site's inputs, to make them like those of the other sites.

    Attributes
    ----------
    turn : str
        A key of TURNS; vectors have none.
    tone : str
        A key of TONES; of vectors, "columns" replaces the differing columns.
    """

    turn: str = ""
    tone: str = ""

    def __bool__(self):
        return bool(self.turn or self.tone)

    @property
    def words(self) -> list[Any]:
        """The difference of the inputs that the change undoes, as a list of texts."""
        turn = f"images look {self.turn}" if self.turn else ""
        return [text for text in (self.tone if self.tone != "columns" else "", turn) if text]


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
        """Return the number of the change with the smallest remaining difference of site k; 0 if none is clearly smaller."""
        order = [int(t) for t in np.argsort(self.auc[k], kind="stable") if t and self.auc[k, t] < self.auc[k, 0] - 0.02]
        return order[0] if order else 0

    def after(self, chosen: np.ndarray) -> np.ndarray:
        """Return the AUC (N,) of each site after the chosen change (N,); 1 if a difference of columns is not undone."""
        found = self.auc[np.arange(len(self.auc)), chosen].copy()
        for k, columns in enumerate(self.columns):
            # The values of a constant column cannot be restored.
            if columns and (not chosen[k] or any(one.kind == "missing" for one in columns)):
                found[k] = 1.0
        return found

    def at(self, k: int, chosen: np.ndarray, names: list[str] | None = None) -> InputDifference:
        """Return the finding about the inputs of site k.

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
        """Return the AUC (N,) of the embeddings."""
        return self.embedding_auc

    def at(self, k: int, chosen: np.ndarray, names: list[str] | None = None) -> InputDifference:
        """Return the finding about the inputs of site k, as `Compared.at` does; the change that fits best names it."""
        out = super().at(k, np.zeros(len(self.auc), int), names)
        likely = self.likely(k)
        words = self.changes[likely].words if self.auc[k, likely] < DIFFERENT <= self.auc[k, 0] else []
        auc, equal = max(out.auc, float(self.embedding_auc[k])), bool(self.embedding_auc[k] < DIFFERENT)
        return replace(out, auc=auc, undone=False, equal_features=out.differ and equal, words=words)


# ---- at the site
def describe_columns(samples: Samples) -> dict[str, np.ndarray]:
    """Return statistics of each column, overall (`columns`) and by given label (`class_columns`)."""
    labels, x = samples.y, samples.x
    if x.ndim != 2 or x.shape[1] > MOST_COLUMNS:
        every = max(1, x.size // MOST_VALUES)
        values = plain(x.reshape(-1)[::every]).astype(np.float64)[:, None]
        by_class = np.zeros((2, samples.classes, 0))
    else:
        values = x.astype(np.float64)
        by_class = np.zeros((2, samples.classes, values.shape[1]))
        for c in _classes_to_describe(samples):
            part = values[labels == c]
            by_class[:, c] = part.mean(0), part.std(0)
    found = np.zeros((5, values.shape[1]))
    if len(labels) >= LEAST_COLUMNS:
        found = np.concatenate([[values.mean(0), values.std(0)], _quantiles(values)])
    return {"columns": found, "class_columns": by_class}


def describe_inputs(
    samples: Samples, message: dict[str, np.ndarray], *, changes: Sequence[Change], width: int, seed: int
) -> dict[str, np.ndarray]:
    """Return class means and covariances of a coarse description of the inputs under each change.

    Parameters
    ----------
    samples : Samples
    message : dict of arrays
        center (2, d), suspects, tone (2,) and fits (2, d) of `fnlkit.audits.summaries.make_heads`.
    changes : list of Change
    width : int
        Largest number of features; more are projected.
    seed : int
    """
    labels = samples.y
    features = describe(samples, message, changes)
    size = features[0].shape[1]
    if size > width:
        # The same projection at every site: with few samples, a covariance of many features cannot be inverted.
        projection = stream(seed, "shifts").standard_normal((size, width)) / np.sqrt(size)
        features = [part @ projection for part in features]
    means = np.zeros((len(features), samples.classes, features[0].shape[1]))
    classes = _classes_to_describe(samples)
    for c in classes:
        here = labels == c
        means[:, c] = [part[here].mean(0) for part in features]
    used = np.isin(labels, classes)
    within = [(part - means[t][labels])[used] for t, part in enumerate(features)]
    covariances = np.stack([part.T @ part / max(1, used.sum()) for part in within])
    return {"class_means": means, "covariances": covariances}


def _quantiles(values):
    """Return the 10, 50 and 90 % quantiles (3, d) of values (n, d), each the mean of LEAST neighboring order statistics."""
    places = np.round((len(values) - 1) * np.array([0.1, 0.5, 0.9])).astype(int) - LEAST // 2
    ordered = np.sort(values, 0)
    return np.stack([ordered[place : place + LEAST].mean(0) for place in places])


def _classes_to_describe(samples):
    """Return the classes that a site describes."""
    return np.flatnonzero(classes_to_describe(np.bincount(samples.y, minlength=samples.classes)))


def classes_to_describe(counts: np.ndarray) -> np.ndarray:
    """Return the mask (..., C) of classes that a site with these numbers of samples describes.

    Each has at least LEAST samples.  If 1 to LEAST - 1 samples remain, the smallest of these classes is left out as well:
    totals over all samples, such as the moments of a training, minus the classes would describe the remaining samples.

    Parameters
    ----------
    counts : int (..., C)

    Examples
    --------
    >>> from fnlkit.audits.shifts import classes_to_describe
    >>> classes_to_describe([[30, 8, 1], [30, 8, 0], [30, 4, 3]]).tolist()
    [[True, False, False], [True, True, False], [True, False, False]]
    """
    counts = np.asarray(counts)
    out = counts >= LEAST
    rest = np.where(out, 0, counts).sum(-1)
    smallest = np.where(out, counts, np.iinfo(np.int64).max).argmin(-1)[..., None]
    few = ((rest > 0) & (rest < LEAST))[..., None] & (np.arange(counts.shape[-1]) == smallest)
    return out & ~few


def size_of_description(samples: Samples, width: int) -> int:
    """Return the number of features of `describe_inputs`."""
    if samples.image:
        return min(width, 2 * GRID**2 + 2)
    values = int(np.prod(samples.x.shape[1:]))
    return min(width, 2 * min(values, MOST_FEATURES))


def describe(samples: Samples, message: dict[str, np.ndarray], changes: Sequence[Change]) -> list[np.ndarray]:
    """Return the coarse features (n, D) of samples under each change; see `describe_inputs`."""
    if not samples.image:
        x = plain(samples.x)
        center, spread = message["center"]
        fitted = _rescale(x, message["fits"])
        suspects = message["suspects"]
        return [_vector(fitted if change.tone else x, center, spread, suspects) for change in changes]
    blocks = [_parts_of(plain(samples.x[start : start + BLOCK])) for start in range(0, len(samples), BLOCK)]
    squares, spread, edges, _ = (np.concatenate(part) for part in zip(*blocks, strict=True))
    own, out = tone_of(samples), []
    for change in changes:
        factor, offset = _tone(change, own, message["tone"])
        turned = _turn((factor * squares + offset)[..., None], change).reshape(len(squares), -1)
        out.append(np.column_stack([turned, turned**2, abs(factor) * spread, abs(factor) * edges]).astype(np.float64))
    return out


def tone_of(samples: Samples) -> tuple[float, float]:
    """Return mean and standard deviation of all pixels of images."""
    sums = [_parts_of(plain(samples.x[start : start + BLOCK]))[3] for start in range(0, len(samples), BLOCK)]
    mean, square = np.concatenate(sums).mean(0)
    return float(mean), max(float(np.sqrt(max(0.0, square - mean**2))), 1e-9)


def _parts_of(x):
    """Return (means in squares (n, GRID, GRID), deviation (n,), contrast of neighbors (n,), mean and mean square (n, 2))."""
    gray = x.mean(-1)
    cuts = [np.linspace(0, side, GRID + 1).astype(int) for side in gray.shape[1:]]
    rows, columns = ([slice(a, max(b, a + 1)) for a, b in zip(cut[:-1], cut[1:], strict=True)] for cut in cuts)
    squares = np.stack([np.stack([gray[:, a, b].mean((1, 2)) for b in columns], 1) for a in rows], 1)
    edges = np.zeros(len(x), np.float32)
    for side in (1, 2):
        if gray.shape[side] > 1:
            edges = edges + np.abs(np.diff(gray, axis=side)).mean((1, 2))
    wide = x.astype(np.float64)
    return squares, gray.std((1, 2)), edges, np.stack([wide.mean((1, 2, 3)), (wide**2).mean((1, 2, 3))], 1)


def _vector(x, center, spread, suspects=()):
    """Return columns or, of many columns, the suspects and random projections of all; with their squares."""
    x = x.reshape(len(x), -1).astype(np.float64)
    z = np.clip((x - center) / spread, -CLIPPED, CLIPPED) if x.shape[1] == len(center) else x
    if z.shape[1] > MOST_FEATURES:
        single = z[:, [j for j in suspects if j >= 0]]
        size = MOST_FEATURES - single.shape[1]
        z = np.hstack([single, z @ stream(0, "shifts").standard_normal((z.shape[1], size)) / np.sqrt(z.shape[1])])
    return np.concatenate([z, z**2], 1)


def apply_change(samples: Samples, change: Change, message: dict[str, np.ndarray]) -> np.ndarray:
    """Return the samples (n, ...) after a change, scaled as by `fnlkit.audits.samples.plain`."""
    x = plain(samples.x)
    if not samples.image:
        return _rescale(x, message["fits"])
    factor, offset = _tone(change, tone_of(samples), message["tone"])
    return np.ascontiguousarray(_turn(x * np.float32(factor) + np.float32(offset), change))


def _rescale(x, fits):
    return (x.astype(np.float64) * fits[0] + fits[1]).astype(np.float32) if x.ndim == 2 else x


def _tone(change, own, reference):
    """Return (factor, offset) that give the pixels the mean and the standard deviation of the reference."""
    sign = TONES[change.tone]
    factor = sign * reference[1] / own[1] if sign else 1.0
    return factor, reference[0] - factor * own[0] if sign else 0.0


def _turn(x, change):
    """Return images (n, H, W, channels) mirrored or rotated."""
    for move in TURNS[change.turn]:
        x = {"h": lambda x: x[:, :, ::-1], "v": lambda x: x[:, ::-1], "r": lambda x: x.swapaxes(1, 2)[:, :, ::-1]}[move](x)
    return x


# ---- the server
def possible(kind: str, shape: Sequence[int]) -> list[Change]:
    """Return the changes to compare for samples of a kind and a shape (H, W, channels), simplest first."""
    if kind != "image":
        return [Change(), Change(tone="columns")] if kind == "vector" else [Change()]
    turns = [turn for turn, moves in TURNS.items() if "r" not in moves or shape[0] == shape[1]]
    found = [Change(turn, tone) for tone in TONES for turn in turns]
    return sorted(found, key=lambda change: bool(change.turn) + bool(change.tone))


def fill_missing(statistics: np.ndarray, counts: np.ndarray, least: int = LEAST) -> np.ndarray:
    """Return statistics (N, ...) where sites with fewer than `least` samples, which send zeros, have the others' median.

    Parameters
    ----------
    statistics : (N, ...)
    counts : int (N, C)
    least : int
    """
    enough = counts.sum(1) >= least
    out = np.array(statistics)
    if enough.any():
        out[~enough] = np.median(out[enough], 0)
    return out


def compare_inputs(replies: dict[str, Any], counts: np.ndarray, changes: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the AUC (N, T) of each site's inputs under some changes against the unchanged inputs of the others.

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
    """Return the AUC of the linear classifier between two sites, for the class shares that make the sites most alike.

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
    both = (total + reference) / 2
    both[np.diag_indices(len(both))] += 1e-4 * np.diag(both) + 1e-12
    root = np.linalg.cholesky(np.linalg.inv(both))
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


def _nearest_mixture(points, target):
    """Return weights (C,), at least 0 with the sum 1, of the columns of points (D, C) with the mixture nearest to target."""
    from scipy.optimize import nnls

    heavy = 1e3 * max(1.0, np.abs(points).max())
    rows = np.vstack([points, np.full(points.shape[1], heavy)])
    return nnls(rows, np.append(target, heavy), maxiter=max(1000, 10 * points.shape[1]))[0]
