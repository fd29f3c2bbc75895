"""Messages as Flower's records: a text that names arrays, and the arrays as bytes.

No part of a message is pickled.

A value is plain (numbers, texts, None), a container of values, an array of numbers or the name of a type. Other values
cannot be sent. Received messages are not trusted: every size is compared with the number of received bytes.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
import torch

from fnlkit.errors import InputError

_ORDER = "fnlkit.c-order"  # memory layout of an array
_TYPES = {str(t).removeprefix("torch."): t for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64)}
MAX_DEPTH = 40


class Unreadable(ValueError):
    """Error: a message does not have the format of this module."""


def encode(value: Any) -> Any:
    """Return a RecordDict of a value.

    Raises
    ------
    InputError
        If the value cannot be sent.
    """
    from fnlkit.sites.flower.api import ArrayRecord, ConfigRecord, RecordDict

    arrays: dict[str, Any] = {}
    text = json.dumps(_tree(value, arrays))
    return RecordDict({"text": ConfigRecord({"text": text}), "arrays": ArrayRecord(arrays)})


def decode(records: Any) -> Any:
    """Return the value that was passed to `encode`. Tensors are new copies, and each array is in the value once at most.

    Raises
    ------
    Unreadable
    """
    try:
        return _value(json.loads(records["text"]["text"]), dict(records["arrays"]), MAX_DEPTH)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        raise Unreadable(type(error).__name__) from error


def array(values: torch.Tensor | np.ndarray) -> Any:
    """Return Flower's Array of a Tensor or NumPy array, with only type, shape and bytes."""
    from fnlkit.sites.flower.api import Array

    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    if values.dtype.kind not in "biuf":
        raise InputError(f"an array of {values.dtype} cannot be sent to another process; expected numbers")
    return Array(dtype=values.dtype.newbyteorder("=").name, shape=tuple(values.shape), stype=_ORDER, data=values.tobytes())


def numbers(record: Any) -> np.ndarray:
    """Return the writable NumPy array of a Flower Array.

    Raises
    ------
    Unreadable
        If it does not have the format that `array` writes.
    """
    from fnlkit.sites.flower.api import Array

    if not isinstance(record, Array):
        raise Unreadable("record")
    dtype, shape = np.dtype(str(record.dtype)), tuple(int(side) for side in record.shape)
    if record.stype != _ORDER or dtype.kind not in "biuf" or min(shape, default=0) < 0:
        raise Unreadable("array")
    if math.prod(shape) * dtype.itemsize != len(record.data):
        raise Unreadable("size")
    return np.frombuffer(bytearray(record.data), dtype).reshape(shape)


def _tree(value, arrays):
    """Return JSON for a value. Arrays are appended to `arrays` and named by their index."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        kind = "tensor" if isinstance(value, torch.Tensor) else "array" if isinstance(value, np.ndarray) else "number"
        name = str(len(arrays))
        arrays[name] = array(value if kind != "number" else np.asarray(value))
        return {kind: name}
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
        values = numbers(arrays.pop(inner))
        return torch.from_numpy(values) if kind == "tensor" else values if kind == "array" else values[()]
    if kind == "bytes":
        return base64.b64decode(inner, validate=True)
    if kind == "type":
        return _TYPES[inner]
    if kind == "dict":
        return {_value(k, arrays, depth - 1): _value(v, arrays, depth - 1) for k, v in inner}
    return {"list": list, "tuple": tuple}[kind](_value(v, arrays, depth - 1) for v in inner)
