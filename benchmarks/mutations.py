"""Changed arrays, values, bytes, specs and Flower messages for the fuzz campaign (benchmarks/fuzz.py).

Each function takes a valid value and a numpy Generator and returns a changed copy.
"""

import contextlib
import copy
import json
import re
from pathlib import Path

import numpy as np
import torch

from fnlkit.artifacts import files, message, packing
from fnlkit.core.errors import InputError

EVIL = "fnlkit_fuzz_evil"  # a module that no site may import

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
            node[key] = copy.deepcopy(pick(rng, ODD))  # or a later change could put a list of ODD into itself
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
    members = [(f"{name}.npy", packing.npy(packing.plain(value, name))) for name, value in arrays.items()]
    return b"".join(map(bytes, packing.chunks(members)))


def changed_bytes(raw, rng):
    at = int(rng.integers(len(raw) + 1))
    what = int(rng.integers(4))
    if what == 0:
        return flipped(raw, rng)
    if what == 1:
        return raw[:at]
    if what == 2:
        return raw[:at] + bytes(rng.integers(0, 256, int(rng.integers(1, 50)), dtype=np.uint8)) + raw[at:]
    return raw[:at] + raw[at + int(rng.integers(1, 50)) :]


def flipped(raw, rng, most=1):
    """Return bytes with one to `most` bits flipped."""
    raw = bytearray(raw)
    for _ in range(int(rng.integers(1, most + 1)) if raw else 0):
        raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
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


# ---- Flower messages
ODD_REPLIES = [(), b"", b"\0" * 100, "a" * 10_000, "../../x", ("failure", "failed", "X" * 10_000, "s"),
               ("failure", "input", "\x1b[31mE", "s" * 10_000)]  # fmt: skip
ODD_ENTRIES = [-1, 0, 1, 2**22, 2**31, 2**62, 0.5, 1e12, float("nan"), float("inf"), True, "", "setup", "unmask", "x" * 1000,
               b"", b"\0" * 50, [], [0], [1, 1], [2**60], [b""], [b"x" * 100] * 3, ["a"], [0.5]]  # fmt: skip
NAMES = [
    ("os", "system"),
    ("builtins", "exec"),
    (EVIL, "f"),
    ("fnlkit.core.own", "load"),
    ("fnlkit.artifacts.files", "read_text"),
    ("fnlkit.methods.fedcorr", "np.load"),
    ("fnlkit.federated.client.client", "in_blocks"),
    ("json.tool", "main"),
    ("fnlkit.federated.client.losses.cross_entropy", "cross_entropy"),
    ("fnlkit.federated.client.losses.correction", "forward_given"),
    ("fnlkit.federated.client.scoring", "sample_losses"),
    ("fnlkit.federated.server.selection", "local_loss"),
    ("fnlkit.methods.no", "f"),
]
TEXTS = [
    f"{EVIL}:f",
    f"{EVIL}:f/..",
    f"{EVIL}.py:f",
    f"{{folder}}/{EVIL}.py:f",
    f"{{folder}}/{EVIL}.py:f/..",
    "json.tool:main/..",
    "os:system",
    "/dev/zero",
    "{folder}/site-1.npz",
]


def changed_records(records, rng, folder, loud=False):
    """Return the changed Flower records of a message: value, steps of secure aggregation, records, or bytes."""
    from flwr.app import ConfigRecord
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
    from flwr.proto.recorddict_pb2 import RecordDict

    from fnlkit.federated.engines.flower import messages

    what = rng.random()
    if "secaggplus_configs" in records.config_records and what < 0.7:
        entries = dict(records.config_records["secaggplus_configs"])
        for _ in range(int(rng.integers(1, 4))):
            key = pick(rng, list(entries) or ["x"])
            entry = entries.pop(key, None)
            if rng.random() < 0.85:
                entries[pick(rng, [key, key, key, "x"])] = _changed_entry(entry, rng)
        records.config_records["secaggplus_configs"] = ConfigRecord(entries)
        return records
    record = records.array_records.get("fnlkit.message", {}).get("fnlkit.message")
    if what < 0.8 and record is not None:
        data = _changed_message(record.data, rng, folder, loud) if what < 0.75 else flipped(record.data, rng, 3)
        made = messages.record(data)
        for name, other in records.items():
            if name not in made:
                made[name] = other
        return made
    if what < 0.9:
        _change_record(records, rng)
        return records
    raw = flipped(recorddict_to_proto(records).SerializeToString(), rng, 3)
    with contextlib.suppress(Exception):  # Flower refuses records that the parsers cannot read
        return recorddict_from_proto(RecordDict.FromString(raw))
    return records


def _changed_message(data, rng, folder, loud):
    """Return the bytes of a message with changed values and facts."""
    with contextlib.suppress(InputError, message.Unreadable):
        value, about = message.decode(data), message.about_of(data)
        if rng.random() < 0.15:
            value = named(value, pick(rng, TEXTS).format(folder=Path(folder) / "flower"))
        for _ in range(int(rng.integers(0, 4))):
            value = changed_value(value, rng, folder)
        if about and rng.random() < 0.1:
            about[pick(rng, [*about, "x"])] = pick(rng, [v for v in ODD if v is None or isinstance(v, str | int | list)])
        if loud:
            print("changed:", str(value)[:2000])
        return message.encode(bounded(value), about)
    return data


