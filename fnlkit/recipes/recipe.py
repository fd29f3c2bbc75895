"""Recipes: published experiments as TOML files, checked before a command runs."""

import os
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import resources
from typing import Any, NamedTuple

from fnlkit import datasets
from fnlkit.artifacts import files, paths
from fnlkit.core import registry
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.core.kinds import KINDS
from fnlkit.core.options import about
from fnlkit.core.spec import bind, find, own_names, parse, rename_components
from fnlkit.experiment import Settings
from fnlkit.experiment.criteria import criterion
from fnlkit.experiment.settings import TrainOptions

MAX_BYTES = 2**20
# Options of a step; options for further input files and for the output are not allowed.
_STEPS = {
    "partition": ("--scheme", "--clients", "--min-samples", "--labels", "--public", "--holdout"),
    "inject-noise": ("--noise",),
    "estimate-noise": ("--estimator", "--apply"),
}
# Required and optional keys of a table.
_KEYS = {
    "a recipe": ({"dataset": str, "seeds": list, "train": dict, "regime": list}, {"title": str, "methods": list}),
    "a regime": ({"name": str, "steps": list, "methods": list},
                 {"dataset": str, "train": dict, "published": dict, "backbone": str}),
    "a method": ({"method": str}, {"name": str, "train": dict}),
}  # fmt: skip
# Options of `train`; none of them is a path.
_TRAIN = [field.name for field in fields(Settings) if field.name not in ("method", "seed")]
_TRAIN += [field.name for field in fields(TrainOptions) if about(field).recipe]


