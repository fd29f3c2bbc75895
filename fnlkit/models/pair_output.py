"""Reading the output of two networks in one module, without the network classes of torch."""

from typing import TYPE_CHECKING

from fnlkit.core.errors import InputError

if TYPE_CHECKING:
    import torch

    from fnlkit.models.parts import Network


def must_be_pair(network: "Network", method: str) -> None:
    """Raise if a method that needs two networks received one.

    Raises
    ------
    InputError
    """
    if not hasattr(network.module, "networks"):
        kind = type(network.module).__name__
        raise InputError(f"{method} trains two models; give a network of fnlkit.models.pair.Pair, found {kind}")


def both(features: "torch.Tensor") -> "torch.Tensor":
    """Split a Pair's features (..., 2 C) into the two networks' logits (..., 2, C)."""
    return features.unflatten(-1, (2, -1))
