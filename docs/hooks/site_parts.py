"""A page per method and a page per other kind of component, from registries, docstrings, cards and measured results."""

import inspect
import re
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path

from site_links import relinked
from site_text import blocks, code, prose, table, tables

from fnlkit.cli import parts
from fnlkit.components import presets, registry
from fnlkit.components.declarations import declaration
from fnlkit.components.spec import parse
from fnlkit.experiment import cards
from fnlkit.reproduce import published

DOCS = Path(__file__).parent.parent
PLURALS = {"loss": "losses", "model": "networks", "noise": "noise"}
NEEDS = {
    "embedding": "an embedding of the samples: `--embeddings EMB.npz`, principal components without",
    "head": "a network with an embedding in front of its last layer",
    "pair": "two networks, which travel as one",
    "public": "samples that no client holds: `fnlkit partition --public 0.1`",
    "pooled": "all data in one place",
    "own": "a model for each client",
    "truth": "labels that somebody declared to be true",
    "secret": "a secret key that labels are flipped with: `--privacy-key FILE`, the user's own without",
}


def pages():
    """Yield (path, Markdown) of the overview, of each method, and of each other kind of component."""
    notes, helps, measured = choices(), when_it_helps(), list(tables(_read("results.md")))
    rows = []
    for name in registry.METHODS:
        (function,) = [found for kind, found in parts.find_all(name) if kind == "method"]
        known = cards.card("method", name)
        rows.append((f"[`{name}`]({name}.md)", prose(parts.purpose(function)), known.source or known.kind))
        yield f"method/{name}.md", "\n".join(_method(name, function, known, helps.get(name), notes.get(name, []), measured))
    yield "method/index.md", "# Each method\n\n" + table(("method", "what it does", "source"), rows) + "\n"
    for kind, about in parts.KINDS.items():
        if kind != "method":
            yield f"parts/{plural(kind)}.md", "\n".join(_kind(kind, about))


def plural(kind):
    return PLURALS.get(kind, f"{kind}s")


def _method(name, function, known, helps, notes, measured):
    yield f"# {name}\n\n{prose(parts.purpose(function))}.\n"
    if source := parts.source(function):
        yield f"*Source:* {prose(source)}\n"
    if explained := parts.explained(function):
        yield blocks(explained) + "\n"
    yield _terms(inspect.getdoc(inspect.getmodule(function))) + "\n"
    if helps:
        yield f"## When it helps\n\n{helps}\n"
    yield from _steps(function)
    yield f"## Name it\n\n```sh\nfnlkit train noisy.npz --method {name} -o run.pt\n```\n"
    asked = [NEEDS[each] for each in sorted(registry.needs(name))]
    yield "It needs " + "; ".join(asked) + ".\n" if asked else ""
    free = "It brings its own loss." if registry.brings_loss(name) else "It takes any [`--loss`](../parts/losses.md)."
    yield free + "\n"
    yield from _parameters("method", function)
    if used := [each for each in presets.names() if parse(presets.load(each).get("method", "fedavg")).name == name]:
        yield "Published settings: " + ", ".join(f"`--preset {each}`" for each in used) + "\n"
    yield from _sent(known)
    if reports := parts.section(function, "Reports"):
        yield f"## What a run records\n\n{blocks(inspect.cleandoc(reports))}\n"
    if notes:
        yield "## Where the paper leaves a choice\n\n" + "\n".join(f"- {note}" for note in notes) + "\n"
    yield from _measured(name, measured)


def _steps(function):
    """Yield the client steps of a method and the server program as source code."""
    plain = inspect.unwrap(function)
    module = inspect.getmodule(plain)
    steps = [each for each in vars(module).values() if inspect.isfunction(each) and each.__module__ == module.__name__]
    steps = [each for each in steps if [*inspect.signature(each).parameters][:3] == ["client", "model", "received"]]
    told = [f"- `{each.__name__}`: {prose(' '.join((inspect.getdoc(each) or '').split()))}" for each in steps]
    yield "## How it works\n"
    if told:
        yield "What its clients do beside training, each a step that the server may ask for:\n\n" + "\n".join(told) + "\n"
    source = re.sub(r'(?s)\n    (r?""").*?""" *\n', "\n", inspect.getsource(plain), count=1)
    place = f"{module.__name__.replace('.', '/')}.py"
    body = "\n".join(f"    {line}".rstrip() for line in f"```python\n{source}```".splitlines())
    yield f'??? example "The server\'s program, in {place}"\n{body}\n'


