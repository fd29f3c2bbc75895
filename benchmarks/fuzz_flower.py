"""Hostile Flower messages for benchmarks.fuzz: requests of a server to a site, and replies of a site to a server.

Both sides run in this process with Flower's message classes.  A site receives a sequence of one to four requests, a server
the replies of a training, an audit, an estimate or an evaluation.  A request or reply of a valid run is changed in one to
three places: fields, names of functions, arrays (type, shape, values), steps of secure aggregation, or single bytes.

A site must answer each request with declared arrays, a hello or a code, write a line to the ledger, import only code of fnlkit,
write only to the site's folder, and send no canary.  A server must finish a run or another task in which one of three sites is
hostile, or stop with one line if the run needs that site, and must name no other client.  Results of other tasks contain the
other two sites and finite numbers.
"""

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import torch

SITES, EVIL, HOSTILE = 3, "fnlkit_fuzz_evil", 101
CANARY, NUMBER = "CanaryQ7x", 0.7236067977499789
SETTINGS = {
    "fedcorr": {"method": "fedcorr(iterations=1, finetune_rounds=1)", "optimizer": "feddyn(alpha=0.1)", "rounds": 3},
    "feddpcont": {"method": "feddpcont(epsilon=2)", "rounds": 2},
    "fedefc": {"method": "fedefc(latest=1)", "rounds": 3},
    "na-fedavg": {"method": "na-fedavg(at=1)", "rounds": 3},
    "flr": {"method": "flr(warmup=1)", "selector": "power-of-choice(d=3)", "rounds": 2},
    "secagg": {"method": "fedavg", "protect": "secagg", "rounds": 1},
    "audit": {"method": "fedavg", "rounds": 1},
    "estimate": {"method": "fedavg", "rounds": 1},
    "evaluate": {"method": "fedavg", "rounds": 1},
}
TASKS = "audit", "estimate", "evaluate"
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


def prepare(folder):
    """Write sites, a project for each of `SETTINGS`, and the requests that a site receives in a valid run."""
    rng = np.random.default_rng(0)
    place = Path(folder) / "flower"
    place.mkdir()
    (place / f"{EVIL}.py").write_text(f"open({str(place / 'imported')!r}, 'w').close()\nf = open\n")
    for k in range(SITES):
        x, y = rng.random((24, 5, 5, 1)).astype(np.float32), np.arange(24) % 3
        x[0, 0, 0, 0] = NUMBER
        np.savez(place / f"site-{k}.npz", x_train=x, y_train=rng.permutation(y))
    np.savez(place / "server.npz", x_train=x[:6], y_train=y[:6], x_test=x[:9], y_test=y[:9])
    for name in SETTINGS:
        deployed = Deployed(place, name)
        deployed.reset()
        with contextlib.redirect_stdout(io.StringIO()), unsynced():
            if name == "evaluate":
                deployed.conduct(task="train", output=deployed.config["run"])
                deployed.reset()
            deployed.conduct()
        for number, raw in enumerate(deployed.grid.asked):
            (place / name / f"request-{number}").write_bytes(raw)


@contextlib.contextmanager
def unsynced():
    """Disable fsync: no input here tests a power failure, and fsync takes a second on a busy disk."""
    before, os.fsync = os.fsync, lambda descriptor: None
    try:
        yield
    finally:
        os.fsync = before


