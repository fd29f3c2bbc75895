"""Search spaces of recipes: check and draw configurations, and plan the rungs of a search.

A space maps options of `train` to a list of values or to a range ``{low, high, log}``. The table ``method`` in a space does the
same for parameters of the method.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fnlkit.components.spec import Spec, parse
from fnlkit.errors import InputError
from fnlkit.kernels.streams import stream

PARAMETER = "method."
STRATEGIES = ("random", "halving")
RUNGS = 3
# Seeds of a search: the score of a configuration is the mean over them.
SEEDS = 3
_TRIES = 100
# Options that decide the cost of a run or the score of a search.
_FIXED = ("rounds", "fraction", "eval_every", "select", "patience", "measure", "memorization", "preset")


class Rung(NamedTuple):
    """A step of a search: the number of configurations that run, and the rounds of each run."""

    configurations: int
    rounds: int


def must_be_space(space: dict[str, Any]) -> None:
    """Raise InputError unless a space has lists and ranges of numbers, texts or booleans."""
    for name, values in flat(space).items():
        where = f"search: {name}"
        if name in _FIXED:
            raise InputError(f"{where} decides the cost or the score of a run and cannot be searched; set it in train")
        if isinstance(values, list):
            if not values or not all(isinstance(value, (str, int, float)) for value in values):
                raise InputError(f"{where} is {values!r:.60}; write a list of numbers or texts")
        elif isinstance(values, dict):
            if not {"low", "high"} <= values.keys() <= {"low", "high", "log"} or type(values.get("log", False)) is not bool:
                raise InputError(f"{where}: a range has low, high and optionally log = true")
            low, high = values["low"], values["high"]
            if not all(type(v) in (int, float) and math.isfinite(v) for v in (low, high)) or not low < high:
                raise InputError(f"{where}: low must be a number below high")
            if values.get("log") and low <= 0:
                raise InputError(f"{where}: low must be above 0 for log = true")
        else:
            raise InputError(f"{where} is {values!r:.60}; write a list or a range such as {{ low = 0.001, high = 0.1 }}")


def flat(space: dict[str, Any]) -> dict[str, Any]:
    """Return a space with the names of method parameters as ``method.NAME``."""
    inner = space.get("method", {})
    if not isinstance(inner, dict):
        raise InputError("search: a method has no values; search the parameters, for example method.beta = [1, 5]")
    out = {name: values for name, values in space.items() if name != "method"}
    return out | {PARAMETER + name: values for name, values in inner.items()}


def seeds_of(recipe: dict[str, Any]) -> list[int]:
    """Return the seeds of a recipe's search.  Default: the `SEEDS` numbers after the largest seed of the recipe."""
    last = max(recipe["seeds"])
    return recipe["search"].get("seeds", list(range(last + 1, last + 1 + SEEDS)))


def space_of(plan: dict[str, Any], entry: Any) -> dict[str, Any]:
    """Return the flat space of an Entry: the common space, then the space of the method's name, then of the label."""
    own, out = plan.get("spaces", {}), flat(plan["space"])
    for name in dict.fromkeys((parse(entry.method).name, entry.label)):
        out |= flat(own.get(name, {}))
    return out


def examples(space: dict[str, Any]) -> list[dict[str, Any]]:
    """Return configurations that contain every listed value and both ends of every range of a space."""
    sides = {name: v if isinstance(v, list) else [v["low"], v["high"]] for name, v in flat(space).items()}
    longest = max(map(len, sides.values()), default=0)
    return [{name: values[min(i, len(values) - 1)] for name, values in sides.items()} for i in range(longest)]


def apply_configuration(method: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a method's spec and options of `train` after a configuration is applied.

    Examples
    --------
    >>> apply_configuration("flr(strength=2)", {"lr": 0.1, "method.strength": 3})
    ('flr(strength=3)', {'lr': 0.1})
    """
    own = {name.removeprefix(PARAMETER): value for name, value in values.items() if name.startswith(PARAMETER)}
    options = {name: value for name, value in values.items() if not name.startswith(PARAMETER)}
    if own:
        spec = parse(method)
        method = str(Spec(spec.name, spec.parameters | own, spec.origin))
    return method, options


def draw_configurations(space: dict[str, Any], count: int, *, key: str, seed: int = 0) -> list[dict[str, Any]]:
    """Return up to `count` different configurations of a flat space; the first is {}, the options of the recipe.

    Parameters
    ----------
    space : dict
    count : int
    key : str
        Name of the stream of random numbers, for example the regime.
    seed : int
    """
    # A stream per option: methods with further options get the same values of the common ones.
    streams = {name: stream(seed, f"search {key}, {name}") for name in space}
    out: list[dict[str, Any]] = [{}]
    for _ in range(_TRIES * count):
        if len(out) >= count:
            break
        values = {name: _draw(values, streams[name]) for name, values in space.items()}
        if values not in out:
            out.append(values)
    return out


def _draw(values, rng):
    if isinstance(values, list):
        return values[int(rng.integers(len(values)))]
    low, high = values["low"], values["high"]
    if type(low) is int and type(high) is int and not values.get("log"):
        return int(rng.integers(low, high + 1))
    if values.get("log"):
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.4g}")
    return float(f"{rng.uniform(low, high):.4g}")


def must_fit(plan: dict[str, Any]) -> None:
    """Raise InputError unless the budget of a search suffices for its strategy."""
    if plan.get("strategy", "random") not in STRATEGIES:
        raise InputError(f"search.strategy is {plan['strategy']!r}; write {' or '.join(STRATEGIES)}")
    if plan.get("rungs", RUNGS) < 2:
        raise InputError(f"search.rungs is {plan['rungs']}; write at least 2")
    if rungs(plan, 2**20)[-1].configurations < 1 or rungs(plan, 2**20)[0].configurations < 2:
        seeds = len(plan.get("seeds", range(SEEDS)))
        least = 2 * seeds if plan.get("strategy", "random") == "random" else plan.get("rungs", RUNGS) * seeds
        raise InputError(
            f"search.budget of {plan['budget']} runs is too small for {plan.get('strategy', 'random')} with {seeds} seeds; "
            f"write at least {least}"
        )


def rungs(plan: dict[str, Any], rounds: int) -> list[Rung]:
    """Return the Rungs of a search for runs of `rounds` rounds.

    ``random`` has one rung of full length.  ``halving`` has `rungs` rungs of equal cost: each runs half of the configurations
    for twice the rounds of the previous rung (Jamieson and Talwalkar, AISTATS 2016).  The cost of all rungs is at most the
    budget in runs of full length.

    Examples
    --------
    >>> [tuple(rung) for rung in rungs({"budget": 6, "strategy": "halving", "seeds": [9]}, 60)]
    [(8, 15), (4, 30), (2, 60)]
    """
    configurations = plan["budget"] // len(plan.get("seeds", range(SEEDS)))
    if plan.get("strategy", "random") == "random":
        return [Rung(configurations, rounds)]
    count = plan.get("rungs", RUNGS)
    steps = [2 ** (count - 1 - i) for i in range(count)]
    return [Rung(configurations * step // count, max(1, rounds // step)) for step in steps]
