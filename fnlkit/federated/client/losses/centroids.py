"""RoFL's loss: small-loss samples, relabeled if their features are not nearest to the centroid of their class."""

import torch
from torch.nn.functional import mse_loss

from fnlkit.core.declarations import declare
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.exchange import select_small_losses
from fnlkit.federated.client.losses.parts import reads, select_label


@declare(scheduled=("forget", "pull"))
@reads(features=True)
def near_centroids(
    logits: torch.Tensor, batch: Batch, *, forget: float, pull: float, entropy: float = 0.8, pseudo: bool = False
) -> torch.Tensor:
    """L_c + pull L_cen + entropy L_e on the int((1 - forget) B) smallest losses, 0 for others, (..., B) (Yang 2022).

    L_c is the cross entropy with the given label if, by cosine, the sample's features are nearest to the centroid of the given
    class.  For other samples, L_c uses the global model's ``rows["pseudo_label"]``, and L_cen is 0.  Otherwise L_cen is the
    mean squared distance of the features from the centroid.  L_e is the entropy.  The values are scaled so that their mean is
    the mean over the chosen samples.

    Parameters
    ----------
    forget : float in [0, 1)
    pull, entropy : float >= 0
        lambda_cen and lambda_e.
    pseudo : bool
        False keeps the given labels, as before round T_pl.
    """
    logp = logits.log_softmax(-1)
    taken = select_small_losses(-select_label(logp.detach(), batch.y), forget)
    features, centroids = batch.features, batch.state["centroids"].to(batch.features)
    # The length of the features does not change the order of the cosines.
    lengths = torch.linalg.vector_norm(centroids, dim=-1).clamp_min(1e-12)
    agree = (features.detach() @ centroids.mT / lengths[..., None, :]).argmax(-1) == batch.y
    label = torch.where(agree, batch.y, batch.rows["pseudo_label"]) if pseudo else batch.y
    label_centroids = centroids.gather(-2, batch.y[..., None].expand(features.shape))
    away = mse_loss(features, label_centroids, reduction="none").mean(-1) * agree
    values = pull * away - select_label(logp, label) - entropy * (logp.exp() * logp).sum(-1)
    taken = taken.to(values)
    return values * (taken * (values.shape[-1] / taken.sum(-1, keepdim=True)))


def cosines(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute the cosine of the angle between vectors on the last axis; 0 if a vector is 0."""
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(1e-12)
