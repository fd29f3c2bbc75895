"""`fnlkit methods`: list and describe components, and print templates."""

from __future__ import annotations

import json
import re
import shlex
import sys
import textwrap
from importlib import resources

import click

from fnlkit.cli import parts
from fnlkit.cli.plumbing import LINES, Table, height, json_option, out_console, suggest, verbose
from fnlkit.core import presets, registry
from fnlkit.core.declarations import declaration
from fnlkit.core.errors import InputError, list_names, nearest


@click.command()
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--template", metavar="KIND", default=None,
              help="Print a template for your own component of this kind, for example loss, method, optimizer "
                   "or noise.")  # fmt: skip
@click.option("--markdown", is_flag=True, help="Print a Markdown table of methods: sources, replies, costs.")
@json_option
def command(name: str | None, template: str | None, markdown: bool, as_json: bool) -> None:
    """List components, or print the purpose, parameters and replies of a component.

    NAME is a component (method, loss, optimizer, aggregator, selector, schedule, network, noise model, scheme, estimator or
    backbone), FILE.py:NAME for your own component, or a kind such as loss, which lists all components of this kind.

    \b
    Example:
      fnlkit methods fedcorr
    """
    if markdown:
        from fnlkit.experiment import cards

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
        (_list if verbose() else _names)(console, parts)
    elif (kind := _kind(name, parts.KINDS)) is not None:
        _print_kind(console, kind, parts)
    elif components := parts.find_all(name):
        full = [part for kind, function in components for part in (*_describe(parts, name, kind, function), "")][:-1]
        fits = verbose() or height(console, *full) < LINES
        brief = [line for kind, function in components for line in _summarize(parts, name, kind, function)]
        for part in full if fits else brief:
            console.print(part)
        if not fits:
            suggest("methods", name, "-v")
    else:
        raise _unknown(name, parts)


def _unknown(name, parts):
    return InputError(
        f"no component {name!r}{nearest(name, parts.all_names())}; `fnlkit methods` lists methods and kinds of components"
    )


def _facts(name, parts):
    """Yield the facts of one component, of a kind, or of all components, as plain values."""
    kind = None if name is None else _kind(name, parts.KINDS)
    if name is not None and kind is None:
        rows = [(name, *pair) for pair in parts.find_all(name)]
        if not rows:
            raise _unknown(name, parts)
    else:
        kinds = parts.KINDS if kind is None else [kind]
        rows = [(part, of, f) for of in kinds for part in parts.KINDS[of].parts() for k, f in parts.find_all(part) if k == of]
    for part, of, function in rows:
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
    chosen = _kind(kind, kinds)
    if chosen is None:
        raise InputError(f"--template {kind}: unknown kind{nearest(kind, kinds)}; write one of {', '.join(kinds)}")
    return resources.files("fnlkit.data").joinpath(f"templates/{chosen}.py").read_text(encoding="utf-8")


def _names(console, parts):
    """Print the names of all methods, and the other kinds of components."""
    methods = list(parts.KINDS["method"].parts())
    console.print(f"{len(methods)} methods for fnlkit train --method NAME (-v: purposes and sources):")
    console.print(", ".join(methods))
    others = ", ".join(f"{kind} ({len(each.parts())})" for kind, each in parts.KINDS.items() if kind != "method")
    console.print(f"other components, listed by fnlkit methods KIND: {others}")
    papers = list_names(dict.fromkeys(name.partition("/")[0] for name in presets.names()))
    console.print(f"{len(presets.names())} presets, the options of papers, for fnlkit train --preset NAME: {papers} (-v: all)")
    suggest("methods", "fedcorr")


def _list(console, parts):
    """Print the methods with purposes and sources, and the names of all other components."""
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


def _print_kind(console, kind, parts):
    """Print the components of a kind: their purposes if these fit, else their names."""
    names, table = list(parts.KINDS[kind].parts()), _of_kind(kind, parts)
    if verbose() or height(console, table) < LINES:
        console.print(table)
    else:
        brief = Table("", "", heads=False)
        for name in names:
            (function,) = [component for of, component in parts.find_all(name) if of == kind]
            room = max(20, console.width - max(map(len, names)) - 2)
            brief.add_row(name, _shortened(parts.purpose(function), room))
        if height(console, brief) < LINES:
            console.print(brief)
        else:
            use = parts.KINDS[kind].use.format(kind=kind, spec="NAME")
            console.print(f"{len(names)} components for {use} (-v: purposes and sources):")
            console.print(", ".join(names))
    if not verbose():
        suggest("methods", names[0])


