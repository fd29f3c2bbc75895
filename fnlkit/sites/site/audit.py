"""The audit from sums at a site: its two steps, and the limits of the messages.

A site replies sums once, receives a classifier from the sums of the other sites, and replies counts once.  Everything about
single samples stays at the site (fnlkit.sites.site.labels).
"""

import math
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fnlkit.audits import messages, private
from fnlkit.audits.changes import Change, possible
from fnlkit.audits.messages import LEAST
from fnlkit.audits.site import judging, summaries
from fnlkit.audits.site import private as noisy_site
from fnlkit.audits.site.samples import Samples
from fnlkit.federated.client.client import Client, LocalModel, Received
from fnlkit.kernels.streams import HiddenStream
from fnlkit.sites.audit import FIRST, NOISY_FIRST, NOISY_SECOND, SCATTERED, SECOND, TABLES, scale_of
from fnlkit.sites.project import Project, Task
from fnlkit.sites.site.limits import RUNS, Limit, Row, name_of

_ONCE = True  # a site gives one reply to one message of each step


def summarize(client: Client, model: LocalModel, received: Received, *, scale: Any = None) -> dict[str, torch.Tensor]:
    """Reply the sums of `fnlkit.audits.site.summaries.summarize`."""
    first = summaries.summarize(Samples.of(client), scale)
    return _tensors(first | {"withheld": first["withheld"].astype(np.int64)})


