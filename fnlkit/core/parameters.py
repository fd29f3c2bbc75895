"""Allowed values of component parameters, declared once in annotations.

    @checked
    def method(clients, model, opt, select, *, rounds, strength: NotNegative = 2.0, warm: Literal["plain", "server"] = "plain")

A spec is checked before a run starts (`fnlkit.core.spec.bind`), and a call from Python at the call.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from math import inf
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args, get_origin

from fnlkit.core.errors import InputError


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, without open ends and without infinity."""

    low: float = 0
    high: float = inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value):
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high or self.high == inf else value <= self.high
        return above and below

    def __str__(self):
        if self.high == inf:
            return f"above {self.low:g}" if self.open_low else f"at least {self.low:g}"
        if self.open_low:
            return f"above {self.low:g} and {'below' if self.open_high else 'at most'} {self.high:g}"
        return f"from {self.low:g} to {'below ' if self.open_high else ''}{self.high:g}"


@dataclass(frozen=True)
class Automatic:
    """A value outside the range that leaves the choice to the method."""

    value: float = -1


# A word or a quoted text, for parameters without a default from which the type could be read.
Text = Annotated[str, "a word, or a text in quotes"]
SpecText = Annotated[str, "a name, or name(key=value, ...)"]
NotNegative = Annotated[float, Range()]
Positive = Annotated[float, Range(open_low=True)]
AboveOne = Annotated[float, Range(1, open_low=True)]
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(0, 1, open_low=True)]
Percentile = Annotated[float, Range(0, 100)]
Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range()]
Rounds = Annotated[int, Range(), Automatic()]
Patience = Annotated[int, Range(1), Automatic()]


def check(function: Callable[..., Any], values: Mapping[str, object], where: str) -> None:
    """Raise if a value does not fit the function's annotations.

    Parameters without annotations are not checked.

    Parameters
    ----------
    function : callable
        A function, or a dataclass for the fields.
    values : dict of str to object
    where : str
        Beginning of the message.

    Raises
    ------
    InputError

    Examples
    --------
    >>> def method(*, share: Share = 0.5): pass
    >>> check(method, {"share": 2}, "method 'mine'")
    Traceback (most recent call last):
        ...
    fnlkit.core.errors.InputError: method 'mine': parameter 'share' is 2; write a number from 0 to 1
    """
    for name, fault in faults(function, values):
        raise InputError(f"{where}: parameter {name!r} {fault}")


def faults(function: Callable[..., Any], values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield (parameter, fault) of every value that does not fit the annotation.

    A fault is, for example, ``is 2; write a number from 0 to 1``.
    """
    for name, kind in kinds(function).items():
        if name in values and not _fits(values[name], kind):
            yield name, f"is {values[name]!r}; write {describe_kind(kind)}"


def kinds(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations with allowed values by parameter: words or ranges."""
    annotations = {p.name: _resolve(p.annotation, function) for p in inspect.signature(function).parameters.values()}
    return {name: kind for name, kind in annotations.items() if get_origin(kind) in (Literal, Annotated)}


def _resolve(annotation, function):
    """Resolve an annotation: with ``from __future__ import annotations`` in its file, it is a text."""
    if not isinstance(annotation, str) or not re.fullmatch(r"[A-Z]\w*|(Literal|Annotated)\[.*\]", annotation):
        return annotation
    plain = inspect.unwrap(getattr(function, "func", function))
    try:
        return eval(annotation, vars(sys.modules[plain.__module__]))  # noqa: S307 - an annotation of an imported function
    except (AttributeError, KeyError, NameError, TypeError):  # a name that only type checkers import has no range
        return annotation


def describe_kind(kind: Any) -> str:
    """Describe the allowed values of an annotation.

    For example ``a whole number at least 0, or -1``.
    """
    if get_origin(kind) is Literal:
        *rest, last = get_args(kind)
        return f"{', '.join(map(str, rest))} or {last}"
    number, limits, *spare = get_args(kind)
    if number is str:
        return limits
    return f"a {'whole ' if number is int else ''}number {limits}" + "".join(f", or {mark.value:g}" for mark in spare)


def _fits(value, kind):
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    number, limits, *spare = get_args(kind)
    if number is str:
        return isinstance(value, str)
    right = isinstance(value, Integral if number is int else Real) and not isinstance(value, bool)
    return right and (value in limits or value in [mark.value for mark in spare])


def check_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the keyword arguments of a function at each call (a decorator)."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        check(function, keywords, function.__name__.replace("_", "-"))
        return function(*arguments, **keywords)

    return call


def select_accepted(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Select the entries of a dict whose names a function has as parameters."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in values.items() if name in known}


def arguments_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Read the keyword-only parameters of a function and their values, bound ones before defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


def passes_on(inner: Callable[..., Any], *names: Any) -> Callable[..., Any]:
    """Add the parameters of `inner` to a function's signature (a decorator).

    The function passes ``**keywords`` to `inner`.

    A parameter is declared once, with range, default and meaning, in the function that uses it.  Specs, `fnlkit methods` and
    `check_arguments` find it in every function that passes it on.  Parameters that the function declares are not changed.

    Parameters
    ----------
    inner : callable
    *names : str
        Keyword-only parameters of `inner` to pass on.  Default: all.

    Examples
    --------
    >>> def watch(*, patience: Patience = -1): return patience
    >>> @check_arguments
    ... @passes_on(watch)
    ... def method(clients, *, strength: Share = 0.5, **watching): return watch(**watching)
    >>> list(inspect.signature(method).parameters)
    ['clients', 'strength', 'patience']
    >>> method(None, patience=3)
    3
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        # Keywords of other such decorators pass through, because only the outermost decorator has the full list.
        plain = inspect.unwrap(function, stop=lambda inside: getattr(inside, "passer", None) is not inside)
        mine = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        theirs = {p.name: p for p in inspect.signature(inner).parameters.values() if p.kind is p.KEYWORD_ONLY}
        passed = [theirs[name] for name in names or theirs if name not in signature.parameters]
        shown = signature.replace(parameters=mine + passed)

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            shown.bind(*arguments, **keywords)  # report an unknown keyword of a generator at the call, too
            return plain(*arguments, **keywords)

        vars(call).update(__signature__=shown, passer=call, inner=inner)
        return call

    return decorate
