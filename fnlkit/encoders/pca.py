"""Backbones without a network: the values of the samples, and their principal components."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fnlkit.artifacts.stored import Changed, Chosen
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Count, check_arguments
from fnlkit.encoders.embed import View
from fnlkit.kernels.neighbors import blas_threads
from fnlkit.models.spectrograms import log_mel

_MOST_FITTED = 2**28  # bytes of float32 values for the fit of principal components


@check_arguments
def pixels(dataset: View, forward: Callable[..., Any], *, normalize: bool = False) -> Changed:
    """Flattened samples: images in 0 to 1, waves as log-Mel spectrograms.

    Parameters
    ----------
    normalize : bool
        Scale rows to length 1.
    """
    return Changed(dataset.x_train, partial(_flat, dataset=dataset, normalize=normalize))


def _flat(x, *, dataset, normalize):
    x = _numbers(x, dataset)
    return _unit(x) if normalize else x


@check_arguments
def pca(
    dataset: View, forward: Callable[..., Any], *, dim: Count = 64, whiten: bool = False, normalize: bool = False
) -> np.ndarray | Changed:
    """First principal components of the samples.

    They are fitted on the training samples.

    The fit by scikit-learn's PCA uses all training samples up to 256 MiB of float32 values, and above that every k-th sample,
    at most 256 MiB of them but at least `dim` samples.

    Parameters
    ----------
    dim : int
        At most the number of samples and the number of values per sample.
    whiten : bool
        Scale components to unit variance.
    normalize : bool
        Scale rows to length 1.
    """
    values = int(np.prod(np.shape(_numbers(dataset.fit[:1], dataset))[1:]))
    most = min(len(dataset.fit), values)
    if not 1 <= dim <= most:
        raise InputError(
            f"backbone 'pca': `dim` is {dim}; {len(dataset.fit):,} samples of {values:,} values allow 1 to {most:,}"
        )
    if "pca" not in dataset.memory:
        dataset.memory["pca"] = _fit(dataset, dim, whiten, len(dataset.fit) * values * 4)
    fitted, known = dataset.memory["pca"]
    if known is not None and dataset.x_train is dataset.fit:
        return _unit(known) if normalize else known
    return Changed(dataset.x_train, partial(_project, dataset=dataset, fitted=fitted, normalize=normalize))


def _fit(dataset, dim, whiten, size):
    """Fit (PCA, projections of the training samples).

    Projections are None if the fit uses only some samples.
    """
    from sklearn.decomposition import PCA

    every = min(-(-size // _MOST_FITTED), len(dataset.fit) // dim)  # at least `dim` samples
    chosen = dataset.fit if every == 1 else Chosen(dataset.fit, np.arange(0, len(dataset.fit), every))
    x = _numbers(chosen[:], dataset)
    # Use an exact solver if it takes seconds, else a randomized solver (Halko 2011) with a fixed seed.
    solver = "randomized"
    if min(x.shape) <= 1024:
        solver = "covariance_eigh" if x.shape[1] <= len(x) else "full"
    fitted = PCA(dim, whiten=whiten, svd_solver=solver, random_state=0, copy=False)
    with blas_threads(1):  # the last digits depend on the number of threads
        projections = fitted.fit_transform(x)
    return fitted, projections if every == 1 else None


def _project(x, *, dataset, fitted, normalize):
    with blas_threads(1):
        components = fitted.transform(_numbers(x, dataset)).astype(np.float32, copy=False)
    return _unit(components) if normalize else components


def _numbers(x, dataset):
    """Copy samples to float32 rows."""
    if dataset.kind == "wave":
        x = log_mel(x, dataset.sample_rate)
    numbers = np.array(x.reshape(len(x), -1), np.float32)
    if x.dtype == np.uint8:
        numbers /= 255
    return numbers


def _unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
