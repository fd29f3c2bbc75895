"""Recipes: published experiments as TOML files, checked before a command runs."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module, resources
from typing import Any, NamedTuple

from fnlkit import datasets
from fnlkit.artifacts import files, paths
from fnlkit.core import registry
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.core.options import about
from fnlkit.core.spec import bind, find, own_names, parse, rename_components
from fnlkit.experiment import Settings
from fnlkit.experiment.criteria import criterion
from fnlkit.experiment.settings import TrainOptions

MAX_BYTES = 2**20
_MAX_JOBS = 100_000
_LONGEST = 10_000  # characters of a step or a method
# 16 parts of a dotted key, bare or quoted, as TOML allows them. Possessive, and anchored at the beginning of a bare part, so
# that a text without such a key is read once.
_LONG_KEY = re.compile(r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){16}""")
# Options of a step; options for further input files and for the output are not allowed.
_STEPS = {
    "partition": ("--scheme", "--clients", "--min-samples", "--labels", "--public", "--holdout"),
    "inject-noise": ("--noise",),
    "estimate-noise": ("--estimator", "--apply"),
}
# Options of `train` in addition to its settings; none of them is a path.
_TRAIN = tuple(one.name for one in fields(TrainOptions) if about(one).recipe)
_TOP = {"title": str, "dataset": str, "seeds": list, "methods": list, "train": dict, "regime": list}
_REGIME = {"name": str, "dataset": str, "steps": list, "methods": list, "train": dict, "published": dict, "backbone": str}
_METHOD = {"method": str, "name": str, "train": dict}
_NEEDED = {
    "a recipe": ("dataset", "seeds", "train", "regime"),
    "a regime": ("name", "steps", "methods"),
    "a method": ("method",),
}
# Kind of component: its registry, and the parameters that the caller supplies.
_TABLES = {
    "loss": ("fnlkit.core.registry:LOSSES", ()),
    "optimizer": ("fnlkit.core.registry:OPTIMIZERS", ("aggregate", "schedule")),
    "aggregator": ("fnlkit.core.registry:AGGREGATORS", registry.AGGREGATED),
    "selector": ("fnlkit.core.registry:SELECTORS", ("fraction",)),
    "schedule": ("fnlkit.core.registry:SCHEDULES", ()),
    "model": ("fnlkit.models:NETWORKS", ("input_shape", "classes")),
    "noise": ("fnlkit.simulate.noise.injection:MODELS", ()),
    "scheme": ("fnlkit.simulate.partitioning:SCHEMES", ("fields",)),
    "estimator": ("fnlkit.estimators:ESTIMATORS", ()),
    "backbone": ("fnlkit.encoders.embed:BACKBONES", ()),
}