def _terms(doc):
    """Return the module docstring below the first line and the source as Markdown."""
    return blocks("\n\n".join((doc or "").split("\n\n")[2:]))


def _parameters(kind, function):
    rows = []
    for name, default, may_be, meaning in parts.described(kind, function):
        rows.append((code(f"{name}={default}" if default else name), f"{prose(meaning)} *May be {prose(may_be)}.*"))
    if rows:
        yield table(("parameter", "meaning"), rows) + "\n"


def _sent(known):
    rows = [("`weights`", "the local model", "every round")] if "weights" not in known.sends else []
    rows += [(code(reply), prose(said.what), prose(said.when)) for reply, said in known.sends.items()]
    yield "## What leaves a client\n\n" + table(("reply", "what", "when"), rows) + "\n"
    if known.cost:
        said = ", ".join(f"{what} {known.cost[key]:g}" for key, what in cards.COST.items())
        yield f"## What it costs\n\nAt equal `--rounds`, FedAvg being 1: {said} (`python -m benchmarks.costs`).\n"


def _measured(name, found):
    """Yield the rows of results.md about a method, with FedAvg's row of the same setting."""
    yield "## Measured\n"
    shown = 0
    for heading, head, rows in found:
        if "method" not in head:
            continue
        at, plain = head.index("method"), code(name)
        settings = {tuple(row[:at]) for row in rows if row[at].startswith(plain)}
        mine = [row for row in rows if row[at].startswith(plain) or (row[at] == "`fedavg`" and tuple(row[:at]) in settings)]
        if settings:
            shown += 1
            anchor = re.sub(r"[^\w]+", "-", heading.lower()).strip("-")
            yield f"From [{heading}](../results.md#{anchor}), which names the command and the columns:\n"
            yield table(head, mine) + "\n"
    if not shown:
        yield "Nothing is published here yet: [Results](../results.md) has what was measured.\n"
    if counts := [f"`{table}` {count}" for (table, method), count in _published().items() if method == name]:
        yield "Numbers that papers print of runs with it and that `fnlkit reproduce TABLE` can measure, by table: "
        yield ", ".join(counts) + ".\n"


@cache
def _published():
    """Return {(table, method): number of published values that can be measured}."""
    found = Counter()
    for name in published.tables():
        for row in published.table(name):
            with suppress(published.NotHere):
                found[name, parse(published.plan(row)["method"]).name] += 1
    return found


def _kind(kind, about):
    yield f"# {plural(kind).capitalize()}\n\nWhat they decide: {about.what}.\n"
    for name in about.parts():
        (function,) = [found for of, found in parts.find_all(name) if of == kind]
        yield f"## {name}\n\n{prose(parts.purpose(function))}.\n"
        yield f"```text\n{about.use.format(kind=kind, spec=name)}\n```\n"
        if explained := parts.explained(function):
            yield blocks(explained) + "\n"
        if source := declaration(function).cite:
            yield f"*Source:* {prose(source)}\n"
        yield from _parameters(kind, function)


def _read(page):
    return (DOCS / page).read_text(encoding="utf-8")


def when_it_helps():
    """Return {method: when it helps} from the table in methods.md; raise if a row names no method."""
    (rows,) = [rows for heading, _, rows in tables(_read("methods.md")) if heading == "When each helps"]
    found = {row[0].strip("`"): row[1] for row in rows}
    assert set(found) <= set(registry.METHODS), f"methods.md, When each helps: {set(found) - set(registry.METHODS)}"
    return found


def choices():
    """Return {method: notes} from the lists in methods.md whose items begin with the bold name of a method."""
    plain = {re.sub(r"\W", "", name.replace("-plus", "plus")): name for name in registry.METHODS}
    found = {}
    for note in re.findall(r"(?ms)^- (\*\*.*?)(?=^- |\n\n|\Z)", _read("methods.md")):
        names = re.match(r"\*\*([^,.*]*)", note)[1].split(" and ")
        for name in names:
            if method := plain.get(re.sub(r"\W", "", name.lower().replace("+", "plus"))):
                found.setdefault(method, []).append(relinked(" ".join(note.split()), "docs/methods.md", "method/"))
    return found
