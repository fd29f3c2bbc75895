"""A network that starts from a pretrained backbone, of which a part is trained."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fnlkit.core.errors import InputError
from fnlkit.core.parameters import check_arguments
from fnlkit.core.spec import Spec, bind, find, parse
from fnlkit.encoders.embed import View, must_have
from fnlkit.encoders.encoding import open_encoder
from fnlkit.encoders.features import find_pretrained
from fnlkit.models.encoder import Encoder
from fnlkit.models.parts import Network, image
from fnlkit.models.split import After, Before, blocks_of, count_values, first_trained, split

AUTO, HEAD = Spec("auto", {}), Spec("head", {})
MOST_BYTES = 2**32  # of the cache folder, for the output of the frozen part of a network
# What is trained beside the head: a function (encoder, *, parameters) that marks parameters as trainable.
PARTS = {
    "head": "fnlkit.encoders.pretrained:train_head",
    "last": "fnlkit.encoders.pretrained:train_last",
    "lora": "fnlkit.encoders.pretrained:train_lora",
    "all": "fnlkit.encoders.pretrained:train_all",
}


class Pretrained(Network):
    """An encoder of images and a linear head.

    Inputs are images of values in [0, 1], without other scaling.  Parameters that are not trained are frozen: no client sends
    them, and a run names them by their SHA-256.
    """

    raw_images = True

    def __init__(self, encoder: Encoder | After, width: int, classes: int) -> None:
        super().__init__()
        # Features of length 1 get entries of about 1, as a linear layer expects.
        self.encoder = encoder
        self.width = width
        self.scale = math.sqrt(width) if encoder.normalize else 1.0
        self.fc = nn.Linear(width, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x) * self.scale


@check_arguments
def pretrained(
    *, input_shape: tuple[int, ...], classes: int, backbone: str | Spec = AUTO, train: str | Spec = HEAD
) -> torch.nn.Module:
    """A pretrained backbone with a new linear head, of which a part is trained.

    Parameters
    ----------
    backbone : str or Spec
        A backbone for images (`fnlkit.encoders.embed.BACKBONES`).  ``auto``: an installed one.
    train : str or Spec
        ``head``; ``last(n=1)``: also the last n blocks of the backbone; ``lora(rank=8)``: also low-rank updates of its linear
        layers and 1x1 convolutions (Hu 2022); ``all``.
    """
    spec: str | Spec | None = backbone
    if str(backbone) == "auto":
        spec = find_pretrained("image", min(image(input_shape, "pretrained")[1:]))
    if spec is None:
        raise InputError("model 'pretrained': no backbone is installed; name one")
    encoder = open_part(spec, train)
    if len(input_shape) == 1 and (block := first_trained(encoder)):  # the output of `frozen_part`
        after = split(open_part(spec, train), encoder, block)[1]
        if input_shape != (math.prod(after.shape),):
            raise InputError(f"model 'pretrained': samples have {input_shape[0]} values, expected {math.prod(after.shape)}")
        return Pretrained(after, after(torch.zeros(1, *input_shape)).shape[1], classes)
    image(input_shape, "pretrained")
    return Pretrained(encoder, encoder(torch.zeros(1, *input_shape)).shape[1], classes)


def open_part(backbone: str | Spec, train: str | Spec) -> Encoder:
    """Open the encoder of a backbone of which only the named part is trainable. Parameters are those of `pretrained`."""
    encoder = freeze(open_encoder(backbone))
    how = parse(train, "model 'pretrained': `train`")
    bind(how, find(how, PARTS, "model 'pretrained': part"), "model 'pretrained': part")(encoder)
    return encoder


# ---- the part before the first trained block, as a backbone
@check_arguments
def frozen_part(dataset: View, forward: Callable[..., Any], *, backbone: str | Spec, train: str | Spec) -> Any:
    """Input of the first trained block of a pretrained network, which is computed once per sample.

    Parameters
    ----------
    backbone, train : str or Spec
        As for the model `pretrained`, which trains the blocks from there on.

    Raises
    ------
    InputError
        If no block is frozen, or the samples are no images.
    """
    must_have(dataset, "image", "frozen-part")
    encoder = open_part(backbone, train)
    block = first_trained(encoder)
    if not block:
        raise InputError(f"backbone 'frozen-part': with train={train}, no block is frozen")
    mean, std = (values.flatten().tolist() for values in (encoder.mean, encoder.std))
    before = Before(encoder.module, block.removeprefix("module."))
    return forward(before, encoder.size, mean, std, normalize=False, interpolation=encoder.interpolation)


def find_frozen_part(model: str, dataset: Any, say: Callable[[str], object] | None = None) -> tuple[str, str]:
    """Find (spec of the backbone `frozen_part`, spec of the model) that train the same network with less work.

    Both are "" if nothing is saved: the model is another one, or the first block is trained, or the network cannot be split,
    or the values of all samples need more than `MOST_BYTES`.

    Parameters
    ----------
    model : str
    dataset : fnlkit.datasets.Dataset
        Of images.
    say : callable(str), optional
        Receives a note if frozen blocks are computed again in each batch.
    """
    spec = parse(model, "model")
    if spec.name != "pretrained":
        return "", ""
    bind(spec, pretrained, "model", given=("input_shape", "classes"))  # raises for an unknown parameter
    backbone, train = str(spec.parameters.get("backbone", "auto")), str(spec.parameters.get("train", "head"))
    if backbone == "auto":
        backbone = find_pretrained("image", min(dataset.x_train.shape[1:3])) or ""
    encoder = open_part(backbone, train) if backbone else None
    block = first_trained(encoder) if encoder else ""
    values = count_values(encoder, open_part(backbone, train), block) if encoder and block else 0
    if not 0 < values * 4 * (len(dataset.x_train) + len(dataset.x_test)) <= MOST_BYTES:
        if block and say:
            why = f"its values need more than {MOST_BYTES / 2**30:.0f} GiB" if values else "this network cannot be split"
            say(f"the frozen part of {backbone} is computed again in each batch: {why}")
        return "", ""
    return f"frozen-part(backbone={backbone}, train={train})", f"pretrained(backbone={backbone}, train={train})"


def freeze(encoder: Encoder) -> Encoder:
    """Freeze the parameters of an encoder in place.

    Float buffers become frozen parameters: buffers are exchanged, and statistics of a frozen layer do not change.
    """
    for module in encoder.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
        for name, values in list(module.named_buffers(recurse=False)):
            del module._buffers[name]
            if values.is_floating_point():
                module.register_parameter(name, nn.Parameter(values, requires_grad=False))
            elif name == "num_batches_tracked":
                module.num_batches_tracked = None  # type: ignore[assignment]
            else:
                module.register_buffer(name, values)
    return encoder.requires_grad_(False).eval()


def train_head(encoder: Encoder) -> None:
    """Train the head only."""


def train_all(encoder: Encoder) -> None:
    """Train all parameters; statistics of batch norm stay those of the pretrained network."""
    _train(encoder, lambda name: True)


def train_last(encoder: Encoder, *, n: int = 1) -> None:
    """Train the last blocks, and the layers behind them.

    Parameters
    ----------
    n : int
        Number of blocks: children of the longest list of layers in the backbone.
    """
    blocks = blocks_of(encoder)
    if not 1 <= n <= len(blocks):
        raise InputError(f"model 'pretrained': last(n={n}), but the backbone has {len(blocks)} blocks")
    names = [key for key, _ in encoder.named_parameters()]
    first = next(i for i, key in enumerate(names) if key.startswith(f"{blocks[-n]}."))
    late = {key for key in names[first:] if key not in ("mean", "std")}
    _train(encoder, lambda key: key in late)


def train_lora(encoder: Encoder, *, rank: int = 8) -> None:
    """Add a trainable low-rank update to each linear layer and 1x1 convolution (Hu 2022, with alpha = rank).

    Parameters
    ----------
    rank : int
    """
    if rank < 1:
        raise InputError(f"model 'pretrained': lora(rank={rank}); write at least 1")
    layers = [(name, part) for name, part in encoder.named_modules() if _is_linear(part)]
    if not layers:
        raise InputError("model 'pretrained': the backbone has no linear layer for lora; write train=last(n=1)")
    for name, part in layers:
        encoder.set_submodule(name, LowRank(part, rank))


_STATISTICS = ("running_mean", "running_var")


def _train(encoder, chosen):
    for name, parameter in encoder.named_parameters():
        fixed = name in ("mean", "std") or name.rpartition(".")[2] in _STATISTICS
        parameter.requires_grad_(chosen(name) and not fixed)


def _is_linear(part):
    if type(part) is nn.Linear:
        return True
    return isinstance(part, nn.Conv2d) and part.kernel_size == part.stride == (1, 1) and part.groups == 1


class LowRank(nn.Module):
    """A frozen linear layer or 1x1 convolution W with a low-rank update: W x + B A x; B is 0 at the start.

    Parameters
    ----------
    base : torch.nn.Linear or torch.nn.Conv2d
    rank : int
    """

    def __init__(self, base: Any, rank: int) -> None:
        super().__init__()
        self.base = base
        if isinstance(base, nn.Linear):
            self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        else:
            self.down = nn.Conv2d(base.in_channels, rank, 1, bias=False)  # type: ignore[assignment]
            self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False)  # type: ignore[assignment]
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))
