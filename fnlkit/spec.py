"""Specs: the text `name(key=value, ...)` that names a part and its parameters; parsed, never evaluated."""

import functools
import importlib
import inspect
import re
from dataclasses import dataclass, field

from fnlkit import own
from fnlkit.errors import InputError, nearest
from fnlkit.parameters import SpecText, Text, check

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)(?![\w.:-]))
      | (?P<text>"[^"]*"|'[^']*')
      | (?P<word>[A-Za-z_./~][\w./:~+-]*)
      | (?P<mark>[(),=\[\]])
    )""",
    re.VERBOSE,
)
_CODE = re.compile(r"[\w./~+-]*:[\w./:~+-]*")
_CONSTANTS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Spec:
    """A part by name, with keyword parameters; a value is a number, a text, true, false, none, a list or another Spec."""

    name: str
    parameters: dict = field(default_factory=dict)

    def __str__(self):
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(f'{key}={shown(value)}' for key, value in self.parameters.items())})"


def shown(value):
    """Return the text that a spec writes for a parameter's value."""
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}'" if '"' in value else f'"{value}"'
    return str(value)


def parse(text, option="spec"):
    """Return the Spec that `text` writes down.

    Parameters
    ----------
    text : str or Spec
        For example ``fedcorr(beta=5, usual=flr(strength=3))``.  A bare word is a name; as a parameter's value it becomes a
        Spec without parameters; quotes make it a text.
    option : str
        What the error message calls it.

    Raises
    ------
    InputError
        When the text is no spec.

    Examples
    --------
    >>> from fnlkit.spec import parse
    >>> parse("clients(rho=0.6, tau=0.5)").parameters
    {'rho': 0.6, 'tau': 0.5}
    """
    if isinstance(text, Spec):
        return text
    tokens, at = [], 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if not found:
            raise InputError(f"{option}: cannot read {text!r} from {text[at:].strip()[:20]!r} on; write name(key=value, ...)")
        tokens.append((found.lastgroup, found.group(found.lastgroup)))
        at = found.end()
    reader = _Reader(tokens, text, option)
    spec = reader.value(top=True)
    if reader.tokens or not isinstance(spec, Spec):
        reader.fail()
    return spec


class _Reader:
    def __init__(self, tokens, text, option):
        self.tokens, self.text, self.option = tokens[::-1], text, option

    def fail(self):
        rest = self.tokens[-1][1] if self.tokens else "the end"
        raise InputError(f"{self.option}: cannot read {self.text!r} at {rest!r}; write name(key=value, ...)")

    def take(self, mark=None):
        if not self.tokens or (mark and self.tokens[-1] != ("mark", mark)):
            self.fail()
        return self.tokens.pop()

    def at(self, mark):
        return bool(self.tokens) and self.tokens[-1] == ("mark", mark)

    def value(self, top=False):
        if self.at("["):
            return self.items()
        kind, word = self.take()
        if kind == "number":
            return float(word) if re.search(r"[.eE]", word) else int(word)
        if kind == "text":
            return word[1:-1]
        if kind != "word":
            self.tokens.append((kind, word))
            self.fail()
        if self.at("("):
            return Spec(word, self.arguments())
        if not top and word.lower() in _CONSTANTS:
            return _CONSTANTS[word.lower()]
        return Spec(word)

    def items(self):
        self.take("[")
        out = []
        while not self.at("]"):
            out.append(self.value())
            if not self.at("]"):
                self.take(",")
        self.take("]")
        return out

    def arguments(self):
        self.take("(")
        out = {}
        while not self.at(")"):
            kind, key = self.take()
            if kind != "word" or key in out:
                self.tokens.append((kind, key))
                self.fail()
            self.take("=")
            out[key] = self.value()
            if not self.at(")"):
                self.take(",")
        self.take(")")
        return out


def own_code(text):
    """Return the parts of a spec, or of any text, that stand for code beside fnlkit's: ``module:function``.

    What a file says is never imported without its reader's word; this is how a file is asked.
    """
    return _CODE.findall(text)


def find(name, table, what):
    """Return the function that `name` stands for.

    Parameters
    ----------
    name : str
        A key of `table`, or ``FILE.py:NAME`` or ``module:NAME`` of the user's (fnlkit.own).
    table : dict of str to str
        Names to ``module:function``; nothing is imported before it is asked for.
    what : str
        What the error message calls it, for example ``method``.

    Raises
    ------
    InputError
        When there is no such part.
    """
    if name in table:
        module, _, function = table[name].partition(":")
        return getattr(importlib.import_module(module), function)
    if ":" not in name:
        known = ", ".join(sorted(table))
        raise InputError(f"unknown {what} {name!r}{nearest(name, table)}; known: {known}, or FILE.py:NAME of your own")
    return own.load(name, what)


def bind(spec, function, what, *, given=()):
    """Return `function` with the spec's parameters bound by keyword, each checked against its signature.

    Parameters
    ----------
    spec : Spec
    function : callable
        Its keyword-only parameters are the ones a spec may name; the type of a default decides what a value may be.
    what : str
        What the error message calls it, for example ``method``.
    given : iterable of str
        Parameters that the caller supplies itself and a spec may not name.

    Raises
    ------
    InputError
        For a parameter that does not exist, is missing, or has a value of the wrong kind.
    """
    known = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in given
    }
    values = {}
    for key, value in spec.parameters.items():
        if key not in known:
            names = ", ".join(known) or "none"
            if key in inspect.signature(function).parameters and key not in given:
                raise InputError(f"{what} {spec.name!r}: parameter {key!r} can be named when it stands after a `*` there")
            raise InputError(f"{what} {spec.name!r} has no parameter {key!r}{nearest(key, known)}; it takes: {names}")
        default = "" if known[key].annotation is Text else known[key].default
        if known[key].annotation is SpecText and isinstance(value, Spec):
            value = str(value)
        values[key] = _checked(value, default, f"{what} {spec.name!r}: parameter {key!r}")
    check(function, values, f"{what} {spec.name!r}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in values:
            raise InputError(f"{what} {spec.name!r} needs {key!r}; write {spec.name}({key}=...)")
    return functools.partial(function, **values)


def _checked(value, default, where):
    """A word where a text is wanted is that text; an int where a float is wanted is that float."""
    if isinstance(value, Spec) and isinstance(default, str) and not value.parameters:
        return value.name
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InputError(f"{where} is {shown(value)}; write true or false")
    elif isinstance(default, (int, float)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"{where} is {shown(value)}; write a number")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise InputError(f"{where} is too large; write a number below 2^63")
        if isinstance(default, int) and isinstance(value, float):
            if not value.is_integer():  # infinity neither
                raise InputError(f"{where} is {value}; write a whole number")
            return int(value)
        return float(value) if isinstance(default, float) else value
    elif isinstance(default, str) and not isinstance(value, str):
        raise InputError(f"{where} is {shown(value)}; write a word")
    return value


def written(name, function, given=()):
    """Return how a spec of a part with all its parameters and their defaults is written: ``dirichlet(alpha=0.5)``.

    Parameters
    ----------
    name : str
    function : callable
    given : iterable of str
        Parameters that the caller supplies itself and a spec may not name.
    """
    parts = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and p.name not in given:
            word = isinstance(p.default, str) and re.fullmatch(r"[A-Za-z][\w-]*", p.default)
            default = p.default if word else p.default.__name__ if callable(p.default) else shown(p.default)
            parts.append(f"{p.name}={'...' if p.default is p.empty else default}")
    return f"{name}({', '.join(parts)})" if parts else name
