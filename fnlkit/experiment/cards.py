"""Component metadata: kind, source, year, replies, cost; and the table of methods."""

import tomllib
from functools import cache
from importlib import resources
from typing import NamedTuple

from fnlkit.core import registry
from fnlkit.core.declarations import Sent, declaration
from fnlkit.core.parameters import arguments_of
from fnlkit.core.spec import find
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.settings import Settings

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
    sends : dict of str to fnlkit.core.declarations.Sent
        Replies that a client sends in addition to weights.
    cost : dict of str to float, or None
        For a method at equal ``--rounds``: client_rounds, up, down (bytes), as multiples of FedAvg's (data/costs.toml).
    """

    kind: str
    source: str
    year: int | None
    sends: dict[str, Sent]
    cost: dict[str, float] | None


def card(kind: str, name: str) -> Card:
    """Collect the facts of a component in a table of `TABLES`."""
    part = find(name, TABLES[kind], kind)
    known = declaration(part)
    reference = bool(REFERENCES & known.find_needs(arguments_of(part)))
    sends, cost = (dict(known.sends or {}), _costs().get(name)) if kind == "method" else ({}, None)
    return Card("reference" if reference else kind, known.cite, known.year, sends, cost)


def protection_of_replies(name: str) -> str:
    """State how a method's replies can be protected: ``secagg``, ``sum`` or a dash.

    ``sum``: the server only needs sums.  ``secagg``: clients send only weights, and sites can mask them.
    """
    plan = Plan.of(Settings(method=name))
    return "–" if plan.single_replies_reason else "sum" if plan.unprotected_reason else "secagg"


def markdown() -> str:
    """Format the table of methods as Markdown."""
    lines = [
        "| method | source | replies in addition to weights | can be protected by | bytes up, down |",
        "|---|---|---|---|---|",
    ]
    for name in registry.METHODS:
        known = card("method", name)
        sends = "; ".join(f"{sent.revealing} ({sent.when})" for sent in known.sends.values()) or "nothing"
        cost = f"{known.cost['up']:g}x, {known.cost['down']:g}x" if known.cost else "–"
        lines.append(f"| `{name}` | {known.source or known.kind} | {sends} | {protection_of_replies(name)} | {cost} |")
    return "\n".join(lines)


@cache
def _costs() -> dict[str, dict[str, float]]:
    return tomllib.loads(resources.files("fnlkit.data").joinpath("costs.toml").read_text(encoding="utf-8"))
