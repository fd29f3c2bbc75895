"""ConvMixer."""

import torch
import torch.nn.functional as F
from torch import nn

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Count, check_arguments
from fnlkit.models.parts import Init, Network, image, initialize, norm


class ConvMixer(Network):
    """A patch embedding, then `depth` depthwise convolutions with a shortcut, each followed by a 1x1; GELU and batch norm."""

    def __init__(self, channels, classes, dim, depth, kernel, patch):
        super().__init__()
        self.depth = depth
        self.stem, self.bn = nn.Conv2d(channels, dim, patch, patch), norm(dim)
        for i in range(1, depth + 1):
            setattr(self, f"depthwise{i}", nn.Conv2d(dim, dim, kernel, padding="same", groups=dim))
            setattr(self, f"bn{i}a", norm(dim))
            setattr(self, f"pointwise{i}", nn.Conv2d(dim, dim, 1))
            setattr(self, f"bn{i}b", norm(dim))
        self.fc = nn.Linear(dim, classes)
        self.width = dim

    def features(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(F.gelu(self.stem(x)))
        for i in range(1, self.depth + 1):
            x = x + getattr(self, f"bn{i}a")(F.gelu(getattr(self, f"depthwise{i}")(x)))
            x = getattr(self, f"bn{i}b")(F.gelu(getattr(self, f"pointwise{i}")(x)))
        return x.mean((-2, -1))


@declare(cite="Trockman 2022")
@check_arguments
def convmixer(
    *,
    input_shape: tuple[int, ...],
    classes: int,
    dim: Count = 128,
    depth: Count = 4,
    kernel: Count = 5,
    patch: Count = 2,
    init: Init = "torch",
) -> torch.nn.Module:
    """ConvMixer-dim/depth (Trockman 2022); the defaults are FedLN's small network.

    FedLN's text prints kernel 2 and patch 5 (81,930 parameters for 10 classes of RGB images).  The default is kernel 5 and
    patch 2 (84,618 parameters), the usual sizes of ConvMixer: both round to the 0.1 M parameters that the text states.

    Parameters
    ----------
    input_shape : (C, H, W)
    classes : int
    dim, depth : int
        Channels and number of blocks.
    kernel, patch : int
        Pixels on a side.
    init : str
        See fnlkit.models.parts.initialize.
    """
    channels, _, _ = image(input_shape, "convmixer", least=patch)
    return initialize(ConvMixer(channels, classes, dim, depth, kernel, patch), init)
