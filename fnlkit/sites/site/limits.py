"""Limits of a request at a site: the parameters of a step and the arrays that it receives.

The limits follow from the site's copy of the project and from constants of this module, never from a message.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import declaration
from fnlkit.federated.client.training import Fit
from fnlkit.sites.site.errors import NotInTable, Released

# Largest whole number, length and nesting of a value that a message binds to a parameter; draws (`seed`) are not limited.
MOST_NUMBER, MOST_ENTRIES = 10_000, 64
# Local training in the table; every other step is "module:function".
TRAINING = "local training"


@dataclass(frozen=True)
class Limit:
    """Limit of a parameter or of a received array of a step.

    Attributes
    ----------
    words : str
        The limit, for the table.
    fits : callable (value) -> bool
    """

    words: str
    fits: Callable[..., bool] = field(compare=False)


def name_of(step: Any) -> str:
    """Name of a step in the table."""
    function = getattr(step, "func", step)
    return TRAINING if isinstance(step, Fit) else f"{function.__module__}:{function.__name__}"


def short(name: str) -> str:
    """Name of a step for a person."""
    return name.rpartition(":")[2].replace("_", " ")


# Runs of each task for one agreement. A site permits more by deleting the record of requests, or by another agreed file.
RUNS = 20


@dataclass(frozen=True)
class Row:
    """A step that a site runs in a task.

    Attributes
    ----------
    task : str
    step : str
        `TRAINING` or "module:function".
    replies : tuple of str
        Names of the arrays that a request with this step can return.
    requests : int
        Largest number of requests for one agreement.
    fewest : int
        A statistic of fewer samples is replied as zero. 0: no such limit.
    bound, received : dict of str to Limit
        Limits of parameters that a message binds, and of arrays that it contains.
    different : int
        Largest number of requests that differ in the model, the received arrays, the parameters of the steps or the memory with
        which the site begins. 0: no such limit. An equal request has an equal reply.
    noise : str
        Noise or ranges in the replies; "" for exact numbers.
    once : bool
        True if a site answers one request with this step and gives one reply: another reply would reveal the difference.
    epsilon : (float, float, float) or None
        Epsilon and delta of all replies under an agreement together, and the largest total epsilon of the site.
    multiples : tuple of str
        Replies whose entries are multiples of five.
    own : dict
        Parameters that the site binds, for example the agreed scale.
    refuses : callable (client, {name: Tensor} received) -> str, optional
        Reason to refuse a request whose values fit the limits; "" for none.
    """

    task: str
    step: str
    replies: tuple[str, ...]
    requests: int
    fewest: int = 0
    bound: dict[str, Any] = field(default_factory=dict)
    received: dict[str, Any] = field(default_factory=dict)
    different: int = 0
    noise: str = ""
    once: bool = False
    epsilon: tuple[float, float, float] | None = None
    multiples: tuple[str, ...] = ()
    own: dict[str, Any] = field(default_factory=dict)
    refuses: Callable[..., str] | None = None

    @property
    def limits(self) -> str:
        """The limits as text."""
        texts = [f"{name}: {limit.words}" for name, limit in {**self.bound, **self.received}.items()]
        texts += [f"0 for fewer than {self.fewest} samples"] if self.fewest else []
        texts += [f"at most {self.different} different requests"] if self.different else []
        texts += ["one request and one reply for this agreement"] if self.once else []
        texts += [f"multiples of 5: {', '.join(self.multiples)}"] if self.multiples else []
        texts += (
            ["epsilon {:g} at delta {:g} with the other reply, {:g} in total".format(*self.epsilon)] if self.epsilon else []
        )
        return "; ".join([*texts, *([self.noise] if self.noise else [])])

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The row as texts: task, step, replies, requests, limits."""
        return self.task, short(self.step), ", ".join(self.replies), f"{self.requests:,}", self.limits


