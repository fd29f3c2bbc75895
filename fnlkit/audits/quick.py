"""Audit from sums of a simulated federation: the steps of fnlkit.audits.summaries, one site after another."""

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.artifacts.exchange import Traffic
from fnlkit.artifacts.records import to_json
from fnlkit.audits import crowd, private, rounding, shifts, summaries
from fnlkit.audits.audit import Audit
from fnlkit.audits.records import SiteAudit
from fnlkit.client.client import Client
from fnlkit.client.client_list import ClientList
from fnlkit.client.inputs import Inputs, intake
from fnlkit.client.scaling import Moments, pool_moments, reply_moments
from fnlkit.components.declarations import Sent
from fnlkit.datasets.dataset import Dataset, must_be
from fnlkit.datasets.groups import of_federation
from fnlkit.errors import InputError
from fnlkit.estimators import federated
from fnlkit.estimators.judgment import Judgment
from fnlkit.kernels.scores import transition
from fnlkit.kernels.streams import stream

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation


MODE = (
    "Audit from sums (quick): linear classifiers from class sums and second moments of the other sites. It finds less than an "
    "audit with trained models where classes are not separated by a linear boundary, and it does not search for copies."
)
_LIMIT: dict[str, Any] = {"low": -1e30, "high": 1e30}
SENDS = {
    "known": Sent.counts("numbers of known values by column", "once", ("d",)),
    "total": Sent("sums of the columns", "once", ("d",), **_LIMIT),
    "squares": Sent("sums of squared differences from the site's mean by column", "once", ("d",), low=0),
    "counts": Sent.counts("numbers of samples by class, of classes with 5 samples or more", "first file", ("C",)),
    "withheld": Sent("classes with 1 to 4 samples, which are left out", "first file", ("C",)),
    "width": Sent("number of features", "first file", ()),
    "sums": Sent("sums of clipped features by class", "first file", ("C", "m"), **_LIMIT),
    "moments": Sent("second moments of at most a quarter as many features as samples", "first file", ("m", "m"), **_LIMIT),
    "columns": shifts.SENDS["columns"]._replace(when="first file"),
    "class_columns": shifts.SENDS["class_columns"]._replace(when="first file"),
    **{name: Sent(f"{what}; multiples of 5", "second file", ("C", "C"), low=0) for name, what in (
        ("predicted", "numbers of samples by predicted and given class"),
        ("within", "numbers of samples by given class and the prediction of a cross-validated model of the site itself"),
        ("expected", "expected numbers of samples by true and given class"),
        ("doubted", "numbers of samples for which both models predict the same other class"))},
    **{f"{name}_wrong": Sent(f"number of labels in {name} of another class; multiples of 5", "second file", ("C",), low=0)
       for name in summaries.TABLES},
    "chosen": Sent("number of the change of the inputs with which the classifier fits best", "second file", ()),
    "supported": Sent("number of labels that only the site's own model predicts; a multiple of 5", "second file", (), low=0),
    "certain": Sent("samples of which the own model is most certain: other predictions (a multiple of 5), all", "second file",
                    (2,), low=0),
    **{name: Sent(f"{what} end of the range of the number of wrong labels; a multiple of 5", "second file", (), low=0)
       for name, what in (("low", "lower"), ("high", "upper"))},
    **{name: shifts.SENDS[name]._replace(when="second file") for name in ("class_means", "covariances")},
}  # fmt: skip


def digest(rows: list[SiteAudit]) -> str:
    """Return the SHA-256 of the rows of an audit."""
    return hashlib.sha256(json.dumps(to_json(rows), sort_keys=True).encode()).hexdigest()


def traffic_of(*files) -> Traffic:
    """Return the Traffic of sites that send these arrays.

    Parameters
    ----------
    *files : list of dict of arrays
        One dict per site.
    """
    out = Traffic()
    for arrays in (arrays for sites in files for arrays in sites):
        for name, values in arrays.items():
            out.received(name, np.asarray(values).nbytes)
    return out


