"""The two-layer convolutional network of the FedAvg paper."""

import torch
import torch.nn.functional as F
from torch import nn

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Count, check_arguments
from fnlkit.models.parts import Init, Network, image, initialize


class CNN2(Network):
    """conv1 32@5x5, max-pool, conv2 64@5x5, max-pool, fc1 512, fc C; ReLU after each but the last, padding 2."""

    def __init__(self, channels, height, width, classes, base):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, base, 5, padding=2)
        self.conv2 = nn.Conv2d(base, 2 * base, 5, padding=2)
        self.fc1 = nn.Linear(2 * base * (height // 4) * (width // 4), 16 * base)
        self.fc = nn.Linear(16 * base, classes)
        self.width = 16 * base

    def features(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.conv1(x).relu(), 2)
        x = F.max_pool2d(self.conv2(x).relu(), 2).flatten(1)
        return self.fc1(x).relu()


@declare(cite="McMahan 2017")
@check_arguments
def cnn2(*, input_shape: tuple[int, ...], classes: int, base: Count = 32, init: Init = "torch") -> torch.nn.Module:
    """The two-layer CNN of McMahan 2017 (FedAvg), larger than LeNet-5 and without normalization.

    Parameters
    ----------
    input_shape : (C, H, W)
        At least 4x4 pixels; the paper uses (1, 28, 28), for which the network has 1,663,370 parameters.
    classes : int
    base : int
        Channels of the first convolution; the second has twice and the linear layer 16 times as many.
    init : str
        See fnlkit.models.parts.initialize.
    """
    return initialize(CNN2(*image(input_shape, "cnn2", least=4), classes, base), init)