def _shortened(text, width):
    """Shorten a sentence to the first phrase that fits, or to its first words."""
    if len(text) <= width:
        return text
    phrases = [text[: match.start()] for match in re.finditer(r"[:;,(]| by | with | for ", text)]
    whole = max((phrase for phrase in phrases if len(phrase) <= width), key=len, default="")
    return (whole or textwrap.shorten(text, width, placeholder="")).rstrip(" ,;:(")


def _of_kind(kind, parts):
    found = [(name, part) for name in parts.KINDS[kind].parts() for of, part in parts.find_all(name) if of == kind]
    rows = [(name, parts.purpose(part), declaration(part).cite) for name, part in found]
    return Table("name", "purpose", "source", rows=rows)


def _use(parts, name, kind, rows):
    """Write the first line about a component: name, kind, and a command that uses it."""
    some = next((f"{key}={default}" for key, default, _, _ in rows if default not in ("", "none")), None)
    spec = shlex.quote(f"{name}({some})") if some and kind != "regularizer" else name
    return f"{name}, {'an' if kind[0] in 'aeo' else 'a'} {kind}: {parts.KINDS[kind].use.format(kind=kind, spec=spec)}"


def _purpose(parts, function):
    return f"{parts.purpose(function)}." if parts.purpose(function) else "The function has no docstring."


def _summarize(parts, name, kind, function):
    """Write lines about a component: purpose, source, names of parameters and replies, cost."""
    rows = parts.describe_parameters(kind, function)
    out = [_use(parts, name, kind, rows), _purpose(parts, function), parts.source(function)]
    if rows:
        out.append("parameters: " + ", ".join(f"{key}={default}" if default else key for key, default, _, _ in rows))
    replies = declaration(function).sends or {}
    if kind == "method":
        out.append(f"replies of a client: {', '.join(['weights', *replies])}")
        out += [f"updates cannot be protected: {reason}" for reason in _unprotected(name)]
        out += [f"cost at equal --rounds, relative to FedAvg: {cost}" for cost in _cost(kind, name)]
    return [line for line in out if line]


def _unprotected(name):
    """List the reason why updates of a method cannot be protected, or []."""
    from fnlkit.experiment import Settings
    from fnlkit.experiment.plan import Plan

    reason = Plan.of(Settings(method=name)).unprotected_reason if name in registry.METHODS else None
    return [reason] if reason else []


def _cost(kind, name):
    """List the cost of a method as text, or []."""
    from fnlkit.experiment import cards

    cost = cards.card(kind, name).cost if name in registry.METHODS else None
    return [", ".join(f"{what} {cost[key]:g}" for key, what in cards.COST.items())] if cost else []


def _describe(parts, name, kind, function):
    """Describe a component by texts and a table: purpose, spec, source, parameters and replies."""
    rows = parts.describe_parameters(kind, function)
    out = [_use(parts, name, kind, rows), ""]
    out.append("\n\n".join(filter(None, [_purpose(parts, function), parts.explain(function), parts.source(function)])))
    if rows:
        out += ["", Table("parameter", "default", "may be", "meaning", rows=rows)]
    replies = declaration(function).sends
    if kind == "estimator" and replies is not None:
        out.append("\nReplies of a client with --form federated, in addition to the weights of a warm-up:")
        out += [f"  {reply}: {what}" for reply, what in replies.items()]
    if notes := parts.section(function, "Notes"):
        out.append(f"\nNotes:\n{notes}")
    if kind == "method":
        out.append("\nReplies of a client:")
        out += [f"  {reply}: {what}" for reply, what in ({"weights": "the local model, every round"} | (replies or {})).items()]
        out += [f"\nUpdates cannot be protected (--protect): {reason}." for reason in _unprotected(name)]
        out += [f"\nCost at equal --rounds, relative to FedAvg: {cost}" for cost in _cost(kind, name)]
        if reports := parts.section(function, "Reports"):
            out.append(f"\nRecords of a run:\n{reports}")
    return out
