"""Common parts of the networks: the base class, input checks, weight initialization, batch norm without a counter."""

from typing import Any, Literal

import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from fnlkit.core.errors import InputError

Init = Literal["torch", "he", "xavier"]


def fused_form(module: torch.nn.Module, shape: tuple[int, ...], image: bool) -> tuple[str, tuple[int, int, int]] | None:
    """Describe a network for fnlkit.kernels.fused; None if no kernel can train it.

    A network class describes itself by a method `fused_form`. Subclasses do not inherit the method, because they can compute a
    different function.

    Parameters
    ----------
    module : torch.nn.Module
    shape : tuple of int
        Shape of the stored samples (n, ...).
    image : bool
        True if samples are raw images.
    """
    describe = vars(type(module)).get("fused_form")
    trains_all = all(p.requires_grad for p in module.parameters())  # kernels train every weight
    return describe(module, shape, image) if describe and trains_all else None


class Network(nn.Module):
    """A network whose `features` (B, width) are followed by the linear layer `fc`."""

    fc: nn.Module
    features: Any

    def classify(self, features: torch.Tensor) -> torch.Tensor:
        return self.fc(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.features(x))


def image(input_shape: tuple[int, ...], name: str, *, least: int = 1) -> tuple[Any, Any, Any]:
    """Read (C, H, W) of an image input; raise if the network does not accept it."""
    if len(input_shape) != 3:
        raise InputError(f"model {name!r} needs images (C, H, W) but samples are {input_shape}; use mlp or audio")
    channels, height, width = input_shape
    if min(height, width) < least:
        raise InputError(
            f"model {name!r} needs images of at least {least}x{least} pixels but they are {height}x{width}; "
            "use mlp, or lenet5(upsample=true)"
        )
    return channels, height, width


def initialize(network: torch.nn.Module, init: str) -> torch.nn.Module:
    """Initialize the weights of a network as named, in the order of the modules.

    Parameters
    ----------
    network : torch.nn.Module
    init : str
        ``torch``: defaults of PyTorch's layers; ``he``: normal with variance 2 / fan-out on convolutions (He 2015, and
        torchvision's ResNets); ``xavier``: Xavier-uniform weights and zero biases on convolutions and linear layers, as
        in FedEFC's public code.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and init == "he":
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, (nn.Conv2d, nn.Linear)) and init == "xavier":
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network


def norm(channels: int) -> nn.Module:
    """Batch norm over (B, channels, H, W) with momentum 0.1 and no step counter.

    The counter is used for a cumulative average only; with a fixed momentum it would be an additional buffer to stack and send.
    """
    return remove_counters(nn.BatchNorm2d(channels))


def normalize_rectify(norm: nn.Module, x: torch.Tensor, add: torch.Tensor | None = None) -> torch.Tensor:
    """Compute relu(norm(x) + add). A torch function mode can replace it by one kernel.

    Parameters
    ----------
    norm : torch.nn.Module
    x, add : Tensor (B, C, H, W)
    """
    if has_torch_function_unary(x):
        return handle_torch_function(normalize_rectify, (x,), norm, x, add)
    normalized = norm(x)
    return (normalized if add is None else normalized + add).relu()


def remove_counters(network: nn.Module) -> nn.Module:
    """Remove the step counters of batch norm layers that have a fixed momentum."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
            module.num_batches_tracked = None
    return network
