"""Admission of a round's replies: allowed names, form, length of the update, and the number of accepted replies."""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fnlkit.artifacts.display import plain
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.federated.client.failure import Failure
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.replies import MAX_REASON, Malformed, admit, disagreeing, must_be_finite, quote

if TYPE_CHECKING:
    from fnlkit.artifacts.exchange import Exchange
    from fnlkit.core.declarations import Sent
    from fnlkit.federated.client.network import Network


# Number of recent visits that are judged together if a cohort is too small to judge alone; fewer if there are fewer clients.
PATIENCE = 10
# Number of recent updates that new updates are compared with.
_REMEMBERED = 50
_MAX_MESSAGE = 1000  # characters of a client's error message
_MAX_LISTED = 400  # characters of the reasons in an error message


class TooManyLost(WorkStopped):
    """A round lost so many clients that its result cannot be used; the run stops and can be resumed.

    Attributes
    ----------
    reasons : dict of int to str
        Reason against each rejected client of the round.
    """

    reasons: dict[int, str] = {}


def names_in_round(
    steps: tuple[Any, ...],
    expect: Sequence[str] | str | None,
    *,
    sends: "dict[str, Sent] | None",
    protect: str,
    protected: bool,
) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Return the names that a round's replies can have (None: any name), and the names that they must have.

    Parameters
    ----------
    steps : sequence of Fit or client steps
    expect : str, tuple of str or None
        As in `fnlkit.federated.server.clients.Clients.round`.
    sends : dict of str to Sent, or None
        Declared replies.
    protect : str
        Name of the protection of updates; empty without protection.
    protected : bool
        True if a protection covers the weights of this round.

    Raises
    ------
    InputError
        If the round requires a name that is not allowed.
    """
    expect = (expect,) if isinstance(expect, str) else expect or ()
    required = frozenset(expect) | {"weights" for step in steps if isinstance(step, Fit)}
    if protect or protected:
        allowed = frozenset({"weights"} if protected else ())
    else:
        allowed = None if sends is None else frozenset({"weights", *sends})
    if allowed is not None and (extra := sorted(required - allowed)):
        raise InputError(forbidden(extra[0], allowed, sends=sends, protect=protect))
    return allowed, required


def common_forbidden(replies: list[Any], allowed: frozenset[str] | None) -> str | None:
    """Return a forbidden name that is in every reply, so that the method itself sends it; otherwise None."""
    if allowed is None or not replies or not all(isinstance(reply, dict) for reply in replies):
        return None
    extra = frozenset.intersection(*(frozenset(reply) - allowed for reply in replies))
    return min(extra, key=str) if extra else None


def forbidden(name: str, allowed: frozenset[str], *, sends: "dict[str, Sent] | None", protect: str) -> str:
    """Return an error message for a name that clients must not send; arguments as in `names_in_round`."""
    if sends is not None and "weights" in allowed and not protect:
        return f"the method's clients send {quote(name)}, which is not declared; add it to @method(sends=...)"
    where = "in addition to the weights of a round" if "weights" in allowed else "outside of a protected round (opt.round)"
    return f"`protect` {protect or 'secagg'}: clients would send {quote(name)} {where}; remove `protect`"


def examine(
    replies: list[Any],
    names: frozenset[str],
    sends: "dict[str, Sent]",
    network: "Network",
    start: "torch.Tensor",
    samples: list[int],
    **sides,
) -> tuple[list[Any], dict[Any, float]]:
    """Convert replies to their declared types in place, and return reasons against replies and the norms of updates.

    Parameters
    ----------
    replies : list of (dict or Failure)
    names : frozenset of str
        Names that each reply must have.
    sends : dict of str to Sent
        Declared replies; undeclared replies only have to be finite numbers.
    network : fnlkit.federated.client.network.Network
    start : Tensor (P + Q,)
        Weights that the clients received.
    samples : list of int (K,)
        Numbers of samples of the clients.
    **sides : int
        As in `fnlkit.federated.server.replies.Sent.sides`.

    Returns
    -------
    reasons : list of (str or None)
        None for a usable reply.
    norms : dict of int to float
        L2 norms of the trainable entries of updates, by position in `replies`.
    """
    reasons, norms = [], {}
    for j, reply in enumerate(replies):
        reason = str(reply) if isinstance(reply, Failure) else None
        try:
            if reason is None:
                replies[j] = admit(reply, names, sends, network, samples=samples[j], **sides)
                if "weights" in names:
                    norms[j] = _finite_norm(replies[j]["weights"], start, network.parameters_count)
        except Malformed as error:
            reason = str(error)
        reasons.append(reason)
    for name in [name for name in names & sends.keys() - {"weights"} if sends[name].shape is None or sends[name].sum_only]:
        values = {j: replies[j][name] for j, reason in enumerate(reasons) if reason is None}
        for j, reason in disagreeing(values, dict(enumerate(samples))).items():
            reasons[j] = f"{quote(name)} {reason}"
            norms.pop(j, None)
    return reasons, norms


def _finite_norm(weights, start, trainable):
    """Return the L2 norm of the trainable entries of an update; it is finite only if these are."""
    norm = l2_norm(weights[:trainable].detach() - start[:trainable])
    must_be_finite("weights", weights[trainable:] if math.isfinite(norm) else weights)
    return norm


def l2_norm(vector: "torch.Tensor") -> float:
    """Return the L2 norm of a tensor, summed in float64."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def too_long(norms: dict[int, float], log: "list[Exchange]", start: "torch.Tensor", max_update_ratio: float) -> dict[int, str]:
    """Return {position: reason} of updates that are too long compared with the cohort and recent updates.

    The first update of a run is compared with the model if no other client is in its cohort.

    Parameters
    ----------
    norms : dict of int to float
        L2 norms of updates by position.
    log : list of Exchange
        Earlier rounds.
    start : Tensor
        The same entries of the weights that the clients received. An update shorter than these is never too long.
    max_update_ratio : float >= 0
        Largest allowed ratio to the median update; 0 allows every update.
    """
    if not max_update_ratio or not norms:
        return {}
    recent = [norm for entry in log[-_REMEMBERED:] for norm in entry.norms.tolist()][-_REMEMBERED:]
    model = l2_norm(start.detach())
    if len(recent) + len(norms) > 1:
        usual, of = statistics.median_low([*recent, *norms.values()]), "median update"
        limit = max(max_update_ratio * usual, model)
    else:  # the first update of all, from a cohort of one client
        usual, of = max(model, 1.0), "model"
        limit = max_update_ratio * usual
    return {
        j: f"its update is {norm / usual if usual else math.inf:.3g} times as long as the {of}"
        for j, norm in norms.items()
        if norm > limit
    }


