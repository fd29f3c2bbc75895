"""Protection of updates: clip each client's update and add noise to the sum, or mask updates.

McMahan, Ramage, Talwar, Zhang. Learning differentially private recurrent language models. ICLR 2018.
"""

import secrets
from dataclasses import dataclass, field

import numpy as np
import torch

from fnlkit.components.parameters import Positive, check_arguments
from fnlkit.errors import InputError
from fnlkit.kernels.streams import HiddenStream


@dataclass(frozen=True)
class Protection:
    """Clipped sums with Gaussian noise, in place of an aggregator.

    The result is w + (sum_k clip(w_k - w) + e) / (q N), with e normal with standard deviation noise x clip in each entry.  The
    denominator is the expected number of clients in a round, independent of the replies.  One client therefore changes the sum
    by at most `clip`, and a lost client has weight 0.

    Attributes
    ----------
    clip : float > 0
        S, the largest L2 norm of an update.
    noise : float > 0
        z, the standard deviation of the noise in units of `clip`.
    cohort : float > 0
        q N.
    hidden : HiddenStream
        Source of the noise. Default: a new secret that is not stored.
    """

    clip: float
    noise: float
    cohort: float
    hidden: HiddenStream = field(default_factory=lambda: HiddenStream(secrets.token_bytes(32)), repr=False, compare=False)

    def __call__(self, start, stacked, *, round, ids=()):
        """Return the next weights (P,) from the weights that the cohort received (P,) and sent (K, P), K >= 0.

        The noise depends on the secret, on `round` and `ids`, and on the values that it hides.  An exact repetition gives the
        same weights, and any other sum gets independent noise.
        """
        total = torch.zeros(len(start), dtype=torch.float64, device=start.device)
        for vector in stacked:  # in client order, so that every engine gives the same bytes
            total += clip_update(vector.double() - start.double(), self.clip)
        facts = np.asarray(ids, np.int64), start.cpu().numpy(), total.cpu().numpy()
        noise = self.hidden.with_facts("noise", int(round), *facts).standard_normal(len(start)) * (self.noise * self.clip)
        total += torch.from_numpy(noise).to(start.device)
        return (start.double() + total / self.cohort).to(start.dtype)


def clip_update(update: "torch.Tensor", bound: float) -> "torch.Tensor":
    """Clip an update (P,) float64 to L2 norm `bound`."""
    length = float(torch.linalg.vector_norm(update))
    return update * (bound / length) if length > bound else update


@check_arguments
def dp(*, clip: Positive = 1.0, noise: Positive = 1.0, cohort: float) -> Protection:
    """Clip each client's update and add noise to their sum, so that the model reveals little about any client.

    Return DP-FedAvg's mechanism (McMahan 2018) with the fixed denominator q N and equally weighted clients.

    Parameters
    ----------
    clip : float > 0
        Largest L2 norm of an update; choose it near the usual norm, so that few updates are clipped.
    noise : float > 0
        Standard deviation of the noise in units of `clip`: more noise costs accuracy, less noise costs privacy.
    """
    return Protection(clip, noise, cohort)


@dataclass(frozen=True)
class Secret:
    """Updates that the sites mask; the server receives only the weighted mean of a round.

    Attributes
    ----------
    clip : float > 0
        The largest absolute value of an update's entry.
    """

    clip: float


@check_arguments
def secagg(*, clip: Positive = 1.0, cohort: float) -> Secret:
    """Mask updates at the sites, so that the server receives only their weighted mean (Flower's SecAgg+).

    For real sites (`fnlkit flower-app`), with at least three sites per round.

    Parameters
    ----------
    clip : float > 0
        The largest absolute value of an update's entry; a site with a larger entry is dropped from the round. Entries are
        rounded to multiples of clip / 2^21.
    """
    return Secret(clip)


class Summed:
    """Input of an optimizer's server side if only the sum of a round is available; used in place of Updates.

    Attributes
    ----------
    start, fit, sizes, memory
        As in Updates.
    share : float
        q, the expected share of the clients in a round.
    """

    def __init__(self, start, fit, sizes, memory, share):
        self.start, self.fit, self.sizes, self.memory, self.share = start, fit, sizes, memory, share

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSummed(f"the optimizer reads each client's `{name}`, but only their sum is available")


class NotSummed(InputError):
    """An optimizer tried to read the update of one client although only their sum is available."""
