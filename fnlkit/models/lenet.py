"""LeNet-5 as used by FedCorr."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import check_arguments
from fnlkit.models.parts import Init, Network, image, initialize


class LeNet5(Network):
    """conv1 6@5x5, max-pool, conv2 16@5x5, max-pool, fc1 120, fc2 84, fc3 C; ReLU after each but the last.

    Images under 32 pixels are padded with zeros to 32 on all sides.  28x28 images then equal the input of a first convolution
    with padding 2, and the parameters keep their shapes.
    """

    def __init__(self, channels, height, width, classes, upsample):
        super().__init__()
        self.upsample = upsample
        if upsample:
            height = width = 32
        rows, columns = max(0, 32 - height), max(0, 32 - width)
        self.padding = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
        height, width = (((max(32, side) - 4) // 2 - 4) // 2 for side in (height, width))
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * height * width, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)
        self.width = 84

    def fused_form(self, shape: tuple[int, ...], image: bool) -> tuple[str, Any, Any] | None:
        if image and not self.upsample and len(shape) == 4:
            height, width, channels = shape[1:]
            if 28 <= height <= 32 and 28 <= width <= 32 and channels in (1, 3):
                return ("lenet5", channels, self.fc3.out_features)
        return None

    def features(self, x: torch.Tensor) -> torch.Tensor:
        if self.upsample:
            x = F.interpolate(x, (32, 32), mode="bilinear", align_corners=False)
        elif any(self.padding):
            x = F.pad(x, self.padding)
        x = F.max_pool2d(self.conv1(x).relu(), 2)
        x = F.max_pool2d(self.conv2(x).relu(), 2).flatten(1)
        return self.fc2(self.fc1(x).relu()).relu()

    def classify(self, features: torch.Tensor) -> torch.Tensor:
        return self.fc3(features)


@declare(cite="LeCun 1998")
@check_arguments
def lenet5(*, input_shape: tuple[int, ...], classes: int, upsample: bool = False, init: Init = "torch") -> torch.nn.Module:
    """LeNet-5 (LeCun 1998) with ReLU and max-pooling, the network of FedCorr's CIFAR-10 comparison.

    Parameters
    ----------
    input_shape : (C, H, W)
        At least 28x28 pixels, unless `upsample` is set.
    classes : int
    upsample : bool
        Scale every image to 32x32 bilinearly.
    init : str
        See fnlkit.models.parts.initialize.
    """
    return initialize(LeNet5(*image(input_shape, "lenet5", least=1 if upsample else 28), classes, upsample), init)
