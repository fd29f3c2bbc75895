"""Admission of a round's replies: allowed names, form, length of the update, and the number of accepted replies.

`admit` decides about a round without changing anything; the session (`fnlkit.federated.server.clients.Clients`) acts on it.
"""

import math
import statistics
from collections import Counter
from typing import Any, NamedTuple

import torch

from fnlkit.artifacts.display import plain
from fnlkit.artifacts.exchange import Exchange
from fnlkit.core.declarations import Sent, number
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.federated.client.failure import Failure
from fnlkit.federated.client.network import Network
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.protection import MaskedSums

# Number of recent visits that are judged together if a cohort is too small to judge alone; fewer if there are fewer clients.
PATIENCE = 10
# Number of recent updates that new updates are compared with.
_REMEMBERED = 50
_MAX_MESSAGE = 1000  # characters of a client's error message
_MAX_LISTED = 400  # characters of the reasons in an error message
# Largest number of characters of a name and of a reason that is quoted or stored.
MAX_NAME, MAX_REASON = 40, 300


class TooManyLost(WorkStopped):
    """A round lost so many clients that its result cannot be used; the run stops and can be resumed.

    Attributes
    ----------
    reasons : dict of int to str
        Reason against each rejected client of the round.
    """

    reasons: dict[int, str] = {}


class Malformed(Exception):
    """A reply does not have the expected form; the text contains the reason and no value."""


class Admitted(NamedTuple):
    """Decision about the replies of a round.

    Attributes
    ----------
    names : frozenset of str
        Names that each reply must have.
    replies : list of (dict or Failure)
        Replies in the order of the cohort; those without a reason have Tensors of the declared types.
    reasons : list of (str or None)
        Reason against each reply; None for an accepted reply.
    norms : dict of int to float
        L2 norms of the trainable entries of updates, by position in `replies`.
    long : bool
        True if an update is too long.
    """

    names: frozenset[Any]
    replies: list[Any]
    reasons: list[Any]
    norms: dict[int, float]
    long: bool


def admit(ask: Any, replies: list[Any]) -> Admitted:
    """Decide which replies of a round are accepted; neither the replies nor the session are changed.

    Parameters
    ----------
    ask : fnlkit.federated.server.clients.Ask
        Its session has the declarations, the limits, and the log of earlier rounds.
    replies : list of (dict or Failure)
        As the engine returns them.

    Raises
    ------
    InputError
        If all clients sent a name that is not allowed, or failed because of a user error: then the method is at fault.
    """
    session, start = ask.session, ask.weights
    allowed, required = names_in_round(ask)
    extra = common_forbidden(replies, allowed)
    if extra is not None and allowed is not None and _blames_method(ask):
        raise InputError(forbidden(ask, extra, allowed))
    names = names_of(replies, allowed, required, exact=ask.expect is not None)
    checked, reasons, norms = examine(ask, replies, names)
    # The buffers of batch norm have the scale of the inputs, and would hide what an update does to the trainable entries.
    count, has_buffers = session.network.parameters_count, session.network.parameters_count < session.network.size
    buffers = {j: l2_norm(checked[j]["weights"][count:] - start[count:]) for j in norms if has_buffers}
    long = too_long(buffers, [], start[count:], session.max_update_ratio)
    long |= too_long(norms, session.log, start[:count], session.max_update_ratio)
    for j, reason in long.items():
        reasons[j] = reason
    message = None if ask.optional else user_error(replies, "the log at each site" if session.engine.foreign else "-vv")
    if message is not None and _blames_method(ask):
        raise InputError(message)
    return Admitted(names, checked, reasons, norms, bool(long))


def _blames_method(ask):
    """True if an error of all clients is one of the method, so that the run ends."""
    session, count = ask.session, len(ask.ids)
    foreign = session.engine.foreign
    return count > 1 or (not foreign and too_few(count, 0, session.log, session.min_replies, len(session), session.rejected))


