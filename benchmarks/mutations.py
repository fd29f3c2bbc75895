"""Changed arrays, values, bytes and specs for the fuzz campaign (benchmarks/fuzz.py).

Each function takes a valid value and a numpy Generator and returns a changed copy.
"""

import contextlib
import json
import re

import numpy as np

from fnlkit.artifacts import files
from fnlkit.artifacts.safe import npz, zip

ODD = [None, True, False, 0, -1, 1, 2, 3, 7, 60, 1e300, -1.5, 0.5, 2**31, 2**63, 10**30, float("nan"), float("inf"), "", "x",
       "fedavg", "a" * 300, "\x1b[31m", "\u202e", "digits", "/dev/zero", [], [0], [[1]], {}, {"a": 1}]  # fmt: skip


def pick(rng, values):
    return values[int(rng.integers(len(values)))]


def changed_array(a, rng):
    """Return an array with another type, shape, or values."""
    a = np.array(a)
    what = int(rng.integers(12))
    kinds = [np.float32, np.float64, np.int64, np.int8, np.uint64, bool, np.float16, "U3"]
    with np.errstate(all="ignore"), contextlib.suppress(ValueError, OverflowError, TypeError, IndexError):
        if what == 0:
            return a.astype(pick(rng, kinds))
        if what == 1:
            return a[..., None]
        if what == 2:
            return a.reshape(-1)[: int(rng.integers(0, a.size + 1))]
        if what == 3:
            return np.concatenate([a, a]) if a.ndim else np.stack([a, a])
        if what == 4:
            return np.zeros(tuple(pick(rng, [0, 1, 2, 5]) for _ in range(int(rng.integers(0, 4)))), a.dtype)
        if what == 5:
            return a.T
        if what == 6:
            return a[::-1].copy()
        if what == 7:
            return np.array(pick(rng, [0, -1, 2**40, np.nan, "text", True]))
        if a.size and a.dtype.kind in "biuf":
            values = {"f": [np.nan, np.inf, -1, 1e300, 0, 2], "b": [True, False]}
            new = pick(rng, values.get(a.dtype.kind, [-1, 0, 1, 10**6, 60_000, 2**31, 2**62]))
            flat = a.reshape(-1).copy()
            flat[rng.integers(0, a.size, pick(rng, [1, 1, 3, a.size]))] = np.array(new).astype(a.dtype)
            return flat.reshape(a.shape)
        if a.size:
            return np.full(a.shape, pick(rng, ["", "\x1b[2J", "x" * 500, "a"]))
    return a


def changed_arrays(arrays, rng):
    """Return named arrays with some changed, missing, or under another name."""
    arrays = dict(arrays)
    for _ in range(int(rng.integers(1, 4))):
        name = pick(rng, sorted(arrays))
        what = rng.random()
        if what < 0.1:
            del arrays[name]
        elif what < 0.2:
            arrays[pick(rng, [*sorted(arrays), "other"])] = arrays[name]
        else:
            arrays[name] = changed_array(arrays[name], rng)
        if not arrays:
            break
    return arrays or {"nothing": np.zeros(1)}


def changed_tree(tree, rng):
    """Return JSON-like values with one to three places changed."""
    tree = json.loads(json.dumps(tree))
    for _ in range(int(rng.integers(1, 4))):
        places = [(None, None)]
        todo = [tree]
        while todo:
            node = todo.pop()
            keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
            for key in keys:
                places.append((node, key))
                todo.append(node[key])
        node, key = pick(rng, places[1:]) if len(places) > 1 else (None, None)
        if node is None:
            break
        what = rng.random()
        if what < 0.15:
            del node[key]
        elif what < 0.3 and isinstance(node, dict):
            node[pick(rng, ["", "x", "metrics", "a.b", "\x1b", "rounds"])] = node[key]
        elif what < 0.4:
            node[key] = [node[key], node[key]]
        elif what < 0.5 and isinstance(node[key], (int, float)) and not isinstance(node[key], bool):
            node[key] = node[key] * pick(rng, [-1, 2, 10**6, 0.5])
        else:
            node[key] = pick(rng, ODD)
    return tree


def changed_artifact(artifact, form, rng):
    """Return the bytes of an artifact with changed arrays or values and a right checksum."""
    arrays = {name: np.asarray(value) for name, value in artifact.arrays.items()}
    meta = artifact.meta
    if rng.random() < 0.6:
        body = arrays.pop("body", None)
        if rng.random() < 0.5 or body is None:
            arrays = changed_arrays(arrays, rng)
        if body is not None:
            tree = json.loads(bytes(body))
            tree = changed_tree(tree, rng) if rng.random() < 0.6 else tree
            arrays["body"] = np.frombuffer(json.dumps(tree).encode(), np.uint8)
    else:
        meta = changed_tree(meta, rng)
    try:
        return b"".join(map(bytes, files.encode(files.Artifact(artifact.kind, arrays, meta), format=form)))
    except ValueError:  # no writer produces this; the plain npz does
        return npz_of({name: value for name, value in arrays.items() if value.dtype.kind in "biufU"} or {"x": np.zeros(1)})


def npz_of(arrays):
    members = [(f"{name}.npy", npz.encode(npz.plain(value, name))) for name, value in arrays.items()]
    return b"".join(map(bytes, zip.chunks(members)))


def changed_bytes(raw, rng):
    raw = bytearray(raw)
    at = int(rng.integers(len(raw) + 1))
    what = int(rng.integers(4))
    if what == 0 and raw:
        raw[at % len(raw)] ^= 1 << int(rng.integers(8))
    elif what == 1:
        del raw[at:]
    elif what == 2:
        raw[at:at] = bytes(rng.integers(0, 256, int(rng.integers(1, 50)), dtype=np.uint8))
    else:
        raw[at : at + int(rng.integers(1, 50))] = b""
    return bytes(raw)


def broken_spec(text, rng):
    """Return a spec with words, marks and numbers changed."""
    tokens = re.findall(r"[\w.-]+|.", text)
    pieces = ["(", ")", "=", ",", "[", "]", "''", '"', "true", "none", "-1", "0", "1e400", "1e-9", "0.5", "nan", "fedavg", "x",
              "99999999999999999999", "[1, [2]]", "f(g(h(1)))", " ", "\x1b", "é", "k", "--", ":", "a:b", ".", "/", "path=x",
              "10", "10000", "mlp(1)"]  # fmt: skip
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(tokens) + 1))
        what = rng.random()
        if what < 0.3 and tokens:
            del tokens[at % len(tokens)]
        elif what < 0.7 and tokens:
            tokens[at % len(tokens)] = pick(rng, pieces)
        else:
            tokens.insert(at, pick(rng, [*pieces, *tokens]))
    return "".join(tokens)


def toml(tree, prefix=""):
    """Return a tree as TOML, as far as TOML can represent it."""
    simple = {key: value for key, value in tree.items() if not _tables(value) and not isinstance(value, dict)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in simple.items()]
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += [f"[{prefix}{_key(key)}]", toml(value, f"{prefix}{_key(key)}.")]
        elif _tables(value):
            for part in value:
                lines += [f"[[{prefix}{_key(key)}]]", toml(part, f"{prefix}{_key(key)}.")]
    return "\n".join(lines)


def _tables(value):
    return isinstance(value, list) and bool(value) and all(isinstance(part, dict) for part in value)


def _key(key):
    return json.dumps(str(key))


def _value(value):
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, bool) or value is None:
        return str(bool(value)).lower()
    return json.dumps(value) if isinstance(value, str) else str(value)
