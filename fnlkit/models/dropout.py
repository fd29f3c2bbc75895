"""Dropout with masks that depend on a key only, and are equal on every engine, process and resumed run.

The dropout of torch draws from one global generator, so a mask depends on all previous draws, and clients trained in a
stack would differ from clients trained in turn.  Here a mask is a hash of (key, layer, row, channel).  The key is an
integer buffer that is not saved and increases by 1 at every forward pass in training mode.
`fnlkit.models.reseed(network, key)` sets it when a client starts local training; stacked clients have a stacked key (K,)
like any other buffer.  Row i of a batch gets the same mask in a full, a short or a padded batch.
"""

import math
from typing import Any

import torch
from torch import nn

from fnlkit.core.errors import InputError

FIRST = 500  # layer number of the first replaced layer; built-in networks count from 0


def _mix(h):
    """Apply one round of the finalizer of splitmix64 (Steele 2014) to int64; products wrap around."""
    h = (h ^ ((h >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    h = (h ^ ((h >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return h ^ ((h >> 31) & 0x1FFFFFFFF)


class Dropout(nn.Module):
    """Set entries of (B, ...) to zero with probability `rate` in training mode and scale the others up.

    Parameters
    ----------
    rate : float in [0, 1)
    layer : int
        Distinguishes the dropout layers of one network, which share a key.

    Raises
    ------
    InputError
        If `rate` is not in [0, 1).
    """

    _dims: int | None = None  # leading dimensions with separate mask entries; None for all

    key: torch.Tensor

    def __init__(self, rate, layer):
        super().__init__()
        if not 0 <= rate < 1:
            raise InputError(f"`dropout` is {rate}; write a fraction of at least 0 and below 1")
        self.rate, self.layer = rate, layer
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        if not self.training or not self.rate:
            return x
        start = _mix(_mix(self.key) + self.layer)
        self.key.add_(1)
        rows = torch.arange(x.shape[0], device=x.device)[:, None] << 32
        columns = torch.arange(math.prod(x.shape[1 : self._dims]), device=x.device)
        bits = _mix(_mix(start + rows + columns)) >> 40 & 0xFFFFFF
        keep = (bits >= round(self.rate * 2**24)).to(x.dtype) / (1 - self.rate)
        shape = x.shape[: self._dims]
        return x * keep.view(*shape, *[1] * (x.dim() - len(shape)))


class Dropout2d(Dropout):
    """Set whole channels of (B, C, ...) to zero with probability `rate` in training mode and scale the others up.

    Parameters and errors as in `Dropout`.
    """

    _dims = 2


class Attention(nn.MultiheadAttention):
    """Multi-head attention whose dropout of attention weights is keyed, like `Dropout`.

    `replace_dropout` changes the class of a layer of torch, and adds the dropout as the attribute `keyed_dropout`.
    """

    keyed_dropout: Any

    def forward(
        self,
        query: "torch.Tensor",
        key: "torch.Tensor",
        value: "torch.Tensor",
        key_padding_mask: "torch.Tensor | None" = None,
        need_weights: bool = True,
        attn_mask: "torch.Tensor | None" = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> "tuple[torch.Tensor, torch.Tensor | None]":
        """Compute (outputs, attention weights or None), as torch does; weights are those after dropout."""
        more: dict[str, Any] = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask, "is_causal": is_causal}
        if not (self.training and self.keyed_dropout.rate):
            return super().forward(
                query, key, value, need_weights=need_weights, average_attn_weights=average_attn_weights, **more
            )
        weights: Any
        _, weights = super().forward(query, key, value, need_weights=True, average_attn_weights=False, **more)
        alone = query.dim() == 2
        weights = self.keyed_dropout(weights[None] if alone else weights)  # (B, heads, L, S)
        value = value[None] if alone else value if self.batch_first else value.transpose(0, 1)
        out = (weights @ self._values(value)).transpose(1, 2).flatten(2)
        out = self.out_proj(out)
        out, weights = (out[0], weights[0]) if alone else (out if self.batch_first else out.transpose(0, 1), weights)
        if not need_weights:
            return out, None
        return out, weights.mean(-3) if average_attn_weights else weights

    def _values(self, value):
        """Project values (B, S, width of a value) to (B, heads, S, width)."""
        width = self.embed_dim
        weight = self.in_proj_weight[2 * width :] if self._qkv_same_embed_dim else self.v_proj_weight
        bias = None if self.in_proj_bias is None else self.in_proj_bias[2 * width :]
        values = nn.functional.linear(value, weight, bias)
        if self.bias_v is not None:
            values = torch.cat([values, self.bias_v.expand(len(values), -1, -1)], 1)
        if self.add_zero_attn:
            values = torch.cat([values, torch.zeros_like(values[:, :1])], 1)
        return values.unflatten(2, (self.num_heads, -1)).transpose(1, 2)


KEYED = {nn.Dropout: Dropout, nn.Dropout1d: Dropout2d, nn.Dropout2d: Dropout2d, nn.Dropout3d: Dropout2d}


def replace_dropout(network: "torch.nn.Module") -> "torch.nn.Module":
    """Replace the torch dropout layers of a network, in place, by layers whose masks follow from a key.

    Parameters
    ----------
    network : torch.nn.Module

    Returns
    -------
    torch.nn.Module
        `network`, or a new layer if `network` is a dropout layer itself.
    """
    if type(network) in KEYED:
        return _replace_layer(network, FIRST)
    number = FIRST
    for part in list(network.modules()):
        if type(part) is nn.MultiheadAttention:
            part.__class__, rate, part.dropout = Attention, part.dropout, 0.0
            part.keyed_dropout = Dropout(rate, number).train(part.training)
            number += 1
        for name, child in part._modules.items():
            if type(child) in KEYED:  # a layer that is used in two places becomes two layers
                part._modules[name] = _replace_layer(child, number)
                number += 1
    return network


def _replace_layer(layer, number):
    return KEYED[type(layer)](layer.p, number).train(layer.training)