def names() -> list[str]:
    """Return the names of the recipes that are included in fnlkit."""
    folder = resources.files("fnlkit.data") / "recipes"
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def load_recipe(name: str, *, dataset: str | None = None, methods: Sequence[str] = ()) -> dict[str, Any]:
    """Return a recipe as a dict: a name of `names()` or the path of a .toml file.

    A recipe is trusted like the user's input, so it can name the user's components.  ``FILE.py:NAME`` and paths of data sets
    are relative to the recipe's folder; the returned dict has absolute paths.

    Parameters
    ----------
    name : str
    dataset : str or None
        Replaces the recipe's data sets.
    methods : sequence of str
        Replace the recipe's methods; ``FILE.py:NAME`` is relative to the working folder.

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
        raise InputError(f"no recipe {name!r}{nearest(name, names())}; `fnlkit reproduce` lists all; or name a .toml file")
    shown = paths.display_path(name)
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
        if dataset:
            replace_dataset(recipe, dataset)
        if name.endswith(".toml"):
            _locate(recipe, os.path.dirname(os.path.abspath(name)))
        for regime in recipe["regime"] if methods else ():
            regime["methods"] = [{"method": _beside(text, "."), "name": text} for text in methods]
        check_components(recipe, every=name.endswith(".toml"))
    except InputError as error:
        raise InputError(f"{shown}: {error}") from error
    return recipe


def _check(recipe):
    _table(recipe, _TOP, "a recipe")
    odd = next((text for text in _texts(recipe) if not text.isprintable()), None)
    if odd is not None:
        raise InputError(f"{_short(odd)} contains control characters; write plain text")
    _must_be_seeds(recipe["seeds"])
    if not recipe["regime"]:
        raise InputError("a recipe needs at least one [[regime]]")
    jobs = 0
    for regime in recipe["regime"]:
        if isinstance(regime, dict) and "methods" in recipe:
            regime.setdefault("methods", recipe["methods"])
        _table(regime, _REGIME, "a regime")
        for key in ("steps", "methods"):
            texts = [one for one in regime[key] if not (key == "methods" and isinstance(one, dict))]
            if not regime[key] or not all(isinstance(text, str) and 0 < len(text.strip()) <= _LONGEST for text in texts):
                raise InputError(f"regime {_short(regime['name'])}: {key!r} is {_short(regime[key])}; write texts")
        for text in regime["steps"]:
            step(text)
        for one in regime["methods"]:
            if isinstance(one, dict):
                _table(one, _METHOD, "a method")
                _train(one.get("train", {}))
        labels = [entry.label for entry in entries(regime)]
        if double := next((label for label in labels if labels.count(label) > 1), None):
            raise InputError(f"regime {_short(regime['name'])}: two methods are called {_short(double)}; name one of them")
        for method, number in regime.get("published", {}).items():
            if not (isinstance(number, list) and 1 <= len(number) <= 2 and all(map(_real, number))):
                raise InputError(f"published {method!r} is {_short(number)}; write [mean, standard deviation] in percent")
        jobs += len(regime["methods"]) * len(recipe["seeds"])
    if jobs > _MAX_JOBS:
        raise InputError(f"{jobs:,} runs; expected at most {_MAX_JOBS:,}")
    for options in (recipe["train"], *(regime.get("train", {}) for regime in recipe["regime"])):
        _train(options)


def check_components(recipe: dict[str, Any], *, every: bool = True) -> None:
    """Raise InputError unless the components of all runs exist and accept their parameters.

    Parameters
    ----------
    recipe : dict
    every : bool
        False checks methods and settings only: other components of included recipes import torch and are checked by tests.
    """
    checked: set[str] = set()  # regimes share most methods and settings
    for regime in recipe["regime"]:
        common = recipe["train"] | regime.get("train", {})
        try:
            for _, method, more in entries(regime):
                options = common | more
                if (run := f"{method} {options}") not in checked:
                    checked.add(run)
                    settings = {field.name: options[field.name] for field in fields(Settings) if field.name in options}
                    criterion(Settings(**settings, method=method).select)
                    registry.method(method)
                    must_be_components(options if every else {})
            for words in [step(text)[1:] for text in regime["steps"]] if every else ():
                must_be_components({name.removeprefix("--"): value for name, _, value in (w.partition("=") for w in words)})
            must_be_components({"backbone": regime["backbone"]} if every and "backbone" in regime else {})
        except InputError as error:
            raise InputError(f"regime {_short(regime['name'])}: {error}") from error


def must_be_components(named: Mapping[str, Any]) -> None:
    """Raise InputError unless every named component exists and accepts its parameters.

    A user's component is imported.

    Parameters
    ----------
    named : dict of str to object
        Specs by option, such as ``loss`` or ``noise``; other options are ignored, and so is ``auto``.
    """
    for kind, text in named.items():
        if kind in _TABLES and text != "auto":
            place, supplied = _TABLES[kind]
            module, _, table = place.partition(":")
            spec = parse(text, f"`{kind}`")
            bind(spec, find(spec, getattr(import_module(module), table), kind), kind, given=supplied)


def must_be_data(name: str, option: str, folder: str = ".") -> str:
    """Return a data set's name, or its absolute path relative to a folder; raise InputError if there is none.

    Parameters
    ----------
    name : str
    option : str
        For the message.
    folder : str
    """
    path = os.path.abspath(os.path.join(folder, os.path.expanduser(name)))
    if os.path.exists(path):
        return path
    if own_names(name):
        raise InputError(f"{option} {name}: a recipe reads no function; write its arrays with np.savez and name the npz file")
    if name.partition("(")[0] not in (known := datasets.registry()):
        raise InputError(f"{option} {name}: no such file or data set{nearest(name, known)}; `fnlkit data list` lists all")
    return name


class Entry(NamedTuple):
    """A method of a regime, with options that differ from the other methods of the regime.

    Attributes
    ----------
    label : str
        Name in tables. Default: the method, followed by the options.
    method : str
    train : dict
    """

    label: str
    method: str
    train: dict[str, Any]


def entries(regime: dict[str, Any]) -> list[Entry]:
    """Return the Entries of a regime's ``methods``: texts, or tables with ``method``, ``name`` and ``train``."""
    out = []
    for entry in regime["methods"]:
        if isinstance(entry, str):
            entry = {"method": entry}
        options: Any = entry.get("train", {})
        label = ", ".join([entry["method"], *(f"{name}={value}" for name, value in options.items())])
        out.append(Entry(entry.get("name", label), entry["method"], options))
    return out


