"""Losses towards inferred labels, and through a learned layer for each annotator."""

from fnlkit.client.losses.parts import at
from fnlkit.components.declarations import declare
from fnlkit.errors import InputError
from fnlkit.kernels.terms import FusedLoss


def _soft_terms(visit, *, early=0.0):
    if early:
        raise InputError("it has no kernel for the early-learning regularizer of soft labels")
    rows, kind = visit.client.rows, visit.model.weights.dtype
    soft, keep = (rows[f"inferred{name}"].to(kind).numpy() for name in ("", "_weight"))
    return FusedLoss(kind="soft", soft=soft, keep=keep)


@declare(terms=_soft_terms)
def soft_cross_entropy(logits, batch, *, early=0.0):
    """Return w (-<q, log p> + early log(1 - <p, q>)), (..., B).

    q are inferred label distributions, ``rows["inferred"]`` (..., B, C), and w ``rows["inferred_weight"]`` (..., B).

    Parameters
    ----------
    early : float >= 0
        Weight of the early-learning regularizer (Liu 2020, eq. 6) with q as target; the value can then be negative.
    """
    logp, q = logits.log_softmax(-1), batch.rows["inferred"].to(logits)
    values = -(q * logp).sum(-1)
    if early:
        values = values + early * (1 - (logp.exp() * q).sum(-1)).clamp_min(1e-4).log()
    return batch.rows["inferred_weight"].to(logits) * values


def _layer_terms(visit):
    return FusedLoss("layer", matrix=visit.client.state["crowd_layer"].numpy())


@declare(terms=_layer_terms)
def crowd_cross_entropy(logits, batch):
    """Return -log softmax(W p)_y, (..., B), with the client's layer ``state["crowd_layer"]`` W (..., C, C) (Rodrigues 2018)."""
    weights = batch.state["crowd_layer"].to(logits)
    return -at((logits.softmax(-1) @ weights.transpose(-1, -2)).log_softmax(-1), batch.y)
