"""Messages between the server and clients in other processes: a JSON header with names, shapes and types, then the arrays.

No part of a message is pickled.  A value is plain (numbers, texts, None), a container of values, an array of numbers or the
name of a type.  Received messages are not trusted: every size is compared with the number of received bytes.
"""

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fnlkit.core.errors import InputError

MAGIC = b"fnlkit.message/1\n"
# Largest size of a header: all names, lists and single numbers.
MOST_TEXT = 2**20
MAX_DEPTH = 40
_TYPES = {str(t).removeprefix("torch."): t for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64)}


class Unreadable(ValueError):
    """Error: bytes do not have the format of this module."""


def encode(value: Any, about: Mapping[str, Any] | None = None) -> bytes:
    """Encode a message as bytes.

    Parameters
    ----------
    value : object
    about : dict of JSON values, optional
        Facts that a receiver reads before the value, see `about_of`.

    Raises
    ------
    InputError
        If the value cannot be sent.
    """
    arrays: list[np.ndarray] = []
    tree = _tree(value, arrays)
    forms = [[array.dtype.name, list(array.shape)] for array in arrays]
    header = json.dumps({"about": dict(about or {}), "value": tree, "arrays": forms}).encode()
    return b"".join([MAGIC, len(header).to_bytes(8, "little"), header, *(array.tobytes() for array in arrays)])


def about_of(data: bytes) -> dict[str, Any]:
    """Read the facts of a message without reading its value.

    Raises
    ------
    Unreadable
    """
    try:
        about = _header(data)[0]["about"]
    except Unreadable:
        raise
    except (KeyError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(type(error).__name__) from error
    if not isinstance(about, dict):
        raise Unreadable("about")
    return about


def decode(data: bytes) -> Any:
    """Decode the value that was passed to `encode`.  Arrays are new copies, and each array is in the value once.

    Raises
    ------
    Unreadable
    """
    try:
        header, start = _header(data)
        arrays = _arrays(header["arrays"], data, start)
        value = _value(header["value"], arrays, MAX_DEPTH)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError, RecursionError, MemoryError) as error:
        raise Unreadable(type(error).__name__) from error
    if any(array is not None for array in arrays):
        raise Unreadable("an array has no name")
    return value


def _header(data):
    """Read (header, position of the first array)."""
    start = len(MAGIC) + 8
    if not isinstance(data, bytes) or data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise Unreadable("magic")
    size = int.from_bytes(data[len(MAGIC) : start], "little")
    if size > min(MOST_TEXT, len(data) - start):
        raise Unreadable(f"a header of {size:,} bytes")
    return json.loads(data[start : start + size]), start + size


def _arrays(forms, data, start):
    """Read the writable arrays behind a header."""
    arrays = []
    for name, shape in forms:
        dtype = np.dtype(name)
        if dtype.kind not in "biuf" or not all(type(side) is int and side >= 0 for side in shape):
            raise Unreadable("array")
        end = start + math.prod(shape) * dtype.itemsize
        if end > len(data):
            raise Unreadable("size")
        arrays.append(np.frombuffer(bytearray(data[start:end]), dtype).reshape(shape))
        start = end
    if start != len(data):
        raise Unreadable("size")
    return arrays


def _tree(value, arrays):
    """Convert a value to JSON.  Arrays are appended to `arrays` and named by their index."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        kind = "tensor" if isinstance(value, torch.Tensor) else "array" if isinstance(value, np.ndarray) else "number"
        array = np.asarray(value.detach().cpu().numpy() if kind == "tensor" else value)
        if array.dtype.kind not in "biuf":
            raise InputError(f"an array of {array.dtype} cannot be sent to another process; expected numbers")
        arrays.append(array.astype(array.dtype.newbyteorder("="), copy=False))
        return {kind: len(arrays) - 1}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, torch.dtype) and value in _TYPES.values():
        return {"type": str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [_tree(v, arrays) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[_tree(k, arrays), _tree(v, arrays)] for k, v in value.items()]}
    raise InputError(f"a {type(value).__name__} cannot be sent to another process; expected numbers, texts or arrays")


def _value(tree, arrays, depth):
    if depth < 0:
        raise Unreadable("depth")
    if not isinstance(tree, dict):
        if isinstance(tree, list):
            raise Unreadable("list")
        return tree
    ((kind, inner),) = tree.items()
    if kind in ("tensor", "array", "number"):
        values, arrays[inner] = arrays[inner], None
        return torch.from_numpy(values) if kind == "tensor" else values if kind == "array" else values[()]
    if kind == "bytes":
        return base64.b64decode(inner, validate=True)
    if kind == "type":
        return _TYPES[inner]
    if kind == "dict":
        return {_value(k, arrays, depth - 1): _value(v, arrays, depth - 1) for k, v in inner}
    return {"list": list, "tuple": tuple}[kind](_value(v, arrays, depth - 1) for v in inner)
