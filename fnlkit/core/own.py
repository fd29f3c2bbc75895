"""Import components from user files by name, and locate errors in user code.

Files and modules that are not installed are searched from the current folder.  A component is imported only if a spec names
it.  Calls of components:

    ==========  ======================================================  ============================================
    part        called as                                               returns
    ==========  ======================================================  ============================================
    loss        (logits (..., B, C), batch, *, parameters)              values (..., B) [, rows to write back]
    method      (clients, model, opt, select, *, rounds, parameters)    a generator of Round that returns the Model
    optimizer   (fit, *, parameters, **settings)                        FedOpt(fit, ..., **settings)
    aggregator  (stacked (K, P), weights (K,), *, [start, slots, ids,   one vector (P,)
                memory,] parameters), see fnlkit/federated/server/aggregation.py
    selector    (*, fraction, parameters)                               a selector with ``fraction``, see selection.py
    regularizer (r, rounds, *, parameters)                              keywords of FedOpt.round, report
    schedule    (done, total, *, parameters)                            factor on the learning rate of the next round
    model       (*, input_shape, classes, parameters)                   a torch.nn.Module
    noise       (ground, *, parameters)                                 fnlkit.simulate.noise.Corruption
    scheme      (labels, classes, clients, rng, *, parameters)          positions of each client's samples
    estimator   (evidence, *, parameters)                               fnlkit.estimators.judgment.Judgment
    backbone    (dataset, forward, *, parameters)                       float (n_train, d)
    ==========  ======================================================  ============================================
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fnlkit.core.errors import InputError, nearest
from fnlkit.core.retired import refuse_retired

# Arguments of each kind of component: positional, and by keyword.
CALLS = {
    "loss": (("logits", "batch"), ()),
    "method": (("clients", "model", "opt", "select"), ("rounds",)),
    "optimizer": (("fit",), ("aggregate", "schedule")),
    "aggregator": (("stacked", "weights"), ()),
    "selector": ((), ("fraction",)),
    "regularizer": (("r", "rounds"), ()),
    "schedule": (("done", "total"), ()),
    "model": ((), ("input_shape", "classes")),
    "noise": (("ground",), ()),
    "scheme": (("labels", "classes", "clients", "rng"), ()),
    "estimator": (("evidence",), ()),
    "backbone": (("dataset", "forward"), ()),
}
# Functions of a user that are no components: a loader of a data set, and a measure of a model's predictions.
FUNCTIONS = {"data set": ((), ()), "measure": (("scores", "labels"), ())}
_ABOUT_CODE = {NameError, UnboundLocalError, AttributeError, TypeError, ImportError, ModuleNotFoundError, RuntimeError}
_LONGEST_PATH = 4096
_FILES: dict[str, str] = {}  # name in sys.modules -> path, of modules imported from a FILE.py
_SOURCES: set[str] = set()  # paths of all files that a user named
_DIGESTS: dict[str, str] = {}  # absolute path of a source -> digest at import


class MistakeInPart(InputError):
    """An error in a user's component; the message contains file, line and function."""


def load_function(target: str, what: str) -> Callable[..., Any]:
    """Import the function that ``FILE.py:NAME`` or ``module:NAME`` names.

    Parameters
    ----------
    target : str
    what : str
        A key of `CALLS` or `FUNCTIONS`; the signature of the function is checked against it.

    Raises
    ------
    InputError
        If the file, module or name does not exist, if the import fails, or if the signature does not fit the call.
    """
    component = _import_named(target, where := f"{what} {target!r}")
    _check(component, what, where)
    return component


def kinds(target: str) -> list[tuple[str, Callable[..., Any]]]:
    """Find [(kind, function)] of all kinds of components that a user's name fits.

    If a kind's arguments have exactly the function's names, only such kinds are returned; a loss is (logits, batch), an
    aggregator (stacked, weights).

    Parameters
    ----------
    target : str

    Raises
    ------
    InputError
        If it cannot be imported, or cannot be called as a component of any kind.
    """
    component = _import_named(target, where := f"component {target!r}")
    fitting, exact, reasons = [], [], []
    for kind, (positions, keywords) in CALLS.items():
        try:
            _check(component, kind, where)
        except InputError as error:
            reasons.append(str(error))
            continue
        fitting.append((kind, component))
        try:
            names = list(inspect.signature(component).parameters)
        except (TypeError, ValueError):  # a function in C
            names = []
        if (positions or keywords) and tuple(names[: len(positions)]) == positions and {*keywords} <= {*names}:
            exact.append((kind, component))
    if not fitting:
        raise InputError(f"{reasons[0]}; it fits no other kind of component either")
    return exact or fitting


