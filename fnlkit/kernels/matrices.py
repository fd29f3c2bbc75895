"""Transition matrices T[true, given] with rows that sum to 1: construction and sampling."""

import numpy as np

from fnlkit.core.errors import InputError, list_names

# Published class-dependent maps, true -> given.
MAPS = {
    # truck -> automobile, bird -> airplane, deer -> horse, cat <-> dog (Patrini 2017)
    "cifar10": {9: 1, 2: 0, 4: 7, 3: 5, 5: 3},
    # 2 -> 7, 3 -> 8, 5 <-> 6, 7 -> 1 (Patrini 2017)
    "mnist": {2: 7, 3: 8, 5: 6, 6: 5, 7: 1},
    # ankle boot -> sneaker, sneaker -> sandal, pullover -> shirt, coat <-> dress (Zhang and Sabuncu 2018)
    "fashion-mnist": {9: 7, 7: 5, 2: 6, 4: 3, 3: 4},
}
MAPS["digits"] = MAPS["mnist"]
# Superclass of each of the 100 classes in alphabetical order (Krizhevsky 2009).
CIFAR100_SUPERCLASS = (
    [4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7]
    + [6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10]
    + [16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16]
    + [12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13]
)  # fmt: skip
TRIES = 10_000


def class_map(name: str, classes: int) -> np.ndarray:
    """Published map of a data set, (C,) int64: the class with which each class is confused, or the class itself.

    Parameters
    ----------
    name : str
        ``cifar10``, ``mnist``, ``fashion-mnist`` or ``digits``. ``cifar100`` maps each class to the next class of the
        superclass and the last class to the first.
    classes : int
    """
    targets = np.arange(classes)
    if name == "cifar100":
        size = 100
        superclass = np.array(CIFAR100_SUPERCLASS)
        for group in range(20):
            members = np.flatnonzero(superclass == group)
            if classes == size:
                targets[members] = np.roll(members, -1)
    elif name in MAPS:
        size = 10
        if classes == size:
            for true, given in MAPS[name].items():
                targets[true] = given
    else:
        raise InputError(f"no published class map for {name!r}; write map=NAME, one of: {list_names([*MAPS, 'cifar100'])}")
    if classes != size:
        raise InputError(f"the class map of {name} is for {size} classes, here are {classes}; write another map=NAME")
    return targets


def map_classes(target: np.ndarray, rate: float) -> np.ndarray:
    """T of class-dependent noise: class c becomes target[c] with probability `rate`.

    Parameters
    ----------
    target : (C,) int
    rate : float in [0, 1]
    """
    rows = np.arange(len(target))
    T = np.zeros((len(target), len(target)))
    T[rows, rows] = 1 - rate
    T[rows, target] += rate
    T[rows[target == rows]] = np.eye(len(target))[target == rows]
    return T


def symmetric(classes: int, rate: float, include_true: bool = False) -> np.ndarray:
    """T of uniform noise.

    Without the true class T[i, i] = 1 - rate, and the other classes share `rate` equally.  With `include_true` a label is
    drawn from all classes with probability `rate`, so the share of wrong labels is rate (C - 1) / C.
    """
    if include_true:
        return (1 - rate) * np.eye(classes) + rate / classes
    T = np.full((classes, classes), rate / (classes - 1))
    np.fill_diagonal(T, 1 - rate)
    return T


def random(classes: int, rate: float, rng: np.random.Generator, spread: float = 0.05) -> np.ndarray:
    """T of FedDPCont's random noise (Di 2024, Sec. 5).

    T[i, i] = 1 - (rate + U(-spread, spread)); Dirichlet(1, ..., 1) shares divide the rest of a row.  The paper prints
    rate + U for the diagonal, but the stated rates are noise rates, so the diagonal is 1 minus that value.  Near 0 and 1 the
    spread is the distance to the end, so that the mean stays `rate`.
    """
    spread = min(spread, rate, 1 - rate)
    wrong = np.clip(rate + rng.uniform(-spread, spread, classes), 0, 1)
    T = np.zeros((classes, classes))
    off = ~np.eye(classes, dtype=bool)
    T[off] = (rng.dirichlet(np.ones(classes - 1), classes) * wrong[:, None]).reshape(-1)
    np.fill_diagonal(T, 1 - wrong)
    return T


