"""Recipes and published tables: plan, run, resume, merge and tabulate.  Calling the package runs a recipe."""

import sys
import types


class _Package(types.ModuleType):
    """This package as the function ``fnlkit.reproduce``: the name belongs to both."""

    def __call__(self, recipe, *, say=None, **options):
        """Run a recipe or rows of a published table; see `fnlkit.reproduce.running.reproduce`."""
        from fnlkit.reproduce.running import reproduce

        return reproduce(recipe, say=say, **options)


sys.modules[__name__].__class__ = _Package
