"""Specs, parameters, declarations, the registry, user files, presets and errors; the names here are for users' components."""

from fnlkit.core.lazy import attach

# Name -> module, imported at first use: `import fnlkit` reads this package first.
_HOME = {
    "Sent": "fnlkit.core.declarations",
    "declare": "fnlkit.core.declarations",
    "method": "fnlkit.core.declarations",
}
__all__ = sorted(_HOME)

# The same names for type checkers, which do not run `__getattr__`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fnlkit.core.declarations import Sent as Sent
    from fnlkit.core.declarations import declare as declare
    from fnlkit.core.declarations import method as method

__getattr__ = attach(__name__, _HOME)
