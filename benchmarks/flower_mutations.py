"""Changed Flower messages for benchmarks.fuzz_flower: fields, names of functions, arrays and single bytes."""

import contextlib
from pathlib import Path

import torch

EVIL = "fnlkit_fuzz_evil"  # a module that no site may import
ODD = [None, True, -1, 0, 1, 7, 2**31, 2**63, 10**30, 0.5, float("nan"), float("inf"), -1e300, "", "x", "a" * 10_000,
       "\x1b[31m", [], {}, (), [0], b"", b"\0" * 100, {"a": 1}, "../../x", ("failure", "failed", "X" * 10_000, "s"),
       ("failure", "input", "\x1b[31mE", "s" * 10_000)]  # fmt: skip
# fmt: off
NAMES = [
    ("os", "system"), ("builtins", "exec"), (EVIL, "f"), ("fnlkit.components.own", "load"),
    ("fnlkit.artifacts.files", "read_text"),
    ("fnlkit.methods.fedcorr", "np.load"), ("fnlkit.client.client_list", "in_blocks"), ("json.tool", "main"),
    ("fnlkit.client.losses.cross_entropy", "cross_entropy"), ("fnlkit.client.losses.correction", "forward_given"),
    ("fnlkit.client.scoring", "sample_losses"), ("fnlkit.server.selection", "local_loss"), ("fnlkit.methods.no", "f"),
]
TEXTS = [
    f"{EVIL}:f", f"{EVIL}:f/..", f"{EVIL}.py:f", f"{{folder}}/{EVIL}.py:f", f"{{folder}}/{EVIL}.py:f/..", "json.tool:main/..",
    "os:system", "/dev/zero", "{folder}/site-1.npz",
]
# fmt: on


# ---- how messages are changed
def pick(rng, values):
    return values[int(rng.integers(len(values)))]


def changed_records(records, rng, folder, loud=False):
    """Return the changed Flower records of a message: value, steps of secure aggregation, records, or bytes."""
    from flwr.app import ConfigRecord
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
    from flwr.proto.recorddict_pb2 import RecordDict

    from fnlkit.artifacts import message
    from fnlkit.engines.flower import messages
    from fnlkit.errors import InputError

    masked, what = "secaggplus_configs" in records.config_records, rng.random()
    if masked and what < 0.7:
        told = dict(records.config_records["secaggplus_configs"])
        for _ in range(int(rng.integers(1, 4))):
            key = pick(rng, list(told) or ["x"])
            found = told.pop(key, None)
            if rng.random() < 0.85:
                told[pick(rng, [key, key, key, "x"])] = _changed_entry(found, rng)
        records.config_records["secaggplus_configs"] = ConfigRecord(told)
        return records
    record = records.array_records.get("fnlkit.message", {}).get("fnlkit.message")
    if what < 0.8 and record is not None:
        data = record.data
        if what < 0.75:
            with contextlib.suppress(InputError, message.Unreadable):
                value, about = message.decode(data), message.about_of(data)
                if rng.random() < 0.15:
                    value = named(value, pick(rng, TEXTS).format(folder=Path(folder) / "flower"))
                for _ in range(int(rng.integers(0, 4))):
                    value = changed_value(value, rng, folder)
                if about and rng.random() < 0.1:
                    about[pick(rng, [*about, "x"])] = pick(
                        rng, [v for v in ODD if v is None or isinstance(v, str | int | list)]
                    )
                if loud:
                    print("changed:", str(value)[:2000])
                data = message.encode(bounded(value), about)
        else:
            changed = bytearray(data)
            for _ in range(int(rng.integers(1, 4))):
                changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
            data = bytes(changed)
        made = messages.record(data)
        for name, other in records.items():
            if name not in made:
                made[name] = other
        return made
    if what < 0.9:
        for _ in range(int(rng.integers(1, 3))):
            _changed_record(records, rng)
        return records
    raw = bytearray(recorddict_to_proto(records).SerializeToString())
    for _ in range(int(rng.integers(1, 4))):
        if raw:
            raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
    with contextlib.suppress(Exception):  # Flower refuses records that the parsers cannot read
        return recorddict_from_proto(RecordDict.FromString(bytes(raw)))
    return records


