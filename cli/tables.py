"""Clients, noise and estimates of a federation as lines and tables."""

from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import class_names, client_names
from fnlkit.cli.terminal import Table, cross, printable
from fnlkit.simulate.noise import mean_requested_transition, summary

# Numbers of clients and classes that are shown, and largest number of classes of a matrix.
_ROWS, _CLASSES = 20, 12


def of_sites(federation: Federation) -> list[Any]:
    """Tabulate samples and classes of each site; empty if clients are not sites."""
    if federation.meta.get("client_names") is None or len(federation) > _ROWS:
        return []
    bare = federation.meta.get("client_unlabeled")
    labels = [federation.given_of(k) for k in range(len(federation))]
    cells = [federation.names, [len(part) for part in labels], [len(np.unique(part, axis=0)) for part in labels]]
    heads = ["site", "samples", "classes", *(["without a label"] if bare else [])]
    return [Table(*heads, rows=zip(*cells, *([bare] if bare else []), strict=True))]


def noise_lines(federation: Federation, everything: bool = False) -> list[str]:
    """Write the requested and achieved noise of a federation in at most two lines, with their distance if `everything`."""
    facts = summary(federation)
    if not federation.meta.get("noise"):
        return []
    if facts["wrong_share"] is None:
        return ["labels as received; true labels are unknown"]
    share = facts["requested_share"]
    line = f"noise {' + '.join(printable(_model(step)) for step in federation.meta['noise'])}: wrong labels "
    line += f"{facts['wrong_share']:.4f} of {facts['samples']:,}" + (f", requested {share:.4f}" if share is not None else "")
    if everything and facts["transition_error"] is not None:
        line += f"; rows of the transition differ by {facts['transition_error']:.4f} (total variation)"
    if not facts["client_level"]:
        return [line]
    level, flags = facts["client_level"], federation.noise_client_noisy
    noisy = sum(map(bool, flags)) if flags is not None else 0
    names = client_names(federation.meta, len(federation))
    worst, best = max(range(len(level)), key=level.__getitem__), min(range(len(level)), key=level.__getitem__)
    spread = f"from {level[best]:.4f} (client {names[best]}) to {level[worst]:.4f} (client {names[worst]})"
    return [line, printable(f"{noisy} of {len(level)} clients noisy; wrong labels {spread}")]


def of_noise(federation: Federation) -> list[Any]:
    """Format the noise of a federation as rich renderables."""
    lines = noise_lines(federation, everything=True)
    facts = summary(federation)
    if not lines or facts["wrong_share"] is None:
        return lines
    if facts["client_level"]:
        lines.append(_client_noise(federation, facts))
    got, names = federation.achieved_transition(), class_names(federation.meta, federation.classes)
    if federation.classes <= _CLASSES:
        if (T := mean_requested_transition(federation)) is not None:
            lines.append(cross(T, "requested transition, true class in rows, given in columns", names, _share))
        lines.append(cross(got, "achieved transition, true class in rows, given in columns", names, _share))
    else:
        wrong = 1 - np.diag(got)
        rows = [(names[label], f"{wrong[label]:.4f}") for label in np.argsort(-wrong, kind="stable")[:_ROWS]]
        lines.append(Table("class", "wrong labels", rows=rows, title="noisiest classes"))
    return lines


def of_estimates(federation: Federation, top: int = _ROWS, matrix: bool = True) -> list[Any]:
    """Format the results of `estimate-noise` or `audit` as rich renderables; [] without results.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    top : int
        Number of clients to show, the noisiest first.
    matrix : bool
        Show the estimated transition if there are few classes.
    """
    if not has_judgment(federation):
        return []

    lines = [estimate_line(federation)]
    lines += [_client_estimates(federation, top), _RANGE] if top else []
    names = class_names(federation.meta, federation.classes)
    if matrix and federation.classes <= _CLASSES and federation.judged().any():
        T = federation.extra["estimate_transition"]
        lines.append(cross(T, "estimated transition, true class in rows, given in columns", names, _share))
    return [*lines, *_form(federation)]


def _form(federation):
    """Write lines on the form of an estimate (pooled or federated) and the clients' replies; [] if not recorded."""
    facts = federation.meta.get("estimate")
    if facts is None:
        return []
    name = printable(facts["estimator"])
    if facts["form"] != "federated":
        return [f"{name}, {printable(facts['form'])}: uses all samples in one place (simulation only; else --form federated)"]
    down = f"{facts['bytes_down']:,} bytes were sent to the clients"
    if not facts["sent"]:
        return [f"{name}, federated: clients sent no reply; {down}"]
    return [f"{name}, federated: replies of the clients below; {down}", of_sent(facts["sent"], "clients")]


def of_sent(sent: dict[str, Any], who: str) -> Table:
    """Tabulate replies, {name: {"bytes", "what"}}."""
    rows = [(printable(name), row["bytes"], printable(row["what"])) for name, row in sent.items()]
    return Table(f"reply of the {who}", f"bytes, all {who}", "content", rows=rows)


def has_judgment(federation: Federation) -> bool:
    """Whether a federation has estimates of clients, labels and the transition."""
    return all(f"estimate_{name}" in federation.extra for name in _ESTIMATES)


