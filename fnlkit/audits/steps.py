"""Both messages of an audit as steps of the engine flower: arrays of declared shapes, which can be stacked."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.audits import shifts, summaries
from fnlkit.audits.samples import Samples
from fnlkit.errors import InputError
from fnlkit.server.replies import of_one_shape

if TYPE_CHECKING:
    from fnlkit.audits.records import SiteAudit
    from fnlkit.audits.results import Names
    from fnlkit.client.client import Client, LocalModel
    from fnlkit.estimators.federated import ClientSession


# Parts of the message of `fnlkit.audits.summaries.make_heads` that differ between the sites.
EACH = ("coefficients", "sizes", "offsets", "known", "shares", "differ", "fits")


def send_sums(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Reply the sums of the site's samples; features that its number of samples does not allow are zero."""
    first = summaries.summarize(client, scale_of(client))
    size, width, classes = first["sums"].shape[1], summaries.SIZES[-1], client.classes
    sums, moments = np.zeros((classes, width)), np.zeros((width, width))
    sums[:, :size], moments[:size, :size] = first["sums"], first["moments"]
    return _tensors(first | {"sums": sums, "moments": moments, "withheld": first["withheld"].astype(np.int64)})


def send_counts(
    client: "Client", model: "LocalModel", received: dict[str, torch.Tensor], *, seed: int
) -> dict[str, torch.Tensor]:
    """Reply the counts by the received classifier; keep the results by sample.

    Raises
    ------
    InputError
        If the description of the inputs that the message requests could single out samples.
    """
    heads = {name: values.numpy()[None] if name in EACH else values.numpy() for name, values in received.items()}
    scale, samples = scale_of(client), Samples.of(client)
    heads |= {"mean": np.zeros(0), "std": np.zeros(0)} if scale is None else {"mean": scale[0], "std": scale[1]}
    if scale is not None and (reason := summaries.narrow(heads, 0, samples, scale)):
        raise InputError(f"message of the server: {reason}; the site refuses it")
    kind = "image" if samples.image else "vector" if samples.x.ndim == 2 else "wave"
    changes = shifts.possible(kind, samples.x.shape[1:])
    return _tensors(summaries.judge(client, heads, 0, changes=changes, seed=seed))


def scale_of(client: "Client") -> tuple[np.ndarray, np.ndarray] | None:
    """Return the agreed scale of the columns of a table, or None."""
    if client.inputs.image or client.x.ndim != 2 or not client.inputs.mean or "input/embedding" in client.rows:
        return None
    return summaries.scale_of(client.inputs.mean, client.inputs.std)


def audit_session(
    session: "ClientSession", kind: str, shape: tuple[int, ...], named: "Names", scale: Any, seed: int
) -> "tuple[list[SiteAudit], np.ndarray]":
    """Return (rows of the sites, T[true, given]) of an audit over a session.

    Parameters
    ----------
    session : ClientSession
    kind : str
        Of the samples, and their `shape`.
    shape : tuple of int
    named : fnlkit.audits.results.Names
    scale : (mean (d,), std (d,)) or None
    seed : int
    """
    changes = shifts.possible(kind, shape)
    replies = session.ask(send_sums, compare=lambda replies: _impossible(replies, len(named.classes)))
    firsts = [_first({name: values[k].numpy() for name, values in replies.items()}) for k in range(len(named.sites))]
    heads = summaries.make_heads(firsts, scale)
    told = {name: torch.as_tensor(values) for name, values in heads.items() if name not in ("mean", "std")}
    each = {name: told.pop(name) for name in EACH}
    found = session.ask(partial(send_counts, seed=seed), broadcast=told, scatter=each, compare=of_one_shape)
    seconds = [{name: values[k].numpy() for name, values in found.items()} for k in range(len(firsts))]
    for name, first, second in zip(named.sites, firsts, seconds, strict=True):
        if reason := summaries.implausible(second, first):
            raise InputError(f"the second message of {name}: {reason}")
    return summaries.conclude(firsts, heads, seconds, changes=changes, named=named)


def _first(reply):
    """Return the first message without the features that the number of samples does not allow."""
    size = summaries.dimensions(int(reply["counts"].sum()), int(reply["width"]))
    parts = {"sums": reply["sums"][:, :size], "moments": reply["moments"][:size, :size]}
    return reply | parts | {"withheld": reply["withheld"].astype(bool)}


def _impossible(replies, classes):
    """Return {key: reason} of sums that no samples have, or that have other shapes than most."""
    out = of_one_shape(replies)
    for key, reply in replies.items():
        if key in out:
            continue
        first = _first({name: values.numpy() for name, values in reply.items()})
        if reason := summaries.impossible(first, classes, int(np.iinfo(np.int32).max)):
            out[key] = reason
    return out


def _tensors(arrays):
    return {name: torch.from_numpy(np.array(values)) for name, values in arrays.items()}
