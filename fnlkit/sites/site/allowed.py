"""Functions that a server's message can name: steps of methods, losses, gradient terms and penalties.

A site resolves the names in a message only with the table of `functions` and never imports anything else.  The table has the
public functions at the top of a module of `PACKAGES`, defined in this module, whose positional parameters are exactly those
of a client step, a loss, a gradient term or a penalty.  A message therefore runs code that every site would also run in a
simulation.
"""

import importlib
import inspect
import pkgutil
from functools import cache
from typing import Any

PACKAGES = (
    "fnlkit.federated.client.drift",
    "fnlkit.federated.client.losses",
    "fnlkit.federated.client.measuring",
    "fnlkit.federated.client.scaling",
    "fnlkit.federated.client.private_counts",
    "fnlkit.methods",
    "fnlkit.federated.server.optimizers",
    "fnlkit.federated.server.selection",
)
# Positional parameters of functions that run on a client.
STEP, LOSS, TERM = ("client", "model", "received"), ("logits", "batch"), ("w", "w_start", "batch")
PENALTY = ("features", "batch")


@cache
def functions() -> frozenset[tuple[Any, Any]]:
    """List (module, name) of all functions that a server may name."""
    return frozenset(
        (module.__name__, name)
        for module in _modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and _runs_on_clients(value, module.__name__, name)
    )


def _modules():
    for package in map(importlib.import_module, PACKAGES):
        yield package
        for info in pkgutil.iter_modules(getattr(package, "__path__", ())):
            yield importlib.import_module(f"{package.__name__}.{info.name}")


def _runs_on_clients(value, module, name):
    if not inspect.isfunction(value) or (value.__module__, value.__qualname__) != (module, name):
        return False
    parameters = inspect.signature(value).parameters.values()
    return tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY) in (STEP, LOSS, TERM, PENALTY)
