"""CUFIT in a federation: a linear probe chooses the samples from which the trained part of a pretrained network learns.

Yu, Ko, Shin, Kim, Lee. Curriculum fine-tuning of vision foundation model for medical image classification under label
noise. NeurIPS 2024.
"""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from fnlkit.core.declarations import method
from fnlkit.core.parameters import Rounds, check_arguments
from fnlkit.federated.client.losses.cross_entropy import kept_cross_entropy
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.missed import catching_up


# ---- on the client
def choose_agreed(client: Client, model: LocalModel, received: Received) -> None:
    """Write rows["keep"]: 1 for samples whose label the model predicts, 0 for the others."""
    logits = model(client.x)
    client.rows["keep"] = (logits.argmax(-1).cpu() == client.y.cpu()).to(logits.dtype)


def choose_once(client: Client, model: LocalModel, received: Received) -> None:
    """Let a client that missed the round of the probe choose by the model that it receives first."""
    if "keep" not in client.rows:
        choose_agreed(client, model, received)


# ---- the server
def intermediate_rounds(intermediate: int, rounds: int) -> int:
    """Rounds of the intermediate model: `intermediate`, or half of all rounds for -1."""
    return min(intermediate if intermediate >= 0 else rounds // 2, rounds)


@method(loss="own", needs=("probe",), schedule=intermediate_rounds, cite="Yu 2024")
@check_arguments
def cufit(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    intermediate: Rounds = -1,
) -> Generator[Round, None, Model]:
    """Fine-tune on the samples whose label a linear probe predicts, then on those that the fine-tuned model predicts.

    Parameters
    ----------
    rounds : int
    intermediate : int >= 0, or -1
        Rounds of the intermediate model, which trains on the choice of the probe.  The last model starts again from the probe
        and trains on the choice of the intermediate model.  Default: -1, half of all rounds; 0: one model, chosen by the probe.

    Notes
    -----
    The linear probe is the initial model: use a network such as ``pretrained(train=last(n=1))`` or ``train=lora``, and train
    its head first (``warmup_head``, `fnlkit train --warmup-head 20`).  Without it, samples would be chosen at random, and a
    pretrained network is refused.

    The paper trains three modules at once on the same pretrained network, with predictions of each batch; here they follow each
    other, so that a client trains and sends one model, and each choice is made once: all clients receive the model, and send
    nothing.  As in the public code, samples that are not chosen count as 0 in the mean over a batch.
    """
    opt.fit.refuse_mixup("cufit")
    everyone, probe = np.arange(len(clients)), model
    first = intermediate_rounds(intermediate, rounds)
    for stage, count in (("intermediate", first), ("last", rounds - first)):
        if count:
            replies = clients.round(everyone, model, choose_agreed, expect=())
            caught_up = catching_up(opt, clients, replies, choose_once)
            program = fedavg(clients, probe, caught_up, select, rounds=count, stage=stage, loss=kept_cross_entropy)
            model = yield from program
    return model
