"""Backbones without a network: the values of the samples, and their principal components."""

import pathlib
import tempfile
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts.stored import Changed, Chosen, Rows, blocks
from fnlkit.components.parameters import Count, check_arguments
from fnlkit.datasets import batches
from fnlkit.errors import InputError
from fnlkit.models.spectrograms import log_mel

if TYPE_CHECKING:
    from fnlkit.datasets.embed import View


_MOST_FITTED = 2**30  # bytes of float32 values for the fit of principal components
_MOST_HELD = 2**28  # bytes of these values in memory at once


@check_arguments
def pixels(dataset: "View", forward: Callable[..., Any], *, normalize: bool = False) -> Changed:
    """Return the flattened samples: images in 0 to 1, waves as log-Mel spectrograms.

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
    dataset: "View", forward: Callable[..., Any], *, dim: Count = 64, whiten: bool = False, normalize: bool = False
) -> np.ndarray | Changed:
    """Return the first principal components of the samples.

    They are fitted on the training samples.

    The signs are chosen as in scikit-learn.  The fit uses all training samples up to 1 GiB of float32 values, and above that
    every k-th sample, about 1 GiB of them.  Up to 256 MiB, scikit-learn's PCA is used, and above that `components`, which has a
    block of samples in memory at a time.

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
    """Return (PCA, projections of the training samples).

    Projections are None if they would not fit into memory.
    """
    from sklearn.decomposition import PCA

    if size <= _MOST_HELD:
        x = _numbers(dataset.fit[:], dataset)
        # Use an exact solver if it takes seconds, else a randomized solver (Halko 2011) with a fixed seed.
        solver = "randomized"
        if min(x.shape) <= 1024:
            solver = "covariance_eigh" if x.shape[1] <= len(x) else "full"
        fitted = PCA(dim, whiten=whiten, svd_solver=solver, random_state=0, copy=False)
        return fitted, fitted.fit_transform(x)
    every = max(1, size // _MOST_FITTED)
    chosen = Chosen(dataset.fit, np.arange(0, len(dataset.fit), every))
    numbers = partial(_numbers, dataset=dataset)
    if dataset.kind == "wave":  # spectrograms are slower to compute than to read, so compute them once into a private file
        with tempfile.TemporaryDirectory() as place:
            chosen, numbers = batches.compute_rows(Changed(chosen, numbers), pathlib.Path(place), None), np.asarray
    elif chosen.slow:
        chosen = chosen[:]
    fitted = PCA(dim, whiten=whiten)
    fitted.mean_, fitted.components_, fitted.explained_variance_ = components(chosen, dim, numbers)
    fitted.n_components_ = dim
    return fitted, None


def components(
    samples: np.ndarray | Rows, dim: int, numbers: Callable[[np.ndarray], np.ndarray], *, steps: int = 6, spare: int = 10
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (mean (D,), components (dim, D), variances (dim,)) of samples, float32.

    Only a block of samples is in memory at a time.

    Subspace iteration with a fixed seed (Halko, Martinsson, Tropp 2011, algorithm 4.4): each step passes through the samples
    once and multiplies a subspace by their covariance.  As in scikit-learn, the largest entry of a component is positive.

    Parameters
    ----------
    samples : array (n, ...)
    dim : int
    numbers : (m, ...) array -> (m, D) float32 array
        Must return a new array, which is modified here.
    steps : int
    spare : int
        Additional directions, without which the last requested directions would be inexact.
    """
    parts = list(blocks(samples, batches.BLOCK))
    mean = sum(numbers(samples[a:b]).sum(0, dtype=np.float64) for a, b in parts) / len(samples)
    mean = mean.astype(np.float32)
    width = min(dim + spare, len(mean), len(samples))
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((len(mean), width), np.float32))[0]
    for step in range(steps):
        image = np.zeros_like(basis)
        for a, b in parts:
            x = numbers(samples[a:b])
            x -= mean
            image += x.T @ (x @ basis)
        if step < steps - 1:
            basis = np.linalg.qr(image)[0]
    values, turn = np.linalg.eigh(basis.T.astype(np.float64) @ image)
    axes = (basis @ turn[:, ::-1][:, :dim]).T.astype(np.float32)
    largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
    return mean, axes * np.where(largest < 0, -1, 1).astype(np.float32), values[::-1][:dim] / max(1, len(samples) - 1)


def _project(x, *, dataset, fitted, normalize):
    out = fitted.transform(_numbers(x, dataset)).astype(np.float32, copy=False)
    return _unit(out) if normalize else out


def _numbers(x, dataset):
    """Return samples as float32 rows, freshly allocated."""
    if dataset.kind == "wave":
        x = log_mel(x, dataset.sample_rate)
    out = np.array(x.reshape(len(x), -1), np.float32)
    if x.dtype == np.uint8:
        out /= 255
    return out


def _unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
