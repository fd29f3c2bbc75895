"""Fully connected network."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from fnlkit.core.errors import InputError
from fnlkit.core.parameters import check_arguments
from fnlkit.models.parts import Init, Network, initialize


class MLP(Network):
    """Linear layers fc1, fc2, ... with ReLU between them; the input is flattened."""

    def __init__(self, inputs, hidden, classes):
        super().__init__()
        sizes = (inputs, *hidden, classes)
        self.depth, self.width = len(hidden), sizes[-2]
        for i in range(self.depth + 1):
            setattr(self, f"fc{i + 1}", nn.Linear(sizes[i], sizes[i + 1]))

    def fused_form(self, shape: tuple[Any, ...], image: bool) -> tuple[str, tuple[Any, ...]]:
        layers = [getattr(self, f"fc{i + 1}") for i in range(self.depth + 1)]
        return ("mlp", (layers[0].in_features, *(layer.out_features for layer in layers)))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for i in range(self.depth):
            x = getattr(self, f"fc{i + 1}")(x).relu()
        return x

    def classify(self, features: torch.Tensor) -> torch.Tensor:
        return getattr(self, f"fc{self.depth + 1}")(features)


@check_arguments
def mlp(
    *, input_shape: tuple[int, ...], classes: int, hidden: list[int] | int | tuple[int, int] = (200, 100), init: Init = "torch"
) -> torch.nn.Module:
    """A multi-layer perceptron for inputs of any shape.

    Parameters
    ----------
    input_shape : tuple of int
    classes : int
    hidden : int or list of int
        Width of each hidden layer; an empty list gives multinomial logistic regression.
    init : str
        See fnlkit.models.parts.initialize.
    """
    hidden = list(hidden) if isinstance(hidden, (list, tuple)) else [hidden]
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in hidden):
        raise InputError(f"model 'mlp': `hidden` is {hidden}; write positive whole numbers, for example [200, 100]")
    inputs = math.prod(input_shape)
    if sum(a * b for a, b in pairwise((inputs, *hidden, classes))) > 2**32:
        raise InputError("model 'mlp': `hidden` makes more than 4,294,967,296 weights; write smaller layers")
    return initialize(MLP(inputs, hidden, classes), init)
