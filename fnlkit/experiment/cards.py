"""Component metadata: kind, source, year, replies, cost; and the table of methods."""

import tomllib
from functools import cache
from importlib import resources
from typing import NamedTuple

from fnlkit.client import measuring
from fnlkit.client.training import Fit
from fnlkit.components import registry
from fnlkit.components.declarations import declaration
from fnlkit.components.parameters import arguments_of
from fnlkit.components.spec import find, parse
from fnlkit.experiment.criteria import criterion

TABLES = {
    "method": registry.METHODS,
    "loss": registry.LOSSES,
    "optimizer": registry.OPTIMIZERS,
    "aggregator": registry.AGGREGATORS,
    "selector": registry.SELECTORS,
}
# Needs of methods that are references and not federated methods.
REFERENCES = {"pooled", "own", "truth"}
# Labels of the entries of Card.cost.
COST = {"client_rounds": "client-rounds", "up": "bytes up", "down": "bytes down"}


class Card(NamedTuple):
    """Metadata of a component.

    Attributes
    ----------
    kind : str
        ``method``, ``reference``, ``loss``, ``optimizer``, ``aggregator`` or ``selector``.
    source : str
        First author and year, ``Zhang 2018``; empty if there is no source to cite.
    year : int or None
    sends : dict of str to fnlkit.components.declarations.Sent
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
    known = declaration(part)
    reference = bool(REFERENCES & known.needed(arguments_of(part)))
    sends, cost = (dict(known.sends or {}), _costs().get(name)) if kind == "method" else ({}, None)
    return Card("reference" if reference else kind, known.cite, known.year, sends, cost)


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
            return f"--method {name} does not declare its replies; add @method(sends=...) (fnlkit.components)"
        single = next((sent for sent in sends.values() if not sent.summed), None)
        if single:
            return f"--method {name} reads each client's reply: {single.what} ({single.when})"
    if {"own", "pooled"} & set(registry.needs(method)):
        return f"--method {parse(method).name} is a reference without a round of several clients"
    if not declaration(registry.aggregator(aggregator)).sums:
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
        for sent in sends.values():
            return (
                f"--method {name} sends more than weights: {sent.what} ({sent.when}), which the noise on updates does not cover"
            )
    return None


def reveals(method):
    """Return the reply of a method that reveals samples unless only its sum over clients is known, or None."""
    all_sent = (sent for _, sends in _sends(method) for sent in (sends or {}).values())
    return next((sent.what for sent in all_sent if sent.sum_only), None)


def may_leave(method="fedavg", optimizer="fedavg", selector="uniform", select="last"):
    """Return {name: Sent} of all replies that clients can send beyond ``weights``.

    A method without a declaration contributes no replies.  If two components declare the same name, the method's declaration
    takes precedence, then the optimizer's, then the selector's.

    Parameters
    ----------
    method, optimizer, selector, select : str or Spec
        Specs as for `fnlkit train`.
    """
    rule = criterion(select)
    counts = {} if rule is None else {rule.func.column: measuring.SENDS[rule.func.column]}
    of_optimizer = declaration(find(parse(optimizer), registry.OPTIMIZERS, "optimizer")).sends or {}
    of_selector = declaration(registry.selector(selector, 0.5)).sends or {}
    return {**counts, **of_selector, **of_optimizer, **registry.sends(method)}


def hidden(name):
    """Return how a method's replies can be protected: ``sum, dp``, ``sum`` or a dash.

    ``sum``: the server only needs sums.  ``dp``: updates can also be protected by noise.
    """
    return "–" if looked_at(name) else "sum" if unprotected(name) else "sum, dp"


def _sends(method):
    """Yield (name, {reply: Sent} or None) of a method and its nested methods."""
    for bound in registry.nested(method):
        yield getattr(bound, "func", bound).__name__.replace("_", "-"), declaration(bound).sends


def markdown():
    """Return the table of methods as Markdown."""
    lines = [
        "| method | source | replies in addition to weights | can be protected by | bytes up, down |",
        "|---|---|---|---|---|",
    ]
    for name in registry.METHODS:
        known = card("method", name)
        sends = "; ".join(f"{sent.revealing} ({sent.when})" for sent in known.sends.values()) or "nothing"
        cost = f"{known.cost['up']:g}x, {known.cost['down']:g}x" if known.cost else "–"
        lines.append(f"| `{name}` | {known.source or known.kind} | {sends} | {hidden(name)} | {cost} |")
    return "\n".join(lines)


@cache
def _costs():
    return tomllib.loads(resources.files("fnlkit.data").joinpath("costs.toml").read_text(encoding="utf-8"))
