"""Convert stored samples to network input: scaling, normalization, and augmentation by given random choices."""

import os
import tempfile
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.stored import Stored
from fnlkit.core.spec import FileText
from fnlkit.models.spectrograms import log_mel

# Type of weights and samples; tf32 and bf16 compute layers on float32 weights, see fnlkit.federated.client.network.
PRECISIONS = {"fp32": "float32", "fp64": "float64", "tf32": "float32", "bf16": "float32"}


def weight_type(precision: str | FileText) -> torch.dtype:
    """Choose the torch.dtype of weights and samples under a precision, a key of `PRECISIONS`."""
    return getattr(torch, PRECISIONS[precision])


@dataclass(frozen=True)
class Augment:
    """Random crop from a zero-padded image, horizontal flip, cutout; 0 or False disables a step.

    Attributes
    ----------
    pad : int
        Pixels of zero padding on each side before the crop (FedCorr, FLR, FedLN: 4).
    flip : bool
    cutout : int
        Side in pixels of the square set to 0 after normalization (DeVries 2017: 16 on CIFAR-10).
    """

    pad: int = 0
    flip: bool = False
    cutout: int = 0

    def __bool__(self):
        return bool(self.pad or self.flip or self.cutout)

    def draw(
        self, rng: np.random.Generator, shape: tuple[int, ...], image: tuple[int, ...]
    ) -> tuple[Any, Any, np.ndarray | None]:
        """Draw random choices for `shape` samples: shift (..., 2), flip (...), center (..., 2); None for a disabled step.

        Parameters
        ----------
        rng : numpy.random.Generator
        shape : tuple of int
        image : (H, W)
        """
        shift = rng.integers(0, 2 * self.pad + 1, (*shape, 2), dtype=np.int32) if self.pad else None
        flip = rng.integers(0, 2, shape, dtype=np.int8).astype(bool) if self.flip else None
        center = None
        if self.cutout:
            center = np.stack([rng.integers(0, side, shape, dtype=np.int32) for side in image], -1)
        return shift, flip, center