_ESTIMATES = "client_level", "client_level_low", "client_level_high", "client_score", "transition", "flagged"
_RANGE = (
    "sampling range: 95 % range of the level if the client's samples were drawn again. It does not include the bias of the "
    "estimator, so the true level can be outside"
)


def estimate_facts(federation: Federation) -> dict[str, Any]:
    """Collect the estimates of the federation and of each client as plain values; None for withheld levels."""
    federation = federation.whole()
    extra, held, judged = federation.extra, federation.client_indices, federation.judged()
    sizes = np.diff(federation.client_offsets)[judged]
    level, flagged = extra["estimate_client_level"][judged], extra["estimate_flagged"]
    truth = federation.wrong_share(extra.get("estimate_judged_label", federation.given))
    clients = []
    for k, (rows, name) in enumerate(zip(federation.clients, client_names(federation.meta, len(federation)), strict=True)):
        row = {"client": k, "name": name, "samples": len(rows)}
        for value in ("level", "level_low", "level_high", "score"):
            row[value] = float(extra[f"estimate_client_{value}"][k]) if judged[k] else None
        clients.append(row | {"flagged": int(flagged[rows].sum())} | ({} if truth is None else {"level_true": float(truth[k])}))
    return {
        "clients": len(federation),
        "samples": len(held),
        "level": float(level @ sizes / sizes.sum()) if len(level) else None,
        "level_lowest": float(level.min()) if len(level) else None,
        "level_highest": float(level.max()) if len(level) else None,
        "judged": len(level),
        "flagged": int(flagged[held].sum()),
        "by_client": clients,
    }


def estimate_line(federation: Federation) -> str:
    """Write a sentence with the estimate and the most frequent confusion."""
    facts, names = estimate_facts(federation), class_names(federation.meta, federation.classes)
    if not facts["judged"]:
        return f"no noise level: the audit could not judge any of {facts['clients']} clients; {facts['flagged']:,} flagged"
    off = np.where(np.eye(federation.classes, dtype=bool), 0, federation.extra["estimate_transition"])
    pairs = [np.unravel_index(i, off.shape) for i in np.argsort(-off, axis=None, kind="stable")[:3]]
    confused = ", ".join(f"{names[i]} as {names[j]} {off[i, j]:.3f}" for i, j in pairs if off[i, j] > 0)
    samples = sum(row["samples"] for row in facts["by_client"] if row["level"] is not None)
    line = (
        f"noise level {facts['level']:.3f} of {samples:,} samples, {facts['level_lowest']:.3f} to "
        f"{facts['level_highest']:.3f} in {facts['judged']} clients; {facts['flagged']:,} flagged"
    )
    return printable(line + (f"; most often {confused}" if confused else ""))


def _client_estimates(federation, top):
    facts = sorted(estimate_facts(federation)["by_client"], key=lambda row: (-(row["score"] or 0), row["client"]))
    known = bool(facts) and "level_true" in facts[0]
    title = None if len(facts) <= top else f"the {top} noisiest of {len(facts)} clients"
    columns = ["client", "samples", "noise level", "sampling range", "score", "flagged"]
    table = Table(*columns, *(["true level"] if known else []), title=title)
    for row in facts[:top]:
        cells = [row["samples"], "-", "-", "-"]
        if row["level"] is not None:
            cells[1:] = f"{row['level']:.3f}", f"{row['level_low']:.3f} to {row['level_high']:.3f}", f"{row['score']:.3f}"
        cells += [row["flagged"], *([f"{row['level_true']:.3f}"] if known else [])]
        table.add_row(printable(row["name"]), *cells)
    return table


def of_clients(federation: Federation) -> str:
    """Write the numbers of samples and classes of the clients in a line."""
    if not len(federation):
        return f"{len(federation.given):,} labels, not partitioned yet"
    sizes, groups = np.diff(federation.client_offsets), federation.extra.get("group")
    of = "" if groups is None else f" of {len(np.unique(groups)):,} groups"
    many = f"{len(federation):,} clients: {sizes.min():,} to {sizes.max():,} samples (median {np.median(sizes):,.0f}){of}"
    held = np.array([len(np.unique(federation.given_of(k))) for k in range(len(federation))])
    return f"{many}, {held.min()} to {held.max()} of {federation.classes} classes (mean {held.mean():.1f})"


def _client_noise(federation, facts):
    level, requests = facts["client_level"], facts["client_requested"]
    names = client_names(federation.meta, len(federation))
    order = sorted(range(len(level)), key=lambda k: (-level[k], k))
    sizes = np.diff(federation.client_offsets).tolist()
    rows = [(names[k], sizes[k], f"{requests[k]:.4f}" if requests else "", f"{level[k]:.4f}") for k in order]
    rows = rows if len(rows) <= _ROWS else [*rows[: _ROWS // 2], ("...", "", "", ""), *rows[-_ROWS // 2 :]]
    return Table("client", "samples", "requested", "wrong labels", rows=rows)


def _share(value):
    return "." if value == 0 else f"{value:.2f}"


def _model(step):
    return step.get("model", "") if isinstance(step, dict) else str(step)
