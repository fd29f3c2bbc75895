"""`fnlkit info`: any artefact as a table, or as JSON."""

import json
import sys

import click

from fnlkit.cli.plumbing import cross, file_argument, json_option, out_console, printable
from fnlkit.cli.source import need_input

_ROWS = 20


@click.command()
@file_argument
@json_option
def command(file, as_json):
    """Show what a file of fnlkit holds: arrays, clients, noise, and the commands that made it.

    Without FILE reads stdin.

    \b
    Example:
      fnlkit partition | fnlkit info --json
    """
    from fnlkit.artefacts import files

    need_input(file)
    artefact = files.read(file)
    if as_json:
        sys.stdout.write(json.dumps(described(artefact, file)) + "\n")
    else:
        show(artefact, file)


def described(artefact, source="-"):
    """Return the facts of an artefact as plain values."""
    from fnlkit.artefacts import files

    out = {
        "kind": artefact.kind,
        "sha256": files.digest(artefact),
        "arrays": {
            name: {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
            for name, value in artefact.arrays.items()
        },
        "meta": artefact.meta,
    }
    federation = _federation(artefact, source)
    if federation is not None:
        from fnlkit.noise import summary

        out |= {
            "dataset": federation.dataset,
            "classes": federation.classes,
            "clients": len(federation),
            "client_sizes": [len(part) for part in federation.clients],
            "noise": summary(federation),
        }
    return out


def show(artefact, source="-"):
    """Print an artefact as tables on stdout."""
    from rich.table import Table

    say = out_console()
    facts = described(artefact, source)
    federation = _federation(artefact, source)
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("kind", artefact.kind)
    table.add_row("sha256", facts["sha256"])
    for key, value in artefact.meta.items():
        text = value if isinstance(value, str) else json.dumps(value)
        if key not in ("provenance", "noise") and len(text) <= 200:
            table.add_row(key.replace("_", " "), printable(text))
    say.print(table)
    if federation is not None:
        for part in (*_clients(federation), *noise_tables(federation)):
            say.print(part)
    table = Table("array", "type", "shape", box=None)
    for name, value in facts["arrays"].items():
        table.add_row(name, value["dtype"], " x ".join(f"{side:,}" for side in value["shape"]) or "one value")
    say.print(table)
    steps = artefact.meta.get("provenance", [])
    if isinstance(steps, list) and steps:
        table = Table("made by", "seed", "parameters", box=None)
        for step in steps:
            step = step if isinstance(step, dict) else {"command": str(step)}
            given = step.get("parameters")
            text = ", ".join(f"{key}={value}" for key, value in given.items()) if isinstance(given, dict) else ""
            seed = step.get("seed")
            table.add_row(printable(step.get("command", "")), "" if seed is None else printable(seed), printable(text))
        say.print(table)


def noise_tables(federation):
    """Return what a federation knows of its noise, asked for against achieved, as things that rich prints."""
    import numpy as np
    from rich.table import Table

    from fnlkit.noise import requested, summary

    facts = summary(federation)
    if facts["wrong_share"] is None:
        return ["labels: as received, nobody knows which are wrong"] if federation.meta.get("noise") else []
    if not federation.meta.get("noise"):
        return []
    asked = facts["requested_share"]
    line = f"noise {' + '.join(printable(_model(step)) for step in federation.meta['noise'])}: wrong labels "
    line += f"{facts['wrong_share']:.4f} of {facts['samples']:,}" + (f", asked for {asked:.4f}" if asked is not None else "")
    if facts["transition_error"] is not None:
        line += f"; rows of the transition differ by {facts['transition_error']:.4f} (total variation)"
    out = [line]
    if facts["client_level"]:
        out.append(_client_noise(federation, facts))
    got = federation.achieved_transition()
    if federation.classes <= 12:
        if (T := requested(federation)) is not None:
            out.append(cross(T, "transition asked for, rows true", _share))
        out.append(cross(got, "transition achieved, rows true", _share))
    else:
        wrong = 1 - np.diag(got)
        table = Table("class", "wrong labels", box=None, title="noisiest classes")
        for label in np.argsort(-wrong, kind="stable")[:_ROWS]:
            table.add_row(str(label), f"{wrong[label]:.4f}")
        out.append(table)
    return out


def _clients(federation):
    import numpy as np

    if not len(federation):
        return [f"{len(federation.given):,} labels, not partitioned yet"]
    sizes = np.diff(federation.client_offsets)
    held = np.array([len(np.unique(federation.given_of(k))) for k in range(len(federation))])
    return [
        f"{len(federation):,} clients: {sizes.min():,} to {sizes.max():,} samples (median {np.median(sizes):,.0f}), "
        f"{held.min()} to {held.max()} of {federation.classes} classes (mean {held.mean():.1f})"
    ]


def _client_noise(federation, facts):
    from rich.table import Table

    level, asked = facts["client_level"], facts["client_requested"]
    order = sorted(range(len(level)), key=lambda k: (-level[k], k))
    noisy = sum(bool(flag) for flag in federation.noise_client_noisy) if federation.noise_client_noisy is not None else 0
    shown = order if len(order) <= _ROWS else [*order[: _ROWS // 2], None, *order[-_ROWS // 2 :]]
    table = Table("client", "samples", "asked", "wrong labels", box=None, title=f"{noisy} of {len(level)} clients noisy")
    for k in shown:
        if k is None:
            table.add_row("...", "", "", "")
            continue
        size = federation.client_offsets[k + 1] - federation.client_offsets[k]
        table.add_row(str(k), f"{size:,}", f"{asked[k]:.4f}" if asked else "", f"{level[k]:.4f}")
    return table


def _share(value):
    return "." if value == 0 else f"{value:.2f}"


def _model(step):
    return step.get("model", "") if isinstance(step, dict) else str(step)


def _federation(artefact, source):
    if not artefact.kind.startswith("fnlkit.federation/"):
        return None
    from fnlkit.artefacts import files
    from fnlkit.artefacts.federation import Federation
    from fnlkit.errors import InputError

    try:
        return Federation.from_artefact(artefact)
    except InputError as error:
        raise InputError(f"{files.shown(source)}: {error}") from error
