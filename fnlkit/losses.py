"""Losses: (logits (..., B, C), batch) -> values (..., B), or (values, rows to write back).

They act on the last axis and broadcast over the rest, so that one client and a stacked cohort share the code.
Constants of a round are keywords, bound with functools.partial; what differs by client or class comes in
``batch.received``, ``batch.state`` and ``batch.rows``.

    ======================  ===========================================================  ===============================
    loss                    value of one sample, p = softmax(logits)                     reads
    ======================  ===========================================================  ===============================
    cross_entropy           -log p_y                                                     y
    kept_cross_entropy      w_i (-log p_y)                                               rows["keep"]
    forward_corrected       -log sum_j p_j T[j, y]                                       state["transition"]
    contrastive             -log p_y + b log p_y', y' ~ q                                received["prior"], uniform
    label_mixture           -log p_y + a log(1 - <p, t>)                                 teacher, rows["mixture_*"]
    embedding_distilled     -log p_y + b d mean_j |e_j - ê_j|                            rows, features, received, state
    logit_distilled         -log p_y + b d F^2 KL(p^F, p_global^F)                       teacher, received
    ======================  ===========================================================  ===============================
"""

import torch


def cross_entropy(logits, batch, *, smoothing=0.0):
    """Return the cross entropy with the working labels, (..., B) in nats.

    Parameters
    ----------
    logits : Tensor (..., B, C)
    batch : fnlkit.client.Batch
    smoothing : float in [0, 1)
        Label smoothing: the target is (1 - smoothing) one-hot + smoothing / C (Szegedy 2016).  Negative values give
        negative label smoothing (Wei 2022).
    """
    logp = logits.log_softmax(-1)
    values = -_at(logp, batch.y)
    if smoothing:
        values = (1 - smoothing) * values - smoothing * logp.mean(-1)
    return values


def kept_cross_entropy(logits, batch):
    """Return the cross entropy weighted by ``rows["keep"]``, (..., B): 0 for pruned samples, n / kept for the others.

    The mean over an epoch is then the mean over the samples that were kept, whatever the batches.
    """
    return batch.rows["keep"].to(logits.dtype) * -_at(logits.log_softmax(-1), batch.y)


def forward_corrected(logits, batch, *, floor=1e-12):
    """Return the forward-corrected cross entropy -log( (p T)_y ), (..., B) (Patrini 2017; FedEFC eq. 16).

    ``state["transition"]`` (..., C, C) is T[true, given] with rows summing to 1; FedEFC's Q is its transpose, so that
    its Q[observed, :] . p is our (p T)[observed].

    Parameters
    ----------
    floor : float >= 0
        Added inside the logarithm, as the authors' code does.
    """
    through = logits.softmax(-1) @ batch.state["transition"].to(logits)
    return -(_at(through, batch.y) + floor).log()


def contrastive(logits, batch, *, strength=1.0, expected=False, floor=0.0):
    """Return CE(y) - strength CE(y'), y' ~ ``received["prior"]`` (C,), (..., B) (FedDPCont eq. 2).

    The second term has no lower bound: the values may be negative, and grow without end when `strength` is large.

    Parameters
    ----------
    strength : float >= 0
        beta of the proofs; 1 in the paper's eq. 2.
    expected : bool
        Take the expectation over y' instead of the draw ``batch.uniform`` (CORES, Cheng 2021, eq. 4): less variance.
    floor : float >= 0
        Added to the probability inside the second logarithm, which then is at most -log(floor) (peer loss's public
        code: 1e-5).
    """
    logp = logits.log_softmax(-1)
    away = (logp.exp() + floor).log() if floor else logp
    prior = batch.received["prior"].to(logits.device)
    if expected:
        contrast = -(prior.to(logits.dtype) * away).sum(-1)
    else:
        contrast = -_at(away, draw_classes(batch.uniform, prior))
    return -_at(logp, batch.y) - strength * contrast


