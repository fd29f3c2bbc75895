"""Find wrong numbers by residuals of a model: a narrow and a wide normal component, fitted to counts per site.

The robust baseline divides residuals by their median absolute deviation (MAD) per site.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike

from fnlkit.components.declarations import Sent
from fnlkit.kernels.streams import stream

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel
    from fnlkit.estimators.federated import ClientSession


# Residuals, in standard deviations of the targets of all sites, are counted in bins of equal width of arsinh(residual / FINE).
FINE, STEP, BINS = 0.02, 0.05, 200
# The residuals of wrong targets have at least this many times the standard deviation of the residuals of right targets.
WIDE = 4.0
ITERATIONS, DRAWS = 200, 200
# A target is suspicious if its residual exceeds this many robust standard deviations of the site.
LIMIT = 3.0
MAD = 1.4826  # standard deviation of a normal distribution with MAD 1
SENDS = {
    "residuals": Sent.counts("numbers of samples by residual, in bins", "once", (2 * BINS + 1,)),
    "flagged": Sent.counts("number of suspicious targets", "once"),
    "calibration": Sent("sums of scaled predictions and targets, their squares and products", "once", (5,)),
}
_CENTERS = FINE * np.sinh(np.arange(-BINS, BINS + 1) * STEP)


def quality(targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return cleanlab's quality exp(-|target - prediction|) of targets (n,), as ``method="residual"`` computes it."""
    return np.exp(-np.abs(np.asarray(predictions) - np.asarray(targets)))


