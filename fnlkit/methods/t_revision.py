"""T-revision: loss correction with transition matrices and a learned slack.

Xia, Liu, Wang, Han, Gong, Niu, Sugiyama. Are anchor points really indispensable in label-noise learning? NeurIPS 2019; in
federated training as in FedDPCont (Di 2024, appendix 9.4).
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from fnlkit.core.declarations import declare, method
from fnlkit.core.parameters import AboveOne, Percentile, Positive, Rounds, check_arguments
from fnlkit.federated.client.client import Batch, Client, LocalModel, Received
from fnlkit.federated.client.learning import learn_slack_compiled
from fnlkit.federated.client.losses.correction import forward_corrected, importance_reweighted
from fnlkit.federated.client.training import Adam
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.corrected_training import keep_anchor_transition
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.missed import catching_up


# ---- on the client
def revise_transition(transition: torch.Tensor, slack: torch.Tensor) -> torch.Tensor:
    """Add the slack to T without negative entries, rows scaled to sum to 1; differentiable."""
    total = (transition + slack).clamp_min(0)
    return total / total.sum(-1, keepdim=True).clamp_min(1e-12)


def revising_loss(correction: str) -> Callable[..., Any]:
    """Make the loss that is corrected by a transition which is also learned."""
    return partial(importance_reweighted, constant=False) if correction == "reweight" else forward_corrected


@declare(compiled=learn_slack_compiled)
def revise(
    client: Client,
    model: LocalModel,
    received: Received,
    *,
    correction: str,
    lr: float,
    epochs: int,
    batch_size: int,
) -> None:
    """Learn the slack with Adam after local training, in as many steps.

    The paper learns slack and network together.  Here an engine trains the networks of many clients at once and has no
    other parameters, so the slack is learned for the network at the end of a visit.
    """
    state, loss = client.state, revising_loss(correction)
    state.setdefault("estimated", state["transition"].double())
    estimated = state["estimated"]
    slack = state.get("slack", torch.zeros_like(estimated)).clone().requires_grad_()
    logits, labels = model(client.x).detach().cpu().double(), client.y.cpu()
    optimizer = Adam(slack.data, lr)
    for _ in range(epochs * -(-len(client) // batch_size)):
        with torch.enable_grad():
            value = loss(logits, Batch(y=labels, state={"transition": revise_transition(estimated, slack)})).mean()
        (gradient,) = torch.autograd.grad(value, slack)
        optimizer.step(gradient)
    state["slack"] = slack.detach()
    state["transition"] = revise_transition(estimated, state["slack"]).to(state["transition"])


# ---- the server
def stages(rounds: int, warmup: int, revision: int) -> tuple[int, int]:
    """First rounds with a corrected loss and with a learned slack."""
    start = min(warmup if warmup >= 0 else min(20, rounds // 3), rounds)
    return start, min(revision if revision >= 0 else start + (rounds - start) // 2, rounds)


def schedule(rounds: int, warmup: int, revision: int) -> tuple[int, int] | None:
    """First rounds of both stages, or None if neither depends on `rounds`."""
    return stages(rounds, warmup, revision) if min(warmup, revision) < 0 else None


@method(loss="own", schedule=schedule, cite="Xia 2019")
@check_arguments
def t_revision(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    revision: Rounds = -1,
    percentile: Percentile = 97.0,
    limit: AboveOne = 1e3,
    lr: Positive = 5e-7,
    correction: Literal["forward", "reweight"] = "forward",
) -> Generator[Round, None, Model]:
    """Estimate transition matrices after plain training, correct the loss, revise them.

    Parameters
    ----------
    rounds : int
    warmup : int >= 0, or -1
        Rounds of plain training before T is estimated.  Default: -1, which is 20 (FedDPCont, appendix 9.4, of 300 rounds), but
        at most a third of the rounds.  The default is not a fixed share of the budget, because T is estimated once and needs
        the predictions of a trained model.  On frozen features with half of all labels wrong, the result is 27 points behind
        FedAvg after a warm-up of 4 of 60 rounds, and 6 points ahead after 20 rounds (docs/league.md of commit
        4d89694f).
    revision : int >= 0, or -1
        The first round in which T is revised.  Default: -1, after half of the rounds after the warm-up: 160 of 300.
    percentile, limit : float
        Percentile of the anchor points, and the largest condition number, as in `forward`.
    lr : float > 0
        Learning rate of Adam on the slack: 5e-7 in the public code, which moves an entry by a thousandth in 2,000 steps.
    correction : "forward" or "reweight"
        ``forward``: -log (p T)_y, as in FedDPCont's federated training (appendix 9.4).  ``reweight``: the cross
        entropy times p_y / (p T)_y, as in Xia 2019 and its public code.  There the weight has a gradient only from the
        revision of T on.

    Notes
    -----
    The paper learns the slack on T together with the network.  Here the slack is learned by as many Adam steps after a
    client's local training, because an engine trains only the network.  Rates of 1e-3 and 1e-2 change the final accuracy by
    +0.5 to -0.8 points.
    """
    corrected = importance_reweighted if correction == "reweight" else forward_corrected
    start, late = stages(rounds, warmup, revision)
    model = yield from fedavg(clients, model, opt, select, rounds=start, stage="warm-up")
    if start < rounds:
        estimate = partial(keep_anchor_transition, percentile=percentile, anchor="point", limit=limit)
        replies = clients.round(np.arange(len(clients)), model, estimate, expect=())
        opt = catching_up(opt, clients, replies, partial(estimate, missed=True))
    model = yield from fedavg(clients, model, opt, select, rounds=max(0, late - start), stage="correction", loss=corrected)
    after = (partial(revise, correction=correction, lr=lr, epochs=opt.fit.epochs, batch_size=opt.fit.batch_size),)
    left = rounds - max(start, late)
    return (
        yield from fedavg(
            clients, model, opt, select, rounds=left, stage="revision", after=after, loss=revising_loss(correction)
        )
    )
