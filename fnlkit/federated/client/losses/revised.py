"""FedGR's loss: revised labels, distillation from an averaged local model, and the global model's representation."""

import torch

from fnlkit.core.declarations import declare
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.parts import reads


@declare(scheduled=("distil",))
@reads(features=True)
def revised(logits: torch.Tensor, batch: Batch, *, distil: float, represent: float, temperature: float = 0.5) -> torch.Tensor:
    """Loss -<q, log p> + distil KL(s || p^T) + represent KL(g || f^T), (..., B) (FedGR, public code).

    q is ``rows["gr_target"]`` (..., B, C), the weights of the given and the revised label; they need not sum to 1.  s is
    ``rows["gr_teacher"]``, predictions of the averaged local model, and p^T = softmax(z / T).  g is ``rows["gr_global"]``, the
    softmax of the global model's features divided by T, and f^T the same of the features in training.

    Parameters
    ----------
    distil, represent : float >= 0
        Weights of the two divergences.
    temperature : float > 0
        T, of both.
    """
    values = -(batch.rows["gr_target"].to(logits) * logits.log_softmax(-1)).sum(-1)
    if distil:
        values = values + distil * divergence(batch.rows["gr_teacher"].to(logits), logits / temperature)
    return values + represent * divergence(batch.rows["gr_global"].to(logits), batch.features / temperature)


def divergence(target: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Compute KL(target || softmax(logits)) over the last axis; target (..., D) sums to 1."""
    return (torch.special.xlogy(target, target) - target * logits.log_softmax(-1)).sum(-1)
