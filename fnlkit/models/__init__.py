"""Networks by name.  The table imports no torch; the module of a network is imported when the network is built.

Trainable parameters for CIFAR-10 input (3, 32, 32) and 10 classes, audio for log-Mel input (1, 64, 98) and 12 classes
(`tabulate_networks()` counts them again):

    ==========  ==========  ====================================================================
    name        parameters  source
    ==========  ==========  ====================================================================
    mlp            635,710  hidden layers of 200 and 100
    fourier      3,113,730  Rahimi 2007, 1,000 random Fourier features beside the inputs
    lenet5          62,006  LeCun 1998, as used by FedCorr
    cnn2         2,156,490  McMahan 2017 (FedAvg), two convolutions and 512 hidden units
    cnn9         4,434,570  Han 2018 (Co-teaching), FedEFC's network for MNIST
    vgg11        9,231,114  Simonyan 2015, configuration A with batch norm and one linear layer
    resnet18    11,173,962  He 2016 with a 3x3 stem and no max-pool
    resnet34    21,282,122  the same, 34 layers
    resnet50    23,528,522  He 2016, torchvision's, ImageNet stem
    resnet20       269,722  He 2016 for CIFAR, parameter-free shortcuts
    convmixer       84,618  Trockman 2022, ConvMixer-128/4, kernel 5, patch 2
    audio          136,196  FedLN (Tsouvalas 2024), four separable blocks
    ==========  ==========  ====================================================================

Every network of fnlkit is a torch.nn.Module with ``features(x)``, the penultimate representation (B, width);
``classify(features)``, the logits (B, C); ``forward(x) = classify(features(x))``; and the attribute ``width``.  All run
under torch.func.functional_call and vmap with a leading client dimension; batch norm updates the buffers that are passed.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fnlkit.core.errors import InputError
from fnlkit.core.spec import Spec, bind, find, parse

if TYPE_CHECKING:
    import torch


# Default number of random Fourier features.
COSINES, MOST_COSINES = 1000, 65_536
NETWORKS = {
    "mlp": "fnlkit.models.mlp:mlp",
    "fourier": "fnlkit.models.fourier:fourier",
    "lenet5": "fnlkit.models.lenet:lenet5",
    "cnn2": "fnlkit.models.cnn2:cnn2",
    "cnn9": "fnlkit.models.cnn9:cnn9",
    "vgg11": "fnlkit.models.vgg:vgg11",
    "resnet18": "fnlkit.models.resnet:resnet18",
    "resnet34": "fnlkit.models.resnet:resnet34",
    "resnet50": "fnlkit.models.resnet50:resnet50",
    "resnet20": "fnlkit.models.resnet:resnet20",
    "convmixer": "fnlkit.models.convmixer:convmixer",
    "audio": "fnlkit.models.audio:audio",
    "pretrained": "fnlkit.encoders.pretrained:pretrained",
}


def cosines_of(parameters: Mapping[str, Any]) -> int:
    """Count the random Fourier features of a network `fourier` with these parameters."""
    number = parameters.get("features", COSINES)
    if not (isinstance(number, int) and 2 <= number <= MOST_COSINES and number % 2 == 0):
        raise InputError(
            f"model 'fourier': `features` is {number}; write an even number from 2 to {MOST_COSINES:,}, for example 1000"
        )
    return number


def auto(input_shape: tuple[int, ...], kind: str | None = None) -> str:
    """Choose the default network for an input.

    Parameters
    ----------
    input_shape : tuple of int
        (C, H, W) of an image, (d,) of a vector, (samples,) of a wave.
    kind : "image", "vector", "wave" or None
        Kind of the samples as declared by the data set.  With None, a flat input of 4,000 values or more counts as a wave
        (half a second at 8 kHz), and a non-square one-channel image of 64 rows as a spectrogram.

    Returns
    -------
    str
        ``mlp`` for vectors and images under 28 pixels, ``lenet5`` for 28 to 32, ``resnet18`` above, ``audio`` for
        waves and spectrograms.

    Examples
    --------
    >>> from fnlkit.models import auto
    >>> auto((3, 32, 32)), auto((1, 8, 8)), auto((64,))
    ('lenet5', 'mlp', 'mlp')
    """
    if kind == "wave":
        return "audio"
    if kind == "vector":
        return "mlp"
    if len(input_shape) == 1:
        return "audio" if input_shape[0] >= 4000 else "mlp"
    if len(input_shape) != 3:
        return "mlp"
    channels, height, width = input_shape
    if kind is None and channels == 1 and height == 64 and width != 64:
        return "audio"
    if min(height, width) < 28:
        return "mlp"
    return "lenet5" if max(height, width) <= 32 else "resnet18"


def build(
    spec: str | Spec, *, input_shape: tuple[int, ...], classes: int, seed: int = 0, kind: str | None = None
) -> "torch.nn.Module":
    """Build a network on the CPU in float32 with initial weights that depend on the seed only.

    Parameters
    ----------
    spec : str or Spec
        A name of `NETWORKS` with parameters, ``auto``, or ``FILE.py:NAME`` of the user, called with the keywords input_shape
        and classes and the keyword-only parameters of the spec.
    input_shape : tuple of int
        (C, H, W), (d,) or (samples,), without the batch.
    classes : int >= 2
    kind : str or None
        Kind of the samples, for ``auto``.
    seed : int
        Key of the stream ``"model"``.  The caller's torch generators are not changed.

    Raises
    ------
    InputError
        For an unknown name or parameter, or an input that the network does not accept.

    Examples
    --------
    >>> from fnlkit.models import build
    >>> sum(p.numel() for p in build("lenet5", input_shape=(3, 32, 32), classes=10).parameters())
    62006
    """
    import torch

    from fnlkit.kernels.streams import stream

    spec = parse(spec, "model")
    input_shape, classes = tuple(int(side) for side in input_shape), int(classes)
    if classes < 2:
        raise InputError(f"`classes` is {classes}; a classifier needs at least 2")
    if not input_shape or min(input_shape) < 1:
        raise InputError(f"`input_shape` is {input_shape}; expected (C, H, W), (d,) or (samples,) of positive sizes")
    if spec.name == "auto":
        spec = Spec(auto(input_shape, kind), spec.parameters)
    make = bind(spec, find(spec, NETWORKS, "model"), "model", given=("input_shape", "classes"))
    dtype = torch.get_default_dtype()
    # Seed this generator directly: torch.manual_seed would also seed the caller's CUDA generators.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(stream(seed, "model").integers(2**62)))
        torch.set_default_dtype(torch.float32)
        try:
            network = make(input_shape=input_shape, classes=classes)
        finally:
            torch.set_default_dtype(dtype)
        if spec.name not in NETWORKS:
            network = _check_network(network, spec, input_shape, classes)
    return network


def _check_network(network, spec, input_shape, classes):
    """Give a user's network keyed dropout; run it once, so that a mistake shows before the first round."""
    import torch
    from torch.func import functional_call

    from fnlkit.models.dropout import replace_dropout

    if not isinstance(network, torch.nn.Module):
        raise InputError(f"model {spec.name!r} returned {type(network).__name__}; it must return a torch.nn.Module")
    network = replace_dropout(network)
    was = network.training
    try:
        with torch.no_grad():
            x = torch.zeros(2, *input_shape)
            logits = network.eval()(x)
            before = torch.get_rng_state()
            buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}  # batch norm writes to them
            functional_call(network.train(), buffers, (x,))
    except Exception as error:
        raise InputError(f"model {spec.name!r} fails on input of shape (2, {input_shape}): {error}") from error
    finally:
        network.train(was)
    if not isinstance(logits, torch.Tensor):
        raise InputError(f"model {spec.name!r} gives {type(logits).__name__}; its forward must return a tensor of logits only")
    if tuple(logits.shape) != (2, classes):
        actual, wanted = tuple(logits.shape), (2, classes)
        raise InputError(f"model {spec.name!r} gives shape {actual} for 2 samples; expected logits of shape {wanted}")
    if not torch.equal(before, torch.get_rng_state()):
        raise InputError(
            f"model {spec.name!r} draws from torch's generator in training mode, and engines would draw differently; "
            "use nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d or nn.MultiheadAttention for randomness, and nothing else"
        )
    return network


def reseed(network: "torch.nn.Module", key: int) -> None:
    """Set the key of every dropout layer in place; call it when a client starts local training.

    Parameters
    ----------
    network : torch.nn.Module
    key : int or numpy.random.Generator
        For example ``stream(seed, "dropout", round, client)``.  See fnlkit.models.dropout.
    """
    from fnlkit.models.dropout import Dropout

    if not isinstance(key, int):
        key = int(key.integers(2**62))
    for module in network.modules():
        if isinstance(module, Dropout):
            module.key.fill_(key)


def tabulate_networks() -> dict[Any, tuple[tuple[int, int, int], int, Any]]:
    """Tabulate {name: (input_shape, classes, trainable parameters)} of all networks without allocating them."""
    import torch

    rows = {}
    for name, target in NETWORKS.items():
        if name == "pretrained":  # its size is that of its backbone
            continue
        shape, classes = ((1, 64, 98), 12) if name == "audio" else ((3, 32, 32), 10)
        with torch.device("meta"):
            network = find(name, {name: target}, "model")(input_shape=shape, classes=classes)
        rows[name] = shape, classes, sum(math.prod(p.shape) for p in network.parameters())
    return rows
