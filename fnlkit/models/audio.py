"""The audio network of FedLN, with separate convolutions over time and frequency."""

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import nn

from fnlkit.core.declarations import declare
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Count, Positive, Range, check_arguments
from fnlkit.models.dropout import Dropout2d
from fnlkit.models.parts import Init, Network, image, initialize


class Block(nn.Module):
    """Parallel convolutions over time and over frequency, joined by a 1x1 convolution, with group norm and ReLU after each.

    Kernels of even length are padded with an additional cell at the end to keep the size.
    """

    def __init__(self, before, after, kernel, groups, dropout, layer):
        super().__init__()
        self.padding = (kernel - 1) // 2, kernel // 2
        self.time, self.gn1 = nn.Conv2d(before, after, (1, kernel)), nn.GroupNorm(groups, after)
        self.frequency, self.gn2 = nn.Conv2d(before, after, (kernel, 1)), nn.GroupNorm(groups, after)
        self.joint, self.gn3 = nn.Conv2d(2 * after, after, 1), nn.GroupNorm(groups, after)
        self.dropout = Dropout2d(dropout, layer)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        time = self.gn1(self.time(F.pad(x, (*self.padding, 0, 0)))).relu()
        frequency = self.gn2(self.frequency(F.pad(x, (0, 0, *self.padding)))).relu()
        x = self.gn3(self.joint(torch.cat([time, frequency], 1))).relu()
        return self.dropout(F.max_pool2d(x, 2))


class AudioNetwork(Network):
    """Four blocks, the maximum over time and frequency, and a linear layer; waves first pass a log-Mel front end."""

    def __init__(self, channels, classes, widths, kernel, groups, dropout, front):
        super().__init__()
        self.front = front  # not a module: constant filters must not be sent or averaged
        self.blocks = nn.Sequential()
        before = channels
        for i, after in enumerate(widths, 1):
            self.blocks.add_module(str(i), Block(before, after, kernel, groups, dropout, i))
            before = after
        self.fc = nn.Linear(before, classes)
        self.width = before

    def features(self, x: "torch.Tensor") -> "torch.Tensor":
        if self.front is not None:
            x = self.front(x)[:, None]
        return self.blocks(x).amax((-2, -1))


@declare(cite="Tsouvalas 2024")
@check_arguments
def audio(
    *,
    input_shape: tuple[int, ...],
    classes: int,
    widths: Sequence[int] = (24, 32, 64, 128),
    kernel: Count = 4,
    groups: Count = 4,
    dropout: Annotated[float, Range(0, 1, open_high=True)] = 0.1,
    sample_rate: Count = 16000,
    full_scale: Positive = 32768.0,
    init: Init = "torch",
) -> "torch.nn.Module":
    """FedLN's network for log-Mel spectrograms (Tsouvalas 2024, section 5.2).

    The paper states four blocks, group norm, dropout 0.1 and pooling by 2.  Widths, kernel length, groups and the final
    pooling are those of the same authors' public code for semi-supervised audio (FedSTAR).  The L2 regularization of 1e-4 in
    each convolution is a weight decay of 2e-4 in torch; it belongs to the optimizer.

    Parameters
    ----------
    input_shape : (1, 64, T) or (samples,)
        A log-Mel spectrogram with frequency before time (see fnlkit.models.spectrograms), or a wave, which passes
        the front end at every step. Precomputed spectrograms save that time.
    classes : int
    widths : list of int
        Channels of each block, multiples of `groups`.
    kernel, groups : int
        Length of the convolutions, and groups of the following normalization.
    dropout : float
        Rate of the spatial dropout after each block; see fnlkit.models.dropout.
    sample_rate : int
        Sample rate of waves in Hz.
    full_scale : float
        Largest absolute value of a wave: 32768 for int16 samples, 1 for samples in [-1, 1].
    init : str
        See fnlkit.models.parts.initialize.
    """
    widths = list(widths) if isinstance(widths, (list, tuple)) else [widths]
    if not widths or any(type(w) is not int or w < 1 or w % groups for w in widths):
        raise InputError(f"model 'audio': `widths` is {widths}; write positive multiples of groups={groups}")
    front, channels = None, 1
    if len(input_shape) == 1:
        from fnlkit.models.spectrograms import LogMel

        front = LogMel(sample_rate, full_scale=full_scale)
        frames = front.frames(input_shape[0])
        if frames < 2 ** len(widths):
            raise InputError(
                f"model 'audio': waves of {input_shape[0]} samples at {sample_rate} Hz give {frames} frames; "
                f"{len(widths)} blocks need at least {2 ** len(widths)}"
            )
    else:
        channels, _, _ = image(input_shape, "audio", least=2 ** len(widths))
    return initialize(AudioNetwork(channels, classes, widths, kernel, groups, dropout, front), init)
