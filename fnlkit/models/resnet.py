"""Residual networks for small images: ResNet-18 and -34 with a 3x3 stem, and ResNet-20."""

import torch
import torch.nn.functional as F
from torch import nn

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Count, check_arguments
from fnlkit.models.parts import Init, Network, image, initialize, norm, normalize_rectify


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut (He 2016, basic block).

    If the shape changes, the shortcut is a 1x1 convolution with batch norm (``projected``, option B), or every second pixel
    with the new channels filled with zeros, half on each side (option A, no parameters).
    """

    def __init__(self, before, after, stride, projected):
        super().__init__()
        self.stride, self.missing = stride, after - before
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = norm(after)
        self.shortcut = None
        if projected and (stride != 1 or before != after):
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.conv2(normalize_rectify(self.bn1, self.conv1(x)))
        if self.shortcut is not None:
            x = self.shortcut(x)
        elif self.stride != 1 or self.missing:
            low = self.missing // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, low, self.missing - low))
        return normalize_rectify(self.bn2, branch, x)


class ResNet(Network):
    """A 3x3 stem, stages of basic blocks that double the width and halve the image, the mean, and a linear layer."""

    def __init__(self, channels, classes, blocks, base, projected):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, base, 3, 1, 1, bias=False)
        self.bn1 = norm(base)
        self.stages = nn.Sequential()
        before = base
        for stage, count in enumerate(blocks):
            after = base * 2**stage
            for i in range(count):
                stride = 2 if stage and i == 0 else 1
                self.stages.add_module(f"{stage + 1}_{i + 1}", Block(before, after, stride, projected))
                before = after
        self.fc = nn.Linear(before, classes)
        self.width = before

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.stages(normalize_rectify(self.bn1, self.conv1(x))).mean((-2, -1))


@declare(cite="He 2016")
@check_arguments
def resnet18(*, input_shape: tuple[int, ...], classes: int, base: Count = 64, init: Init = "he") -> torch.nn.Module:
    """ResNet-18 with a 3x3 stem and no max-pool (FedCorr, FedEFC, FLR and FedDPCont on CIFAR-10).

    Users of FedCorr report about 10 points less accuracy on CIFAR-10 with torchvision's ImageNet stem.

    Parameters
    ----------
    input_shape : (C, H, W)
    classes : int
    base : int
        Channels of the first stage; 64, 128, 256 and 512 by default.
    init : str
        See fnlkit.models.parts.initialize; FedEFC uses xavier.
    """
    return initialize(ResNet(image(input_shape, "resnet18")[0], classes, (2, 2, 2, 2), base, True), init)


@declare(cite="He 2016")
@check_arguments
def resnet34(*, input_shape: tuple[int, ...], classes: int, base: Count = 64, init: Init = "he") -> torch.nn.Module:
    """ResNet-34 with a 3x3 stem and no max-pool (FedCorr, FedEFC and FLR on CIFAR-100); see `resnet18`."""
    return initialize(ResNet(image(input_shape, "resnet34")[0], classes, (3, 4, 6, 3), base, True), init)


@declare(cite="He 2016")
@check_arguments
def resnet20(*, input_shape: tuple[int, ...], classes: int, base: Count = 16, init: Init = "he") -> torch.nn.Module:
    """ResNet-20 of He 2016's CIFAR experiments with parameter-free shortcuts (FedLN); see `resnet18`."""
    return initialize(ResNet(image(input_shape, "resnet20")[0], classes, (3, 3, 3), base, False), init)
