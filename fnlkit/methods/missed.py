"""Clients that missed the only round of a stage: they catch up, are asked again, or count as the noisiest client."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fnlkit.federated.types import Clients, FedOpt, Model, Replies


def catching_up(opt: "FedOpt", clients: "Clients", replies: "Replies", step: Callable[..., Any]) -> "FedOpt":
    """Let clients that missed the round run `step` first at each visit; without such clients, `opt` is unchanged.

    Parameters
    ----------
    opt : FedOpt
    clients : Clients
    replies : Replies
        Of a round of all clients.
    step : client step
        Has no effect at a client that did not miss the round, and replies nothing.
    """
    return opt if len(replies.ids) == len(clients) else replace(opt, before=(*opt.before, step))


def ask_again(clients: "Clients", ids: np.ndarray, replies: "Replies", model: "Model", step: Callable[..., Any]) -> None:
    """Run a step once more on the clients of `ids` without a reply; those that are still away do not stop the run.

    Parameters
    ----------
    clients : Clients
    ids : int64 (K,)
        The clients of the round.
    replies : Replies
        Of the round.
    model : Model
    step : client step
        Replies nothing.
    """
    missing = np.setdiff1d(ids, replies.ids)
    if len(missing):
        clients.round(missing, model, step, expect=(), optional=True)


def complete_levels(levels: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Give every client outside `ids` the largest level of the others, or 1 without any: (N,).

    A level of 0 would mark a client as clean that no model judged.
    """
    levels, missing = np.array(levels, np.float64), ~np.isin(np.arange(len(levels)), ids)
    levels[missing] = levels[~missing].max(initial=0.0) if (~missing).any() else 1.0
    return levels
