"""Load torch at first use: commands that only describe components import modules that name torch but do not call it."""

from __future__ import annotations

import sys
import threading
import types
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


_LOADING = threading.RLock()


class _Later(types.ModuleType):
    """A module that is loaded when an attribute is read that an empty module does not have."""

    def __getattr__(self, name):
        # Python 3.15 looks up the text of annotations to find ClassVar: no class of torch is one.
        if sys._getframe(1).f_globals.get("__name__") == "dataclasses":
            raise AttributeError(name)
        with _LOADING:
            if self.__class__ is _Later:  # no other thread was faster
                self.__class__ = types.ModuleType
                self.__path__ = self.__spec__.submodule_search_locations
                self.__loader__.exec_module(self)
        return getattr(self, name)


class _Postponed:
    """Loader of a module that is executed later; `loader` is the module's own loader."""

    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        # Without a path, an import of a submodule reads the attribute and so loads the package first.
        del module.__path__
        module.__class__ = _Later


class _Finder:
    def __init__(self, name):
        self.name = name

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None:
            spec.loader = _Postponed(spec.loader)  # type: ignore[assignment]
        return spec


def postpone(name: str) -> None:
    """Load the package `name` at the first use of an attribute instead of at import; once per process.

    Unlike `importlib.util.LazyLoader`, a second ``import`` statement does not load the package.
    """
    if not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name))
