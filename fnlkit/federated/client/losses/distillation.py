"""The cross entropy with an additional distillation term."""

import torch

from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.parts import select_label


def embedding_distilled(
    logits: torch.Tensor, batch: Batch, *, strength: float = 10.0, scale: float = 1.0, distance: str = "norm"
) -> torch.Tensor:
    """CE + strength d |a (e - m) - ê| / root of D, (..., B) (FedLN eq. 9, embeddings as teacher).

    e is ``rows["input/embedding"]`` (..., B, D).  ê are the last D of the network's features: the output of a head
    (fnlkit.models.head) or, with equal widths, the features themselves.  d is ``received["distil"]`` (...), 1 for clients that
    are estimated to be noisy, else 0.  m is ``received["embedding_mean"]`` (D,), or 0 if the server did not send it.

    Parameters
    ----------
    strength : float >= 0
        beta; 10 in the paper.
    scale : float > 0
        a; 1 in the paper.
    distance : "norm" or "absolute"
        ``norm``: Euclidean norm of the difference over the root of D.  ``absolute``: mean over the dimensions of the absolute
        difference.
    """
    teacher = _scaled(batch.rows["input/embedding"], batch.received, scale, logits)
    width = teacher.shape[-1]
    order, root = (2, width**0.5) if distance == "norm" else (1, width)
    away = torch.linalg.vector_norm(teacher - batch.features[..., -width:], order, dim=-1)
    return strength / root * _switch(batch, logits) * away - select_label(logits.log_softmax(-1), batch.y)


def logit_distilled(
    logits: torch.Tensor, batch: Batch, *, strength: float = 10.0, temperature: float = 2.0, towards: str = "teacher"
) -> torch.Tensor:
    """CE + strength d F^2 KL, (..., B) (FedLN eq. 9, the round's global model as teacher).

    d is ``received["distil"]`` (...); F is the temperature of both softmaxes.

    Parameters
    ----------
    strength, temperature : float
        beta and T; 10 and 2 in the paper.
    towards : "teacher" or "student"
        ``teacher``: KL(student || teacher), as eq. 9 is printed; ``student``: KL(teacher || student) (Hinton 2015).
    """
    student = (logits / temperature).log_softmax(-1)
    teacher = (batch.teacher / temperature).log_softmax(-1)
    of, other = (student, teacher) if towards == "teacher" else (teacher, student)
    divergence = temperature**2 * (of.exp() * (of - other)).sum(-1)
    return -select_label(logits.log_softmax(-1), batch.y) + strength * _switch(batch, logits) * divergence


def _scaled(embedding, received, scale, like):
    if "embedding_mean" in received:
        embedding = embedding.to(like) - received["embedding_mean"].to(like)
    return embedding.to(like) * scale


def _switch(batch, logits):
    return batch.received["distil"].to(logits)[..., None]
