"""VGG-11 for small images."""

import torch
import torch.nn.functional as F
from torch import nn

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Count, check_arguments
from fnlkit.models.parts import Init, Network, image, initialize, norm

# Configuration A of Simonyan 2015 as multiples of the first width; 0 is a max-pool.
LAYERS = (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0)


class VGG11(Network):
    """Eight 3x3 convolutions, five max-pools, the mean over the remaining pixels, and a linear layer."""

    def __init__(self, channels, height, width, classes, base, batch_norm):
        super().__init__()
        rows, columns = max(0, 32 - height), max(0, 32 - width)
        self.padding = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
        layers, before = [], channels
        for multiple in LAYERS:
            if not multiple:
                layers.append(nn.MaxPool2d(2))
                continue
            after = base * multiple
            layers.append(nn.Conv2d(before, after, 3, padding=1))
            if batch_norm:
                layers.append(norm(after))
            layers.append(nn.ReLU())
            before = after
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(before, classes)
        self.width = before

    def features(self, x: torch.Tensor) -> torch.Tensor:
        if any(self.padding):
            x = F.pad(x, self.padding)
        return self.body(x).mean((-2, -1))


@declare(cite="Simonyan 2015")
@check_arguments
def vgg11(
    *, input_shape: tuple[int, ...], classes: int, batch_norm: bool = True, base: Count = 64, init: Init = "he"
) -> torch.nn.Module:
    """VGG-11 (Simonyan 2015, configuration A) with one linear layer, as usual for 32-pixel images.

    Parameters
    ----------
    input_shape : (C, H, W)
        At least 28x28 pixels; images under 32 pixels are padded with zeros.
    classes : int
    batch_norm : bool
        Add batch norm after every convolution.
    base : int
        Channels of the first layer.
    init : str
        See fnlkit.models.parts.initialize.
    """
    return initialize(VGG11(*image(input_shape, "vgg11", least=28), classes, base, batch_norm), init)