def _changed_entry(value, rng):
    """Return a changed value of a ConfigRecord; Flower allows numbers, texts, bytes and lists of these."""
    odd = [-1, 0, 1, 2**22, 2**31, 2**62, 0.5, 1e12, float("nan"), float("inf"), True, "", "setup", "unmask", "x" * 1000, b"",
           b"\0" * 50, [], [0], [1, 1], [2**60], [b""], [b"x" * 100] * 3, ["a"], [0.5]]  # fmt: skip
    if isinstance(value, list) and value and rng.random() < 0.6:
        what = int(rng.integers(5))
        at = int(rng.integers(len(value)))
        if what == 0:
            return value[:at]
        if what == 1:
            return [*value, value[at]]
        if what == 2:
            return value[::-1]
        part = value[at]
        if isinstance(part, bytes) and part:
            flipped = bytearray(part)
            flipped[int(rng.integers(len(part)))] ^= 1 << int(rng.integers(8))
            part = pick(rng, [bytes(flipped), part[: len(part) // 2], part * 2, b""])
        elif isinstance(part, int):
            part = pick(rng, [0, -1, part + 1, 2**62])
        return [*value[:at], part, *value[at + 1 :]]
    return pick(rng, odd)


def _changed_record(records, rng):
    """Change a record, or an array in it, in place."""
    from flwr.app import Array, ArrayRecord, ConfigRecord

    name = pick(rng, sorted(records) or ["text"])
    record, what = records.get(name), rng.random()
    if what < 0.2 or record is None:
        records.pop(name, None)
    elif what < 0.3:
        records[name] = pick(
            rng, [ConfigRecord({"text": "null"}), ArrayRecord({}), ConfigRecord({}), ConfigRecord({"text": 3})]
        )
    elif what < 0.4 and isinstance(record, ConfigRecord):
        texts = [
            "",
            "{",
            "[]",
            '{"dict": 3}',
            '{"list": [' * 60,
            '{"tensor": "9"}',
            '{"type": "x"}',
            "1e999",
            '{"bytes": "*"}',
            "9" * 5000,
        ]
        records[name] = ConfigRecord({"text": pick(rng, texts)})
    elif isinstance(record, ArrayRecord) and len(record):
        key = pick(rng, list(record))
        found = record[key]
        fields = {"dtype": found.dtype, "shape": tuple(found.shape), "stype": found.stype, "data": found.data}
        odd = {
            "dtype": pick(rng, ["object", "float16", "U3", "x", "int8", "complex64", "V8", ""]),
            "stype": "numpy.ndarray",
            "shape": pick(rng, [(), (0,), (-1,), (2**30,), (2**30, 2**30), (1,) * 100]),
            "data": pick(rng, [found.data[: len(found.data) // 2], found.data * 2]),
        }
        fields |= {(name := pick(rng, list(odd))): odd[name]}
        changed = {k: record[k] for k in record} | {key: Array(**fields)}
        if rng.random() < 0.2:
            changed[pick(rng, ["0", "x", ""])] = found
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
        loss = ("partial", ("function", "fnlkit.client.losses.correction", "forward_given"), ("tuple", []), bound)
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
        return _changed_tensor(value, rng)
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
    return pick(rng, ODD)


def _changed_tensor(value, rng):
    """Return a tensor of another type, shape, or with other values; or another object."""
    what = int(rng.integers(9))
    if what == 0:
        return value.to(pick(rng, [torch.float16, torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8]))
    if what == 1:
        return value.reshape(-1)[: int(rng.integers(0, value.numel() + 1))].clone()
    if what == 2:
        return value[None].clone()
    if what == 3:
        return torch.zeros(pick(rng, [(), (0,), (1,), (3, 3), (1000,), (2, 0)]), dtype=value.dtype)
    if what == 4:
        return pick(rng, [0, None, "x", [], {}, float("nan")])
    if not value.numel():
        return torch.zeros(1, dtype=value.dtype)
    flat = value.reshape(-1).clone()
    new = pick(rng, [float("nan"), float("inf"), 1e30, -1e30, -1.0, 0.0, 1e-30, 1000.0])
    at = torch.from_numpy(rng.integers(0, len(flat), pick(rng, [1, 3, len(flat)])))
    flat[at] = (
        torch.tensor(new, dtype=torch.float64).nan_to_num(0, 2**31, -(2**31)).to(flat.dtype)
        if not flat.is_floating_point()
        else new
    )
    return flat.reshape(value.shape)


def bounded(value, key=None):
    """Return a request with at most a few seconds of work, because the work that a server requests can take any time."""
    if isinstance(value, dict):
        return {k: bounded(v, k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        if key in ("epochs",) and len(value) == 2 and isinstance(value[1], int | float):
            return ("plain", value[1] if -10 < value[1] < 10 else 3)
        return type(value)(bounded(v) for v in value)
    return value
