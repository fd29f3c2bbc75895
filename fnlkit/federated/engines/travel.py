"""Packing of steps for another process.

Functions are sent by name, functions of a user's file by the path of the file. Code is never sent.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fnlkit.core import own
from fnlkit.core.errors import InputError
from fnlkit.core.spec import MessageText
from fnlkit.federated.client.inputs import Augment
from fnlkit.federated.client.training import Fit

_PLAIN = (bool, int, float, str, bytes, type(None), torch.Tensor, torch.dtype, np.ndarray, np.generic)
_RECORDS = {"Fit": Fit, "Augment": Augment}


def pack(value: Any) -> tuple[Any, ...]:
    """Convert a step, or a value bound to a step, to names and plain values.

    Raises
    ------
    InputError
        If a function has no name in an importable module, or if a value has an unsupported type.
    """
    if isinstance(value, functools.partial):
        return ("partial", pack(value.func), pack(value.args), pack(value.keywords))
    if isinstance(value, tuple(_RECORDS.values())):
        record: Any = value
        fields = {f.name: pack(getattr(value, f.name)) for f in dataclasses.fields(record)}
        return ("record", type(value).__name__, fields)
    if isinstance(value, _PLAIN):
        return ("plain", value)
    if isinstance(value, (list, tuple)):
        return ("list" if isinstance(value, list) else "tuple", [pack(v) for v in value])
    if isinstance(value, dict):
        return ("dict", {k: pack(v) for k, v in value.items()})
    if "<" not in getattr(value, "__qualname__", "") and (path := own.path_of(value)):
        return ("own", path, value.__qualname__)
    return ("function", *_name(value))


def unpack(packed: Sequence[Any], allowed: Callable[[str, str], bool] | None = None) -> Any:
    """Restore the value that was passed to `pack`.

    Parameters
    ----------
    packed : tuple
    allowed : callable (module, name) -> bool, or None
        Selects the functions that a message from another machine can name. Texts in such a message become
        `fnlkit.core.spec.MessageText`, so that no spec among them imports or reads a file. None means that
        the message comes from this machine and can name any function.

    Raises
    ------
    InputError
        If a function is not allowed.
    """
    kind, *rest = packed
    inner = functools.partial(unpack, allowed=allowed)
    if kind == "partial":
        function, args, keywords = rest
        return functools.partial(inner(function), *inner(args), **inner(keywords))
    if kind == "record":
        return _RECORDS[rest[0]](**{k: inner(v) for k, v in rest[1].items()})
    if kind == "plain":
        return MessageText(rest[0]) if allowed and isinstance(rest[0], str) else rest[0]
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](map(inner, rest[0]))
    if kind == "dict":
        return {k: inner(v) for k, v in rest[0].items()}
    if allowed and (kind != "function" or not allowed(*rest)):
        raise InputError("a message names a function that is no step, loss or drift term of fnlkit")
    module = own.file_module(rest[0]) if kind == "own" else importlib.import_module(rest[0])
    return functools.reduce(getattr, rest[1].split("."), module)


def _name(function):
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module and name and module != "__main__" and "<" not in name:
        try:
            if functools.reduce(getattr, name.split("."), importlib.import_module(module)) is function:
                return module, name
        except (ImportError, AttributeError):
            pass
    raise InputError(
        f"{name or repr(function)} of {module or type(function).__name__} cannot be sent to another process: expected a "
        "function at the top of an importable module; bind its parameters with functools.partial, or write "
        "`engine='sequential'`"
    )
