"""Common scaling of all clients' samples: each client sends count, sums and squares once, and the server adds them.

Vectors are scaled by feature, images by channel.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fnlkit.artifacts.stored import blocks
from fnlkit.core.declarations import Sent

if TYPE_CHECKING:
    import torch

    from fnlkit.federated.client.client import Client, LocalModel, Received


# A site replies statistics of a feature with at least this many known values, so that no value of a sample is revealed.
FEWEST = 5
SENDS = {
    "known": Sent.counts("numbers of known values by feature; 0 below 5", "once", ("features",)),
    "total": Sent("sums of the known values by feature; 0 for fewer than 5 values", "once", ("features",)),
    "squares": Sent("sums of squared differences from the site's mean by feature; 0 for fewer than 5 values", "once",
                    ("features",), low=0),
}  # fmt: skip


class Moments(NamedTuple):
    """Statistics that each client sends once.

    Attributes
    ----------
    count : int, or int (d,)
        Number of values; by feature if values are missing.
    total : float64 (d,)
        Sum of each feature.
    squares : float64 (d,)
        Sum of squared differences from the client's own mean.  The sum of squares itself would lose a small spread around a
        large mean.
    """

    count: Any
    total: np.ndarray
    squares: np.ndarray


def moments(x: np.ndarray) -> Moments:
    """Compute the Moments of one client's vectors (n, d) in float64."""
    x = np.asarray(x, np.float64)
    total = x.sum(0)
    return Moments(len(x), total, ((x - total / len(x)) ** 2).sum(0))


def moments_of_known(x: np.ndarray) -> Moments:
    """Compute the Moments of vectors (n, d) over the known values, without features of fewer than `FEWEST` values.

    A missing value is NaN.
    """
    x = np.asarray(x, np.float64)
    known = np.isfinite(x)
    count = known.sum(0)
    total = np.where(known, x, 0.0).sum(0)
    squares = np.where(known, (x - total / np.maximum(count, 1)) ** 2, 0.0).sum(0)
    return Moments(*(np.where(count >= FEWEST, values, 0) for values in (count, total, squares)))


def reply_moments(client: "Client", model: "LocalModel | None", received: "Received") -> "dict[str, torch.Tensor]":
    """Reply `moments_of_known` of the client's vectors."""
    import torch

    moments = zip(("known", "total", "squares"), moments_of_known(client.x.double().numpy()), strict=True)
    return {name: torch.from_numpy(values) for name, values in moments}


def pool_moments(replies: Iterable[Moments]) -> tuple[np.ndarray, np.ndarray]:
    """Pool (mean (d,), std (d,)) of all clients' samples; std is 1 for a constant feature.

    Parameters
    ----------
    replies : iterable of Moments
        Of at least one client; they are not stored.
    """
    mean, variance, _ = add_moments(replies)
    std = np.sqrt(variance)
    return mean, np.where(std > 1e-12 * np.maximum(1, np.abs(mean)), std, 1.0)


def add_moments(replies: Iterable[Moments]) -> tuple[np.ndarray, np.ndarray, Any]:
    """Pool (mean (d,), variance (d,), count) of all clients' values.

    Source: Chan, Golub, LeVeque 1983, combination of two samples' sums of squares.
    """
    replies = iter(replies)
    count, total, squares = next(replies)
    for more in replies:
        away = more.total / np.maximum(more.count, 1) - total / np.maximum(count, 1)
        squares = squares + more.squares + away**2 * count * more.count / np.maximum(count + more.count, 1)
        count, total = count + more.count, total + more.total
    return total / np.maximum(count, 1), squares / np.maximum(count, 1), count


def channel_moments(x: Any) -> Moments:
    """Compute the Moments of one client's images (n, H, W, channels), of pixel values as stored.

    For uint8, the sums are exact integers, independent of the order of summation.
    """
    width = x.shape[-1]
    if x.dtype == np.uint8:
        first = second = np.zeros(width, np.int64)
        for a, b in blocks(x):
            part = x[a:b].reshape(-1, width).astype(np.uint16)  # 255 squared fits
            first = first + part.sum(0, dtype=np.int64)
            second = second + (part * part).sum(0, dtype=np.int64)
        return Moments(int(np.prod(x.shape[:-1])), first.astype(np.float64), second.astype(np.float64))
    parts = [moments(x[a:b].reshape(-1, width)) for a, b in blocks(x)]
    mean, variance, count = add_moments(parts) if parts else (np.zeros(width), np.zeros(width), 0)
    return Moments(count, mean * count, variance * count)


def pool_channel_moments(replies: Iterable[Moments], dtype: np.dtype) -> tuple[Any, np.ndarray]:
    """Pool (mean (C,), std (C,)) of all clients' pixels, uint8 scaled to [0, 1]; std is 1 for a constant channel.

    Parameters
    ----------
    replies : iterable of Moments
        From `channel_moments`.
    dtype : numpy.dtype
        Type of the images.
    """
    replies = [reply for reply in replies if reply.count]
    if dtype == np.uint8:
        count = sum(reply.count for reply in replies)
        mean = sum(reply.total for reply in replies) / count / 255
        variance = sum(reply.squares for reply in replies) / count / 255**2 - mean**2
    else:
        mean, variance, _ = add_moments(replies)
    std = np.sqrt(np.maximum(variance, 0))
    return mean, np.where(std > 1e-8, std, 1.0)


def statistics_bytes(clients: int, width: int) -> tuple[int, int]:
    """Count the bytes (up, down) of the statistics behind a scale.

    Each client sends a count and two sums of `width` values, and receives mean and deviation.
    """
    return clients * (8 + 16 * width), clients * 16 * width
