"""Embeddings of samples: a vector per sample by a frozen network, the backbone, computed without labels."""

import importlib
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from fnlkit.artifacts.stored import Changed, Rows, Stored, blocks
from fnlkit.core.errors import InputError, how_to_install
from fnlkit.core.spec import Spec, bind, find, parse
from fnlkit.encoders.batches import compute_rows

# A backbone is called as backbone(dataset, forward, **parameters) for each part of a data set, with a `View`, and returns
# float32 (n, d) of its `x_train`. `forward` runs a network over these samples in batches, with the device and the progress
# callback of the caller: for images forward(module, size, mean, std, normalize=...), for texts forward(encode, weights), for
# sounds forward(module, rate).
BACKBONES = {
    "pixels": "fnlkit.encoders.pca:pixels",
    "pca": "fnlkit.encoders.pca:pca",
    "torchvision": "fnlkit.encoders.backbones:torchvision_backbone",
    "timm": "fnlkit.encoders.backbones:timm_backbone",
    "open-clip": "fnlkit.encoders.backbones:open_clip_backbone",
    "efficientnet-lite0": "fnlkit.encoders.backbones:efficientnet_lite0",
    "wordllama": "fnlkit.encoders.text_backbones:wordllama",
    "model2vec": "fnlkit.encoders.text_backbones:model2vec",
    "sentence-transformers": "fnlkit.encoders.text_backbones:sentence_transformers",
    "transformers": "fnlkit.encoders.hugging_face:transformers_backbone",
    "torchaudio": "fnlkit.encoders.backbones:torchaudio_backbone",
    "frozen-part": "fnlkit.encoders.pretrained:frozen_part",
}


def embed(
    dataset: Any,
    spec: str | Spec = "pca",
    *,
    device: str = "auto",
    batch_size: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> np.ndarray:
    """Embed every training sample.

    Parameters
    ----------
    dataset : object
        With ``x_train`` (n, ...) and ``kind``: ``image`` (NHWC, uint8 to 255 or float to 1), ``vector``, ``text`` (an array of
        texts), or ``wave`` (int16 or float (n, samples), with ``sample_rate``), of which pixels and pca read a log-Mel
        spectrogram.
    spec : str or Spec
        A name of `BACKBONES` with parameters, or a user's ``FILE.py:NAME`` with the same signature.
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
    >>> from fnlkit.encoders.embed import embed
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
    """Embed every sample of several arrays, with the same backbone.

    Parameters
    ----------
    dataset : object
        As for `embed`; a backbone is fitted on the training samples only.
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
        raise InputError(f"is {batch_size}; write at least 1", parameter="batch_size")
    backbone = bind(spec, find(spec, BACKBONES, "backbone"), "backbone")
    total, before = sum(len(x) for x in parts.values()), 0
    embeddings: dict[str, np.ndarray | Stored] = {}
    memory: dict[str, Any] = {}
    for name, x in parts.items():
        view = View(x, dataset.x_train, dataset.kind, getattr(dataset, "sample_rate", 0), memory)

        count = None if progress is None else lambda done, _, start=before: progress(start + done, total)
        forward = partial(_forward, view, device=device, batch_size=batch_size, progress=count, place=place and place / name)
        rows = backbone(view, forward)
        if isinstance(rows, Changed):
            rows = compute_rows(rows, place and place / name, count)
        elif not isinstance(rows, Stored):
            rows = np.ascontiguousarray(rows, np.float32)
        if rows.ndim != 2 or len(rows) != len(x):
            raise InputError(f"backbone {spec.name!r} returned {rows.shape} for {len(x):,} samples; expected (n, d)")
        if not all(np.isfinite(rows[a:b]).all() for a, b in blocks(rows)):
            raise InputError(f"backbone {spec.name!r} returned values that are not finite; check its weights")
        embeddings[name], before = rows, before + len(x)
    return embeddings


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


def _forward(view, *what, **options):
    """Run a network over the samples of a view, by the kind of the samples."""
    from fnlkit.encoders import network_features

    run = {"image": network_features.run_network, "text": network_features.run_texts, "wave": network_features.run_waves}
    return run[view.kind](view, *what, **options)


def require(module: str, package: str = "") -> Any:
    """Import a module, or raise InputError that names the package that contains it. Default: the name of the module."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = package or module.partition(".")[0].replace("_", "-")
        raise InputError(
            how_to_install(module) or f"the backbone needs {package}; run: pip install {package} ({error})"
        ) from error


def must_have(view: View, kind: str, name: str) -> None:
    """Raise InputError unless the samples have the kind that a backbone reads."""
    if view.kind != kind or (kind == "image" and view.x_train.ndim != 4):
        samples = {"image": "images", "text": "texts", "wave": "sounds"}[kind]
        raise InputError(f"backbone {name!r} needs {samples} but the samples are {view.kind}s; use another backbone")