def too_few(asked: int, accepted: int, log: "list[Exchange]", min_replies: float, clients: int) -> bool:
    """Return whether too few clients of a round are left to use its result.

    A cohort of one client is judged together with earlier visits unless `min_replies` is 1, and so is every cohort if it is 0.

    Parameters
    ----------
    asked, accepted : int
        Clients in the cohort, and clients whose replies were accepted.
    log : list of Exchange
        Earlier rounds.
    min_replies : float in [0, 1]
        The smallest accepted share.
    clients : int
        Number of all clients.
    """
    if accepted == asked or min_replies == 1:
        return accepted < asked
    enough = min(PATIENCE, clients)
    if asked == 1 or not min_replies:
        for entry in reversed(log):
            if asked >= enough or (min_replies and len(entry.asked) > 1):
                break
            asked, accepted = asked + len(entry.asked), accepted + len(entry.kept)
        if asked < enough:
            return False
    return accepted < max(1, math.ceil(min_replies * asked))


def check_any_accepted(log: "list[Exchange]", rejected: list[dict[str, Any]]) -> None:
    """Raise TooManyLost if a whole run has no accepted reply; runs of few single-client rounds end before `too_few` judges.

    Parameters
    ----------
    log : list of Exchange
    rejected : list of dict
        round, client and reason of each rejected reply.
    """
    if rejected and not any(len(entry.kept) for entry in log):
        raise to_error(rejected[-1]["round"], [rejected[-1]["client"]], [rejected[-1]["reason"]])


def user_error(replies: list[Any]) -> str | None:
    """Return the message of a user error that occurred on every client, or None."""
    if not replies or not all(isinstance(reply, Failure) and reply.code == "input" for reply in replies):
        return None
    messages = sorted({reply.sentence for reply in replies} - {""})
    if not messages:
        return "a user component rejects its input on every client; see -vv"
    return plain(messages[0])[:_MAX_MESSAGE]


def printable(reason: str | None) -> str | None:
    """Return a reason without control characters and cut to the length that a run stores, or None.

    A part of the reason can come from a client.
    """
    return reason and plain(reason[:MAX_REASON])[:MAX_REASON]


def to_error(round: int, ids: list[int], reasons: list[str | None]) -> TooManyLost:
    """Return the TooManyLost error of a round with the reasons (K,) against its clients."""
    listed = "; ".join(f"client {i}: {reason}" for i, reason in zip(ids, reasons, strict=True) if reason)
    advice = ""
    if "NaN" in listed or "infinite" in listed:
        advice = "; if training diverged, lower the learning rate"
    elif "failed" in listed:
        advice = "; use -vv to print the clients' messages"
    count = sum(reason is not None for reason in reasons)
    error = TooManyLost(f"round {round}: {count} of {len(ids)} replies rejected ({listed[:_MAX_LISTED]}){advice}")
    error.reasons = {i: reason for i, reason in zip(ids, reasons, strict=True) if reason}
    return error
