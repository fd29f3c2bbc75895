"""All kinds of components: tables, options, and descriptions from docstrings."""

import inspect
import re
from collections.abc import Callable
from typing import Any

from fnlkit.core import own, parameters
from fnlkit.core.kinds import KINDS as KINDS
from fnlkit.core.spec import find, format_value


def find_all(name: str) -> list[tuple[str, Callable[..., Any]]]:
    """Find [(kind, function)] of all components with this name, of fnlkit, or of ``FILE.py:NAME``."""
    if ":" in name:
        return own.kinds(name)
    return [(kind, find(name, table, kind)) for kind, part in KINDS.items() if name in (table := part.parts())]


def purpose(function: Callable[..., Any]) -> str:
    """Read the first paragraph of a component's docstring as a line."""
    first = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
    first = first.removeprefix("Return ").rstrip(".")
    return first[:1].upper() + first[1:]


def source(function: Callable[..., Any]) -> str:
    """Read the publication that a component's module cites below its first line, or an empty text."""
    text = (inspect.getdoc(inspect.getmodule(function)) or "").partition("\n")[2].strip().partition("\n\n")[0]
    return " ".join(text.split())


def describe_parameters(kind: str, function: Callable[..., Any]) -> list[tuple[str, str, str, str]]:
    """List (name, default, allowed values, meaning) of the parameters of a spec.

    Parameters that the caller supplies are left out. If the docstring does not describe a parameter, the description is read
    from the function that receives the parameter, or from another function of the module.
    """
    limits, lines = parameters.kinds(function), []
    beside = [part for part in vars(inspect.getmodule(function)).values() if inspect.isfunction(part)]
    passed = [function]
    while (inner := getattr(passed[-1], "inner", None)) is not None:
        passed.append(inner)
    meanings: dict[str, str] = {}
    for part in [*beside, *reversed(passed)]:
        meanings |= {name: text for name, text in _entries(part).items() if text}
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and p.name not in KINDS[kind].given:
            default = "" if p.default is p.empty else p.default.__name__ if callable(p.default) else format_value(p.default)
            default = p.default if isinstance(p.default, str) and re.fullmatch(r"[A-Za-z][\w-]*", p.default) else default
            may_be = parameters.describe_kind(limits[p.name]) if p.name in limits else _by_default(p.default)
            lines.append((p.name, default, may_be, meanings.get(p.name, "")))
    return lines


def explain(function: Callable[..., Any]) -> str:
    """Read the part of a docstring between the first paragraph and the parameters."""
    text = (inspect.getdoc(function) or "").partition("\n\n")[2]
    return re.split(r"(?m)^\w[\w ]*\n-{3,}$", text)[0].strip()


def section(function: Callable[..., Any], name: str) -> str:
    """Read a section of a NumPy docstring, or an empty text."""
    parts = re.split(r"(?m)^(\w[\w ]*)\n-{3,}$", inspect.getdoc(function) or "")
    return dict(zip(parts[1::2], parts[2::2], strict=False)).get(name, "").strip("\n")


def _entries(function):
    """Read the parameters of a docstring as name to meaning, each in one line."""
    entries, names = {}, []
    for line in (section(function, "Parameters") or section(function, "Attributes")).splitlines():
        if line[:1].strip():
            names = [name.strip(" *") for name in line.partition(" : ")[0].split(",")]
            entries |= dict.fromkeys(names, "")
        else:
            entries |= {name: f"{entries[name]} {line.strip()}".strip() for name in names}
    return entries


def _by_default(default):
    if isinstance(default, bool):
        return "true or false"
    return "a number" if isinstance(default, (int, float)) else "a list" if isinstance(default, (list, tuple)) else "a word"
