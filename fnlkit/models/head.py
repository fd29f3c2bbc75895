"""A network with a linear head that maps features to the width of a teacher's embedding."""

import torch
from torch import nn

from fnlkit.kernels.streams import stream
from fnlkit.models.parts import fused_form


class WithHead(nn.Module):
    """A network that appends the output of a linear head to the features, (B, width + D).

    ``forward`` and ``classify`` do not use the head, so predictions do not change.  The weights of the head are parameters
    like all others, trained and averaged with them.

    Parameters
    ----------
    module : nn.Module
        With ``features``, ``classify`` and ``width``.
    size : int
        D, the width of the teacher's embedding.
    seed : int
    """

    def __init__(self, module, size, seed=0):
        super().__init__()
        self.module, self.width = module, module.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, "head").integers(2**62)))
            self.head = nn.Linear(self.width, size)

    def fused_form(self, shape: tuple[int, int], image: bool) -> tuple[str, tuple[int, int, int]] | None:
        return fused_form(self.module, shape, image)  # the weights of the head come after those of the network

    def features(self, x: "torch.Tensor") -> "torch.Tensor":
        features = self.module.features(x)
        return torch.cat([features, self.head(features)], -1)

    def classify(self, features: "torch.Tensor") -> "torch.Tensor":
        return self.module.classify(features[..., : self.width])

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return self.module(x)
