"""A linear network and the scaling of its inputs, in NumPy."""

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
        """Return network input (n, C, H, W) or (n, d) float32 of raw samples (n, H, W, C) or (n, d)."""
        x = x.astype(np.float32) / np.float32(255 if x.dtype == np.uint8 else 1)
        if self.mean:
            x = (x - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.moveaxis(x, -1, 1) if self.image else x


@dataclass(frozen=True)
class Head:
    """Weights (C, d) and biases (C,) of a linear network, in place of `fnlkit.federated.client.network.Model`."""

    weight: np.ndarray
    bias: np.ndarray

    @classmethod
    def none(cls) -> Head:
        """Return a Head before it is computed."""
        return cls(np.zeros((0, 0)), np.zeros(0))

    @classmethod
    def of(cls, flat: np.ndarray, classes: int) -> Head:
        """Return the Head of a vector of its weights and biases."""
        return cls(flat[:-classes].reshape(classes, -1), flat[-classes:])

    def empty(self) -> Head:
        return self

    def linear(self, weight: np.ndarray, bias: np.ndarray) -> Head:
        return Head(weight.astype(np.float32), bias.astype(np.float32))

    def flat(self) -> np.ndarray:
        return np.concatenate([self.weight.ravel(), self.bias])

    def of_samples(self, x: Any, inputs: Scaling) -> np.ndarray:
        """Return the logits (n, C) of raw samples."""
        parts = [inputs.plain(np.asarray(x[a : a + BLOCK])) for a in range(0, len(x), BLOCK)]
        return np.concatenate([part.reshape(len(part), -1) @ self.weight.T + self.bias for part in parts])