def as_agreed(step: str, arguments: Iterable[tuple[str, Any]]) -> dict[str, Limit]:
    """Limit the parameters of a step to those that the site agreed to, {name: Limit}.

    A parameter equals the argument of the agreed method or optimizer with the same name, unless the step declares another
    limit (`choices`, `scheduled`) or the method derives it.

    Parameters
    ----------
    step : str
    arguments : list of (name, value)
        Of the agreed method and optimizer.
    """
    agreed: dict[str, list[Any]] = {}
    for name, value in arguments:
        agreed.setdefault(name, []).append(value)
    module, _, function = step.partition(":")
    component = getattr(importlib.import_module(module), function)
    parameters, declared = inspect.signature(component).parameters.values(), declaration(component)
    limits = {name: Limit(" or ".join(map(str, v)), v.__contains__) for name, v in declared.choices.items()}
    for name in (p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name in agreed):
        values = agreed[name]
        # An argument without a value, or of -1, is derived by the method; the releases of labels limit epsilon (budgets).
        if name == "epsilon" or callable(values[0]) or any(value in (None, -1) for value in values):
            continue
        limits[name] = _up_to(max(values)) if name in declared.scheduled else equal_to(*values)
    return limits


def _up_to(most):
    """Make the Limit of a number from 0 to the agreed one."""
    return Limit(f"0 to {most:g}, as agreed", lambda v: isinstance(v, int | float) and 0 <= v <= most * (1 + 1e-9))


def equal_to(*values) -> Limit:
    words = " or ".join(dict.fromkeys(f"{value:g}" if isinstance(value, float) else str(value) for value in values))
    return Limit(
        f"{words}, as agreed", lambda v: any(isinstance(v, str) == isinstance(each, str) and v == each for each in values)
    )


def must_fit(row, step: Any, received: dict[str, Any], client: Any) -> None:
    """Raise NotInTable if a parameter or an array of a step exceeds the limits of the row."""
    values = vars(step) if isinstance(step, Fit) else getattr(step, "keywords", {})
    if getattr(step, "args", ()):
        raise NotInTable(f"{row.task}: {short(row.step)} has parameters without a name")
    if not isinstance(step, Fit):
        known = inspect.signature(getattr(step, "func", step)).parameters
        if unknown := sorted(set(values) - {name for name, each in known.items() if each.kind is each.KEYWORD_ONLY}):
            raise NotInTable(f"{row.task}: {short(row.step)} has no parameter {unknown[0][:40]!r}")
    wrong = [name for name, value in values.items() if name != "seed" and name not in row.bound and not _small(value)]
    for limits, given in ((row.bound, values), (row.received, received)):
        wrong += [name for name, limit in limits.items() if name in given and not _fits(limit, given[name])]
    if wrong:
        words = next((each.words for each in (row.bound.get(wrong[0]), row.received.get(wrong[0])) if each), "")
        agreed = words or f"numbers up to {MOST_NUMBER:,} and lists of up to {MOST_ENTRIES}"
        raise NotInTable(f"{row.task}: {wrong[0]} of {short(row.step)} is beyond the limit of this site ({agreed})")
    if row.own and (odd := sorted(set(received) ^ set(row.received) | set(values))):
        takes = ", ".join(row.received) or "no values"
        raise NotInTable(f"{row.task}: {short(row.step)} takes exactly {takes}, not {odd[0][:40]!r}")
    if row.refuses and (reason := row.refuses(client, received)):
        raise Released(f"{row.task}: {short(row.step)}: {reason}")


def _fits(limit, value):
    try:
        return bool(limit.fits(value))
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return False


def _small(value):
    """Whether a bound value cannot make a step compute without end."""
    if isinstance(value, np.generic | np.ndarray | torch.Tensor):
        return math.prod(value.shape) != 1 or _small(value.item())
    if isinstance(value, bool | type(None) | float | bytes):
        return True
    if isinstance(value, int):
        return abs(value) <= MOST_NUMBER
    if isinstance(value, str):
        return len(value) <= MOST_NUMBER
    if isinstance(value, dict):
        return _small(list(value.values()))
    if isinstance(value, list | tuple):
        return len(value) <= MOST_ENTRIES and all(map(_small, value))
    if isinstance(value, partial):
        return not value.args and _small(value.keywords)
    return inspect.isfunction(value)