def names() -> list[str]:
    """List the names of the recipes that are included in fnlkit."""
    folder = resources.files("fnlkit.data") / "recipes"
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def load_recipe(name: str, *, dataset: str | None = None, methods: Sequence[str] = ()) -> dict[str, Any]:
    """Load a recipe as a dict: a name of `names()` or the path of a .toml file.

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
    mine = name.endswith(".toml")
    if mine:
        text = files.read_text(name, max_bytes=MAX_BYTES)
    elif name in names():
        text = (resources.files("fnlkit.data") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise InputError(f"no recipe {name!r}{nearest(name, names())}; `fnlkit reproduce` lists all; or name a .toml file")
    try:
        recipe = tomllib.loads(text)
        _check(recipe)
        if dataset:
            replace_dataset(recipe, dataset)
        if mine:
            _locate(recipe, os.path.dirname(os.path.abspath(name)))
        for regime in recipe["regime"] if methods else ():
            regime["methods"] = [{"method": _beside(text, "."), "name": text} for text in dict.fromkeys(methods)]
        check_components(recipe, every=mine)
    except (ValueError, RecursionError) as error:  # ValueError: TOML, an InputError, or a number outside Python's range
        raise InputError(f"{paths.display_path(name)}: {error}") from error
    return recipe


def _check(recipe):
    _check_keys(recipe, "a recipe")
    _check_train(recipe["train"])
    seeds = recipe["seeds"]
    if not seeds or any(type(seed) is not int or not 0 <= seed < 2**63 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds is {seeds}; write distinct whole numbers of at least 0")
    if not recipe["regime"]:
        raise InputError("a recipe needs at least one [[regime]]")
    for regime in recipe["regime"]:
        if isinstance(regime, dict) and "methods" in recipe:
            regime.setdefault("methods", recipe["methods"])
        _check_keys(regime, "a regime")
        for key, kinds in {"steps": str, "methods": str | dict}.items():
            if not regime[key] or not all(isinstance(one, kinds) for one in regime[key]):
                raise InputError(f"regime {regime['name']!r}: {key!r} is {regime[key]}; write texts")
        for text in regime["steps"]:
            step(text)
        for one in regime["methods"]:
            if isinstance(one, dict):
                _check_keys(one, "a method")
        for options in (regime.get("train", {}), *(entry.train for entry in entries(regime))):
            _check_train(options)
        _must_differ([entry.label for entry in entries(regime)], f"regime {regime['name']!r}: two methods")
        for method, number in regime.get("published", {}).items():
            if not (isinstance(number, list) and len(number) in (1, 2) and all(type(one) in (int, float) for one in number)):
                raise InputError(f"published {method!r} is {number}; write [mean, standard deviation] in percent")
    _must_differ([regime["name"] for regime in recipe["regime"]], "two regimes")


def _must_differ(names, what):
    if double := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{what} are called {double!r}, so that a table would count their runs together; rename one")


def _check_keys(table, what):
    required, optional = _KEYS[what]
    known = required | optional
    if not isinstance(table, dict):
        raise InputError(f"{what} is {table!r}; write a table")
    for key in table:
        if key not in known:
            raise InputError(f"{what} has no {key!r}{nearest(key, known)}; write one of {list_names(known)}")
    for key, kind in known.items():
        if key in required and key not in table or not isinstance(table.get(key, kind()), kind):
            raise InputError(f"{what} needs {key!r} as {kind.__name__}")


def _check_train(options):
    for key, value in options.items():
        if key not in _TRAIN:
            raise InputError(f"train has no {key!r}{nearest(key, _TRAIN)} in a recipe; write one of {list_names(_TRAIN)}")
        if not isinstance(value, str | int | float) or (isinstance(value, int) and abs(value) >= 2**63):
            raise InputError(f"train.{key} is {value!r}; write a number or a text")


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
            raise InputError(f"regime {regime['name']!r}: {error}") from error


def must_be_components(named: Mapping[str, Any]) -> None:
    """Raise InputError unless every named component exists and accepts the parameters.

    A user's component is imported.

    Parameters
    ----------
    named : dict of str to object
        Specs by option, such as ``loss`` or ``noise``; other options are ignored, and so is ``auto``.
    """
    for kind, text in named.items():
        if kind in KINDS and text != "auto":
            spec = parse(text, f"`{kind}`")
            bind(spec, find(spec, KINDS[kind].parts(), kind), kind, given=KINDS[kind].given)


def must_be_data(name: str, option: str, folder: str = ".") -> str:
    """Check a data set's name, or the absolute path relative to a folder; raise InputError if there is none.

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
    """Read the Entries of a regime's ``methods``: texts, or tables with ``method``, ``name`` and ``train``."""
    methods = []
    for entry in regime["methods"]:
        if isinstance(entry, str):
            entry = {"method": entry}
        options: Any = entry.get("train", {})
        label = ", ".join([entry["method"], *(f"{name}={value}" for name, value in options.items())])
        methods.append(Entry(entry.get("name", label), entry["method"], options))
    return methods


def step(text: str) -> list[str]:
    """Split one step into words: ``["partition", "--clients=10"]`` for ``partition --clients 10``.

    Raises
    ------
    InputError
        If the command does not make a federation, or names a file to read or write.
    """
    try:
        verb, *words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"step {text!r}: {error}") from error
    if verb not in _STEPS:
        raise InputError(f"step {text!r}: begin with {', '.join(_STEPS)}")
    joined = [verb]
    for word in words:
        if word.startswith("-"):
            joined.append(word)
        else:
            joined[-1] += f"={word}"
    for word in joined:
        option, _, value = word.partition("=")
        if word != verb and (option not in _STEPS[verb] or not value):
            allowed = list_names(_STEPS[verb])
            raise InputError(f"step {text!r}: {option!r} is not allowed in a recipe or has no value; write {allowed}")
    return joined


def _beside(text, folder):
    """Make the paths of the user's components in a spec absolute, relative to a folder."""

    def absolute(name: str) -> str:
        place, _, function = name.rpartition(":")
        if not place.endswith(".py"):
            return name
        path = os.path.abspath(os.path.join(folder, os.path.expanduser(place)))
        if not os.path.isfile(path):
            raise InputError(f"{name!r}: the file {path} does not exist")
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
        regime["methods"] = [{"name": entry.label, "method": locate(entry.method), "train": locate(entry.train)}
                             for entry in entries(regime)]  # fmt: skip
        regime["steps"] = [locate_step(text) if ".py:" in text else text for text in regime["steps"]]
