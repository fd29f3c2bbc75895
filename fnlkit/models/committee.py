"""Several networks in one module that predict together, with a weight for each."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class Committee(nn.Module):
    """Networks of equal shape that predict with the weighted mean of their probabilities.

    ``features`` are those of all networks, (B, E width), one after the other.  The weights of the networks are concatenated in
    the flat vector; the last entries of the vector are ``log_share``.  Frozen parameters are equal in all networks, which share
    those of the first one in memory.

    Parameters
    ----------
    networks : sequence of nn.Module
        E networks that map (B, ...) to logits (B, C).
    shares : sequence of float, optional
        Weight of each network (E,), above 0, with the sum 1. Default: equal.
    """

    networks: Any
    log_share: "torch.Tensor"

    def __init__(self, networks: Sequence[nn.Module], shares: Sequence[float] | None = None):
        super().__init__()
        _share_frozen(networks)
        self.networks = nn.ModuleList(networks)
        equal = [1 / len(networks)] * len(networks)
        self.log_share = nn.Buffer(torch.tensor(equal if shares is None else shares, dtype=torch.float64).log().float())

    @property
    def width(self) -> int:
        """Width of the features, if the networks have features."""
        return sum(network.width for network in self.networks)

    def features(self, x: "torch.Tensor") -> "torch.Tensor":
        return torch.cat([network.features(x) for network in self.networks], -1)

    def classify(self, features: "torch.Tensor") -> "torch.Tensor":
        parts = features.split([network.width for network in self.networks], -1)
        return self._join([network.classify(part) for network, part in zip(self.networks, parts, strict=True)])

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return self._join([network(x) for network in self.networks])

    def _join(self, logits):
        """Logarithm of the weighted mean of probabilities (B, C)."""
        return (torch.stack(logits).log_softmax(-1) + self.log_share.view(-1, 1, 1)).logsumexp(0)


def _share_frozen(networks):
    """Let all networks use the frozen parameters of the first one."""
    frozen = {name: parameter for name, parameter in networks[0].named_parameters() if not parameter.requires_grad}
    for network in networks[1:]:
        for name, parameter in frozen.items():
            owner, _, own_name = name.rpartition(".")
            network.get_submodule(owner).register_parameter(own_name, parameter)