def sparse(
    classes: int, level: float, sparsity: float, rng: np.random.Generator, shares: np.ndarray | None = None
) -> np.ndarray:
    """T by the construction of confident learning (Northcutt 2021), here with true classes in rows.

    The diagonal is drawn uniformly among all diagonals with mean 1 - level.  A share `sparsity` of the off-diagonal entries is
    0, spread evenly over the rows, with at least one positive entry per row; Dirichlet(1) shares divide the rest of the row.
    The matrix is drawn again until every class is learnable: P(given i, true i) > P(given i) P(true i).

    Parameters
    ----------
    classes : int
    level : float in [0, 1)
        Mean of 1 - T[i, i].
    sparsity : float in [0, 1]
        1 returns `pairs`.
    rng : numpy.random.Generator
    shares : (C,) float, optional
        P(true i). Default: equal shares.

    Raises
    ------
    InputError
        If no learnable matrix is found in 10,000 draws.
    """
    if level == 0:
        return np.eye(classes)
    if sparsity == 1:
        return pairs(classes, level, rng)
    shares = np.full(classes, 1 / classes) if shares is None or (shares <= 0).any() else shares / shares.sum()
    trace = classes * (1 - level)
    if trace > 1:
        for _ in range(TRIES):
            T = _sparse_once(classes, trace, sparsity, rng)
            if (np.diag(T) > shares @ T).all():
                return T
    raise InputError(
        f"sparse: no matrix of {classes} classes with level={level}, sparsity={sparsity} keeps every class learnable; "
        "lower level or sparsity"
    )


def pairs(classes: int, level: float, rng: np.random.Generator) -> np.ndarray:
    """T that confuses random disjoint pairs of classes, both ways with probability `level`.

    FedLN's Definition 2.2 names this matrix for a noise sparsity of 1. If the number of classes is odd, the last
    three classes form a cycle.
    """
    order = rng.permutation(classes)
    target = np.empty(classes, np.int64)
    even = classes - 3 * (classes % 2)
    target[order[0:even:2]], target[order[1:even:2]] = order[1:even:2], order[0:even:2]
    target[order[even:]] = np.roll(order[even:], -1)
    return map_classes(target, level)


def _sparse_once(classes, trace, sparsity, rng):
    diagonal = _draw_bounded_sum(classes, trace, rng)
    zeros = np.zeros(classes, np.int64)
    total = min(round(classes * (classes - 1) * sparsity), classes * (classes - 2))
    zeros += total // classes
    zeros[rng.permutation(classes)[: total % classes]] += 1
    T = np.diag(diagonal)
    for row in range(classes):
        others = rng.permutation(np.delete(np.arange(classes), row))[zeros[row] :]
        T[row, others] = rng.dirichlet(np.ones(len(others))) * (1 - diagonal[row])
    return T


def _draw_bounded_sum(count, total, rng, sweeps=30):
    """Draw `count` numbers in [0, 1] with sum `total`, uniform among all such vectors, by Gibbs steps on disjoint pairs."""
    x = np.full(count, total / count)
    half = count // 2
    for _ in range(sweeps):
        order = rng.permutation(count)
        a, b = order[:half], order[half : 2 * half]
        both = x[a] + x[b]
        low, high = np.maximum(both - 1, 0), np.minimum(both, 1)
        x[a] = low + (high - low) * rng.random(half)
        x[b] = both - x[a]
    return np.clip(x, 0, 1)


def sparse_as_fedln(classes: int, level: float, sparsity: float, rng: np.random.Generator) -> np.ndarray:
    """T as the public code of FedLN builds it (Tsouvalas 2024), with equal diagonal entries.

    Each class keeps probability 1 - level and spreads `level` equally over max(ceil((C - 1)(1 - sparsity)), 1) other
    classes, drawn at random. The count uses the same floating-point expression: 11 classes with sparsity 0.7 give 4 instead
    of 3. At sparsity 1 the matrix is a random map, while the paper's Definition 2.2 describes `pairs`.
    """
    count = max(int(np.ceil((classes - 1) * (1 - sparsity))), 1)
    T = np.zeros((classes, classes))
    for row in range(classes):
        others = rng.permutation(np.delete(np.arange(classes), row))[:count]
        T[row, others] = level / count
        T[row, row] = 1 - level
    return T


def draw(labels: np.ndarray, T: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw labels (n,) independently from the rows of T that `labels` select.

    A row with 1 on the diagonal never changes a label.
    """
    from fnlkit.kernels.flipping import flip_labels  # imports numba, which descriptions of noise do not need

    return flip_labels(labels, T, rng.random(len(labels)))


def exact(labels: np.ndarray, T: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw labels (n,) with exactly the counts of T, at random positions.

    Expected counts are rounded down; the largest remainders receive the samples that are missing to the rounded total.  The
    overall noise then differs from the requested noise by at most half a sample (the public construction truncates).
    """
    classes = len(T)
    have = np.bincount(labels, minlength=classes)
    want = have[:, None] * T
    np.fill_diagonal(want, 0)
    counts = np.floor(want + 1e-9).astype(np.int64)
    missing = round(float(want.sum())) - counts.sum()
    order = np.argsort(-(want - counts), axis=None, kind="stable")
    for cell in order:
        row, column = divmod(int(cell), classes)
        if missing <= 0:
            break
        if want[row, column] > counts[row, column] and counts[row].sum() < have[row]:
            counts[row, column] += 1
            missing -= 1
    drawn = labels.copy()
    for label in np.flatnonzero(counts.sum(1)):
        members = rng.permutation(np.flatnonzero(labels == label))
        drawn[members[: counts[label].sum()]] = np.repeat(np.arange(classes), counts[label])
    return drawn
