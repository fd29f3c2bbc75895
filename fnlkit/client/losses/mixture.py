"""FLR's label mixture: the cross entropy and a pull towards running averages of predictions."""

import torch

from fnlkit.client.losses.parts import at


def label_mixture(logits, batch, *, strength, alpha, beta, gamma, floor=1e-4, clamp=0.0):
    """Return FLR's loss (eq. 1), (..., B), and the two running averages to write back.

    s <- beta s + (1 - beta) p_server;  m <- gamma m + (1 - gamma) p;  t = alpha s + (1 - alpha) m, without gradient;
    value = -log p_y + strength log(1 - <p, t>).  The second term is never positive, so that the loss may be negative.
    Where ``rows["mixture_seen"]`` is False the averages start at the predictions at hand.

    Under mixup the averages of a sample take in what the models say to the sample itself (``batch.unmixed``,
    ``batch.teacher``), and a mixed sample is pulled towards its two samples' targets, mixed as its input is: lambda t_i +
    (1 - lambda) t_j, as ELR+ has it (Liu 2020, appendix).

    Parameters
    ----------
    strength : float >= 0
        lambda of FLR.
    alpha, beta, gamma : float in [0, 1]
        Share of the server's average, and the rates of the two.  With alpha 0 and no ``batch.teacher`` the server's
        average is neither needed nor kept.
    floor : float > 0
        Least 1 - <p, t>; below it the regulariser has no gradient.
    clamp : float in [0, 1/2)
        Predictions are kept within [clamp, 1 - clamp], in <p, t> as they then are, scaled to sum to 1 where they enter an
        average; beyond these bounds the regulariser has no gradient.  ELR's public code: 1e-4.
    """
    # In double: in single precision 1 - <p, t> cancels where the model is sure, and training drifts visibly.
    logp = logits.double().log_softmax(-1)
    p = logp.exp()

    def averaged(now):
        if clamp:
            now = now.clamp(clamp, 1 - clamp)
            now = now / now.sum(-1, keepdim=True)
        return now

    seen = batch.rows["mixture_seen"][..., None]
    now = averaged(p.detach() if batch.unmixed is None else batch.unmixed.double().softmax(-1))
    m = batch.rows["mixture_local"]
    m = torch.where(seen, gamma * m + (1 - gamma) * now, now)
    rows = {"mixture_local": m, "mixture_seen": torch.ones_like(seen[..., 0])}
    t = m
    if batch.teacher is not None:
        server, s = averaged(batch.teacher.double().softmax(-1)), batch.rows["mixture_server"]
        s = torch.where(seen, beta * s + (1 - beta) * server, server)
        rows["mixture_server"] = s
        t = alpha * s + (1 - alpha) * m
    if batch.partner is not None:
        share = batch.share.double()[..., None, None]
        t = share * t + (1 - share) * t.gather(-2, batch.partner[..., None].expand_as(t))
    held = p.clamp(clamp, 1 - clamp) if clamp else p
    apart = (1 - (held * t).sum(-1)).clamp_min(floor)
    return -at(logp, batch.y) + strength * apart.log(), rows
