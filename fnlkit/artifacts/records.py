"""Write records as JSON values, and read them with a check of every type and range.

A record is a dataclass. Its field types are JSON types, other records, and lists, tuples, unions and dicts of these.
A union of records is read as the first one whose required entries are there.

msgspec and pydantic have no advantage here: the first reads no union of records, turns 2 into 2.0 where a float is expected,
and does not print what it found; the second converts texts to numbers or refuses objects for dataclasses.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from fnlkit.core.errors import InputError

R = TypeVar("R")


class Within(NamedTuple):
    """Range of a number, or of the length of a text or list: ``Annotated[int, Within(1, 9)]``."""

    low: int = 0
    high: int = 2**63 - 1


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list", dict: "an object"}

# Metadata of a field that is omitted from JSON if it is None: `field(default=None, metadata=OMIT_NONE)`. The metadata
# {"key": NAME} gives a field another name in JSON.
OMIT_NONE = {"omit": True}


def to_json(record: Any) -> Any:
    """Convert a record to JSON values, with the entries in the order of the fields.

    Parameters
    ----------
    record : dataclass, or list, tuple or dict of records
        Other values are returned unchanged.
    """
    if is_dataclass(record) and not isinstance(record, type):
        values = ((entry, getattr(record, entry.name)) for entry in fields(record))
        return {_key(entry): to_json(value) for entry, value in values if value is not None or not entry.metadata.get("omit")}
    if isinstance(record, dict):
        return {name: to_json(value) for name, value in record.items()}
    return [to_json(value) for value in record] if isinstance(record, (list, tuple)) else record


def from_json(kind: type[R], value: object, where: str) -> R:
    """Read a record from JSON values. Entries without a field are ignored.

    Parameters
    ----------
    kind : type
        Class of the record.
    value : JSON value
    where : str
        Name of the value in messages.

    Raises
    ------
    InputError
        If an entry is missing or has another type. The message names the entry.
    """
    return _read(kind, value, where)


def _key(field: "Field[Any]") -> str:
    return field.metadata.get("key") or field.name


@cache
def _plan(kind):
    """List [(name, key, type, whether it is required)] of a record's fields."""
    types = get_type_hints(kind, include_extras=True)
    needed = [entry.default is MISSING and entry.default_factory is MISSING for entry in fields(kind)]
    return [(entry.name, _key(entry), types[entry.name], must) for entry, must in zip(fields(kind), needed, strict=True)]


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        one, (low, high) = inner
        out = _read(one, value, where)
        size = len(value) if isinstance(value, (str, list)) else value
        return out if low <= size <= high else _fail(value, where, f"{low} to {high}{' entries' * isinstance(value, list)}")
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        kinds = [one for one in inner if one is not NoneType]
        fit = [one for one in kinds if is_dataclass(one) and _fits(one, value)]
        return _read((fit or kinds)[0 if fit else -1], value, where)
    if origin is Literal:
        return value if value in inner else _fail(value, where, " or ".join(map(repr, inner)))
    if is_dataclass(kind):
        make: Any = kind
        if not isinstance(value, Mapping):
            _fail(value, where, "an object")
        return make(**{name: _read(of, value[key], f"{where}: {key}") for name, key, of, must in _plan(make)
                       if key in value or must and _fail_missing(where, key)})  # fmt: skip
    if origin in (list, tuple):
        if not isinstance(value, list):
            _fail(value, where, "a list")
        if origin is tuple and len(value) != len(inner):
            _fail(value, where, f"a list of {len(inner)}")
        kinds = inner * len(value) if origin is list else inner
        return origin(_read(one, each, f"{where}[{i}]") for i, (one, each) in enumerate(zip(kinds, value, strict=True)))
    if origin is dict:
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            _fail(value, where, "an object")
        return {name: _read(inner[1], one, f"{where}: {name}") for name, one in value.items()}
    whole = type(value) is int and -(2**63) <= value < 2**63
    if kind is float and (whole or type(value) is float and math.isfinite(value)):
        return value
    return value if (whole if kind is int else type(value) is kind) and kind is not float else _fail(value, where, _KINDS[kind])


def _fits(kind, value):
    """Whether a value has all required entries of a record."""
    return isinstance(value, Mapping) and all(key in value for _, key, _, must in _plan(kind) if must)


def _fail(value, where, expected):
    text = repr(value)
    raise InputError(f"{where} is {text if len(text) <= 60 else f'{text[:57]}...'}; expected {expected}")


def _fail_missing(where, key):
    raise InputError(f"{where}: {key} is missing")