def draw_classes(uniform, prior):
    """Return classes int64 (..., B) drawn from probabilities (C,) by inversion of draws in [0, 1)."""
    edges = prior.double().cumsum(-1)[:-1]
    return (uniform.double()[..., None] >= edges).sum(-1)


def label_mixture(logits, batch, *, strength, alpha, beta, gamma, floor=1e-4):
    """Return FLR's loss (eq. 1), (..., B), and the two running averages to write back.

    s <- beta s + (1 - beta) p_server;  m <- gamma m + (1 - gamma) p;  t = alpha s + (1 - alpha) m, without gradient;
    value = -log p_y + strength log(1 - <p, t>).  The second term is never positive, so that the loss may be negative.
    Where ``rows["mixture_seen"]`` is False the averages start at the predictions at hand.

    Parameters
    ----------
    strength : float >= 0
        lambda.
    alpha, beta, gamma : float in [0, 1]
        Share of the server's average, and the rates of the two.  With alpha 0 and no ``batch.teacher`` the server's
        average is neither needed nor kept.
    floor : float > 0
        Least 1 - <p, t>; below it the regulariser has no gradient.
    """
    # In double: in single precision 1 - <p, t> cancels where the model is sure, and training drifts visibly.
    logp = logits.double().log_softmax(-1)
    p = logp.exp()
    seen = batch.rows["mixture_seen"][..., None]
    now, m = p.detach(), batch.rows["mixture_local"]
    m = torch.where(seen, gamma * m + (1 - gamma) * now, now)
    rows = {"mixture_local": m, "mixture_seen": torch.ones_like(seen[..., 0])}
    t = m
    if batch.teacher is not None:
        server, s = batch.teacher.double().softmax(-1), batch.rows["mixture_server"]
        s = torch.where(seen, beta * s + (1 - beta) * server, server)
        rows["mixture_server"] = s
        t = alpha * s + (1 - alpha) * m
    apart = (1 - (p * t).sum(-1)).clamp_min(floor)
    return -_at(logp, batch.y) + strength * apart.log(), rows


def embedding_distilled(logits, batch, *, strength=10.0):
    """Return CE + strength d mean_j |a e_j - ê_j|, (..., B) (FedLN eq. 9, embeddings as teacher).

    e is ``rows["input/embedding"]`` (..., B, D); ê the last D of the network's features, which are its head's output
    (fnlkit.models.head) or, with equal widths, the features themselves; d is ``received["distil"]`` (...), 1 for clients
    found noisy, else 0; a is ``state["embedding_scale"]`` (...).

    Parameters
    ----------
    strength : float >= 0
        beta; 10 in the paper.
    """
    teacher = batch.rows["input/embedding"].to(logits.dtype) * batch.state["embedding_scale"].to(logits)[..., None, None]
    apart = (teacher - batch.features[..., -teacher.shape[-1] :]).abs().mean(-1)
    return -_at(logits.log_softmax(-1), batch.y) + strength * _switch(batch, logits) * apart


def logit_distilled(logits, batch, *, strength=10.0, temperature=2.0, towards="teacher"):
    """Return CE + strength d F^2 KL, (..., B) (FedLN eq. 9, the round's global model as teacher).

    d is ``received["distil"]`` (...); F the temperature of both softmaxes.

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
    return -_at(logits.log_softmax(-1), batch.y) + strength * _switch(batch, logits) * divergence


def sample_losses(logits, labels):
    """Return the cross entropy of each sample, (n,), for logits (n, C) and labels (n,)."""
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def energy(logits):
    """Return the energy score logsumexp(logits), (...): high where the network is sure (FedLN, Section 4.2)."""
    return logits.logsumexp(-1)


def _at(values, labels):
    return values.gather(-1, labels[..., None])[..., 0]


def _switch(batch, logits):
    return batch.received["distil"].to(logits)[..., None]
