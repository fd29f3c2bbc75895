"""Cosines of random directions beside the inputs, with a linear head."""

import math

import torch
from torch import nn

from fnlkit.core.parameters import Count, check_arguments
from fnlkit.models import COSINES, cosines_of
from fnlkit.models.parts import Init, Network, initialize


class Fourier(Network):
    """A head `fc` on cos(`fc1` x) and x; the input is flattened."""

    def __init__(self, inputs, cosines, classes):
        super().__init__()
        self.cosines, self.width = cosines, cosines + inputs
        self.fc1, self.fc = nn.Linear(inputs, cosines), nn.Linear(cosines + inputs, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return torch.cat([self.fc1(x).cos(), x], 1)


@check_arguments
def fourier(*, input_shape: tuple[int, ...], classes: int, features: Count = COSINES, init: Init = "torch") -> torch.nn.Module:
    """Make a linear head on random Fourier features and the inputs, for inputs of any shape.

    `fedsums` and other methods that compute the head also draw the directions, at the scale of the inputs.  Other methods
    train them.  Source: Rahimi, Recht 2007, Random features for large-scale kernel machines.

    Parameters
    ----------
    input_shape : tuple of int
    classes : int
    features : int
        Number of cosines, an even number.
    init : str
        See fnlkit.models.parts.initialize.
    """
    return initialize(Fourier(math.prod(input_shape), cosines_of({"features": features}), classes), init)
