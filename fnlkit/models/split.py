"""Split an encoder before its first trained block: the part before the block does not change during training."""

import math
from typing import Any

import torch
from torch import nn

from fnlkit.models.encoder import Encoder


def blocks_of(encoder: nn.Module) -> list[str]:
    """Name an encoder's blocks: children with parameters of its longest list that is not within a block."""
    lists, inside = {}, {name for name, module in encoder.named_modules() if isinstance(module, (nn.Sequential, nn.ModuleList))}
    for name, module in encoder.named_modules():
        if name in inside or not any(name.startswith(f"{outer}.") for outer in inside):
            children = [f"{name}.{child}" for child, part in module.named_children() if any(True for _ in part.parameters())]
            lists[name] = children
    return max(lists.values(), key=len)


def first_trained(encoder: nn.Module) -> str:
    """Name the first block with a trainable parameter; "" if something before the second block is trained."""
    blocks = blocks_of(encoder)
    trained = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    first = next((block for block in blocks if trained and trained[0].startswith(f"{block}.")), "")
    return first if first != blocks[0] else ""


class _Reached(Exception):  # noqa: N818 - no error: it ends a forward pass
    pass


def _stop(module, inputs):
    raise _Reached(inputs[0])


class Before(nn.Module):
    """Map images (B, 3, size, size) to the input of a block, (B, d) with the values of a sample in one row.

    Parameters
    ----------
    module : torch.nn.Module
        Of an encoder; it is changed.
    block : str
        Name of the block in the module.
    """

    def __init__(self, module: nn.Module, block: str) -> None:
        super().__init__()
        module.get_submodule(block).register_forward_pre_hook(_stop)
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.values(x).flatten(1)

    def values(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the input of the block (B, ...)."""
        try:
            self.module(x)
        except _Reached as reached:
            return reached.args[0]
        raise RuntimeError("the network does not call the block")


class _Start:
    """A hook that replaces the input of a block by `values`."""

    values: torch.Tensor | None = None

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.values, *inputs[1:])


class _Skip(nn.Module):
    """A block that does nothing."""

    def forward(self, x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        return x


class After(nn.Module):
    """Map the input of a block, (B, d) as returned by `Before`, to the features of an encoder.

    The layers before the list of blocks run on an empty image, because only the network knows which of them it calls.

    Parameters
    ----------
    encoder : Encoder
        It is changed.
    block : str
        Name of the block in the encoder.
    shape : tuple of int
        Of a sample's input of the block.
    """

    def __init__(self, encoder: Encoder, block: str, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.start, self.shape = _Start(), shape
        encoder.get_submodule(block).register_forward_pre_hook(self.start)
        blocks = blocks_of(encoder)
        for name in blocks[: blocks.index(block)]:
            encoder.set_submodule(name, _Skip())
        self.encoder = encoder

    @property
    def normalize(self) -> bool:
        return self.encoder.normalize

    def train(self, mode: bool = True) -> "After":
        """Stay in evaluation mode, as the encoder."""
        return super().train(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = self.encoder.size
        self.start.values = x.unflatten(1, self.shape)
        try:
            return self.encoder(torch.zeros(1, 3, side, side, dtype=x.dtype, device=x.device))
        finally:
            self.start.values = None


def split(encoder: Encoder, copy: Encoder, block: str) -> tuple[Before, After]:
    """Split an encoder into the parts before and from a block.

    Parameters
    ----------
    encoder : Encoder
    copy : Encoder
        An equal encoder, for the second part.
    block : str
        As returned by `first_trained`.
    """
    before = Before(encoder.module, block.removeprefix("module."))
    with torch.no_grad():
        shape = before.values(torch.zeros(1, 3, encoder.size, encoder.size)).shape[1:]
    return before, After(copy, block, tuple(shape))


def count_values(encoder: Encoder, copy: Encoder, block: str) -> int:
    """Count the values of a sample before the block; 0 if the parts do not compute what the encoder computes.

    Arguments are those of `split`.
    """
    x = torch.rand(2, 3, encoder.size, encoder.size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = encoder(x)
        try:
            before, after = split(encoder, copy, block)
            parts = after(before((x - encoder.mean) / encoder.std))
        except (RuntimeError, ValueError, TypeError, AttributeError):  # blocks exchange more than one tensor
            return 0
    exact = parts.shape == whole.shape and torch.allclose(parts, whole, rtol=1e-4, atol=1e-5)
    return math.prod(after.shape) if exact else 0
