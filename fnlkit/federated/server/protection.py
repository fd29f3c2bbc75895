"""Secure aggregation: updates that sites mask, so that the server receives only their mean."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Positive, check_arguments


@dataclass(frozen=True)
class Secret:
    """Updates that the sites mask; the server receives only the weighted mean of a round.

    Attributes
    ----------
    clip : float > 0
        The largest absolute value of an update's entry.
    """

    clip: float = 1.0


class MaskedSums(NamedTuple):
    """Protection of a round whose replies are sums: the server receives only their mean over the clients.

    Attributes
    ----------
    shapes : dict of str to tuple of int or str
        Shape of each sum; a single sum can have one unknown side, as text.
    """

    shapes: dict[str, tuple[Any, ...]]


@check_arguments
def secagg(*, clip: Positive = Secret.clip) -> Secret:
    """Mask updates or sums at the sites, so that the server receives only their mean over the sites (Flower's SecAgg+).

    For real sites (`fnlkit flower-app`), with at least three sites per round.

    Parameters
    ----------
    clip : float > 0
        The largest absolute value of an update's entry; a site with a larger entry is dropped from the round. Entries are
        rounded to multiples of clip / 2^51.  Sums have another limit (docs/deployment-protection.md).
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
        self.start = start
        self.fit = fit
        self.sizes = sizes
        self.memory = memory
        self.share = share

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSummed(f"the optimizer reads each client's `{name}`, but only their sum is available")


class NotSummed(InputError):
    """An optimizer tried to read the update of one client although only their sum is available."""
