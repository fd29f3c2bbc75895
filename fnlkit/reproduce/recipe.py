"""Recipes: published experiments as TOML files, checked before a command runs."""

import os
import re
import shlex
import tomllib
from importlib import resources

from fnlkit.artifacts import files, paths
from fnlkit.components.spec import own_names, renamed
from fnlkit.errors import InputError, nearest

MAX_BYTES = 2**20
_MAX_JOBS = 100_000
_LONGEST = 10_000  # characters of a step or a method
# 16 parts of a dotted key, bare or quoted, as TOML allows them. Possessive, and anchored at the beginning of a bare part, so
# that a text without such a key is read once.
_LONG_KEY = re.compile(r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){16}""")
# Options of a step; options for further input files and for the output are not allowed.
_STEPS = {
    "partition": ("--scheme", "--clients", "--min-samples", "--labels", "--public"),
    "inject-noise": ("--noise",),
    "estimate-noise": ("--estimator", "--apply"),
}
# Options of `train` in addition to its settings; none of them is a path.
_TRAIN = ("preset", "engine", "device", "workers", "at_once", "checkpoint_every", "client_timeout")
_TOP = {"title": str, "dataset": str, "seeds": list, "methods": list, "train": dict, "regime": list}
_REGIME = {"name": str, "steps": list, "methods": list, "train": dict, "published": dict, "backbone": str}
_NEEDED = {"a recipe": ("dataset", "seeds", "train", "regime"), "a regime": ("name", "steps", "methods")}


def names():
    """Return the names of the recipes that are included in fnlkit."""
    folder = resources.files("fnlkit.data") / "recipes"
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def load(name):
    """Return a recipe as a dict: a name of `names()` or the path of a .toml file.

    A recipe is trusted like the user's input, so it can name the user's components.  ``FILE.py:NAME`` is relative to the
    recipe's folder; the returned dict has absolute paths.

    Parameters
    ----------
    name : str

    Raises
    ------
    InputError
        If the recipe does not exist or contains an entry that is not allowed.
    """
    if name.endswith(".toml"):
        text = files.read_text(name, max_bytes=MAX_BYTES)
    elif name in names():
        text = (resources.files("fnlkit.data") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise InputError(f"no recipe {name!r}{nearest(name, names())}; known: {', '.join(names())}, or a .toml file")
    shown = paths.shown(name)
    if _LONG_KEY.search(text):
        raise InputError(f"{shown}: not a recipe: a key of more than 16 parts")
    try:
        recipe = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{shown}: not a recipe: {error}") from error
    except ValueError as error:  # numbers and dates outside Python's range
        raise InputError(f"{shown}: not a recipe: {error}") from error
    try:
        _check(recipe)
        if name.endswith(".toml"):
            _locate(recipe, os.path.dirname(os.path.abspath(name)))
    except InputError as error:
        raise InputError(f"{shown}: {error}") from error
    return recipe


def _check(recipe):
    _table(recipe, _TOP, "a recipe")
    odd = next((text for text in _texts(recipe) if not text.isprintable()), None)
    if odd is not None:
        raise InputError(f"{_short(odd)} contains control characters; write plain text")
    seeds = recipe["seeds"]
    if not seeds or not all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise InputError(f"`seeds` is {_short(seeds)}; write distinct whole numbers of at least 0")
    if not recipe["regime"]:
        raise InputError("a recipe needs at least one [[regime]]")
    jobs = 0
    for regime in recipe["regime"]:
        if isinstance(regime, dict) and "methods" in recipe:
            regime.setdefault("methods", recipe["methods"])
        _table(regime, _REGIME, "a regime")
        for key in ("steps", "methods"):
            if not regime[key] or not all(isinstance(text, str) and 0 < len(text.strip()) <= _LONGEST for text in regime[key]):
                raise InputError(f"regime {_short(regime['name'])}: {key!r} is {_short(regime[key])}; write texts")
        for text in regime["steps"]:
            step(text)
        for method, number in regime.get("published", {}).items():
            if not (isinstance(number, list) and 1 <= len(number) <= 2 and all(map(_real, number))):
                raise InputError(f"published {method!r} is {_short(number)}; write [mean, standard deviation] in percent")
        jobs += len(regime["methods"]) * len(seeds)
    if jobs > _MAX_JOBS:
        raise InputError(f"{jobs:,} runs; expected at most {_MAX_JOBS:,}")
    for options in (recipe["train"], *(regime.get("train", {}) for regime in recipe["regime"])):
        _train(options)
    for regime in recipe["regime"]:
        try:
            _runs(regime["methods"], recipe["train"] | regime.get("train", {}))
        except InputError as error:
            raise InputError(f"regime {_short(regime['name'])}: {error}") from error


def _texts(value):
    """Yield all texts in a value, including keys."""
    if isinstance(value, str):
        yield value
    for part in value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else ():
        yield from _texts(part)


def _table(table, known, what):
    if not isinstance(table, dict):
        raise InputError(f"{what} is {_short(table)}; write a table")
    for key, value in table.items():
        if key not in known:
            raise InputError(f"{what} has no {_short(key)}{nearest(key, known)}; write one of {', '.join(known)}")
        if not isinstance(value, known[key]):
            raise InputError(f"{what} needs {key!r} as {known[key].__name__}, found {_short(value)}")
    for key in _NEEDED[what]:
        if key not in table:
            raise InputError(f"{what} needs {key!r} ({known[key].__name__})")


def step(text):
    """Return the arguments of one step, for example ``partition --clients 10``.

    Raises
    ------
    InputError
        If the command does not make a federation, or names a file to read or write.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"step {_short(text)}: {error}") from error
    if not words or words[0] not in _STEPS:
        raise InputError(f"step {_short(text)}: begin with {', '.join(_STEPS)}")
    allowed, rest = _STEPS[words[0]], words[1:]
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if option not in allowed:
            raise InputError(f"step {_short(text)}: {_short(option)} is not allowed in a recipe; write {', '.join(allowed)}")
        if not equals and (not rest or rest[0].startswith("--")):
            raise InputError(f"step {_short(text)}: {option} needs a value")
        if not equals:
            rest.pop(0)
    return words


