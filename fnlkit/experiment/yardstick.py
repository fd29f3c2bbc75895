"""What a model in training is measured on, and what that may be called."""

from dataclasses import dataclass

import numpy as np
import torch

from fnlkit.artefacts.stored import Chosen
from fnlkit.client.members import held
from fnlkit.client.scoring import sample_losses


@dataclass
class Yardstick:
    """Samples and labels that a model is measured on.

    Attributes
    ----------
    x : array (n, ...)
    labels : dict of int64 Tensor (n,)
        ``accuracy``: true labels; ``agreement``: given ones, of which nobody knows which are wrong.
    clients : int
        How many clients hold them; 0 for a test set.
    """

    x: object
    labels: dict
    clients: int = 0

    def __len__(self):
        return len(self.x)

    @property
    def name(self):
        """accuracy or agreement, the truer one where both are known."""
        return next(iter(self.labels))

    def scores(self, logits):
        """Return the share of labels that logits (n, C) predict, by name, and the mean cross entropy to the truer ones."""
        out = {name: (logits.argmax(-1) == y).double().mean().item() for name, y in self.labels.items()}
        return out | {"loss": sample_losses(logits, self.labels[self.name]).double().mean().item()}


def yardstick(federation, dataset, train, test):
    """Return the Yardstick of a federation: the data set's test samples, or what its clients hold out where there are none.

    Parameters
    ----------
    federation : fnlkit.artefacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    train, test : array (n, ...)
        As networks take them.
    """
    if len(test):
        name = "accuracy" if federation.true is not None or dataset.test_verified else "agreement"
        return Yardstick(held(test), {name: torch.from_numpy(np.asarray(dataset.y_test, np.int64))})
    positions = apart(federation)
    labels = {"agreement": federation.given[positions]}
    if federation.true is not None:
        labels = {"accuracy": federation.true[positions]} | labels
    labels = {name: torch.from_numpy(np.asarray(y, np.int64)) for name, y in labels.items()}
    return Yardstick(held(Chosen(train, positions)), labels, len(federation))


def apart(federation):
    """Return the positions (h,) of what clients hold out, but for verified samples, client by client."""
    positions = np.concatenate([np.zeros(0, np.int64), *federation.held_out])
    gold = federation.extra.get("gold_label")
    return positions if gold is None else positions[gold[positions] < 0]