def judge(
    client: Client,
    model: LocalModel,
    received: Received,
    *,
    scale: Any = None,
    changes: list[Change] | None = None,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Reply the counts of `fnlkit.audits.site.judging.judge`, and keep the judgment of each sample."""
    samples = Samples.of(client)
    arrays = judging.judge(samples, _heads(received, scale), 0, changes=changes or [], seed=seed)
    _keep(client, samples.kept)
    return _tensors(arrays)


def summarize_with_noise(
    client: Client, model: LocalModel, received: Received, *, scale: Any = None, **terms: float
) -> dict[str, torch.Tensor]:
    """Reply the sums of `fnlkit.audits.site.private.summarize_with_noise`, with noise that nobody can repeat."""
    draws = HiddenStream(secrets.token_bytes(32))
    return _tensors(noisy_site.summarize_with_noise(Samples.of(client), scale, draws=draws, **terms))


def judge_with_noise(
    client: Client, model: LocalModel, received: Received, *, scale: Any = None, seed: int = 0, **terms: float
) -> dict[str, torch.Tensor]:
    """Reply the counts of `fnlkit.audits.site.private.judge_with_noise`, and keep the judgment of each sample."""
    samples, head = Samples.of(client), {name: values.numpy() for name, values in received.items()}
    draws = HiddenStream(secrets.token_bytes(32))
    arrays, p = noisy_site.judge_with_noise(samples, head, scale, draws=draws, **terms)
    judging.keep_suspects(samples, p, seed=seed)
    _keep(client, samples.kept)
    return _tensors(arrays)


def _keep(client, results):
    """Keep results by sample in the rows of a client, from which fnlkit.sites.site.labels stores them."""
    for name, values in results.items():
        home = "estimate" if name in ("issue", "flagged", "guess", "confidence") else "audit"
        client.rows[f"{home}/{name}"] = torch.from_numpy(np.ascontiguousarray(values))


def _tensors(arrays):
    return {name: torch.from_numpy(np.array(values, order="C")) for name, values in arrays.items()}


def _heads(received, scale):
    """Convert the message of a single site to the form of `fnlkit.audits.server.heads.make_heads`, with the agreed scale."""
    arrays = {name: values.numpy() for name, values in received.items()}
    mean, std = scale or (np.zeros(0), np.zeros(0))
    heads = {name: values[None] if name in SCATTERED else values for name, values in arrays.items()}
    return heads | {"mean": mean, "std": std}


def open_sides(project: Project) -> dict[str, int]:
    """Largest number of each side of a reply that no declaration fixes."""
    of_inputs = project.kind == "image", math.prod(project.shape)
    return {
        "columns": messages.described_columns(*of_inputs)[0],
        "features": messages.described_features(*of_inputs),
        "changes": len(possible(project.kind, tuple(project.shape))),
        "m": private.FEATURES,
        "summed": messages.SIZES[-1],
    }


def rows(task: Task) -> Iterator[Row]:
    """Yield the Rows of the audit in the table of a site."""
    about, scale = task.project, scale_of(task.project)
    classes, most = len(about.classes), messages.LARGEST
    common: dict[str, Any] = {"task": "audit", "requests": RUNS, "once": _ONCE}
    site_values: dict[str, Any] = {"scale": scale}
    if about.sums_epsilon is not None:
        site_values |= {"epsilon": about.sums_epsilon, "delta": about.sums_delta}
        common |= {"noise": "noise", "epsilon": (about.sums_epsilon, about.sums_delta or 0.0,
                                                 about.sums_budget or about.sums_epsilon)}  # fmt: skip
        head = {"coefficients": _array((classes, private.FEATURES), most), "offsets": _array((classes,), most)}
        yield Row(step=name_of(summarize_with_noise), replies=NOISY_FIRST, own=site_values, **common)
        site_values = site_values | {"seed": task.settings.seed}
        yield Row(step=name_of(judge_with_noise), replies=NOISY_SECOND, own=site_values, received=head, **common)
        return
    yield Row(step=name_of(summarize), replies=FIRST, own=site_values, fewest=LEAST, **common)
    changes = possible(about.kind, tuple(about.shape))
    width, _ = messages.described_columns(about.kind == "image", math.prod(about.shape))
    high = messages.LIMIT["high"]
    head = {
        "coefficients": _array((classes, messages.SIZES[-1]), most),
        "sizes": _array((), messages.SIZES[-1]),
        "offsets": _array((classes,), most),
        "known": _array((classes,), 1),
        "shares": _array((classes,), 1),
        "differ": _array((), 1),
        "center": _array((2, width), high, negative=True),
        "tone": _array((2,), high, negative=True),
        "fits": _array((2, width), high, negative=True),
        "suspects": _array((messages.MOST_SUSPECTS,), max(1, width - 1), negative=True),
        "compared": _array((), messages.MOST_COLUMNS),
    }
    rounded = (*TABLES, "supported", "low", "high")
    more = site_values | {"changes": changes, "seed": task.settings.seed}
    yield Row(step=name_of(judge), replies=SECOND, own=more, received=head, multiples=rounded, refuses=_refuses(scale),
              **common)  # fmt: skip


def _array(shape, most, *, negative=None):
    """Make the Limit of an array of finite numbers; the last side of coefficients can be shorter."""
    signed = most > 1e3 if negative is None else negative

    def fits(values: torch.Tensor) -> bool:
        sides = tuple(values.shape)
        right = len(sides) == len(shape) and sides[:-1] == shape[:-1] and (sides == shape or len(shape) == 2 and sides < shape)
        return bool(right and torch.isfinite(values.double()).all() and values.double().abs().max().item() <= most
                    and (signed or (values >= 0).all()))  # fmt: skip

    words = f"{' x '.join(map(str, shape)) or 'a number'}, {'-' if signed else '0 to '}{most:g}"
    return Limit(words.replace("-", "up to ", 1) if signed else words, fits)


def _refuses(scale):
    """Make the check of a message against the samples of a site."""

    def reason(client: Client, received: Received) -> str:
        heads = _heads(received, scale)
        if heads["known"].dtype != bool or heads["differ"].dtype != bool or not (heads["center"][1] > 0).all():
            return "the description of the inputs is none of an audit"
        size = heads["coefficients"].shape[-1]
        if not heads["sizes"][0] <= size or not 4 <= int(heads["compared"]):
            return "a number of features is out of range"
        if scale and client.x.shape[1] == heads["center"].shape[1]:
            return judging.narrow(heads, 0, Samples.of(client), scale)
        return ""

    return reason
