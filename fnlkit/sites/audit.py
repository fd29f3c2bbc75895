"""The audit from sums over real sites: its two steps, the limits of the messages, and the server's program.

A site replies sums once, receives a classifier from the sums of the other sites, and replies counts once.  Everything about
single samples stays at the site (fnlkit.sites.labels).
"""

import math
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.artifacts.names import REAL_SITES
from fnlkit.audits import messages, private, report
from fnlkit.audits.audit import digest, traffic_of
from fnlkit.audits.changes import possible
from fnlkit.audits.messages import LEAST, SENDS
from fnlkit.audits.server import conclusion, plausibility
from fnlkit.audits.server import private as noisy_sums
from fnlkit.audits.server.heads import make_heads
from fnlkit.audits.server.results import Names
from fnlkit.audits.site import judging, summaries
from fnlkit.audits.site import private as noisy_site
from fnlkit.audits.site.samples import Samples
from fnlkit.core.errors import WorkStopped
from fnlkit.datasets import columns as features
from fnlkit.kernels.streams import HiddenStream
from fnlkit.sites.limits import RUNS, Limit, Row
from fnlkit.sites.project import FEWEST

if TYPE_CHECKING:
    from fnlkit.audits.changes import Change
    from fnlkit.core.declarations import Sent
    from fnlkit.federated.client.client import Client, LocalModel
    from fnlkit.sites.project import Project, Task

_ONCE = True  # a site gives one reply to one message of each step
_FIRST = ("counts", "withheld", "observations", "width", "sums", "moments", "columns", "class_columns")
_TABLES = tuple(f"{name}{end}" for name in messages.TABLES for end in ("", "_wrong"))
_SECOND = (*_TABLES, "chosen", "supported", "certain", "class_means", "covariances", "low", "high")
_NOISY_FIRST, _NOISY_SECOND = ("counts", "sums", "moments"), ("agreement", "predicted")


# ---- at a site
def summarize(
    client: "Client", model: "LocalModel", received: dict[str, torch.Tensor], *, scale: Any = None
) -> dict[str, torch.Tensor]:
    """Reply the sums of `fnlkit.audits.site.summaries.summarize`."""
    first = summaries.summarize(Samples.of(client), scale)
    return _tensors(first | {"withheld": first["withheld"].astype(np.int64)})


