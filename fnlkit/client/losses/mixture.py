"""FLR's label mixture: the cross entropy and a pull towards running averages of predictions."""

import torch

from fnlkit.client.losses.parts import at


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
    return -at(logp, batch.y) + strength * apart.log(), rows
