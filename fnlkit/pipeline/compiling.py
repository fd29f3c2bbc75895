"""Compile the kernels ahead of their first use, for images of containers and for nodes without a writable cache."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fnlkit import kernels
from fnlkit._kernels._compile import cache_folders
from fnlkit.core.errors import WorkStopped
from fnlkit.kernels import annotator, dawid_skene, fused, learning, mixture, neighbors


def compile_kernels() -> dict[str, object]:
    """Compile the kernels of all commands into the cache; kernels that are there are only loaded.

    Returns
    -------
    dict
        ``compiled`` and ``loaded``, numbers of functions; ``seconds``; ``folder``, where compiled code is stored.

    Raises
    ------
    WorkStopped
        If no cache folder is writable.

    Notes
    -----
    Each kernel is called with a few numbers, in float32 and float64. The fused networks are compiled for float32, the type in
    which commands train.
    """
    began = time.monotonic()
    for real in (np.float32, np.float64):
        _call_numerical(real)
    _call_fused()
    folder = next((path for path in cache_folders() if os.access(path, os.W_OK)), None)
    if folder is None:
        raise WorkStopped(f"{cache_folders()[0]}: cannot be written; select another folder with NUMBA_CACHE_DIR")
    stats: list[Any] = [getattr(function, "stats") for function in list_cached_functions().values()]  # noqa: B009
    return {
        "compiled": sum(sum(each.cache_misses.values()) for each in stats),
        "loaded": sum(sum(each.cache_hits.values()) for each in stats),
        "seconds": round(time.monotonic() - began, 3),
        "folder": str(folder),
    }


def list_cached_functions() -> dict[str, Callable[..., object]]:
    """List {name: dispatcher} of the imported functions whose machine code is cached."""
    functions = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("fnlkit._kernels."):
            for value in vars(module).values():
                stats = getattr(value, "stats", None)
                if getattr(stats, "cache_path", None) is not None:
                    functions[f"{value.py_func.__module__}.{value.py_func.__qualname__}"] = value
    return functions


def _call_numerical(real):
    """Call the functions of `fnlkit.kernels` with numbers of a type."""
    probs, labels = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.1, 0.9]], real), np.array([0, 0, 1, 1])
    kernels.class_thresholds(probs, labels)
    for rule in ("cleanlab", "largest"):
        kernels.count_matrix(probs, labels, rule=rule)
    kernels.lid_score(probs, k=2)
    kernels.project_to_simplex(probs)
    # General matrices: a small one, and a large one that LAPACK inverts.
    for size in (3, 64):
        rows = np.random.default_rng(0).dirichlet(np.ones(size), size)
        kernels.invert_transition((0.5 * np.eye(size) + 0.5 * rows).astype(real))
    uniforms = np.full((4, 2), 0.5)
    kernels.flip_labels(labels, np.eye(2), uniforms=uniforms[:, 0].copy())
    for keep in (0.5, np.full(4, 0.5)):
        kernels.randomized_response(labels, keep, uniforms, classes=2)
    kernels.knn_vote(probs, labels, k=2)
    learning.learn_matrix(np.zeros((2, 2)), probs, labels, rate=0.1, steps=1, base=np.eye(2))
    mixture.gaussians(probs)
    annotator.fit_annotator(probs, labels, np.eye(2), strength=1.0, steps=1)
    dawid_skene.dawid_skene([0, 0, 1, 1], [0, 1, 0, 1], labels, size=2, people=2, classes=2, rounds=1)
    # `knn_vote` searches more than 4,096 samples with an index.
    neighbors.vote_by_index(probs, labels, np.zeros(0, np.int64), 2, 2, False, np.zeros(4), 1)


def _call_fused():
    """Train and apply both fused networks for a step."""
    rng = np.random.default_rng(0)
    for net, shape in ((("mlp", (4, 3, 2)), (2, 4)), (("lenet5", 1, 2), (2, 28, 28, 1))):
        theta, x = np.zeros(fused.fused_parameters(net), np.float32), rng.random(shape, np.float32)
        fused.fused_fit(net, theta, x, np.array([0, 1]), np.array([[0, 1]]), fused.FusedSteps(0.1))