class Deployed:
    """A project with sites and a server in this process.

    Attributes
    ----------
    grid : tests.engines.here.Grid
        With `asked`, the requests to the hostile site as bytes.
    """

    def __init__(self, place, name):
        from fnlkit import datasets
        from fnlkit.deploy import apps, opening, project, terms
        from fnlkit.experiment.settings import Settings
        from tests.engines.here import Grid

        if str(place) not in sys.path:
            sys.path.append(str(place))  # allows an import of a foreign module by name
        self.place, self.folder, target = place, place / f"{CANARY}-{os.getpid()}-{name}", place / name / "project"
        common = {"fraction": 1.0, "epochs": 1, "batch_size": 12, "model": "mlp(hidden=[4])", "lr": 0.1}
        if not target.exists():
            judging = terms.Judging(folds=2, audit_rounds=1)
            about = {"sites": SITES, "wait": 0, "max_samples": 30, "judging": judging}
            settings = Settings(**(common | SETTINGS[name]))
            project.write_project(target, datasets.load(str(place / "server.npz")), settings, **about)
        text = (target / "pyproject.toml").read_text(encoding="utf-8")
        config = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
        config |= {"server_data": str(place / "server.npz"), "output": str(self.folder / "run.pt"), "timeout": 5.0}
        if name in TASKS:
            config |= {"task": name, "run": str(place / name / "run.pt") if name == "evaluate" else ""}
        about = {"agreed": str(target / "pyproject.toml")}
        nodes = {
            100 + k: {"client": k, "data": str(place / f"site-{k}.npz"), "memory": str(self.folder / f"memory-{k}")} | about
            for k in range(SITES)
        }

        class Recording(Grid):
            def push_messages(self, messages):
                from flwr.common.serde import message_to_proto

                for message in messages:
                    if message.metadata.dst_node_id == HOSTILE:
                        self.asked.append(message_to_proto(message).SerializeToString())
                    yield from super().push_messages([message])

        self.config = config
        self.grid = Recording(apps.client_app(opening.open_site), config, nodes)
        self.grid.asked = []

    def reset(self):
        """Delete the state of earlier runs at sites and server."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.grid.asked.clear()
        self.grid._memories.clear()

    def conduct(self, **changes):
        from fnlkit.deploy.tasks import conduct

        self.grid.config = self.config | changes
        conduct(self.grid, self.config | changes)
        self.grid.config = self.config


_held = {}


def _deployed(folder, name):
    if (os.getpid(), name) not in _held:
        _held[os.getpid(), name] = Deployed(Path(folder) / "flower", name)
    return _held[os.getpid(), name]


# ---- a server's message to a site
def to_site(folder, rng, loud=False):
    """Return "" if a site handles a sequence of one to four changed requests correctly, otherwise the failure.

    The requests share the memory of the site; half of the sequences continue the requests of a valid run.
    """
    from flwr.common.serde import message_from_proto
    from flwr.proto.message_pb2 import Message

    deployed = _deployed(folder, name := pick(rng, list(SETTINGS)))
    deployed.reset()
    requests = sorted((Path(folder) / "flower" / name).glob("request-*"), key=lambda path: int(path.name.split("-")[1]))
    chosen, lines = int(rng.integers(len(requests))), 0
    for path in requests[:chosen] if rng.random() < 0.5 else ():  # protocol state or client state
        _answered(deployed, message_from_proto(Message.FromString(path.read_bytes())))
        lines += 1
    for step in range(int(rng.integers(1, 5))):
        place = chosen if not step or rng.random() < 0.5 else int(rng.integers(len(requests)))
        message = message_from_proto(Message.FromString(requests[place].read_bytes()))
        if not step or rng.random() < 0.7:  # others follow as a valid run sends them
            message.metadata.__dict__["_message_type"] = pick(
                rng, ["train"] * 12 + ["query", "evaluate", "train.x", "query.hello"]
            )
            message.content = changed_records(message.content, rng, folder, loud)
        lines += 1
        if failure := _one_message(deployed, message, lines, rng, name, loud):
            return failure if not step else f"{failure} (message {step + 1} of a sequence)"
    return ""


def _one_message(deployed, message, lines, rng, name, loud):
    """Return "" if a site handles a message correctly, after which its ledger has this number of lines."""
    sys.modules.pop(EVIL, None)
    (deployed.place / "imported").unlink(missing_ok=True)
    before, config = _outside(deployed), deployed.grid.config
    if rng.random() < 0.1:
        deployed.grid.config = config | {
            pick(rng, list(config)): pick(rng, [v for v in ODD if isinstance(v, str | int | float)])
        }
    log = io.StringIO()
    try:
        with contextlib.redirect_stderr(log):
            reply, raw = _answered(deployed, message)
    except Exception as error:  # noqa: BLE001 - whatever got past the outlet
        return f"to a site: escaped: {type(error).__name__}: {str(error)[:200]}"
    finally:
        deployed.grid.config = config
    if loud:
        print(name, reply, log.getvalue())
    ledger = deployed.folder / "memory-1/left.jsonl"
    found = ledger.read_bytes().count(b"\n") if ledger.exists() else 0
    if found != lines:
        return f"to a site: {found - lines + 1} lines in the ledger of one message"
    if _outside(deployed) != before:
        return "to a site: it wrote outside of its folder, or imported somebody's code"
    if odd := next((c for c in log.getvalue() if not c.isprintable() and c != "\n"), None):
        return f"to a site: control character {ascii(odd)} in its log"
    forms = [CANARY.encode(), np.float32(NUMBER).tobytes(), np.float64(np.float32(NUMBER)).tobytes()]
    if any(form in raw for form in forms):
        return "to a site: a canary left it"
    return _undeclared(reply, deployed, name)


def _answered(deployed, message):
    """Return (reply, bytes of the reply) of the site with the hostile server."""
    from flwr.app import Context, RecordDict
    from flwr.common.serde import message_to_proto
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    memory = deployed.grid._memories.setdefault(HOSTILE, RecordDict())
    context = Context(1, HOSTILE, deployed.grid.nodes[HOSTILE], memory, deployed.grid.config)
    reply = deployed.grid.app(message, context)
    return reply, message_to_proto(reply).SerializeToString()


def _outside(deployed):
    """Return the files outside the site's folder, and whether a foreign module was imported.

    Folders of other processes of the campaign, which come and go, are skipped.
    """
    mine, there = f"{CANARY}-{os.getpid()}-", set()
    for top in deployed.place.iterdir():
        if top.name.startswith(mine) or not top.name.startswith(f"{CANARY}-"):
            there |= {str(path) for path in (top, *top.rglob("*")) if not path.is_relative_to(deployed.folder / "memory-1")}
    return there, EVIL in sys.modules


def _undeclared(reply, deployed, name):
    """Return the part of a reply that a site must not send, or ""."""
    from fnlkit.deploy import leaving
    from fnlkit.deploy.flower import wire
    from fnlkit.deploy.opening import open_site

    if reply.has_error():
        return "" if re.fullmatch(r"[a-z-]+ \w{1,61}", reply.error.reason) else f"to a site: error {reply.error.reason[:80]!r}"
    if "secaggplus_configs" in reply.content.config_records:
        return "" if name == "secagg" else "to a site: a masked reply that nobody agreed on"
    numbers = range(SITES) if name in TASKS else (1,)  # a model of an audit trains on some sites, which are counted from 0
    match wire.decode(reply.content):
        case {"client": 1, "samples": 24, "version": str(version), **more} if version.isascii() and not more:
            return ""
        case {"replies": [[number, ("failure", code, kind, "")]]} if (
            number in (-1, *numbers) and code in leaving.CODES and re.fullmatch(r"\w{1,61}", kind)
        ):
            return ""
        case {"replies": [[number, dict(arrays)]]} if name != "secagg" and number in numbers:
            declared = open_site(deployed.config, deployed.grid.nodes[HOSTILE])[1]
            for key, value in arrays.items():
                dtype, shape = declared.arrays.get(key, ("", ()))
                sides = [side if isinstance(side, int) else value.shape[i] for i, side in enumerate(shape[: value.ndim])]
                if (str(value.dtype), list(value.shape)) != (f"torch.{dtype}", sides) or len(shape) != value.ndim:
                    return f"to a site: {key!r} left undeclared"
            return ""
    return "to a site: a reply of another form"


# ---- a site's message to the server
def to_server(folder, rng, loud=False):
    """Return "" if a server handles changed replies of a site correctly, otherwise the failure."""
    from fnlkit.artifacts.run import Run
    from fnlkit.errors import InputError, WorkStopped

    deployed = _deployed(folder, name := pick(rng, list(SETTINGS)))
    deployed.reset()
    hello = rng.random() < 0.2
    share = pick(rng, [0.3, 1.0])

    def mangle(node, reply):
        asked = reply.metadata.message_type
        if node != HOSTILE or reply.has_error() or (asked == "query") != hello or rng.random() > share:
            return reply
        if rng.random() < 0.1:
            from flwr.app import Error

            reason = pick(rng, ["", "x" * 10_000, "\x1b[31m", "input X"])
            error = type(reply)(Error(code=int(rng.integers(0, 300)), reason=reason), reply_to=reply)
            error.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
            return error
        reply.content = changed_records(reply.content, rng, folder, loud)
        return reply

    deployed.grid.mangle, stopped = mangle, ""
    shown, log = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(log):
            deployed.conduct()
    except (InputError, WorkStopped) as error:
        stopped = str(error)
    except Exception as error:  # noqa: BLE001 - an error that nobody foresaw
        return f"to the server, {name}: {type(error).__name__}: {str(error)[:200]}"
    finally:
        deployed.grid.mangle = lambda node, reply: reply
    if loud:
        print(name, hello, stopped, shown.getvalue())
    if odd := next((c for c in shown.getvalue() + stopped if not c.isprintable() and c != "\n"), None):
        return f"to the server, {name}: control character {ascii(odd)} in its log"
    if len(stopped) > 3000 or len(shown.getvalue()) > 30_000:
        return f"to the server, {name}: a site filled its log"
    if stopped and not hello and name != "secagg":  # this run needs all three sites
        return f"to the server, {name}: one site ended the run: {stopped[:160]}"
    output = deployed.folder / "run.pt"
    if name in TASKS:
        return "" if stopped else _wrong_result(output, name)
    if not stopped or output.exists():
        try:
            run = Run.read(str(output))
        except InputError as error:
            return f"to the server, {name}: the run cannot be read: {str(error)[:160]}"
        if output.stat().st_size > 2**20 * 4:
            return f"to the server, {name}: a site filled the run's file"
        others = {entry["client"] for entry in run.rejected} - {1}
        if others and name != "secagg":
            return f"to the server, {name}: clients {sorted(others)} were refused for another's reply"
        if not torch.isfinite(run.weights).all():
            return f"to the server, {name}: weights are not finite"
    return ""


def _wrong_result(output, name):
    """Return what is wrong with the result of a task in which site 1 is hostile, or ""."""
    try:
        result = json.loads(output.read_text(encoding="utf-8"), parse_constant=_not_finite)
    except (OSError, ValueError) as error:
        return f"to the server, {name}: the result cannot be read: {str(error)[:160]}"
    if output.stat().st_size > 2**20:
        return f"to the server, {name}: a site filled the result"
    missing = {"site-0", "site-2"} - {row["site"] for row in result["sites"]}
    return f"to the server, {name}: {sorted(missing)} are missing in the result" if missing else ""


def _not_finite(text):
    raise ValueError(f"{text} is no finite number")


# ---- how messages are changed
def pick(rng, values):
    return values[int(rng.integers(len(values)))]


def changed_records(records, rng, folder, loud=False):
    """Return the changed Flower records of a message: value, steps of secure aggregation, records, or bytes."""
    from flwr.app import ConfigRecord
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
    from flwr.proto.recorddict_pb2 import RecordDict

    from fnlkit.deploy.flower import wire
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
    if what < 0.75 and "text" in records.config_records:
        with contextlib.suppress(InputError):
            value = wire.decode(records)
            if rng.random() < 0.15:
                value = named(value, pick(rng, TEXTS).format(folder=Path(folder) / "flower"))
            for _ in range(int(rng.integers(0, 4))):
                value = changed_value(value, rng, folder)
            if loud:
                print("changed:", str(value)[:2000])
            made = wire.encode(bounded(value))
            for name, record in records.items():
                if name not in made:
                    made[name] = record
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
