"""Two networks in one module, trained, sent and averaged as one vector."""

import math
from typing import Any

import torch
from torch import nn

from fnlkit.models.dropout import Dropout
from fnlkit.models.pair_output import both
from fnlkit.models.parts import fused_form


class Pair(nn.Module):
    """Two networks of equal shape that predict with the mean of their probabilities.

    ``features`` are the logits of both networks, (B, 2 C), the first network's before the second's; a loss that reads features
    separates them with `both`.  The weights are concatenated in the flat vector.  Elementwise operations (SGD, Adam, drift
    terms, means, medians) therefore act on each network separately; operations on the length of the vector (clipping, Krum,
    the check of a reply) act on both together.

    Parameters
    ----------
    first, second : nn.Module
        Map (B, ...) to logits (B, C).
    """

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second
        for part in second.modules():
            if isinstance(part, Dropout):
                part.layer += 1000  # layers share a key: equal numbers would drop the same channels in both

    @property
    def networks(self) -> tuple[Any, Any]:
        """The two networks."""
        return self.first, self.second

    def fused_form(self, shape: tuple[int, ...], image: bool) -> tuple[str, tuple[str, tuple[int, int, int]] | None] | None:
        forms = [fused_form(network, shape, image) for network in self.networks]
        return ("pair", forms[0]) if forms[0] and forms[0] == forms[1] else None

    def features(self, x: "torch.Tensor") -> "torch.Tensor":
        return torch.cat([self.first(x), self.second(x)], -1)

    def classify(self, features: "torch.Tensor") -> "torch.Tensor":
        return both(features).log_softmax(-1).logsumexp(-2) - math.log(2)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return self.classify(self.features(x))
