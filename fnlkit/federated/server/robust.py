"""Aggregators that limit the influence of a few bad clients: Krum, the geometric median, clipped updates.

Blanchard, El Mhamdi, Guerraoui, Stainer. Machine learning with adversaries: Byzantine tolerant gradient descent. NeurIPS
2017.  Pillutla, Kakade, Harchaoui. Robust aggregation for federated learning. arXiv:1912.13445, 2019.  Sun, Kairouz,
Suresh, McMahan. Can you really backdoor federated learning? arXiv:1911.07963, 2019.
"""

from typing import Literal

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Count, Natural, NotNegative, Positive, check_arguments
from fnlkit.federated.server.aggregation import as_result, finite_rows, mean, squared_distances

# Squared distance to a vector that is not finite: larger than that of finite float32 vectors, and finite in sums.
_FAR = 1e300


def krum_scores(stacked: "torch.Tensor", f: int, nearest: str) -> "torch.Tensor":
    """Sum each vector's squared distances (K,) to the K - f - 2 nearest others (at least one), or to all.

    The score of a vector that contains NaN or infinity is infinite.
    """
    finite = finite_rows(stacked).cpu()
    distances = torch.where(finite & finite[:, None], squared_distances(stacked), _FAR)
    distances = distances.fill_diagonal_(0).sort(1).values[:, 1:]  # without the vector itself
    scores = distances[:, : max(1, len(stacked) - f - 2)].sum(1) if nearest == "paper" else distances.sum(1)
    return torch.where(finite, scores, torch.inf)


def krum_cohort(f: int) -> tuple[int, int]:
    """Smallest cohorts of Krum with f bad clients.

    A client is compared with the K - f - 2 nearest others, so that f + 3 clients are needed, and 2 f + 3 to withstand f.
    """
    return f + 3, 2 * f + 3


@declare(cohort=krum_cohort, cite="Blanchard 2017")
@check_arguments
def krum(
    stacked: "torch.Tensor",
    weights: "torch.Tensor",
    *,
    trainable: int | None = None,
    f: Natural = 1,
    nearest: Literal["paper", "all"] = "paper",
) -> "torch.Tensor":
    """Choose the single model that is nearest to most other models.

    Return the vector (P,) with the smallest Krum score; client weights are not used (Blanchard 2017, Section 4).

    Parameters
    ----------
    trainable : int, optional
        Number of entries, from the first, that are compared; passed by the round.  The others are buffers of batch norm, whose
        scale is that of the inputs.  Default: all.
    f : int >= 0
        Number of bad clients to withstand, which needs rounds of at least 2 f + 3 clients; below f + 3 no neighbor is left.
    nearest : "paper" or "all"
        Neighbors in the score: the K - f - 2 nearest, or all others as in the public benchmark FNBench.
    """
    best = stacked[krum_scores(stacked[:, :trainable], f, nearest).argmin()]
    return as_result(best.double(), stacked)


@declare(cohort=krum_cohort, cite="Blanchard 2017")
@check_arguments
def multi_krum(
    stacked: "torch.Tensor",
    weights: "torch.Tensor",
    *,
    trainable: int | None = None,
    f: Natural = 1,
    m: Natural = 0,
    nearest: Literal["paper", "all"] = "paper",
) -> "torch.Tensor":
    """Average the models that are nearest to most other models.

    Return the unweighted mean (P,) of the m vectors with the smallest Krum scores (Blanchard 2017, Section 5).

    Parameters
    ----------
    trainable, f, nearest
        As in `krum`.
    m : int >= 0
        Number of vectors. Default: 0, which means K - f; a number above K means all.  Vectors with NaN or infinity are left
        out.
    """
    scores = krum_scores(stacked[:, :trainable], f, nearest)
    best = scores.argsort(stable=True)[: m or max(1, len(stacked) - f)]
    best = best[: max(1, int(scores.isfinite().sum()))]
    return mean(stacked[best.sort().values], torch.ones(len(best)))


@declare(cohort=(1, 3), cite="Pillutla 2019")
@check_arguments
def rfa(
    stacked: "torch.Tensor",
    weights: "torch.Tensor",
    *,
    slots: list[tuple[str, int, int, tuple[int, ...]]] | None = None,
    trainable: int | None = None,
    iterations: Count = 4,
    smoothing: Positive = 1e-6,
    variant: Literal["paper", "public"] = "paper",
) -> "torch.Tensor":
    """Take the geometric median of the models, which a few outliers hardly move (RFA).

    Return the geometric median (P,) by the smoothed Weiszfeld algorithm (Pillutla 2019, Algorithm 2).

    Starts at the weighted mean and iterates v <- sum_k b_k w_k / sum_k b_k with b_k = n_k / max(smoothing, ||v - w_k||).
    Vectors that contain NaN or infinity are left out.

    Parameters
    ----------
    trainable : int, optional
        Number of entries, from the first, of which distances are computed, as in `krum`.
    iterations : int
        Number of iterations; 3 or 4 are sufficient in the paper.
    smoothing : float > 0
        Smallest distance.
    variant : "paper" or "public"
        ``public`` is the variant of the benchmark FNBench: each tensor separately, unweighted, at most 10 steps, ended when a
        step is shorter than 1e-5, which is then not applied; `iterations` and `smoothing` are not used.
    """
    finite = finite_rows(stacked)
    vectors = stacked[finite].double()
    if variant == "paper":
        counts = weights.double().to(finite.device)[finite]
        return as_result(_weiszfeld(vectors, counts, smoothing, iterations, trainable=trainable), stacked)
    edges = [(a, b) for _, a, b, _ in slots] if slots else [(0, stacked.shape[1])]
    even = torch.ones(len(vectors), dtype=torch.float64)
    parts = [_weiszfeld(vectors[:, a:b], even, 1e-10, 10, least=1e-5, added=True) for a, b in edges]
    return as_result(torch.cat(parts), stacked)


def _weiszfeld(stacked, weights, smoothing, iterations, *, trainable=None, least=0.0, added=False):
    weights = weights.to(stacked.device)
    middle = (weights / weights.sum()) @ stacked
    for _ in range(iterations):
        distances = (stacked - middle)[:, :trainable].norm(dim=1)
        pull = weights / (distances + smoothing if added else distances.clamp_min(smoothing))
        moved = (pull / pull.sum()) @ stacked
        if (moved - middle).norm() < least:
            break
        middle = moved
    return middle


@declare(cite="Sun 2019")
@check_arguments
def norm_clipping(
    stacked: "torch.Tensor",
    weights: "torch.Tensor",
    *,
    start: "torch.Tensor",
    trainable: int | None = None,
    bound: NotNegative = 0.0,
) -> "torch.Tensor":
    """Average the models after clipping long updates.

    Return the weighted mean (P,) of local models whose updates are clipped to a bound (Sun 2019, Section 4.2).  Vectors that
    contain NaN or infinity are left out.

    Parameters
    ----------
    start : Tensor (P,)
        The global model that the clients received; passed by the round.
    trainable : int, optional
        Number of entries, from the first, whose norm is clipped, as in `krum`.  All entries of an update are multiplied by the
        same factor.
    bound : float >= 0
        Largest L2 norm of an update; 0 is the median norm of the round's updates.
    """
    finite = finite_rows(stacked)
    away = stacked[finite].double() - start.double()
    lengths = away[:, :trainable].norm(dim=1)
    limit = bound or lengths.median().item()
    away *= (limit / lengths.clamp_min(1e-300)).clamp_max(1.0)[:, None]
    return as_result(start.double() + mean(away, weights.to(finite.device)[finite]), stacked)
