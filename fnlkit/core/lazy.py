"""Names of a package that are imported at first use, so that `import fnlkit` stays fast."""

import importlib
from collections.abc import Callable
from typing import Any


def attach(package: str, home: dict[str, str]) -> Callable[[str], Any]:
    """Make the function `__getattr__` of a package that imports names at first use.

    Parameters
    ----------
    package : str
        Full name of the package.
    home : dict of str to str
        Full name of the module that defines each name.

    Raises
    ------
    AttributeError
        From the returned function, if a name is not in `home`.
    ImportError
        For a name of an earlier version, also in ``from PACKAGE import NAME``, which drops the text of an AttributeError.

    Examples
    --------
    >>> from fnlkit.core.lazy import attach
    >>> attach("mine", {"sqrt": "math"})("sqrt")(4)
    2.0
    """

    def load(name: str) -> Any:
        if name not in home:
            from fnlkit.core.retired import RETIRED

            if instead := RETIRED["name"].get(f"{package}.{name}"):
                raise ImportError(f"{package}.{name} was removed: {instead}")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home[name]), name)

    return load
