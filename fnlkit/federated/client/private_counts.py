"""Test of a model at a client: numbers of predictions that differ from the labels, as ranges of at least five numbers.

An exact number of predictions is a threshold on the values of single samples if the sender chooses the model.  A client
therefore replies groups of at least `FEWEST` samples, and for each group a range instead of the number.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from fnlkit.core.declarations import Sent
from fnlkit.federated.client.client import Client, LocalModel, Received

# Smallest group of samples that a client describes.
FEWEST = 20
# A range contains at least this many numbers.
RANGE = 5
SENDS = {
    "tested": Sent.counts(
        f"numbers of samples by label; labels with fewer than {FEWEST} together in the last entry, 0 for fewer than {FEWEST}",
        "once", ("groups",),
    ),
    "wrong": Sent.counts(
        f"smallest possible numbers of samples of these groups whose prediction differs from the label, of {RANGE} numbers or "
        "more", "once", ("groups",),
    ),
}  # fmt: skip


class Ranges(NamedTuple):
    """Ranges of the numbers of wrong predictions.

    Attributes
    ----------
    tested : int (..., G)
        Samples of each group.
    fewest, most : int (..., G)
        Smallest and largest possible number of wrong predictions.
    """

    tested: np.ndarray
    fewest: np.ndarray
    most: np.ndarray


def reply_tested(client: Client, model: LocalModel, received: Received) -> dict[str, torch.Tensor]:
    """Reply the samples of each group, and the lower ends of the ranges of wrong predictions by the received model."""
    counts = torch.zeros(client.classes, client.classes, dtype=torch.int64)
    counts.index_put_((model(client.x).argmax(1).cpu(), client.y), torch.tensor(1), accumulate=True)
    tested, wrong = in_groups(counts.numpy())
    return {"tested": torch.from_numpy(tested), "wrong": torch.from_numpy(lower_end(tested, wrong))}


def in_groups(counts: np.ndarray) -> tuple[np.ndarray, ...]:
    """Count samples and wrong predictions, each int64 (C + 1,), of groups with at least `FEWEST` samples.

    Parameters
    ----------
    counts : int (C, C)
        Samples by predicted class and label.

    Examples
    --------
    >>> from fnlkit.federated.client.private_counts import in_groups
    >>> in_groups([[20, 3, 0], [1, 8, 1], [0, 0, 11]])
    (array([21,  0,  0, 23]), array([1, 0, 0, 4]))
    """
    counts = np.asarray(counts, np.int64)
    tested = counts.sum(0)
    wrong, alone = tested - counts.diagonal(), tested >= FEWEST
    both = []
    for values in (tested, wrong):
        others = values[~alone].sum() if tested[~alone].sum() >= FEWEST else 0
        both.append(np.append(np.where(alone, values, 0), others))
    return tuple(both)


def lower_end(tested: ArrayLike, wrong: ArrayLike) -> np.ndarray:
    """Round numbers (...,) down to the ends of their ranges: multiples of `RANGE`, each range with at least `RANGE` numbers."""
    last = (np.asarray(tested) + 1) // RANGE - 1
    return RANGE * np.clip(np.asarray(wrong) // RANGE, 0, np.maximum(last, 0))


def ranges(tested: np.ndarray, wrong: np.ndarray) -> Ranges:
    """Read the Ranges of replies (..., G)."""
    tested, wrong = np.asarray(tested, np.int64), np.asarray(wrong, np.int64)
    last = RANGE * np.maximum((tested + 1) // RANGE - 1, 0)
    return Ranges(tested, wrong, np.where(wrong == last, tested, wrong + RANGE - 1))


def implausible(replies: Mapping[Any, Mapping[str, ArrayLike]]) -> dict[Any, str]:
    """Find {key: reason} of clients whose replies are no ranges of `reply_tested`, {key: replies} by any key."""
    reasons = {}
    for key, reply in replies.items():
        tested, wrong = np.asarray(reply["tested"]), np.asarray(reply["wrong"])
        if ((tested > 0) & (tested < FEWEST)).any() or not np.array_equal(wrong, lower_end(tested, wrong)):
            reasons[key] = "its counts are no ranges of wrong predictions"
    return reasons
