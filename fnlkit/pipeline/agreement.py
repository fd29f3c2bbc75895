"""Compare compiled kernels with numpy, and read back written files: parts of `fnlkit doctor`."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

# Largest relative difference that rounding in float64 can cause in these small examples.
ROUNDING = 1e-9


def kernels(broken: list[str]) -> list[dict[str, object]]:
    """Compare each group of kernels with a direct computation in numpy.

    Parameters
    ----------
    broken : list of str
        Receives a sentence for each kernel that fails or differs.

    Returns
    -------
    list of dict
        ``kernel``, ``difference`` (largest, relative to the largest value; None after a failure) and ``why``.
    """
    checks = {"lid": _lid, "count_matrix": _counts, "invert_transition": _inversion, "knn_vote": _votes}
    rows: list[dict[str, object]] = []
    for name, check in checks.items():
        difference, why = _difference(check)
        rows.append({"kernel": name, "difference": difference, "why": why})
        if difference is None or not difference <= ROUNDING:
            reason = why or f"differs from numpy by {difference:.1e}"
            broken.append(f"kernel {name}: {reason}; delete the folder of compiled kernels and run `fnlkit doctor` again")
    return rows


def files(broken: list[str]) -> list[dict[str, object]]:
    """Write a federation and a run to a temporary folder, and compare what is read back.

    Parameters
    ----------
    broken : list of str
        Receives a sentence for each kind of file that fails or differs.

    Returns
    -------
    list of dict
        ``file`` (the suffix), ``equal`` and ``why``.
    """
    rows: list[dict[str, object]] = []
    for suffix, check in ((".npz", _federation_file), (".pt", _run_file)):
        try:
            equal, why = check(), None
        except Exception as error:  # noqa: BLE001 - reported as the result of this check
            equal, why = False, f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        rows.append({"file": suffix, "equal": equal, "why": why})
        if not equal:
            broken.append(f"{suffix} files: {why or 'what is read differs from what was written'}")
    return rows


def _difference(check: Callable[[], tuple[np.ndarray, np.ndarray]]) -> tuple[float | None, str | None]:
    try:
        actual, expected = (np.asarray(values, np.float64) for values in check())
    except Exception as error:  # noqa: BLE001 - reported as the result of this check
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    difference = float(np.abs(actual - expected).max() / np.abs(expected).max())
    return (difference, None) if math.isfinite(difference) else (None, "returns values that are not finite")


def _distances(points):
    return np.sqrt(((points[:, None] - points) ** 2).sum(2))


def _lid():
    from fnlkit.kernels import lid

    points, k = np.random.default_rng(0).normal(size=(60, 3)), 10
    near = np.sort(_distances(points), 1)[:, 1 : k + 1]
    return lid(points, k=k), -1 / np.log(near / near[:, -1:]).mean(1)


def _counts():
    from fnlkit.kernels import count_matrix

    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(4), 200), rng.integers(0, 4, 200)
    thresholds = np.array([probs[labels == label, label].mean() for label in range(4)])
    expected = np.zeros((4, 4))
    for row, label in zip(probs, labels, strict=True):
        reached = np.flatnonzero(row >= thresholds)
        if len(reached):
            expected[reached[row[reached].argmax()], label] += 1
    return count_matrix(probs, labels, least_diagonal=0), expected


def _inversion():
    from fnlkit.kernels import invert_transition

    matrices = 0.7 * np.eye(5) + 0.3 * np.random.default_rng(0).dirichlet(np.ones(5), (3, 5))
    return invert_transition(matrices)[0], np.linalg.inv(matrices)


def _votes():
    from fnlkit.kernels import knn_vote

    rng, k = np.random.default_rng(0), 7
    points, labels = rng.normal(size=(80, 4)), rng.integers(0, 3, 80)
    distances = _distances(points)
    np.fill_diagonal(distances, np.inf)
    near = labels[np.argsort(distances, 1)[:, :k]]
    counts = (near[:, :, None] == np.arange(3)).sum(1)
    votes, share = knn_vote(points, labels, k=k, classes=3, ties="lowest")
    return np.stack([votes, share]), np.stack([counts.argmax(1), (near != labels[:, None]).mean(1)])


def _federation_file():
    from fnlkit.pipeline import judging, labels

    federation = labels.inject_noise(labels.partition("digits", clients=4, say=None), say=None)
    with tempfile.TemporaryDirectory() as folder:
        judging.save(federation, Path(folder) / "federation.npz")
        again = judging.load(Path(folder) / "federation.npz")
    same = all(np.array_equal(one, two) for one, two in zip(federation.clients, again.clients, strict=True))
    return same and np.array_equal(federation.given, again.given)


def _run_file():
    from fnlkit.pipeline import judging, labels, training

    federation = labels.partition("digits", clients=4, say=None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.pt"
        run = training.train(federation, "fedsums(passes=1, steps=1)", output=path, say=None, ledger="none")
        again = judging.load(path)
    return run.history == again.history and bool((run.labels["corrected"] == again.labels["corrected"]).all())
