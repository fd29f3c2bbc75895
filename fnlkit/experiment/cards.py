"""Component metadata: kind, source, year, replies, cost; and the table of methods."""

import inspect
import re
import tomllib
from functools import cache
from importlib import resources
from typing import NamedTuple

from fnlkit.client.training import Fit
from fnlkit.components import registry
from fnlkit.components.spec import find, parse
from fnlkit.server.replies import declared, sends_of

TABLES = {
    "method": registry.METHODS,
    "loss": registry.LOSSES,
    "optimizer": registry.OPTIMIZERS,
    "aggregator": registry.AGGREGATORS,
    "selector": registry.SELECTORS,
}
# Labels of the entries of Card.cost.
COST = {"client_rounds": "client-rounds", "up": "bytes up", "down": "bytes down"}
_YEAR = r"\b((?:19|20)\d\d)\b(?!\.\d)"
_CITED = re.compile(rf"\b([A-Z]\w+)(?:, [A-Z]\w+)* {_YEAR}")


class Card(NamedTuple):
    """Metadata of a component.

    Attributes
    ----------
    kind : str
        ``method``, ``reference``, ``loss``, ``optimizer``, ``aggregator`` or ``selector``.
    source : str
        First author and year, ``Zhang 2018``; empty if there is no source to cite.
    year : int or None
    sends : dict of str to fnlkit.server.replies.Sent
        Replies that a client sends in addition to weights.
    cost : dict of str to float, or None
        For a method at equal ``--rounds``: client_rounds, up, down (bytes), as multiples of FedAvg's (benchmarks/costs.py).
    """

    kind: str
    source: str
    year: int | None
    sends: dict
    cost: dict | None


def card(kind, name):
    """Return the Card of a component in a table of `TABLES`."""
    part = find(name, TABLES[kind], kind)
    module = inspect.getmodule(part)
    source = cited(part)
    asked = getattr(module, "needs", None)
    reference = kind == "method" and asked and {"pooled", "own", "truth"} & {*asked()}
    year = int(source[-4:]) if source else None
    sends = (sends_of(part) or {}) if kind == "method" else {}
    return Card("reference" if reference else kind, source, year, sends, _costs().get(name) if kind == "method" else None)


def looked_at(method="fedavg", optimizer="fedavg", aggregator="mean", selector="uniform"):
    """Return why the server must read single replies, or None if sums suffice.

    The reason is a sentence.

    If sums suffice, replies can be added under secure aggregation, and updates can be protected.

    Parameters
    ----------
    method, optimizer, aggregator, selector : str or Spec
        Specs as for `fnlkit train`.
    """
    for name, sends in _sends(method):
        if sends is None:
            return f"--method {name} does not declare its replies (SENDS)"
        single = next((said for said in sends.values() if not said.summed), None)
        if single:
            return f"--method {name} reads each client's reply: {single.what} ({single.when})"
    if {"own", "pooled"} & set(registry.needs(method)):
        return f"--method {parse(method).name} is a reference without a round of several clients"
    if not getattr(_function(registry.aggregator(aggregator)), "sums", False):
        return f"--aggregator {parse(aggregator).name} compares the clients' models, which a sum does not contain"
    if registry.optimizer(optimizer, Fit()).reads_each():
        return f"--optimizer {parse(optimizer).name} reads each client's model, which a sum does not contain"
    if getattr(registry.selector(selector, 0.5), "sampling", None) is None:
        return f"--selector {parse(selector).name} selects by the reply of each client"
    return None


def unprotected(method="fedavg", optimizer="fedavg", aggregator="mean", selector="uniform"):
    """Return why updates cannot be protected (--protect), or None if they can.

    The reason is a sentence.

    Parameters are those of `looked_at`.
    """
    if reason := looked_at(method, optimizer, aggregator, selector):
        return reason
    for name, sends in _sends(method):
        for said in sends.values():
            return (
                f"--method {name} sends more than weights: {said.what} ({said.when}), which the noise on updates does not cover"
            )
    return None


def may_leave(method="fedavg", optimizer="fedavg", selector="uniform"):
    """Return {name: Sent} of all replies that clients can send beyond ``weights``.

    A method without SENDS contributes no replies.  If two methods declare the same name, the outer method's declaration counts.

    Parameters
    ----------
    method, optimizer, selector : str or Spec
        Specs as for `fnlkit train`.
    """
    found = []
    for bound in _chain(method):
        found.append(sends_of(_function(bound)))
        nested = getattr(bound, "keywords", {}).get("usual_selector")
        found.append(getattr(_function(nested), "asks", None))
    found.append(sends_of(find(parse(optimizer), registry.OPTIMIZERS, "optimizer")))
    found.append(getattr(registry.selector(selector, 0.5), "asks", None))
    out = {}
    for sends in found:
        out = declared(sends or ()) | out
    return out


def hidden(name):
    """Return how a method's replies can be protected: ``sum, dp``, ``sum`` or a dash.

    ``sum``: the server only needs sums.  ``dp``: updates can also be protected by noise.
    """
    return "–" if looked_at(name) else "sum" if unprotected(name) else "sum, dp"


def _sends(method):
    """Yield (name, {reply: Sent}) of a method and its nested methods.

    Replies are None if a method has no SENDS.
    """
    for bound in _chain(method):
        function = _function(bound)
        yield function.__name__.replace("_", "-"), sends_of(function)


def _chain(method):
    """Yield a method with bound parameters, then its nested methods."""
    bound = registry.method(method)
    while bound is not None:
        yield bound
        bound = getattr(bound, "keywords", {}).get("usual")


def _function(bound):
    return getattr(bound, "func", bound)


def markdown():
    """Return the table of methods as Markdown."""
    lines = [
        "| method | source | replies in addition to weights | can be protected by | bytes up, down |",
        "|---|---|---|---|---|",
    ]
    for name in registry.METHODS:
        known = card("method", name)
        sends = "; ".join(f"{said.what} ({said.when})" for said in known.sends.values()) or "nothing"
        cost = f"{known.cost['up']:g}x, {known.cost['down']:g}x" if known.cost else "–"
        lines.append(f"| `{name}` | {known.source or known.kind} | {sends} | {hidden(name)} | {cost} |")
    return "\n".join(lines)


@cache
def _costs():
    return tomllib.loads(resources.files("fnlkit.data").joinpath("costs.toml").read_text(encoding="utf-8"))


def cited(part):
    """Return the source of a component, for example ``Xu 2022``.

    This is the first citation in its docstring, else the first author of its module.
    """
    module = inspect.getmodule(part)
    text = inspect.getdoc(part) or ""
    if "fnlkit.methods." in module.__name__:  # later paragraphs of a method cite other papers
        text = text.partition("\n\n")[0]
    if found := _CITED.search(" ".join(text.split())):
        return f"{found[1]} {found[2]}"
    paragraphs = (inspect.getdoc(module) or "").split("\n\n")[1:2]
    for text in (" ".join(p.split()) for p in paragraphs):
        if (author := re.match(r"[A-Z]\w+(?=[,. ])", text)) and (year := re.search(_YEAR, text)):
            return f"{author[0]} {year[1]}"
    return ""