def _changed_entry(value, rng):
    """Return a changed value of a ConfigRecord; Flower allows numbers, texts, bytes and lists of these."""
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = int(rng.integers(len(value)))
        part = value[at]
        if isinstance(part, bytes):
            part = pick(rng, [flipped(part, rng), part[: len(part) // 2], part * 2, b""])
        elif isinstance(part, int):
            part = pick(rng, [0, -1, part + 1, 2**62])
        return pick(rng, [value[:at], [*value, value[at]], value[::-1], [*value[:at], part, *value[at + 1 :]]])
    return pick(rng, ODD_ENTRIES)


def _change_record(records, rng):
    """Remove a record, or change an array in it, in place."""
    from flwr.app import Array, ArrayRecord

    name = pick(rng, sorted(records) or ["text"])
    record = records.get(name)
    if rng.random() < 0.2 or not isinstance(record, ArrayRecord) or not len(record):
        records.pop(name, None)
        return
    key = pick(rng, list(record))
    array = record[key]
    fields = {"dtype": array.dtype, "shape": tuple(array.shape), "stype": array.stype, "data": array.data}
    odd = {
        "dtype": ["object", "float16", "U3", "x", "int8", "complex64", "V8", ""],
        "stype": ["numpy.ndarray"],
        "shape": [(), (0,), (-1,), (2**30,), (2**30, 2**30), (1,) * 100],
        "data": [array.data[: len(array.data) // 2], array.data * 2],
    }
    field = pick(rng, list(odd))
    changed = {name: record[name] for name in record} | {key: Array(**fields | {field: pick(rng, odd[field])})}
    if rng.random() < 0.2:
        changed[pick(rng, ["0", "x", ""])] = array
    records[name] = ArrayRecord(changed)


def changed_value(value, rng, folder):
    """Return a value with a change in one place: a field, a function name, an array."""
    places, functions, todo = [], [], [((), value)]
    while todo:
        path, node = todo.pop()
        places.append(path)
        if isinstance(node, tuple) and node[:1] == ("function",):
            functions.append(path)
        entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list | tuple) else ()
        todo += [((*path, key), inner) for key, inner in entries]
    return _replaced(value, pick(rng, functions if functions and rng.random() < 0.3 else places), rng, folder)


def named(value, text):
    """Return a request with a loss whose transition matrix names a file or a module."""
    if isinstance(value, tuple) and value[:2] == ("record", "Fit") and len(value) == 3 and isinstance(value[2], dict):
        bound = ("dict", {"transition": ("plain", text)})
        loss = ("partial", ("function", "fnlkit.federated.client.losses.correction", "forward_given"), ("tuple", []), bound)
        return ("record", "Fit", value[2] | {"loss": loss})
    if isinstance(value, dict):
        return {k: named(v, text) for k, v in value.items()}
    return type(value)(named(v, text) for v in value) if isinstance(value, list | tuple) else value


def _replaced(value, path, rng, folder):
    if path:
        key, *rest = path
        if isinstance(value, dict):
            what = rng.random()
            if not rest and what < 0.15:
                return {k: v for k, v in value.items() if k != key}
            if not rest and what < 0.25:
                return value | {pick(rng, ["x", "", "weights", "labels", "y", "\x1b", "n" * 300, 3]): value[key]}
            if not rest and what < 0.28:
                return value | {f"name-{i}": torch.tensor(0.0) for i in range(2000)}
            return value | {key: _replaced(value[key], rest, rng, folder)}
        parts = list(value)
        parts[key] = _replaced(parts[key], rest, rng, folder)
        return type(value)(parts)
    if isinstance(value, torch.Tensor):
        changed = changed_array(value.numpy(), rng)
        return torch.from_numpy(changed) if changed.dtype.kind in "biuf" else changed
    if isinstance(value, str) and rng.random() < 0.5:  # a component, module or file that no server can name
        return pick(rng, TEXTS).format(folder=Path(folder) / "flower")
    if isinstance(value, tuple) and value[:1] == ("function",) and rng.random() < 0.8:
        function = ("function", *pick(rng, NAMES))
        text = ("plain", pick(rng, TEXTS).format(folder=Path(folder) / "flower"))
        bound = ("partial", function, ("tuple", []), ("dict", {pick(rng, ["transition", "path", "loss"]): text}))
        return pick(rng, [function, bound])
    if rng.random() < 0.15:
        text = pick(rng, TEXTS).format(folder=Path(folder) / "flower")
        return pick(rng, [("own", text.split(":")[0], "f"), ("function", EVIL, "f"), ("plain", text), ("record", "Fit", {})])
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return value * pick(rng, [-1, 2, 1000, 0.5])
    return pick(rng, [*ODD, *ODD_REPLIES])


def bounded(value, key=None):
    """Return a request with at most a few seconds of work, because the work that a server requests can take any time."""
    if isinstance(value, dict):
        return {k: bounded(v, k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        if key in ("epochs",) and len(value) == 2 and isinstance(value[1], int | float):
            return ("plain", value[1] if -10 < value[1] < 10 else 3)
        return type(value)(bounded(v) for v in value)
    return value