def quick_audit(
    federation: "Federation",
    dataset: Dataset,
    *,
    embeddings: np.ndarray | None = None,
    scale: tuple[np.ndarray, np.ndarray] | None = None,
    epsilon: float | None = None,
    delta: float = private.DELTA,
    suspects: bool = True,
    seed: int = 0,
) -> Audit:
    """Return the fnlkit.audits.audit.Audit of a federation from sums of its sites.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    embeddings : float (n, D), optional
        The classifiers judge labels by these features instead of the samples.
    scale : (mean (d,), std (d,)), optional
        Of the columns of a table. Default: from sums of the sites.
    epsilon, delta : float, optional
        Simulate sums with noise (fnlkit.audits.private). The scale is not part of this cost. Default: no noise.
    suspects : bool
        With noise: also rank the samples of each site by the model of the site itself.
    seed : int

    Raises
    ------
    InputError
        If there are fewer than three sites, or if too few samples can send sums.
    """
    if len(federation) < 3:
        raise InputError(f"a quick audit compares at least 3 sites, found {len(federation)}; leave out `quick`")
    if crowd.count_shared(federation.whole())[0]:
        raise InputError("a quick audit needs clients with separate samples, and annotators share theirs; leave out `quick`")
    must_be(dataset, federation.meta, len(federation.given), what="the federation")
    whole = federation.whole()
    x, _, shape, image = intake(dataset)
    rows = {} if embeddings is None else {"input/embedding": np.asarray(embeddings, np.float32)[whole.client_indices]}
    if (groups := of_federation(whole)) is not None:
        rows["input/group"] = groups[whole.client_indices]
    members = ClientList(x, whole.client_offsets, whole.client_indices, whole.given, whole.classes, Inputs(image), rows=rows)
    clients = [take(members, k) for k in range(len(members))]
    moments: list[dict[str, np.ndarray]] = []
    if embeddings is None and dataset.kind == "vector" and dataset.features is None and scale is None:
        moments = [{name: values.numpy() for name, values in reply_moments(c, None, {}).items()} for c in clients]
        scale = pool_moments(Moments(m["known"], m["total"], m["squares"]) for m in moments)
    scale = scale and summaries.scale_of(*scale)
    changes = shifts.possible(dataset.kind, dataset.x_train.shape[1:])
    if epsilon is not None:
        terms = {"epsilon": epsilon, "delta": delta, "changes": changes, "suspects": suspects}
        return _audit_protected(clients, whole, dataset, scale, seed, **terms)
    firsts = []
    for client, name in zip(clients, whole.names, strict=True):
        try:
            firsts.append(summaries.summarize(client, scale))
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    heads = summaries.make_heads(firsts, scale)
    seconds = [summaries.judge(client, heads, k, changes=changes, seed=seed) for k, client in enumerate(clients)]
    classes = list(map(str, dataset.class_names))
    rows, T = summaries.conclude(
        firsts, heads, seconds, changes=changes, classes=classes, names=whole.names, columns=dataset.columns
    )
    held = zip(seconds, firsts, strict=True)
    counts = np.stack([rounding.restore_table(s["expected"], s["expected_wrong"], first["counts"]) for s, first in held])
    ends = [summaries.range_of(seconds, counts)[name] for name in ("level", "low", "high")]
    return _audit(clients, rows, T, ends, counts, heads, traffic_of(moments, firsts, seconds))


def _audit_protected(clients, whole, dataset, scale, seed, *, epsilon, delta, changes, suspects):
    """Return the Audit from sums with noise, which is drawn from the seed."""
    terms = {"epsilon": epsilon, "delta": delta}
    draws = [[stream(seed, f"protected {part}", client=k) for k in range(len(clients))] for part in ("sums", "counts")]
    firsts = [private.summarize_with_noise(c, scale, **terms, draws=rng) for c, rng in zip(clients, draws[0], strict=True)]
    head, seconds = private.make_head(firsts, **terms, scale=scale), []
    for k, client in enumerate(clients):
        reply, p = private.judge_with_noise(client, head, scale, **terms, draws=draws[1][k])
        seconds.append(reply)
        if suspects:
            summaries.keep_suspects(client, p, seed=seed)
        else:
            federated.keep_judgment(client, 1 - p[np.arange(len(p)), client.y], p.argmax(1) != client.y.numpy(), p.argmax(1))
    named = {"classes": list(map(str, dataset.class_names)), "names": whole.names, "columns": dataset.columns}
    rows, T, counts = private.conclude(firsts, seconds, **terms, changes=changes, **named)
    by_client = sorted(rows, key=lambda row: row.client)
    ends = [np.array([getattr(row, name) or 0.0 for row in by_client]) for name in ("level", "low", "high")]
    return _audit(clients, rows, T, ends, counts, head, traffic_of(firsts, seconds))


def _audit(clients, rows, T, ends, counts, heads, traffic):
    """Return the Audit with the judgments that the clients keep."""
    kept = {name: torch.cat([c.rows[f"estimate/{name}"] for c in clients]).numpy() for name in ("issue", "flagged", "guess")}
    level, low, high = ends
    by_site = {"client_transition": transition(counts.astype(float))}
    judgment = Judgment(level, low, high, level, kept["issue"], kept["flagged"], kept["guess"], transition=T, **by_site)
    none = np.zeros(len(kept["issue"]), bool)
    traffic.broadcast(sum(np.asarray(values).nbytes for values in heads.values()) * len(clients))
    return Audit(rows, T, judgment, np.full(len(none), -1), none, {"em": kept["flagged"]}, traffic, [])


def take(members: ClientList, k: int) -> Client:
    """Return client k of a ClientList with its samples and rows in memory."""
    a, b = int(members.offsets[k]), int(members.offsets[k + 1])
    index = members.indices[a:b]
    x = torch.from_numpy(np.ascontiguousarray(members.source[index]))
    rows = {name: torch.from_numpy(values[a:b]) for name, values in members.sources.items()}
    given = members.given[a:b].clone()
    return Client(k, x, given.clone(), given, members.classes, members.inputs, rows=rows)