def _import_named(target, where):
    """Import and return the object that a user's name refers to."""
    place, _, name = target.rpartition(":")
    path = os.path.abspath(place)
    if place.endswith(".py") and path in _DIGESTS and os.path.isfile(path) and _DIGESTS[path] != _digest(path):
        _forget(path)
    return _attribute(_from_file(place, where) if place.endswith(".py") else _from_module(place, where), place, name, where)


def _attribute(module, place, name, where):
    try:
        return getattr(module, name)
    except AttributeError:
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{where}: {place} has no {name!r}{nearest(name, names)}") from None


def file_module(path: str | os.PathLike[str]) -> types.ModuleType:
    """Import a Python file once.

    The folder of the file is appended to sys.path, so that the file can import neighbors.
    """
    path = os.path.abspath(path)
    stem = os.path.splitext(os.path.basename(path))[0]
    name = f"own_{stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        _reach(os.path.dirname(path))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None  # a path that ends in .py has a loader
        module = importlib.util.module_from_spec(spec)
        _FILES[name] = path
        _SOURCES.add(path)
        _DIGESTS[path] = _digest(path)
        sys.modules[name] = module
        try:
            # Compile here: the cache of the interpreter does not notice an edit within the same second.
            exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
        except BaseException:
            del sys.modules[name], _FILES[name]
            raise
    return sys.modules[name]


def files() -> list[str]:
    """Paths of all files imported by `file_module`.

    Another process that imports these files can use the same names.
    """
    return list(_FILES.values())


def digest(target: str) -> str | None:
    """Identify the current code behind a component's name by its SHA-256, so that a change is noticed.

    None is returned if there is no file.

    It covers the named file and the Python files in its folder that it imports, at any depth. Data files that the code reads
    are not covered; see `data_digest` for names in parameters. Only the packages above a dotted module are imported.

    Parameters
    ----------
    target : str
    """
    path = _source(target)
    return None if path is None or not os.path.isfile(path) else _digest(path)


def data_digest(target: str, name: str) -> str | None:
    """Compute the SHA-256 of a file that a parameter of a component names; None if it names no regular file.

    Parameters
    ----------
    target : str
        Name of the component.
    name : str
        Relative to the folder of the component's file, else to the current folder.
    """
    source = _source(target)
    if not name.strip() or "\0" in name or len(name) > _LONGEST_PATH:
        return None
    name = os.path.expanduser(name)
    paths = [os.path.join(os.path.dirname(source), name)] if source else []
    path = next((path for path in [*paths, name] if os.path.isfile(path)), None)
    return path and hashlib.sha256(Path(path).read_bytes()).hexdigest()


def digest_at_import(target: str) -> str | None:
    """The `digest` of a component's files when this process imported them, or None if it did not."""
    place = target.rpartition(":")[0]
    if place.endswith(".py"):
        return _DIGESTS.get(os.path.abspath(place))
    source = getattr(sys.modules.get(place), "__file__", None)
    return source and _DIGESTS.get(os.path.abspath(source))


def _source(target):
    """Find the absolute path of the file behind a component's name, or None."""
    place = target.rpartition(":")[0]
    if place.endswith(".py"):
        return os.path.abspath(place)
    _reach(os.getcwd())
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec and spec.origin and spec.origin.endswith(".py") else None


