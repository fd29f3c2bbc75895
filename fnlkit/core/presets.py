"""Published settings of the papers, by method/dataset."""

import tomllib
from collections.abc import Collection
from functools import cache
from importlib import resources
from typing import Any

from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.core.parameters import Patience, Rounds, kinds
from fnlkit.core.registry import METHODS
from fnlkit.core.spec import Spec, find, parse


@cache
def _table():
    return tomllib.loads(resources.files("fnlkit.data").joinpath("presets.toml").read_text(encoding="utf-8"))


def names() -> list[str]:
    """List the names of all presets."""
    return list(_table())


def describe(name: str) -> dict[str, Any]:
    """Read the contents of a preset.

    Parameters
    ----------
    name : str
        For example ``fedcorr/cifar10``.

    Returns
    -------
    dict
        ``source``, ``dataset``, ``steps`` (the commands before `train`), ``train`` (the options) and, if the paper leaves a
        setting open, ``unstated``: the setting and the value used here.

    Raises
    ------
    InputError
        If there is no such preset.
    """
    table = _table()
    if name not in table:
        raise InputError(f": unknown {name!r}{nearest(name, table)}; known: {list_names(table)}", parameter="preset")
    return table[name]


def load_preset(name: str) -> dict[str, Any]:
    """Read the options of `fnlkit train` that a preset sets, by name.

    Parameters
    ----------
    name : str

    Raises
    ------
    InputError
        If there is no such preset.

    Examples
    --------
    >>> from fnlkit.core.presets import load_preset
    >>> load_preset("fedcorr/cifar10")["lr"]
    0.03
    """
    return dict(describe(name)["train"])


def remaining_options(name: str, given: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Remove the given options from a preset: the remaining ones, and the method parameters left out.

    Numbers of rounds in a method's parameters (all parameters with the default -1) are parts of the preset's budget.  With
    another budget these parameters are left out, so that the method splits the new budget.

    Parameters
    ----------
    name : str
    given : iterable of str
        Options given by the user.

    Returns
    -------
    options : dict
        Option values; none of `given`.
    left_out : list of str
        ``parameter=value`` of the method's parameters that were left out, usually [].

    Examples
    --------
    >>> from fnlkit.core.presets import remaining_options
    >>> options, left_out = remaining_options("fedefc/mnist", ["rounds"])
    >>> options["method"], left_out
    ('fedefc', ['start=10', 'patience=3'])
    """
    options = {key: value for key, value in load_preset(name).items() if key not in given}
    if "method" not in options or not {"rounds", "fraction"} & set(given):
        return options, []
    options["method"], left_out = of_any_budget(options["method"])
    return options, left_out


def of_any_budget(method: str) -> tuple[str, list[str]]:
    """Remove numbers of rounds from a method: (method, parameters left out).

    The result is valid for any budget.  The numbers of rounds of a nested method (`usual`) are removed as well.

    Parameters
    ----------
    method : str

    Examples
    --------
    >>> from fnlkit.core.presets import of_any_budget
    >>> of_any_budget("fedefc(start=10, patience=3, clip=true)")
    ('fedefc(clip=true)', ['start=10', 'patience=3'])
    """
    method = parse(method, "`method`")
    known = kinds(find(method, METHODS, "method"))
    share = {key for key in method.parameters if key in known and known[key] in (Rounds, Patience)}
    fixed = {key: value for key, value in method.parameters.items() if key not in share}
    left_out = [f"{key}={method.parameters[key]}" for key in method.parameters if key in share]
    if isinstance(fixed.get("usual"), Spec):
        usual, more = of_any_budget(fixed["usual"])
        fixed, left_out = fixed | {"usual": parse(usual)}, left_out + more
    return str(Spec(method.name, fixed)), left_out