def robust(targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return |residual - median| / (1.4826 MAD) of targets (n,); 0 if the MAD is 0 and the residual is the median."""
    residual = np.asarray(targets, np.float64) - predictions
    away = np.abs(residual - np.median(residual))
    scale = MAD * np.median(away)
    return np.divide(away, scale, out=np.where(away > 0, np.inf, 0.0), where=scale > 0)


def bin_residuals(residuals: np.ndarray) -> np.ndarray:
    """Return the counts (2 BINS + 1,) of residuals (n,) by bin."""
    place = np.clip(np.rint(np.arcsinh(residuals / FINE) / STEP), -BINS, BINS).astype(np.int64) + BINS
    return np.bincount(place, minlength=2 * BINS + 1)


def center_and_scale(counts: np.ndarray) -> tuple[float, float]:
    """Return (median, 1.4826 MAD) of counted residuals, up to the width of a bin."""
    middle = np.repeat(_CENTERS, counts)
    center = float(np.median(middle))
    return center, max(MAD * float(np.median(np.abs(middle - center))), FINE * STEP)


def mixture(
    counts: np.ndarray,
    center: float,
    scale: float,
    share: float = 0.1,
    iterations: int = ITERATIONS,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (share of the wide component, scale, wide scale) from counts (..., bins), by expectation maximization.

    The wide scale is at least `WIDE` times the scale, which stays between 0.5 and 1.2 of its first value.
    """
    counts = np.asarray(counts, np.float64)
    total, squares = np.maximum(counts.sum(-1), 1), (_CENTERS - center) ** 2
    share, narrow = np.full(counts.shape[:-1], share), np.full(counts.shape[:-1], float(scale))
    wide = np.full(counts.shape[:-1], 2 * WIDE * scale)
    for _ in range(iterations):
        own = counts * posterior(squares, share[..., None], narrow[..., None], wide[..., None])
        rest = counts - own
        share = own.sum(-1) / total
        narrow = np.clip(np.sqrt((rest * squares).sum(-1) / np.maximum(rest.sum(-1), 1e-9)), 0.5 * scale, 1.2 * scale)
        wide = np.maximum(np.sqrt((own * squares).sum(-1) / np.maximum(own.sum(-1), 1e-9)), WIDE * narrow)
    return share, narrow, wide


def posterior(squares: np.ndarray, share: np.ndarray, narrow: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """Return the probability of the wide component from squared residuals."""
    odds = np.log(np.maximum(share, 1e-12)) - np.log(np.maximum(1 - share, 1e-12)) + np.log(narrow / wide)
    odds = odds + squares / 2 * (1 / narrow**2 - 1 / wide**2)
    return 0.5 * (1 + np.tanh(odds / 2))


# ---- at the client
def count_residuals(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Keep the predictions of the chosen model; reply counts of residuals, and sums for a line through the predictions."""
    predicted = client.rows["task/predicted"][:, max(0, int(received["chosen"])), 0].numpy()
    targets = client.rows["input/target"][:, 0].numpy()
    client.rows["task/prediction"] = torch.from_numpy(np.ascontiguousarray(predicted))
    scale = client.state["task/scale"][:, 0].tolist()
    p, y = ((values - scale[0]) / scale[1] for values in (client.rows["task/predicted"][:, 0, 0].numpy(), targets))
    sums = np.array([p.sum(), y.sum(), (p * p).sum(), (p * y).sum(), (y * y).sum()])
    return {
        "residuals": torch.from_numpy(bin_residuals((targets - predicted) / float(received["spread"]))),
        "calibration": torch.from_numpy(sums),
    }


def judge(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Keep issue scores, flags, predictions and qualities; reply the number of flags."""
    predicted, targets = client.rows["task/prediction"].numpy(), client.rows["input/target"][:, 0].numpy()
    center, share, narrow, wide, known = received["fitted"].tolist()
    issue = posterior(((targets - predicted) / float(received["spread"]) - center) ** 2, share, narrow, wide)
    away = robust(targets, predicted)
    flagged = (away > LIMIT) & (known > 0)
    digits = 2 - int(np.floor(np.log10(float(received["spread"]))))  # suggestions are not more precise than the model
    kept = {
        "issue": issue,
        "flagged": flagged,
        "guess": np.where(flagged, np.round(predicted, digits), targets),
        "quality": quality(targets, predicted),
        "robust": np.minimum(away, 1e6),
    }
    for name, values in kept.items():
        client.rows[f"estimate/{name}"] = torch.from_numpy(np.ascontiguousarray(values))
    return {"flagged": torch.tensor(int(flagged.sum()))}


def estimate(
    session: "ClientSession", chosen: np.ndarray, spread: float, seed: int, independence: ArrayLike = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (level, low, high (N, 1)), wrong, totals (N, 1) and the lines (N, 2) through the predictions of the others.

    Parameters
    ----------
    session : fnlkit.estimators.federated.ClientSession
        Of clients with the row ``task/predicted``.
    chosen : int (N, 1)
        Model that judges: 0 of the others, 1 of the client itself, -1 none.
    spread : float
        Standard deviation of the targets of all sites.
    independence : float or (N,)
        As for fnlkit.estimators.intervals.bootstrap.
    """
    per = np.broadcast_to(independence, len(chosen))
    told = session.ask(count_residuals, broadcast={"spread": spread}, scatter={"chosen": torch.from_numpy(chosen[:, 0])})
    counts, levels, fitted = told["residuals"].numpy(), np.zeros((3, len(chosen), 1)), np.zeros((len(chosen), 5))
    for k, each in enumerate(counts):
        center, scale = center_and_scale(each)
        found = mixture(each, center, scale)
        size = max(1, round(each.sum() * float(per[k])))
        again = stream(seed, "bootstrap", client=k).multinomial(size, each / each.sum(), DRAWS)
        shares = mixture(again, center, scale, share=max(0.01, float(found[0])), iterations=30)[0]
        levels[:, k, 0] = found[0], *np.percentile(shares, [2.5, 97.5])
        fitted[k] = center, *map(float, found), chosen[k, 0] >= 0
    send = {"fitted": torch.from_numpy(fitted)}
    flagged = session.ask(judge, broadcast={"spread": spread}, scatter=send)["flagged"].numpy()
    return levels, flagged[:, None], counts.sum(1)[:, None], lines(told["calibration"].numpy(), counts.sum(1))


def lines(sums: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return (slope, shift) (N, 2) of scaled targets on predictions from their sums; slope: ratio of standard deviations."""
    p, y, pp, py, yy = (sums / numbers[:, None]).T
    slope = np.sqrt(np.maximum(yy - y * y, 0) / np.maximum(pp - p * p, 1e-12)) * np.sign(py - p * y)
    return np.stack([slope, y - p], 1)
