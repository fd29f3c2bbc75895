"""Check each reply of a client on arrival: names, shapes, types and ranges as declared."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from fnlkit.core.declarations import Sent, number

if TYPE_CHECKING:
    from fnlkit.federated.client.network import Network


# Largest number of characters of a name and of a reason that is quoted or stored.
MAX_NAME, MAX_REASON = 40, 300


class Malformed(Exception):
    """A reply does not have the expected form; the text contains the reason and no value."""


def names_of(replies: list[Any], allowed: frozenset[str] | None, required: frozenset[str], *, exact: bool) -> frozenset[Any]:
    """Return the names that each reply of a round must have: the set that most clients sent.

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


def admit(
    reply: object, names: frozenset[str], sends: dict[str, Sent], network: "Network", **known
) -> "dict[str, torch.Tensor | None]":
    """Return a reply as {name: Tensor} of the declared types, ``weights`` on the network's device, all others on the CPU.

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
    sides, wanted, dtype = tuple(value.shape), sent.sides(**known), getattr(torch, sent.dtype)
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


def must_be_finite(name: str, value: "torch.Tensor") -> None:
    """Raise Malformed if a Tensor of floats has an entry that is not finite."""
    if value.is_floating_point() and not torch.isfinite(value).all():
        raise Malformed(f"{quote(name)} has {'NaN' if torch.isnan(value).any() else 'infinite'} entries")


def disagreeing(values: "dict[int, torch.Tensor]", samples: dict[int, int]) -> dict[Any, str]:
    """Return {position: reason} of replies whose shape or type differs from that of most replies.

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
        forms[j] = {(shape, value.dtype), (("n", *shape[1:]) if shape[:1] == (samples[j],) else shape, value.dtype)}
    usual = Counter(form for each in forms.values() for form in each).most_common(1)
    out = {}
    for j, each in forms.items():
        if usual[0][0] not in each:
            (shape, dtype), value = usual[0][0], values[j]
            out[j] = f"is {tuple(value.shape)} {value.dtype}, most replies have ({', '.join(map(str, shape))}) {dtype}"
    return out


def quote(name: str) -> str:
    """Return a name sent by a client in quotes, cut if it is long."""
    text = str(name) if isinstance(name, (str, int, float)) else type(name).__name__
    return repr(text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}...")
