"""The nine-layer network of Co-teaching, which FedEFC uses for MNIST."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import nn

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Count, Range, check_arguments
from fnlkit.models.dropout import Dropout2d
from fnlkit.models.parts import Init, Network, image, initialize, norm

# (channels, padding) of the nine 3x3 convolutions; the last three take no padding, as in Co-teaching's public code.
LAYERS = ((128, 1), (128, 1), (128, 1), (256, 1), (256, 1), (256, 1), (512, 0), (256, 0), (128, 0))


class CNN9(Network):
    """Nine convolutions with batch norm and leaky ReLU (0.01), max-pool after the third and sixth, then the mean."""

    def __init__(self, channels, classes, base, dropout):
        super().__init__()
        before = channels
        for i, (after, padding) in enumerate(LAYERS, 1):
            after = after * base // 128
            setattr(self, f"conv{i}", nn.Conv2d(before, after, 3, padding=padding))
            setattr(self, f"bn{i}", norm(after))
            before = after
        self.dropout1, self.dropout2 = Dropout2d(dropout, 1), Dropout2d(dropout, 2)
        self.fc = nn.Linear(before, classes)
        self.width = before

    def features(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(1, 10):
            x = F.leaky_relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)), 0.01)
            if i == 3:
                x = self.dropout1(F.max_pool2d(x, 2))
            elif i == 6:
                x = self.dropout2(F.max_pool2d(x, 2))
        return x.mean((-2, -1))


@declare(cite="Han 2018")
@check_arguments
def cnn9(
    *,
    input_shape: tuple[int, ...],
    classes: int,
    dropout: Annotated[float, Range(0, 1, open_high=True)] = 0.25,
    base: Count = 128,
    init: Init = "torch",
) -> torch.nn.Module:
    """The 9-layer CNN of Han 2018 (Co-teaching), FedEFC's network for MNIST.

    Parameters
    ----------
    input_shape : (C, H, W)
        At least 28x28 pixels.
    classes : int
    dropout : float
        Rate of the two spatial dropout layers; see fnlkit.models.dropout.
    base : int
        Channels of the first three layers; the other layers scale with it.
    init : str
        See fnlkit.models.parts.initialize; FedEFC uses xavier.
    """
    channels, _, _ = image(input_shape, "cnn9", least=28)
    return initialize(CNN9(channels, classes, base, dropout), init)