def judge(
    client: "Client",
    model: "LocalModel",
    received: dict[str, torch.Tensor],
    *,
    scale: Any = None,
    changes: "list[Change] | None" = None,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Reply the counts of `fnlkit.audits.site.judging.judge`, and keep the judgment of each sample."""
    samples = Samples.of(client)
    arrays = judging.judge(samples, _heads(received, scale), 0, changes=changes or [], seed=seed)
    _keep(client, samples.kept)
    return _tensors(arrays)


def summarize_with_noise(
    client: "Client", model: "LocalModel", received: dict[str, torch.Tensor], *, scale: Any = None, **terms: float
) -> dict[str, torch.Tensor]:
    """Reply the sums of `fnlkit.audits.site.private.summarize_with_noise`, with noise that nobody can repeat."""
    draws = HiddenStream(secrets.token_bytes(32))
    return _tensors(noisy_site.summarize_with_noise(Samples.of(client), scale, draws=draws, **terms))


def judge_with_noise(
    client: "Client",
    model: "LocalModel",
    received: dict[str, torch.Tensor],
    *,
    scale: Any = None,
    seed: int = 0,
    **terms: float,
) -> dict[str, torch.Tensor]:
    """Reply the counts of `fnlkit.audits.site.private.judge_with_noise`, and keep the judgment of each sample."""
    samples, head = Samples.of(client), {name: values.numpy() for name, values in received.items()}
    draws = HiddenStream(secrets.token_bytes(32))
    arrays, p = noisy_site.judge_with_noise(samples, head, scale, draws=draws, **terms)
    judging.keep_suspects(samples, p, seed=seed)
    _keep(client, samples.kept)
    return _tensors(arrays)


def _keep(client, kept):
    """Keep results by sample in the rows of a client, from which fnlkit.sites.labels stores them."""
    for name, values in kept.items():
        home = "estimate" if name in ("issue", "flagged", "guess", "confidence") else "audit"
        client.rows[f"{home}/{name}"] = torch.from_numpy(np.ascontiguousarray(values))


def _tensors(arrays):
    return {name: torch.from_numpy(np.array(values, order="C")) for name, values in arrays.items()}


def _heads(received, scale):
    """Return the message of a single site in the form of `fnlkit.audits.server.heads.make_heads`, with the agreed scale."""
    arrays = {name: values.numpy() for name, values in received.items()}
    mean, std = scale or (np.zeros(0), np.zeros(0))
    heads = {name: values[None] if name in _SCATTERED else values for name, values in arrays.items()}
    return heads | {"mean": mean, "std": std}


# Arrays of a message of which each site receives its own entry.
_SCATTERED = ("coefficients", "sizes", "offsets", "known", "shares", "differ", "fits")


# ---- the agreement
def scale_of(project: "Project") -> tuple[np.ndarray, np.ndarray] | None:
    """Return (mean (d,), std (d,)) of the columns of a table, or None."""
    if project.kind != "vector" or project.backbone or not project.mean:
        return None
    return messages.scale_of(project.mean, project.std)


def sends(task: "Task") -> "dict[str, Sent]":
    """Return {name: Sent} of the replies of an audit."""
    return private.SENDS if task.project.sums_epsilon is not None else {name: SENDS[name] for name in _FIRST + _SECOND}


def open_sides(project: "Project") -> dict[str, int]:
    """Return the largest number of each side of a reply that no declaration fixes."""
    image, values = project.kind == "image", math.prod(project.shape)
    columns = 1 if image else min(values, messages.MOST_COLUMNS)
    means = messages.GRID**2 + 1 if image else 2 * min(values, messages.MOST_FEATURES)
    changes = len(possible(project.kind, tuple(project.shape)))
    return {"columns": columns, "features": means, "changes": changes, "m": messages.SIZES[-1], "summed": messages.SIZES[-1]}


def rows(task: "Task") -> Iterator[Row]:
    """Yield the Rows of the audit in the table of a site."""
    about, scale = task.project, scale_of(task.project)
    classes, most = len(about.classes), messages.LARGEST
    common: dict[str, Any] = {"task": "audit", "requests": RUNS, "once": _ONCE}
    own: dict[str, Any] = {"scale": scale}
    if about.sums_epsilon is not None:
        own |= {"epsilon": about.sums_epsilon, "delta": about.sums_delta}
        epsilon, delta = about.sums_epsilon, about.sums_delta or 0.0
        budget = (epsilon, delta, about.sums_budget or epsilon)
        head = {"coefficients": _array((classes, private.FEATURES), most), "offsets": _array((classes,), most)}
        yield Row(
            step=f"{__name__}:summarize_with_noise", replies=_NOISY_FIRST, own=own, epsilon=budget, noise="noise", **common
        )
        own = own | {"seed": task.settings.seed}
        yield Row(step=f"{__name__}:judge_with_noise", replies=_NOISY_SECOND, own=own, received=head, noise="noise", **common)
        return
    yield Row(step=f"{__name__}:summarize", replies=_FIRST, own=own, fewest=LEAST, **common)
    changes = possible(about.kind, tuple(about.shape))
    values = math.prod(about.shape)
    width = 1 if about.kind == "image" or values > messages.MOST_COLUMNS else values
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
    rounded = (*_TABLES, "supported", "low", "high")
    more = own | {"changes": changes, "seed": task.settings.seed}
    yield Row(step=f"{__name__}:judge", replies=_SECOND, own=more, received=head, multiples=rounded, refuses=_refuses(scale),
              **common)  # fmt: skip


def _array(shape, most, *, negative=None):
    """Return the Limit of an array of finite numbers; the last side of coefficients can be shorter."""
    signed = most > 1e3 if negative is None else negative

    def fits(values: torch.Tensor) -> bool:
        sides = tuple(values.shape)
        right = len(sides) == len(shape) and sides[:-1] == shape[:-1] and (sides == shape or len(shape) == 2 and sides < shape)
        return bool(right and torch.isfinite(values.double()).all() and values.double().abs().max().item() <= most
                    and (signed or (values >= 0).all()))  # fmt: skip

    words = f"{' x '.join(map(str, shape)) or 'a number'}, {'-' if signed else '0 to '}{most:g}"
    return Limit(words.replace("-", "up to ", 1) if signed else words, fits)


def _refuses(scale):
    """Return the check of a message against the samples of a site."""

    def reason(client: "Client", received: dict[str, torch.Tensor]) -> str:
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


# ---- the server
def run(remote: Any, task: "Task") -> dict[str, Any]:
    """Return the results of an audit as plain values for JSON.

    A site without sums, or whose sums no data have, is lost before the classifiers are computed.  A site without counts is lost
    after it: its sums are in the classifiers of the others.

    Parameters
    ----------
    remote : fnlkit.sites.remote.Remote
    task : fnlkit.sites.project.Task

    Raises
    ------
    WorkStopped
        If too few sites remain.
    """
    about, scale = task.project, scale_of(task.project)
    noise: dict[str, Any] = {} if about.sums_epsilon is None else {"epsilon": about.sums_epsilon, "delta": about.sums_delta}
    classes = len(about.classes)
    declared = sends(task)

    def must_remain(sites: list[int]) -> None:
        if len(sites) < (least := max(FEWEST, math.ceil(task.settings.min_replies * about.sites))):
            raise WorkStopped(
                f"{len(sites)} of {about.sites} sites remain, and this task requires {least} (min_replies); lost: "
                f"{remote.describe_lost()}; start these sites, then run the same command"
            )

    def impossible(k: int, arrays: dict[str, np.ndarray]) -> str:
        if noise:
            return noisy_sums.impossible(arrays, classes, about.max_samples, **noise)
        arrays["withheld"] = arrays["withheld"].astype(bool)
        return plausibility.impossible(arrays, classes, about.max_samples)

    first, second = ({name: declared[name] for name in names}
                     for names in ((_NOISY_FIRST, _NOISY_SECOND) if noise else (_FIRST, _SECOND)))  # fmt: skip
    functions = (summarize_with_noise, judge_with_noise) if noise else (summarize, judge)
    firsts = remote.ask_all(0, functions[0], remote.present, first, impossible)
    must_remain(list(firsts))
    parts = list(firsts.values())
    if noise:
        heads = noisy_sums.make_head(parts, **noise, scale=scale)
    else:
        heads = make_heads(parts, scale)
    sent = {name: torch.from_numpy(np.asarray(values)) for name, values in heads.items() if name not in ("mean", "std")}
    scatter = {name: values for name, values in sent.items() if name in _SCATTERED and not noise}
    broadcast = {name: values for name, values in sent.items() if name not in scatter}
    size = heads["coefficients"].shape[-1]

    def implausible(k: int, arrays: dict[str, np.ndarray]) -> str:
        if noise:
            return noisy_sums.implausible(arrays, classes, about.max_samples, size, **noise)
        return plausibility.implausible(arrays, firsts[k])

    seconds = remote.ask_all(1, functions[1], list(firsts), second, implausible, broadcast, scatter)
    must_remain(list(seconds))
    kept = np.array([k in seconds for k in firsts])
    parts = [one for one, here in zip(parts, kept, strict=True) if here]
    replies = [seconds[k] for k in firsts if k in seconds]
    covers = [about.names[k] for k in firsts if k in seconds]
    columns = features.features(about.columns) if about.columns else None
    named = Names(covers, list(about.classes), columns)
    if noise:
        found, T, _ = noisy_sums.conclude(parts, replies, **noise, named=named)
    else:
        heads = {name: values[kept] if name in _SCATTERED else values for name, values in heads.items()}
        changes = possible(about.kind, tuple(about.shape))
        found, T = conclusion.conclude(parts, heads, replies, changes=changes, named=named)
    facts = report.facts_of(found, REAL_SITES, list(about.classes), traffic_of(parts, replies), declared)
    if noise:
        facts |= {"range": private.RANGE, "privacy": noise, "mode": private.describe_mode(**noise, size=size)}
    end = {"order": [row.site for row in found], "transition": T.tolist(), "features": None, "probabilities": None}
    return facts | {"covers": covers, "digest": digest(found)} | end
