"""`fnlkit methods`: list and describe components, and print templates."""

import json
import shlex
import sys
from importlib import resources

import click

from fnlkit.cli import parts
from fnlkit.cli.plumbing import LINES, Table, height, json_option, out_console, suggest, verbose
from fnlkit.core import presets, registry
from fnlkit.core.declarations import declaration
from fnlkit.core.errors import InputError, nearest
from fnlkit.core.kinds import KINDS


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
        sys.stdout.write(_template(template))
        return
    console = out_console()
    if as_json:
        for facts in _facts(name):
            sys.stdout.write(json.dumps(facts) + "\n")
    elif name is None:
        _list(console)
    elif (kind := _kind(name)) is not None:
        _print_kind(console, kind)
    else:
        components = parts.find_all(name) or _refuse(name)
        brief, full = [], []
        for kind, function in components:
            brief += (summary := _summarize(name, kind, function))
            full += [*summary, *_details(kind, function), ""]
        fits = verbose() or height(console, *full) < LINES
        for part in full[:-1] if fits else brief:
            console.print(part, soft_wrap=isinstance(part, str))
        if not fits:
            suggest("methods", name, "-v")
        elif components[0][0] == "method":
            suggest("train", "noisy.npz", "--method", name)


def _refuse(name):
    near = nearest(name, [part for kind in KINDS.values() for part in kind.parts()])
    raise InputError(f"no component {name!r}{near}; `fnlkit methods` lists methods and kinds of components")


def _facts(name):
    """Yield the facts of one component, of a kind, or of all components, as plain values."""
    kind = None if name is None else _kind(name)
    if name is not None and kind is None:
        rows = [(name, *pair) for pair in parts.find_all(name) or _refuse(name)]
    else:
        rows = [(part, of, f) for of in ([kind] if kind else KINDS) for part, f in _components(of)]
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
            "replies": {reply: str(sent) for reply, sent in (declared.sends or {}).items()},
        }


def _kind(word):
    plurals = {"losses": "loss", "networks": "model", "network": "model", "noises": "noise"}
    word = plurals.get(word, word)
    return next((kind for kind in KINDS if word in (kind, f"{kind}s") and word != "methods"), None)


def _components(kind):
    return [(name, part) for name in KINDS[kind].parts() for of, part in parts.find_all(name) if of == kind]


def _template(word):
    chosen = _kind(word)
    if chosen is None:
        raise InputError(f"--template {word}: unknown kind{nearest(word, KINDS)}; write one of {', '.join(KINDS)}")
    return resources.files("fnlkit.data").joinpath(f"templates/{chosen}.py").read_text(encoding="utf-8")


def _list(console):
    """Print the names of all methods, and the other kinds of components; with -v, a table of each kind."""
    methods = list(KINDS["method"].parts())
    hint = "" if verbose() else " (-v: purposes and sources)"
    console.print(f"{len(methods)} methods for fnlkit train --method NAME{hint}:")
    console.print(_of_kind("method") if verbose() else ", ".join(methods))
    others = {kind: each for kind, each in KINDS.items() if kind != "method"}
    counts = ", ".join(f"{kind} ({len(each.parts())})" for kind, each in others.items())
    console.print(f"other components, listed by fnlkit methods KIND: {counts}")
    for kind, each in others.items() if verbose() else ():
        use = each.use.format(kind=kind, spec="NAME")
        console.print(f"{kind}, {use}: {', '.join(each.parts())}", soft_wrap=True)
    console.print("template of your own component: fnlkit methods --template KIND")
    names = presets.names()
    shown = names if verbose() else dict.fromkeys(name.partition("/")[0] for name in names)
    console.print(f"{len(names)} presets, the options of papers, for fnlkit train --preset NAME: {', '.join(shown)}")
    suggest("methods", "fedcorr")


def _print_kind(console, kind):
    """Print the components of a kind: their purposes and sources if these fit or with -v, else purposes, else names."""
    names, table = list(KINDS[kind].parts()), _of_kind(kind)
    short = Table("name", "purpose", rows=[(name, parts.purpose(part)) for name, part in _components(kind)])
    if verbose() or height(console, table) < LINES:
        console.print(table)
    elif height(console, short) <= LINES:
        console.print(short)
    else:
        use = KINDS[kind].use.format(kind=kind, spec="NAME")
        console.print(f"{len(names)} components for {use} (-v: purposes and sources):")
        console.print(", ".join(names))
    if not verbose():
        suggest("methods", names[0])


def _of_kind(kind):
    rows = [(name, parts.purpose(part), declaration(part).cite) for name, part in _components(kind)]
    return Table("name", "purpose", "source", rows=rows)


def _summarize(name, kind, function):
    """Write lines about a component: name, kind and use; purpose, source, names of parameters and replies, cost."""
    rows, purpose, known = parts.describe_parameters(kind, function), parts.purpose(function), name in registry.METHODS
    some = next((f"{key}={default}" for key, default, _, _ in rows if default not in ("", "none")), None)
    spec = shlex.quote(f"{name}({some})") if some and kind != "regularizer" else name
    lines = [f"{name}, {'an' if kind[0] in 'aeo' else 'a'} {kind}: {KINDS[kind].use.format(kind=kind, spec=spec)}"]
    lines += [f"{purpose}." if purpose else "The function has no docstring.", parts.source(function)]
    if rows:
        lines.append("parameters: " + ", ".join(f"{key}={default}" if default else key for key, default, _, _ in rows))
    if kind == "method":
        lines.append(f"replies of a client: {', '.join(['weights', *(declaration(function).sends or {})])}")
    if kind == "method" and known:
        from fnlkit.experiment import Settings, cards
        from fnlkit.experiment.plan import Plan

        if reason := Plan.of(Settings(method=name)).unprotected_reason:
            lines.append(f"updates cannot be protected (--protect): {reason}")
        if cost := cards.card(kind, name).cost:
            costs = ", ".join(f"{heading} {cost[key]:g}" for key, heading in cards.COST.items())
            lines.append(f"cost at equal --rounds, relative to FedAvg: {costs}")
    return [line for line in lines if line]


def _details(kind, function):
    """Describe explanation, parameters, replies, notes and records of a component as texts and tables."""
    rows, replies = parts.describe_parameters(kind, function), declaration(function).sends or {}
    lines = [f"\n{text}" for text in [parts.explain(function)] if text]
    lines += ["", Table("parameter", "default", "may be", "meaning", rows=rows)] if rows else []
    if replies:
        form = "" if kind == "method" else " with --form federated"
        weights = "the weights of a warm-up" if kind == "estimator" else "the weights"
        lines += [f"\nReplies of a client{form}, in addition to {weights}:"]
        lines += [f"  {reply}: {content}" for reply, content in replies.items()]
    for heading in ("Notes", "Reports"):
        if text := parts.section(function, heading):
            lines.append(f"\n{heading.replace('Reports', 'Records of a run')}:\n{text}")
    return lines
