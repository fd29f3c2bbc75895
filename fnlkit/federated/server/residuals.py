"""Residual-based reweighting (ARFL): reduce the weight of clients far from a robust line through all sorted weights.

Fu, Xie, Li, Chen. Attack-resistant federated learning with residual-based reweighting. arXiv:1912.11464, 2019.
"""

from typing import Any

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Positive, Share, check_arguments
from fnlkit.federated.server.aggregation import mean

_AT_ONCE = 2**22  # number of slopes in memory at a time


@declare(cohort=(1, 3), cite="Fu 2019")
@check_arguments
def arfl(stacked: "torch.Tensor", weights: "torch.Tensor", *, bound: Positive = 2.0, least: Share = 0.1) -> "torch.Tensor":
    """Reduce the weight of models whose coordinates often deviate from the coordinates of the other models (ARFL).

    Return the mean (P,) of K vectors, weighted by the distance of their coordinates from a robust line (Fu 2019).

    In each coordinate the K sorted values are compared with their repeated-median line (Siegel 1982).  The confidence of a
    value is that of one IRLS step; a value with confidence below `least` is moved onto the line.  The weight of a client is
    the square of the sum of its confidences, each multiplied by the coordinate's standard deviation of confidences.  Numbers
    of samples are not used.

    Parameters
    ----------
    bound : float > 0
        lambda: residuals up to lambda sqrt(2 / K) scaled deviations have full confidence.
    least : float in [0, 1]
        delta; 0.1 in the paper and in FedCorr's comparison.
    """
    if len(stacked) < 3:  # two points are always on a line
        return mean(stacked, torch.ones(len(stacked)))
    width = max(1, _AT_ONCE // len(stacked) ** 2)
    parts = [reweight(part.double(), bound, least) for part in stacked.split(width, 1)]
    confidence: Any = sum(part[0] for part in parts)
    held = torch.cat([part[1] for part in parts], 1)
    # If all clients agree, all confidences have deviation 0.
    shares = (confidence / confidence.max()) ** 2 if confidence.max() > 0 else torch.ones_like(confidence)
    return ((shares / shares.sum()) @ held).to(stacked.dtype)


def reweight(stacked: "torch.Tensor", bound: float, least: float) -> "tuple[torch.Tensor, torch.Tensor]":
    """Sum confidences (K,), and move untrusted values of the vectors (K, P) onto the line.

    Parameters
    ----------
    stacked : float64 Tensor (K, P)
    bound, least : float
        As in `arfl`.
    """
    k, y = len(stacked), stacked.T
    slope, intercept = repeated_median(y)
    rank = y.argsort(-1).argsort(-1).to(y)
    line = intercept[:, None] + slope[:, None] * rank
    residual = y - line
    # Least-squares leverage of k points 0 ... k - 1.
    centered = rank - (k - 1) / 2
    free = (1 - 1 / k - centered.square() / (k * (k * k - 1) / 12)).clamp_min(0).sqrt()
    spread = 1.4826 * (1 + 5 / (k - 1)) * middle(residual.abs().sort(-1).values[:, 1:]) + 1e-7
    scaled = residual / spread[:, None] / free
    limit = bound * (2 / k) ** 0.5
    confidence = torch.where(scaled == 0, 1.0, scaled.clamp(-limit, limit) / scaled)
    held = torch.where(confidence >= least, y, line)
    return (confidence * confidence.std(-1, keepdim=True)).sum(0), held.T


def repeated_median(y: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """Slopes and intercepts (P,) of the line through each row's sorted values at 0 ... K - 1 (Siegel 1982).

    The slope is the median over points of the median slope to the other points.  The line passes through the medians of
    positions and values.

    Parameters
    ----------
    y : Tensor (P, K)
    """
    y = y.sort(-1).values
    k = y.shape[-1]
    at = torch.arange(k, dtype=y.dtype, device=y.device)
    slopes = (y[:, None, :] - y[:, :, None]) / (at[None, :] - at[:, None])
    others = ~torch.eye(k, dtype=torch.bool, device=y.device)
    slope = middle(middle(slopes[:, others].reshape(len(y), k, k - 1)))
    return slope, middle(y) - slope * (k - 1) / 2


def middle(values: "torch.Tensor") -> "torch.Tensor":
    """Median over the last axis; the mean of the middle two for an even number."""
    ordered = values.sort(-1).values
    k = values.shape[-1]
    return (ordered[..., (k - 1) // 2] + ordered[..., k // 2]) / 2
