"""Dropout whose masks follow from a key: the same whatever engine, process or resumed run computes them.

torch's own dropout draws from one global generator, so a mask depends on everything drawn before: clients trained at
once and clients trained in turn would differ.  Here a mask is a hash of (key, layer, row, channel), and the key, an
integer buffer that is not saved, goes up by one at every forward pass in training mode.
`fnlkit.models.reseed(network, key)` sets it when a client starts its local training; stacked clients carry their keys
as a stacked buffer (K,) like any other.  Row i of a batch gets the same mask in a full, a short or a padded batch.
"""

import torch
from torch import nn

from fnlkit.errors import InputError


def _mixed(h):
    """One round of the finaliser of splitmix64 (Steele 2014) on int64; products wrap around."""
    h = (h ^ ((h >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    h = (h ^ ((h >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return h ^ ((h >> 31) & 0x1FFFFFFFF)


class Dropout2d(nn.Module):
    """Sets whole channels of (B, C, H, W) to zero with probability `rate` in training mode and scales the others up.

    Parameters
    ----------
    rate : float in [0, 1)
    layer : int
        Tells apart the dropout layers of one network, which share a key.
    """

    def __init__(self, rate, layer):
        super().__init__()
        if not 0 <= rate < 1:
            raise InputError(f"`dropout` is {rate}; write a fraction of at least 0 and below 1")
        self.rate, self.layer = rate, layer
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x):
        if not self.training or not self.rate:
            return x
        start = _mixed(_mixed(self.key) + self.layer)
        self.key.add_(1)
        rows = torch.arange(x.shape[0], device=x.device)[:, None] << 32
        bits = _mixed(_mixed(start + rows + torch.arange(x.shape[1], device=x.device))) >> 40 & 0xFFFFFF
        keep = (bits >= round(self.rate * 2**24)).to(x.dtype) / (1 - self.rate)
        return x * keep[:, :, None, None]