def names_in_round(ask: Any) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Names that the replies of a round can have (None: any name), and names that they must have.

    Raises
    ------
    InputError
        If the round requires a name that is not allowed.
    """
    sends, protected = ask.session.sends, ask.protection is not None
    expect = (ask.expect,) if isinstance(ask.expect, str) else ask.expect or ()
    required = frozenset(expect) | {"weights" for step in ask.steps if isinstance(step, Fit)}
    if isinstance(ask.protection, MaskedSums):
        allowed = frozenset(ask.protection.shapes)
    elif ask.session.protect or protected:
        allowed = frozenset({"weights"} if protected else ())
    else:
        allowed = None if sends is None else frozenset({"weights", *sends})
    if allowed is not None and (extra := sorted(required - allowed)):
        raise InputError(forbidden(ask, extra[0], allowed))
    return allowed, required


def common_forbidden(replies: list[Any], allowed: frozenset[str] | None) -> str | None:
    """A forbidden name in every reply, which the method itself sends, or None."""
    if allowed is None or not replies or not all(isinstance(reply, dict) for reply in replies):
        return None
    extra = frozenset.intersection(*(frozenset(reply) - allowed for reply in replies))
    return min(extra, key=str) if extra else None


def forbidden(ask: Any, name: str, allowed: frozenset[str]) -> str:
    """Error message for a name that clients must not send."""
    protect = ask.session.protect
    if ask.session.sends is not None and "weights" in allowed and not protect:
        return f"the method's clients send {quote(name)}, which is not declared; add it to @method(sends=...)"
    where = "in addition to the weights of a round" if "weights" in allowed else "outside of a protected round (opt.round)"
    return f"`protect` {protect or 'secagg'}: clients would send {quote(name)} {where}; remove `protect`"


def names_of(replies: list[Any], allowed: frozenset[str] | None, required: frozenset[str], *, exact: bool) -> frozenset[Any]:
    """Names that each reply of a round must have: the set that most clients sent.

    Sets with a name that is not allowed, or without a required name, are ignored.

    Parameters
    ----------
    replies : list
        Dicts; other objects are ignored.
    allowed : frozenset of str or None
        None allows every name.
    required : frozenset of str
    exact : bool
        True if `required` contains all names that the method reads.  Of two equally frequent sets the smaller is then chosen,
        otherwise the larger.
    """
    counts = Counter(frozenset(reply) for reply in replies if isinstance(reply, dict))
    counts = {names: n for names, n in counts.items() if names >= required and (allowed is None or names <= allowed)}
    return max(counts, key=lambda names: (counts[names], -len(names) if exact else len(names)), default=required)


def examine(ask: Any, replies: list[Any], names: frozenset[Any]) -> tuple[list[Any], list[Any], dict[int, float]]:
    """Compare replies with their declarations.

    Parameters
    ----------
    ask : fnlkit.federated.server.clients.Ask
    replies : list of (dict or Failure)
    names : frozenset of str
        Names that each reply must have.

    Returns
    -------
    replies : list of (dict or Failure)
        The replies with declared types.
    reasons : list of (str or None)
        None for a usable reply.
    norms : dict of int to float
        L2 norms of the trainable entries of updates, by position in `replies`.
    """
    session, network, sends = ask.session, ask.session.network, ask.session.sends or {}
    checked = list(replies)
    reasons = []
    norms = {}
    samples, sides = session.sizes[ask.ids].long().tolist(), sides_of(session) | ask.sides
    for j, reply in enumerate(replies):
        reason = str(reply) if isinstance(reply, Failure) else None
        try:
            if reason is None:
                checked[j] = convert(reply, names, sends, network, samples=samples[j], **sides)
                if "weights" in names:
                    norms[j] = _finite_norm(checked[j]["weights"], ask.weights, network.parameters_count)
        except Malformed as error:
            reason = str(error)
        reasons.append(reason)
    for name in [name for name in names & sends.keys() - {"weights"} if sends[name].shape is None or sends[name].sum_only]:
        values = {j: checked[j][name] for j, reason in enumerate(reasons) if reason is None}
        for j, reason in disagreeing(values, dict(enumerate(samples))).items():
            reasons[j] = f"{quote(name)} {reason}"
            norms.pop(j, None)
    return checked, reasons, norms


def sides_of(session: Any) -> dict[str, int]:
    """Numbers for the letters of declared shapes, except those of a single client."""
    sides = {"classes": session.classes, "size": session.network.size}
    sides |= {} if session.public is None else {"public": len(session.public.x)}
    width = getattr(session.network.module, "width", None)
    return sides | ({} if width is None else {"width": width, "triangle": width * (width + 1) // 2})


def convert(
    reply: object, names: frozenset[str], sends: dict[str, Sent], network: Network, **known
) -> dict[str, torch.Tensor | None]:
    """Convert a reply to its declared types, {name: Tensor}.

    ``weights`` are on the network's device, all others on the CPU.

    Finite ``weights`` are not checked here, but by the length of the update.

    Parameters
    ----------
    reply : object
    names : frozenset of str
        The names that the reply must have, and no others.
    sends : dict of str to Sent
        A reply without declaration only has to be an array of finite numbers.
    network : fnlkit.federated.client.network.Network
    **known : int
        As in `Sent.sides`.

    Raises
    ------
    Malformed
    """
    if not isinstance(reply, dict):
        raise Malformed(f"replied {type(reply).__name__}, expected named arrays")
    if reply.keys() != names:
        missing, extra = sorted(names - reply.keys()), sorted(reply.keys() - names, key=str)
        wrong = [f"lacks {quote(name)}" for name in missing[:3]] + [f"sent unexpected {quote(name)}" for name in extra[:3]]
        more = len(missing) + len(extra) - len(wrong)
        raise Malformed("; ".join(wrong) + (f" and {more:,} more" if more else ""))
    return {
        name: _weights(value, network) if name == "weights" else _values(name, value, sends.get(name), known)
        for name, value in reply.items()
    }


def _weights(value, network):
    value = _tensor("weights", value).to(network.device)
    if value.shape != (network.size,) or value.dtype != network.dtype:
        form, wanted = f"{tuple(value.shape)} {value.dtype}", f"({network.size},) {network.dtype}"
        raise Malformed(f"'weights' is {form}, expected {wanted}")
    return value


def _values(name, value, sent, known):
    value = _tensor(name, value).cpu()
    if sent is None or sent.shape is None:
        must_be_finite(name, value)
        stored = (torch.float16, torch.float32, torch.float64)  # floats that the log of a run can store
        odd = value.is_floating_point() and value.dtype not in stored
        return value.float() if odd else value
    sides = tuple(value.shape)
    wanted = sent.sides(**known)
    dtype = getattr(torch, sent.dtype)
    fits = len(sides) == len(wanted) and all(isinstance(b, str) or a == b for a, b in zip(sides, wanted, strict=True))
    if not fits or not torch.can_cast(value.dtype, dtype):
        expected = f"({', '.join(map(str, wanted))}{',' * (len(wanted) == 1)}) {dtype}"
        raise Malformed(f"{quote(name)} is {sides} {value.dtype}, expected {expected}")
    value = value.to(dtype)
    must_be_finite(name, value)
    if known.get("samples", sent.fewest) < sent.fewest:
        sent = sent._replace(low=0, high=0, total=0)
    low, high = (torch.as_tensor(number(bound, known), dtype=torch.float64) for bound in (sent.low, sent.high))
    if ((value < low) | (value > high)).any():
        raise Malformed(f"{quote(name)} has entries below {low.min():g} or above {high.max():g}")
    if sent.total is not None and value.sum() != number(sent.total, known):
        raise Malformed(f"the entries of {quote(name)} sum to {value.sum():g}, expected {number(sent.total, known):,}")
    return value


def _tensor(name, value):
    try:
        tensor = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise Malformed(f"{quote(name)} is {type(value).__name__}, expected an array") from None
    if tensor.layout != torch.strided or tensor.is_complex():
        raise Malformed(f"{quote(name)} is {tensor.layout} {tensor.dtype}, expected a dense array of real numbers")
    return tensor


def must_be_finite(name: str, value: torch.Tensor) -> None:
    """Raise Malformed if a Tensor of floats has an entry that is not finite."""
    if value.is_floating_point() and not torch.isfinite(value).all():
        raise Malformed(f"{quote(name)} has {'NaN' if torch.isnan(value).any() else 'infinite'} entries")


def disagreeing(values: dict[int, torch.Tensor], samples: dict[int, int]) -> dict[Any, str]:
    """Find replies whose shape or type differs from most replies; return {position: reason}.

    The first side can be the client's number of samples.

    Parameters
    ----------
    values : dict of int to Tensor
        By position in the cohort.
    samples : dict of int to int
        Numbers of samples of the same clients.
    """
    forms = {}
    for j, value in values.items():
        shape = tuple(value.shape)
        by_samples = ("n", *shape[1:]) if shape[:1] == (samples[j],) else shape
        forms[j] = dict.fromkeys(((shape, value.dtype), (by_samples, value.dtype)))  # in order: of equally many, the shape
    usual = Counter(form for seen in forms.values() for form in seen).most_common(1)
    reasons = {}
    for j, seen in forms.items():
        if usual[0][0] not in seen:
            (shape, dtype), value = usual[0][0], values[j]
            reasons[j] = f"is {tuple(value.shape)} {value.dtype}, most replies have ({', '.join(map(str, shape))}) {dtype}"
    return reasons


def quote(name: str) -> str:
    """Quote a name that a client sent, cut if it is long."""
    text = str(name) if isinstance(name, (str, int, float)) else type(name).__name__
    return repr(text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}...")


def _finite_norm(weights, start, trainable):
    """L2 norm of the trainable entries of an update; it is finite only if these are."""
    norm = l2_norm(weights[:trainable].detach() - start[:trainable])
    must_be_finite("weights", weights[trainable:] if math.isfinite(norm) else weights)
    return norm


def l2_norm(vector: torch.Tensor) -> float:
    """The L2 norm of a tensor, summed in float64."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def too_long(norms: dict[int, float], log: list[Exchange], start: torch.Tensor, max_update_ratio: float) -> dict[int, str]:
    """Find updates that are too long compared with the cohort and recent updates; return {position: reason}.

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


def too_few(asked: int, accepted: int, log: list[Exchange], min_replies: float, clients: int, rejected: list[Any]) -> bool:
    """True if too few clients of a round are left to use its result.

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
    rejected : list of dict
        As for `check_any_accepted`.
    """
    if accepted == asked or min_replies == 1:
        return accepted < asked
    enough = min(PATIENCE, clients)
    if asked == 1 or not min_replies:
        counts = _count_accepted(log, rejected)
        for entry, count in zip(reversed(log), reversed(counts), strict=True):
            if asked >= enough or (min_replies and len(entry.asked) > 1):
                break
            asked, accepted = asked + len(entry.asked), accepted + count
        if asked < enough:
            return False
    return accepted < least_of(min_replies, asked)


def least_of(share: float, count: int) -> int:
    """Smallest number of at least 1 that is a share of a count; 6 for the share 1 - 3 / 9 of 9, in spite of its rounding."""
    return max(1, math.ceil(share * count - 1e-9))


def check_any_accepted(log: list[Exchange], rejected: list[dict[str, Any]]) -> None:
    """Raise TooManyLost if a whole run has no accepted reply; runs of few single-client rounds end before `too_few` judges.

    Parameters
    ----------
    log : list of Exchange
    rejected : list of dict
        round, client and reason of each rejected reply.
    """
    if rejected and not any(_count_accepted(log, rejected)):
        raise to_error(rejected[-1]["round"], [rejected[-1]["client"]], [rejected[-1]["reason"]])


def _count_accepted(log, rejected):
    """Count the accepted clients of each logged round; some are rejected by their weight, after their reply was logged."""
    refused = {(entry["round"], entry["client"]) for entry in rejected}
    return [sum((r, client) not in refused for client in entry.kept.tolist()) for r, entry in enumerate(log)]


def user_error(replies: list[Any], log: str = "-vv") -> str | None:
    """Message of a user error that occurred on every client, or None; without a text, it names where the reason is."""
    if not replies or not all(isinstance(reply, Failure) and reply.code == "input" for reply in replies):
        return None
    messages = sorted({reply.sentence for reply in replies} - {""})
    if not messages:
        return f"a user component rejects its input on every client; see {log}"
    return plain(messages[0])[:_MAX_MESSAGE]


def printable(reason: str | None) -> str | None:
    """Remove control characters from a reason and cut it to the length that a run stores.

    A part of the reason can come from a client.
    """
    return reason and plain(reason[:MAX_REASON])[:MAX_REASON]


def to_error(round: int, ids: list[int], reasons: list[str | None]) -> TooManyLost:
    """The error of a round that lost too many clients, with the reasons (K,)."""
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
