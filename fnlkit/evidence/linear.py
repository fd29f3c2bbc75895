"""A linear network, perhaps with Fourier features, and the scaling of its inputs, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# Samples that are converted at once.
BLOCK = 65_536


@dataclass(frozen=True)
class Scaling:
    """Conversion of raw samples to network input, as `fnlkit.federated.client.inputs.Inputs` with NumPy arrays."""

    image: bool
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def plain(self, x: np.ndarray) -> np.ndarray:
        """Convert raw samples (n, H, W, C) or (n, d) to network input (n, C, H, W) or (n, d) float32."""
        x = x.astype(np.float32) / np.float32(255 if x.dtype == np.uint8 else 1)
        if self.mean:
            x = (x - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.moveaxis(x, -1, 1) if self.image else x


@dataclass(frozen=True)
class Head:
    """Layers of a network `mlp(hidden=[])` or `fourier`, in place of `fnlkit.federated.client.network.Model`.

    Attributes
    ----------
    cosines : int
        Number F of random Fourier features.
    layers : tuple of float32 arrays
        If F > 0, weights (F, d) and biases (F,) of the angles; then weights (C, F + d) and biases (C,) of the head.
    """

    cosines: int = 0
    layers: tuple[np.ndarray, ...] = ()

    @classmethod
    def of(cls, flat: np.ndarray, inputs: int, classes: int) -> Head:
        """Read a Head from a vector of its weights and biases."""
        cosines = (len(flat) - classes * (inputs + 1)) // (inputs + 1 + classes)
        ends = np.cumsum([cosines * inputs, cosines, classes * (cosines + inputs)])
        w, b, weight, bias = np.split(flat, ends)
        head = weight.reshape(classes, -1), bias
        return cls(cosines, (w.reshape(cosines, -1), b, *head) if cosines else head)

    def empty(self) -> Head:
        return self

    def with_layers(self, *layers: np.ndarray) -> Head:
        return Head(self.cosines, tuple(layer.astype(np.float32) for layer in layers))

    def flat(self) -> np.ndarray:
        return np.concatenate([layer.ravel() for layer in self.layers])

    def of_samples(self, x: Any, inputs: Scaling) -> np.ndarray:
        """Compute the logits (n, C) of raw samples."""
        parts = [inputs.plain(np.asarray(x[a : a + BLOCK])) for a in range(0, len(x), BLOCK)]
        return np.concatenate([self._logits(part.reshape(len(part), -1)) for part in parts])

    def _logits(self, x):
        *angles, weight, bias = self.layers
        if angles:
            x = np.concatenate([np.cos(x @ angles[0].T + angles[1]), x], 1)
        return x @ weight.T + bias