def _train(options):
    from dataclasses import fields

    from fnlkit.experiment import Settings

    known = [field.name for field in fields(Settings) if field.name not in ("method", "seed")] + list(_TRAIN)
    for key, value in options.items():
        if key not in known:
            raise InputError(f"train has no {_short(key)}{nearest(key, known)} in a recipe; write one of {', '.join(known)}")
        if not isinstance(value, (str, int, float)) or (isinstance(value, int) and abs(value) >= 2**63):
            raise InputError(f"train.{key} is {_short(value)}; write a number or a text")


def _runs(methods, options):
    """Raise InputError unless `train` accepts these methods with these options."""
    from dataclasses import fields

    from fnlkit.components import registry
    from fnlkit.experiment import Settings

    settings = {field.name: options[field.name] for field in fields(Settings) if field.name in options}
    for method in methods:
        Settings(**settings, method=method)
        if not own_names(method):  # imported when the recipe runs
            registry.method(method)


def _locate(recipe, folder):
    """Make paths of the user's components absolute, in place, relative to the recipe's folder."""

    def absolute(name):
        place, _, function = name.rpartition(":")
        if not place.endswith(".py"):
            return name
        path = os.path.normpath(os.path.join(folder, os.path.expanduser(place)))
        if not os.path.isfile(path):
            raise InputError(f"{_short(name)}: the file {path} does not exist")
        return f"{path}:{function}"

    def located(text):
        return renamed(text, absolute) if isinstance(text, str) and ".py:" in text else text

    def located_step(text):
        words = []
        for word in step(text):
            option, equals, value = word.partition("=")
            words.append(f"{option}={located(value)}" if option.startswith("--") and equals else located(word))
        return shlex.join(words)

    for options in (recipe["train"], *(regime.get("train", {}) for regime in recipe["regime"])):
        options |= {key: located(value) for key, value in options.items()}
    for regime in recipe["regime"]:
        regime["methods"] = [located(method) for method in regime["methods"]]
        regime["steps"] = [located_step(text) if ".py:" in text else text for text in regime["steps"]]
        regime["published"] = {located(name): number for name, number in regime.get("published", {}).items()}
        if "backbone" in regime:
            regime["backbone"] = located(regime["backbone"])


def _real(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e6


def _short(value):
    try:
        text = repr(value)
    except ValueError:  # Python formats no number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
