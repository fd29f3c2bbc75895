"""`fnlkit methods`: list and describe components, and print templates."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import resources

import click

from fnlkit.cli import parts
from fnlkit.cli.plumbing import Table, json_option, out_console
from fnlkit.components import presets, registry
from fnlkit.components.declarations import declaration
from fnlkit.errors import InputError, nearest


@click.command()
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--template", metavar="KIND", default=None,
              help="Print a template for your own component of this kind, for example loss, method, optimizer "
                   "or noise.")  # fmt: skip
@click.option("--markdown", is_flag=True, help="Print a Markdown table of methods: sources, replies, costs.")
@json_option
def command(name: str | None, template: str | None, markdown: bool, as_json: bool) -> None:
    """List components, or print the purpose, parameters and replies of a component.

    NAME is a component (method, loss, optimizer, aggregator, selector, network, noise model, scheme, estimator or backbone),
    FILE.py:NAME for your own component, or a kind such as loss, which lists all components of this kind.

    \b
    Example:
      fnlkit methods fedcorr
    """
    from fnlkit.experiment import cards

    if markdown:
        click.echo(cards.markdown())
        return
    if template is not None:
        if name is not None:
            raise InputError("--template prints a file for a kind of component; leave NAME out")
        sys.stdout.write(_template(template, parts.KINDS))
        return
    console = out_console()
    if as_json:
        for facts in _facts(name, parts):
            sys.stdout.write(json.dumps(facts) + "\n")
    elif name is None:
        _list(console, parts)
    elif (kind := _kind(name, parts.KINDS)) is not None:
        console.print(_of_kind(kind, parts))
    elif components := parts.find_all(name):
        for i, (kind, function) in enumerate(components):
            if i:
                console.print()
            _show(console, parts, name, kind, function)
    else:
        raise _unknown(name, parts)


def _unknown(name, parts):
    return InputError(
        f"no component {name!r}{nearest(name, parts.all_names())}; `fnlkit methods` lists methods, and "
        f"`fnlkit methods KIND` the components of a kind: {', '.join(parts.KINDS)}"
    )


def _facts(name, parts):
    """Yield the facts of one component, of a kind, or of all components, as plain values."""
    kind = None if name is None else _kind(name, parts.KINDS)
    if name is not None and kind is None:
        found = [(name, *pair) for pair in parts.find_all(name)]
        if not found:
            raise _unknown(name, parts)
    else:
        kinds = parts.KINDS if kind is None else [kind]
        found = [(part, of, f) for of in kinds for part in parts.KINDS[of].parts() for k, f in parts.find_all(part) if k == of]
    for part, of, function in found:
        declared = declaration(function)
        yield {
            "kind": of,
            "name": part,
            "purpose": parts.purpose(function),
            "source": declared.cite,
            "parameters": [
                dict(zip(("name", "default", "may_be", "meaning"), row, strict=True))
                for row in parts.describe_parameters(of, function)
            ],
            "replies": {reply: str(what) for reply, what in (declared.sends or {}).items()},
        }


def _kind(word, kinds):
    plurals = {"losses": "loss", "networks": "model", "network": "model", "noises": "noise"}
    word = plurals.get(word, word)
    return next((kind for kind in kinds if word in (kind, f"{kind}s") and word != "methods"), None)


def _template(kind, kinds):
    found = _kind(kind, kinds)
    if found is None:
        raise InputError(f"--template {kind}: unknown kind{nearest(kind, kinds)}; write one of {', '.join(kinds)}")
    return resources.files("fnlkit.data").joinpath(f"templates/{found}.py").read_text(encoding="utf-8")


def _list(console, parts):
    console.print(_of_kind("method", parts))
    console.print()
    table = Table("option", "purpose", "components")
    for kind, each in parts.KINDS.items():
        if kind != "method":
            option = each.use.format(kind=kind, spec="").split()[-1] if kind != "regularizer" else "fedcorr(regularizer=...)"
            table.add_row(option, each.what, ", ".join(each.parts()))
    table.add_row("--preset", "the options of a paper", ", ".join(presets.names()))
    console.print(table)
    console.print()
    console.print("fnlkit methods NAME describes a component; fnlkit methods --template loss prints a template for your own.")


def _of_kind(kind, parts):
    table = Table("name", "purpose", "source")
    for name, each in parts.KINDS[kind].parts().items():
        (function,) = [found for of, found in parts.find_all(name) if of == kind]
        table.add_row(name, parts.purpose(function), declaration(function).cite)
        del each
    return table


def _show(console, parts, name, kind, function):
    """Print a component: purpose, spec, source, parameters and replies."""
    from fnlkit.experiment import Settings, cards
    from fnlkit.experiment.plan import Plan

    rows = parts.describe_parameters(kind, function)
    some = next((f"{key}={default}" for key, default, _, _ in rows if default not in ("", "none")), None)
    spec = shlex.quote(f"{name}({some})") if some and kind != "regularizer" else name
    console.print(f"{name}, {'an' if kind[0] in 'aeo' else 'a'} {kind}: {parts.KINDS[kind].use.format(kind=kind, spec=spec)}")
    console.print()
    purpose = f"{parts.purpose(function)}." if parts.purpose(function) else "The function has no docstring."
    console.print("\n\n".join(filter(None, [purpose, parts.explain(function), parts.source(function)])))
    if rows:
        console.print()
        table = Table("parameter", "default", "may be", "meaning")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    replies = declaration(function).sends
    if kind == "estimator" and replies is not None:
        console.print("\nReplies of a client with --form federated, in addition to the weights of a warm-up:")
        for reply, what in replies.items():
            console.print(f"  {reply}: {what}")
    if notes := parts.section(function, "Notes"):
        console.print(f"\nNotes:\n{notes}")
    if kind == "method":
        console.print("\nReplies of a client:")
        for reply, what in ({"weights": "the local model, every round"} | (replies or {})).items():
            console.print(f"  {reply}: {what}")
        if reason := Plan.of(Settings(method=name)).unprotected_reason if name in registry.METHODS else None:
            console.print(f"\nUpdates cannot be protected (--protect): {reason}.")
        if cost := cards.card(kind, name).cost if name in registry.METHODS else None:
            costs = ", ".join(f"{what} {cost[key]:g}" for key, what in cards.COST.items())
            console.print(f"\nCost at equal --rounds, relative to FedAvg: {costs}")
        if reports := parts.section(function, "Reports"):
            console.print(f"\nRecords of a run:\n{reports}")
