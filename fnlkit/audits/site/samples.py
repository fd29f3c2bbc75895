"""Samples of a site as an audit reads them: numpy arrays, so that an audit needs no torch."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.audits.messages import LEAST

if TYPE_CHECKING:
    from fnlkit.federated.client.client import Client


# Images are averaged to at most this many pixels a side.
SIDE = 16
# Images are converted in blocks of this number.
BLOCK = 256


@dataclass
class Samples:
    """Samples and labels of a site.

    Attributes
    ----------
    x : (n, ...)
        As stored; images are (n, H, W, channels), of bytes or floats.
    y : int64 (n,)
        Current labels.
    classes : int
    image : bool
    number : int
        Number of the site, which selects its random streams.
    embedding : float (n, D) or None
        Features by which labels are judged instead of the samples.
    probabilities : float (n, C) or None
        Predictions of a model that was not trained on the samples; they replace the classifier of the other sites.
    groups : int (n,) or None
        Samples of a group, such as a patient, are not independent.
    reviewed : bool (n,) or None
        Samples whose label a person decided: it counts as right.
    kept : dict of str to array
        Results by sample, which stay at the site: issue, flagged, guess, confidence, copy_of, far, by_NAME.
    """

    x: np.ndarray
    y: np.ndarray
    classes: int
    image: bool = False
    number: int = 0
    embedding: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    groups: np.ndarray | None = None
    reviewed: np.ndarray | None = None
    kept: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self):
        return len(self.y)

    @classmethod
    def of(cls, client: "Client") -> "Samples":
        """Read the samples of a client (fnlkit.federated.client.client.Client)."""
        groups = client.rows["input/group"].numpy() if "input/group" in client.rows else None
        reviewed = None if client.reviewed is None else client.reviewed.numpy()
        return cls(
            client.x.numpy(), client.y.numpy(), client.classes, client.inputs.image, client.id, groups=groups, reviewed=reviewed
        )

    def take(self, mask: np.ndarray) -> "Samples":
        """Select the samples in a mask (n,), without results."""
        optional = {name: getattr(self, name) for name in ("embedding", "probabilities", "groups", "reviewed")}
        rows: dict[str, Any] = {name: None if values is None else values[mask] for name, values in optional.items()}
        return replace(self, x=self.x[mask], y=self.y[mask], **rows, kept={})


def large_classes(samples: Samples) -> tuple[Samples, np.ndarray]:
    """Select (samples of classes with at least LEAST samples, mask (n,) of them)."""
    mask = (np.bincount(samples.y, minlength=samples.classes) >= LEAST)[samples.y]
    return samples.take(mask), mask


def plain(x: np.ndarray) -> np.ndarray:
    """Convert samples (n, ...) to float32, bytes scaled to [0, 1]."""
    return x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.astype(np.float32)


def values_of(samples: Samples) -> np.ndarray:
    """Values (n, D) float64 of samples: embeddings if available, otherwise values or small images."""
    if samples.embedding is not None:
        return samples.embedding.astype(np.float64)
    x = samples.x
    if samples.image:
        parts = [_shrink(plain(x[start : start + BLOCK]).astype(np.float64)) for start in range(0, len(x), BLOCK)]
        x = np.moveaxis(np.concatenate(parts), -1, 1)
    elif x.ndim > 2:  # spectrograms: mean and deviation over time
        x = np.concatenate([x.mean(-1, dtype=np.float64), x.std(-1, dtype=np.float64)], -1)
    return plain(x).reshape(len(x), -1).astype(np.float64) if x.dtype == np.uint8 else x.reshape(len(x), -1).astype(np.float64)


def _shrink(x):
    """Average images (n, H, W, channels) to at most SIDE pixels a side; squares of neighboring pixels can overlap."""
    for axis in (1, 2):
        side = x.shape[axis]
        if side > SIDE:
            starts, ends = np.arange(SIDE) * side // SIDE, -(-(np.arange(SIDE) + 1) * side // SIDE)
            total = np.concatenate([np.zeros_like(x.take([0], axis)), x.cumsum(axis)], axis)
            shape = [1] * x.ndim
            shape[axis] = SIDE
            x = (total.take(ends, axis) - total.take(starts, axis)) / (ends - starts).reshape(shape)
    return x


def table_of(guess: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Count guessed by given labels: (C, C) int64."""
    return np.bincount(guess * classes + labels, minlength=classes**2).reshape(classes, classes)