@dataclass(frozen=True)
class Inputs:
    """Conversion of raw samples to network input.

    Images (n, H, W, C) are transposed to (n, C, H, W) and normalized by channel; uint8 images are scaled to [0, 1] before.
    Vectors are normalized by feature if mean and std are given.  Other samples are unchanged.

    Attributes
    ----------
    image : bool
        True if samples are images.
    mean, std : tuple of float
        One number per channel, of images scaled to [0, 1]; one number per feature of vectors, or ().
    dtype : torch.dtype
    device : str
    """

    image: bool
    mean: tuple[Any, ...] = ()
    std: tuple[Any, ...] = ()
    dtype: torch.dtype = field(default_factory=lambda: torch.float32)
    device: str = "cpu"

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        """Convert raw samples (n, H, W, C) or (n, ...) to network input (n, C, H, W) or (n, ...)."""
        scale = 255 if x.dtype == torch.uint8 else 1
        x = x.to(self.device)
        if not (self.image or self.mean):
            return x.to(self.dtype) / scale
        mean, std = (_cache_tensor(v, self.dtype, x.device) for v in (self.mean, self.std))
        if not self.image:
            x = x.to(self.dtype)
            return ((x if scale == 1 else x / scale) - mean).div_(std)
        # Contiguous, because convolutions on a permuted view use slower algorithms.
        moved = x.movedim(-1, -3)
        x = moved.to(self.dtype).contiguous()
        x = x if scale == 1 else x.div_(scale)
        mean, std = mean[:, None, None], std[:, None, None]
        return (x - mean if x is moved else x.sub_(mean)).div_(std)  # gray images of floats are still those of the client

    def stored(self, x: torch.Tensor) -> np.ndarray:
        """Convert raw samples to a numpy array for fnlkit.kernels.fused: raw images, or scaled vectors."""
        if x.dtype != torch.uint8 and not x.is_floating_point():
            x = x.to(self.dtype)  # whole numbers, such as waves of 16 bits, are not scaled
        return x.numpy() if self.image or not self.mean else self.plain(x).numpy()

    @property
    def normal(self) -> dict[str, Any]:
        """Describe the samples of `stored` by keywords of fnlkit.kernels.fused."""
        if not self.image:
            return {"image": False}
        return {"mean": np.array(self.mean), "std": np.array(self.std)}

    def augment_images(
        self,
        x: torch.Tensor,
        augment: Augment,
        shift: torch.Tensor | None,
        flip: torch.Tensor | None,
        center: torch.Tensor | None,
    ) -> torch.Tensor:
        """Augment raw images (..., H, W, C) by choices of the same leading shape, as network input.

        Outside of the image the crop contains zeros in pixel space, as torchvision's RandomCrop with padding.  Cutout sets
        zeros after normalization.

        Parameters
        ----------
        x : Tensor (..., H, W, C)
        augment : Augment
        shift, flip, center : Tensor (..., 2), (...), (..., 2), or None
        """
        lead, (height, width, channels) = x.shape[:-3], x.shape[-3:]
        x = x.reshape(-1, height, width, channels)
        rows = torch.arange(height, device=x.device).expand(len(x), -1)
        columns = torch.arange(width, device=x.device).expand(len(x), -1)
        if flip is not None:
            columns = torch.where(flip.reshape(-1, 1), width - 1 - columns, columns)
        if shift is not None:
            p = augment.pad
            x = torch.nn.functional.pad(x, (0, 0, p, p, p, p))
            rows = rows + shift.reshape(-1, 2)[:, :1]
            columns = columns + shift.reshape(-1, 2)[:, 1:]
        if shift is not None or flip is not None:
            x = x[torch.arange(len(x), device=x.device)[:, None, None], rows[:, :, None], columns[:, None, :]]
        x = self.plain(x)
        if center is not None:
            half = augment.cutout // 2
            top, left = (center.reshape(-1, 2) - half).unbind(-1)
            r, c = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
            hit_r = (r >= top[:, None]) & (r < top[:, None] + augment.cutout)
            hit_c = (c >= left[:, None]) & (c < left[:, None] + augment.cutout)
            x = x.masked_fill((hit_r[:, :, None] & hit_c[:, None, :])[:, None], 0)
        return x.reshape(*lead, channels, height, width)


@cache
def _cache_tensor(values, dtype, device):
    """Cache the tensor of a tuple of numbers.

    It is created once, because a vector can have thousands of features.  A recorded GPU step must not copy from the host, and
    keeps using this memory.
    """
    return torch.tensor(values, dtype=dtype, device=device)


def intake(dataset: Any) -> tuple[Any, ...]:
    """Prepare (x_train, x_test, input_shape, image) as arrays of rows for networks and engines, without copies.

    Images stay uint8 or float (n, H, W, C); waves become log-Mel spectrograms (n, 1, 64, T); vectors stay (n, d).
    """
    train, test = dataset.x_train, dataset.x_test
    if dataset.kind == "wave":
        seen = _spectrograms(train, dataset.sample_rate)
        train, test = seen, _spectrograms(test, dataset.sample_rate) if len(test) else seen[:0]
        return train, test, tuple(train.shape[1:]), False
    if dataset.kind == "image":
        height, width, channels = train.shape[1:]
        return train, test, (channels, height, width), True
    return train, test, tuple(train.shape[1:]), False


def _spectrograms(waves, rate):
    """Compute the log-Mel spectrograms of waves once; above 64 MiB they are stored in a temporary file."""

    first = log_mel(waves[:1], rate)
    if len(waves) * first.nbytes <= 2**26:
        return log_mel(waves[:], rate)
    with tempfile.TemporaryFile() as file:
        for start in range(0, len(waves), 256):
            file.write(log_mel(waves[start : start + 256], rate).data)
        file.flush()
        return Stored(os.dup(file.fileno()), 0, first.dtype, (len(waves), *first.shape[1:]))
