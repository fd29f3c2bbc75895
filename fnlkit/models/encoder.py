"""A pretrained network for images with its scaling: pixels in, features out."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    """Map images (B, C, H, W) of values in [0, 1], with 1 or 3 channels, to features (B, d).

    Parameters
    ----------
    module : torch.nn.Module
        Maps (B, 3, size, size) to (B, d).
    size : int
        Pixels to which images are scaled.
    mean, std : sequence of 3 floats
    normalize : bool
        Scale features to length 1.
    interpolation : str
        bilinear or bicubic.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self,
        module: nn.Module,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        normalize: bool,
        interpolation: str = "bilinear",
    ) -> None:
        super().__init__()
        self.module, self.size, self.normalize, self.interpolation = module, size, normalize, interpolation
        for name, values in (("mean", mean), ("std", std)):
            fixed = torch.tensor(values, dtype=torch.float32)[:, None, None]
            setattr(self, name, nn.Parameter(fixed, requires_grad=False))  # not a buffer: buffers are exchanged

    def train(self, mode: bool = True) -> "Encoder":
        """Stay in evaluation mode: statistics of batch norm are those of the pretrained network, and nothing is dropped out."""
        return super().train(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        x = (resize(x, self.size, self.interpolation) - self.mean) / self.std
        features = self.module(x).flatten(1)
        return F.normalize(features, dim=1) if self.normalize else features


def scale_images(
    x: torch.Tensor, size: int, mean: torch.Tensor, std: torch.Tensor, interpolation: str = "bilinear"
) -> torch.Tensor:
    """Convert raw images (B, H, W, C) to network input (B, 3, size, size)."""
    scale = 255.0 if x.dtype == torch.uint8 else 1.0
    x = x.movedim(-1, 1).float() / scale
    if x.shape[1] == 1:
        x = x.expand(-1, 3, -1, -1)
    return ((resize(x, size, interpolation) - mean) / std).contiguous(memory_format=torch.channels_last)


def resize(x: torch.Tensor, size: int, interpolation: str) -> torch.Tensor:
    """Resize images (B, C, H, W) to (B, C, size, size), interpolated with antialiasing."""
    if tuple(x.shape[-2:]) == (size, size):
        return x
    mode = interpolation if interpolation in ("bilinear", "bicubic") else "bilinear"
    return F.interpolate(x, (size, size), mode=mode, align_corners=False, antialias=True)