def _must_be_seeds(seeds):
    if not seeds or not all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds is {_short(seeds)}; write distinct whole numbers of at least 0")


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
            raise InputError(f"{what} has no {_short(key)}{nearest(key, known)}; write one of {list_names(known)}")
        if not isinstance(value, known[key]):
            raise InputError(f"{what} needs {key!r} as {known[key].__name__}, found {_short(value)}")
    for key in _NEEDED[what]:
        if key not in table:
            raise InputError(f"{what} needs {key!r} ({known[key].__name__})")


def step(text: str) -> list[str]:
    """Return the words of one step: ``["partition", "--clients=10"]`` for ``partition --clients 10``.

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
    allowed, rest, out = _STEPS[words[0]], words[1:], words[:1]
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if option not in allowed:
            raise InputError(f"step {_short(text)}: {_short(option)} is not allowed in a recipe; write {list_names(allowed)}")
        if not equals and (not rest or rest[0].startswith("--")):
            raise InputError(f"step {_short(text)}: {option} needs a value")
        out.append(f"{option}={value if equals else rest.pop(0)}")
    return out


def _train(options):
    known = [field.name for field in fields(Settings) if field.name not in ("method", "seed")] + list(_TRAIN)
    for key, value in options.items():
        if key not in known:
            raise InputError(f"train has no {_short(key)}{nearest(key, known)} in a recipe; write one of {list_names(known)}")
        if not isinstance(value, (str, int, float)) or (isinstance(value, int) and abs(value) >= 2**63):
            raise InputError(f"train.{key} is {_short(value)}; write a number or a text")


def _beside(text, folder):
    """Return a spec with absolute paths of the user's components, relative to a folder."""

    def absolute(name: str) -> str:
        place, _, function = name.rpartition(":")
        if not place.endswith(".py"):
            return name
        path = os.path.abspath(os.path.join(folder, os.path.expanduser(place)))
        if not os.path.isfile(path):
            raise InputError(f"{_short(name)}: the file {path} does not exist")
        return f"{path}:{function}"

    return rename_components(text, absolute) if ".py:" in text else text


def replace_dataset(recipe: dict[str, Any], dataset: str) -> None:
    """Use another data set in all regimes of a recipe, in place."""
    recipe["dataset"] = dataset
    for regime in recipe["regime"]:
        regime.pop("dataset", None)


def _locate(recipe, folder):
    """Make paths of data sets and of the user's components absolute, in place, relative to the recipe's folder."""

    def locate(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: locate(inner) for key, inner in value.items()}
        return _beside(value, folder) if isinstance(value, str) else value

    def locate_step(text: str) -> str:
        verb, *words = step(text)
        return shlex.join([verb, *(f"{name}={locate(value)}" for name, _, value in (word.partition("=") for word in words))])

    for table in (recipe, *recipe["regime"]):
        if "dataset" in table:
            table["dataset"] = must_be_data(table["dataset"], "dataset", folder)
        table |= {key: locate(table[key]) for key in ("train", "backbone") if key in table}
    for regime in recipe["regime"]:
        regime["methods"] = [{"name": each.label, "method": locate(each.method), "train": locate(each.train)}
                             for each in entries(regime)]  # fmt: skip
        regime["steps"] = [locate_step(text) if ".py:" in text else text for text in regime["steps"]]


def _real(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e6


def _short(value):
    try:
        text = repr(value)
    except ValueError:  # Python formats no number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
