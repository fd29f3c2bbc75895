"""Counts with which clients judge a global model, for `--select`; they need no memory and no random number."""

from dataclasses import replace
from typing import TYPE_CHECKING

from fnlkit.core.declarations import Sent
from fnlkit.federated.client.scaling import FEWEST

if TYPE_CHECKING:
    import torch

    from fnlkit.federated.client.client import Client, LocalModel, Received


SENDS = {
    "held_out_agreement": Sent.counts("held-out samples whose given label is predicted, and all held-out samples; 0 for "
                                      "fewer than 5", "each evaluated round", (2,)),
    "prediction_changes": Sent.counts("training samples with another predicted class than in the evaluated round before, and "
                                      "all training samples (label-wave)", "each evaluated round", (2,)),
}  # fmt: skip
# Replies of any training, with every method.
TRAINING = {
    "weights": Sent("the local models", "every round", ("P",), "float32"),
    "moments": Sent("number, sum and sum of squares of the samples by feature or channel, for one scale", "once", (3, "d")),
    "held_out": Sent("number of correct predictions and sum of losses on held-out samples", "at each measurement", (2,)),
    **SENDS,
    "refused": Sent("replies that were not requested; the server ignores them", "when a client sends one"),
}


def reply_held_out_agreement(client: "Client", model: "LocalModel", received: "Received") -> "dict[str, torch.Tensor]":
    """Reply the counts of held-out samples (`SENDS`)."""
    import torch

    part, given = client.held_out
    if len(given) < FEWEST:
        return {"held_out_agreement": torch.zeros(2, dtype=torch.int64)}
    fits = model(part.gather()).argmax(-1).cpu() == given
    return {"held_out_agreement": torch.tensor([int(fits.sum()), len(given)])}


def reply_prediction_changes(client: "Client", model: "LocalModel", received: "Received") -> "dict[str, torch.Tensor]":
    """Reply the counts of changed predictions (`SENDS`) between the model received["before"] (P + Q,) and this model."""
    import torch

    before = replace(model, weights=received["before"])
    changed = before(client.x).argmax(-1) != model(client.x).argmax(-1)
    return {"prediction_changes": torch.tensor([int(changed.sum()), len(client)])}
