"""Components of other installed packages, registered by entry points such as `fnlkit.methods`.

A package registers the function `focus` of the module `focus` as the loss ``focus`` in pyproject.toml:

    [project.entry-points."fnlkit.losses"]
    focus = "focus:focus"

Entry points are read when a name is not built in, so that importing fnlkit reads none.  They are code that a person installed
on this machine: files can name them, messages of a server cannot.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from fnlkit.components import own
from fnlkit.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Group of entry points of each kind of component; the functions are called as in `fnlkit.components.own`.
GROUPS = {
    "method": "fnlkit.methods",
    "loss": "fnlkit.losses",
    "optimizer": "fnlkit.optimizers",
    "aggregator": "fnlkit.aggregators",
    "selector": "fnlkit.selectors",
    "regularizer": "fnlkit.regularizers",
    "model": "fnlkit.models",
    "noise": "fnlkit.noise",
    "scheme": "fnlkit.schemes",
    "estimator": "fnlkit.estimators",
    "backbone": "fnlkit.backbones",
}
# Name -> ``module:NAME`` of the components that this process imported.
TARGETS: dict[str, str] = {}


@cache
def registered(what: str) -> "dict[str, list[EntryPoint]]":
    """Return the entry points of a kind of component by name.

    Parameters
    ----------
    what : str
        A key of `GROUPS`; other kinds have no entry points.
    """
    from importlib.metadata import entry_points  # takes 20 ms, which commands without such a name save

    entries: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUPS[what]) if what in GROUPS else ():
        entries.setdefault(entry.name, []).append(entry)
    return entries


def find_installed(name: str, what: str) -> Callable[..., Any] | None:
    """Return the component that an installed package registers under a name, or None.

    Parameters
    ----------
    name : str
    what : str
        The kind of component.

    Raises
    ------
    InputError
        If several packages register the name, if the import fails, or if the signature does not fit the kind.
    """
    entries = registered(what).get(name, [])
    if len({entry.value for entry in entries}) > 1:
        packages = " and ".join(sorted(map(describe_package, entries)))
        raise InputError(f"{what} {name!r}: registered by {packages}; uninstall one of them, or write module:NAME")
    if not entries:
        return None
    try:
        component = own.load_installed(entries[0].value, what)
    except InputError as error:
        raise InputError(f"{what} {name!r} of the package {describe_package(entries[0])}: {error}") from error
    TARGETS[name] = entries[0].value
    return component


def describe_package(entry: "EntryPoint") -> str:
    """Return name and version of the package of an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def describe_registered() -> str:
    """Return the components of all installed packages by kind, as text; empty if there are none.

    For example ``loss focus (sharp 1.0)``.  No package is imported.
    """
    rows = [(what, name, entry) for what in GROUPS for name, entries in registered(what).items() for entry in entries]
    return ", ".join(f"{what} {name} ({describe_package(entry)})" for what, name, entry in rows)
