"""Client steps of an audit; only their replies leave a site."""

import torch

from fnlkit.components.declarations import Sent
from fnlkit.estimators import em
from fnlkit.review import copies

SENDS = {
    "class_counts": Sent.counts("numbers of samples of each given label", "once", ("C",)),
    **em.JUDGED,
    **copies.SENDS,
}


def describe(client, model, received):
    """Reply the number of samples of each given label (C,)."""
    return {"class_counts": torch.bincount(client.y, minlength=client.classes)}
