"""The papers' published settings by name, method/dataset."""

import tomllib
from functools import cache
from importlib import resources

from fnlkit.errors import InputError
from fnlkit.spec import nearest


@cache
def _table():
    return tomllib.loads(resources.files("fnlkit.data").joinpath("presets.toml").read_text(encoding="utf-8"))


def names():
    """Return the names of all presets."""
    return list(_table())


def describe(name):
    """Return all that a preset says.

    Parameters
    ----------
    name : str
        For example ``fedcorr/cifar10``.

    Returns
    -------
    dict
        ``source``, ``dataset``, ``steps`` (the commands before `train`), ``train`` (its options) and, where the paper
        leaves something open, ``unstated``: what it is and what is taken.

    Raises
    ------
    InputError
        When there is no such preset.
    """
    table = _table()
    if name not in table:
        raise InputError(f"--preset: unknown {name!r}{nearest(name, table)}; known: {', '.join(table)}")
    return table[name]


def load(name):
    """Return the options of `fnlkit train` that a preset sets, as a dict of option values.

    Parameters
    ----------
    name : str

    Raises
    ------
    InputError
        When there is no such preset.

    Examples
    --------
    >>> from fnlkit.presets import load
    >>> load("fedcorr/cifar10")["lr"]
    0.03
    """
    return dict(describe(name)["train"])