def _digest(path):
    total = hashlib.sha256()
    for file in [path, *_beside(path)]:
        content = Path(file).read_bytes()
        total.update(f"{os.path.relpath(file, os.path.dirname(path))}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def _beside(path):
    """Find the sorted paths of the neighboring Python files that a file imports.

    Neighbors are in the folder of `path`; imports are followed to any depth.
    """
    folder, paths, left = os.path.dirname(path), set(), [path]
    while left:
        importing = left.pop()
        for level, name in _imports(importing):
            if not level and name.partition(".")[0] == "fnlkit":  # in a folder with a checkout of fnlkit
                continue
            start = os.path.join(os.path.dirname(importing), *[os.pardir] * (level - 1)) if level else folder
            place = os.path.normpath(os.path.join(start, *name.split(".")))
            for file in (f"{place}.py", os.path.join(place, "__init__.py")):
                if os.path.isfile(file) and file != path and file not in paths:
                    paths.add(file)
                    left.append(file)
    return sorted(paths)


def _imports(path):
    """Yield (level, dotted name) of a file's imports; ``from .a import b`` gives (1, a) and (1, a.b), ``import a`` (0, a)."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):  # reported when the file is imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names)]
            yield from ((node.level, name) for name in names)


def _forget(path):
    """Remove a changed file and the imported files of the same folder from sys.modules.

    The next import then loads these files again.
    """
    changed = {path, *_beside(path)}
    for name, module in list(sys.modules.items()):
        if os.path.abspath(getattr(module, "__file__", None) or "") in changed:
            del sys.modules[name]
            _FILES.pop(name, None)
    linecache.checkcache()
    importlib.invalidate_caches()


def path_of(function: object) -> str | None:
    """Find the path of the FILE.py that a function came from, or None."""
    return _FILES.get(getattr(function, "__module__", None) or "")


def mistake(error: BaseException, *, quoting: bool = True) -> MistakeInPart | None:
    """Locate an error in a user's component: a MistakeInPart with the place, or None.

    None is returned if the exception arose elsewhere.

    Parameters
    ----------
    error : BaseException
    quoting : bool
        False for errors on a client: the text of an exception can quote samples and is left out.  Texts that the interpreter or
        torch wrote about the code only (an unknown name, shapes that do not fit) are kept.
    """
    if isinstance(error, InputError):
        return None
    if isinstance(error, SyntaxError) and error.filename in _SOURCES:
        return MistakeInPart(f"{_display_path(error.filename)}, line {error.lineno}: {type(error).__name__}: {error.msg}")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.abspath(f.filename) in _SOURCES]
    if not frames:
        return None
    last = frames[-1]
    inside = "" if last.name == "<module>" else f", in {last.name}"
    chosen = linecache.getline(last.filename, last.lineno or 0).lstrip().startswith(("raise", "assert"))
    shown = quoting or (type(error) in _ABOUT_CODE and not chosen) or _is_written(error, last)
    text = ": ".join(filter(None, [type(error).__name__, " ".join(str(error).split()) if shown else ""]))
    if isinstance(error, KeyError) and hasattr(error, "known"):  # names of rows, which are code
        text = f"{text}; {error.known}"
    return MistakeInPart(f"{_display_path(last.filename)}, line {last.lineno}{inside}: {text}")


def _is_written(error, frame):
    """Whether the key of a KeyError is a name in the failing line, so that the text is code and no value of a sample."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    line = linecache.getline(frame.filename, frame.lineno)
    return isinstance(key, str) and any(f"{quote}{key}{quote}" in line for quote in "\"'")


def describe_place(function: Any) -> str:
    """Describe the place of a function for messages.

    For example ``mine.py, line 3, in my_loss``, or the name of the component if the location is unknown.
    """
    plain = inspect.unwrap(getattr(function, "func", function))
    name = getattr(plain, "__name__", type(plain).__name__)
    try:
        return f"{_display_path(inspect.getsourcefile(plain))}, line {inspect.getsourcelines(plain)[1]}, in {name}"
    except (OSError, TypeError):
        return name


def _from_file(path, where):
    if not os.path.isfile(path):
        raise InputError(f"{where}: there is no file {path} (seen from {os.getcwd()})")
    return _import(lambda: file_module(path), where)


def _from_module(name, where):
    _reach(os.getcwd())
    module = _import(lambda: importlib.import_module(name), where)
    if source := getattr(module, "__file__", None):
        _SOURCES.add(path := os.path.abspath(source))
        _DIGESTS.setdefault(path, _digest(path))
    return module


def _reach(folder):
    # Append to sys.path, so that a user's file cannot shadow a module that others import.
    if folder not in sys.path:
        sys.path.append(folder)


def _import(action, where):
    try:
        return action()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing a user's file can raise any error
        if isinstance(error, ModuleNotFoundError):
            refuse_retired("module", str(error.name))
            refuse_retired("module", ".".join(str(error.name).split(".")[:2]))
        if named := mistake(error):
            raise named from error
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, ImportError) else error
        raise InputError(f"{where}: {reason}; write name(key=value, ...), or FILE.py:NAME or module:NAME of yours") from error


def _check(component, what, where):
    positions, keywords = (CALLS | FUNCTIONS)[what]
    expected = f"({', '.join([*positions, '*', *keywords, 'parameters'])})"
    if not callable(component):
        raise InputError(f"{where} is {type(component).__name__}; expected a function of {expected}")
    try:
        signature = inspect.signature(component)
    except (TypeError, ValueError):
        return
    place = describe_place(component)
    try:
        bound = signature.bind_partial(*positions, **dict.fromkeys(keywords))
    except TypeError:
        raise InputError(f"{place}: takes {signature}; a {what} is called as {expected}") from None
    open_ones = [
        p.name
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in bound.arguments and p.default is p.empty
    ]
    if open_ones:
        raise InputError(f"{place}: takes {signature}; a {what} is called as {expected}, with its parameters after a `*`")


def _display_path(path):
    """Shorten a path, as seen from the current folder."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near
