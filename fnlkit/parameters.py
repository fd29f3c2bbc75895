"""What values a parameter of a method, an optimizer or an estimator may have: said once, in its annotation.

    @checked
    def method(clients, model, opt, select, *, rounds, strength: NotNegative = 2.0, warm: Literal["plain", "server"] = "plain")

A spec is checked before anything runs (`fnlkit.spec.bind`), a call from Python as it is made.
"""

import inspect
from dataclasses import dataclass
from functools import wraps
from math import inf
from numbers import Integral, Real
from typing import Annotated, Literal, get_args, get_origin

from fnlkit.errors import InputError


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; without the ends where these are said to be open, and infinity never."""

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
    """A value besides the range that leaves the choice to the method."""

    value: float = -1


# A word or a text in quotes, for parameters without a default that would say so.
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


def check(function, values, where):
    """Raise where a value is not what the function's annotations say; parameters without such are let through.

    Parameters
    ----------
    function : callable
        A function, or a dataclass for its fields.
    values : dict of str to object
    where : str
        What the message begins with.

    Raises
    ------
    InputError

    Examples
    --------
    >>> def method(*, share: Share = 0.5): pass
    >>> check(method, {"share": 2}, "method 'mine'")
    Traceback (most recent call last):
        ...
    fnlkit.errors.InputError: method 'mine': parameter 'share' is 2; write a number from 0 to 1
    """
    for name, fault in faults(function, values):
        raise InputError(f"{where}: parameter {name!r} {fault}")


def faults(function, values):
    """Yield (parameter, ``is 2; write a number from 0 to 1``) of every value that is not what the annotations say."""
    for name, kind in kinds(function).items():
        if name in values and not _fits(values[name], kind):
            yield name, f"is {values[name]!r}; write {described(kind)}"


def kinds(function):
    """Return the annotations, by parameter, that say what it may be: words, or numbers in a range."""
    found = {p.name: p.annotation for p in inspect.signature(function).parameters.values()}
    return {name: kind for name, kind in found.items() if get_origin(kind) in (Literal, Annotated)}


def described(kind):
    """Return what may be written for an annotation, for example ``a whole number at least 0, or -1``."""
    if get_origin(kind) is Literal:
        *rest, last = get_args(kind)
        return f"{', '.join(rest)} or {last}"
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


def checked(function):
    """Return the function with its keyword arguments checked against its annotations at each call."""

    @wraps(function)
    def call(*arguments, **keywords):
        check(function, keywords, function.__name__.replace("_", "-"))
        return function(*arguments, **keywords)

    return call


def passes_on(inner, *names):
    """Return a decorator for a function whose ``**keywords`` go to `inner`: it then shows `inner`'s parameters as its own.

    A parameter is declared once, with its range, default and meaning, where it acts; specs, `fnlkit methods` and
    `checked` find it in every function that passes it on. What the function itself declares stays as it is there.

    Parameters
    ----------
    inner : callable
    *names : str
        Which of the keyword-only parameters of `inner` are passed on; all, if none is named.

    Examples
    --------
    >>> def watch(*, patience: Patience = -1): return patience
    >>> @checked
    ... @passes_on(watch)
    ... def method(clients, *, strength: Share = 0.5, **watching): return watch(**watching)
    >>> list(inspect.signature(method).parameters)
    ['clients', 'strength', 'patience']
    >>> method(None, patience=3)
    3
    """

    def decorate(function):
        own = inspect.signature(function)
        # Keywords of another such decorator pass through: only the outermost knows them all.
        plain = function.__wrapped__ if getattr(function, "passer", None) is function else function
        mine = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        theirs = {p.name: p for p in inspect.signature(inner).parameters.values() if p.kind is p.KEYWORD_ONLY}
        passed = [theirs[name] for name in names or theirs if name not in own.parameters]
        shown = own.replace(parameters=mine + passed)

        @wraps(function)
        def call(*arguments, **keywords):
            shown.bind(*arguments, **keywords)  # a generator too complains of an unknown keyword as it is called
            return plain(*arguments, **keywords)

        call.__signature__, call.passer, call.inner = shown, call, inner
        return call

    return decorate
