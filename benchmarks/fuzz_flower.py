"""Hostile Flower messages for benchmarks.fuzz: requests of a server to a site, and replies of a site to a server.

Both sides run in this process with Flower's message classes.  A site receives a sequence of one to four requests, a server
the replies of a training, an audit or an evaluation.  A request or reply of a valid run is changed in one to
three places: fields, names of functions, arrays (type, shape, values), steps of secure aggregation, or single bytes.

A site must answer each request with declared arrays, a hello or a code, write a line to the ledger, import only code of fnlkit,
write only to the site's folder, and send no canary.  A server must finish a run or another task in which one of four sites is
hostile, or stop with one line if the run needs that site, and must name no other client.  Results of other tasks contain the
other three sites and finite numbers.
"""

import contextlib
import functools
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks.mutations import EVIL, changed_records, pick

SITES, HOSTILE = 4, 101  # an audit compares at least three
CANARY, NUMBER = "CanaryQ7x", 0.7236067977499789
SETTINGS = {
    "fedcorr": {"method": "fedcorr(iterations=1, finetune_rounds=1)", "optimizer": "feddyn(alpha=0.1)", "rounds": 3},
    "feddpcont": {"method": "feddpcont(epsilon=2)", "rounds": 2},
    "fedefc": {"method": "fedefc(latest=1)", "rounds": 3},
    "na-fedavg": {"method": "na-fedavg(at=1)", "rounds": 3},
    "flr": {"method": "flr(warmup=1)", "selector": "power-of-choice(d=3)", "rounds": 2},
    "secagg": {"method": "fedavg", "protect": "secagg", "rounds": 1},
    "sums": {"method": "lda", "model": "auto", "protect": "secagg", "rounds": 1},
    "audit": {"method": "fedavg", "rounds": 1},
    "evaluate": {"method": "fedavg", "rounds": 1},
}
TASKS, MASKED = ("audit", "evaluate"), ("secagg", "sums")


def prepare(folder):
    """Write sites, a project for each of `SETTINGS`, and the requests that a site receives in a valid run."""
    rng = np.random.default_rng(0)
    place = Path(folder) / "flower"
    place.mkdir()
    (place / f"{EVIL}.py").write_text(f"open({str(place / 'imported')!r}, 'w').close()\nf = open\n")
    for k in range(SITES):
        x, y = rng.random((60, 5, 5, 1)).astype(np.float32), np.arange(60) % 3
        x[0, 0, 0, 0] = NUMBER
        np.savez(place / f"site-{k}.npz", x_train=x, y_train=rng.permutation(y))
    np.savez(place / "server.npz", x_train=x[:6], y_train=y[:6], x_test=x[:9], y_test=y[:9])
    for name in SETTINGS:
        deployed = Deployed(place, name)
        deployed.reset()
        with contextlib.redirect_stdout(io.StringIO()), unsynced():
            if name == "evaluate":
                deployed.conduct(task="train", output=deployed.options["run"], run="")
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
    grid : tests.federated.engines.here.Grid
        With `asked`, the requests to the hostile site as bytes.
    """

    def __init__(self, place, name):
        from fnlkit import datasets
        from fnlkit.experiment.settings import Settings
        from fnlkit.sites import flower, flower_app, project
        from tests.federated.engines.here import Grid

        if str(place) not in sys.path:
            sys.path.append(str(place))  # allows an import of a foreign module by name
        self.place, self.folder, target = place, place / f"{CANARY}-{os.getpid()}-{name}", place / name / "project"
        common = {"fraction": 1.0, "epochs": 1, "batch_size": 12, "model": "mlp(hidden=[4])", "lr": 0.1}
        if not target.exists():
            about = {"names": [f"site-{k}" for k in range(SITES)], "keys": [], "wait": 0.0, "max_samples": 60, "timeout": 5.0}
            about |= {"tasks": list(project.TASKS)}
            settings = Settings(**(common | SETTINGS[name]))
            data = datasets.load(str(place / "server.npz"))
            flower_app.write_project(target, flower_app.describe(data, settings, **about))
        self.project = project.read(target)
        options = {"task": "train", "server_data": str(place / "server.npz"), "output": str(self.folder / "run.pt")}
        if name in TASKS:
            options |= {"task": name, "run": str(place / name / "run.pt") if name == "evaluate" else ""}
        about = {"agreed": str(target / project.FILE)}
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

        self.options = options
        self.grid = Recording(flower.client_app(), {}, nodes)
        self.grid.asked = []

    def reset(self):
        """Delete the state of earlier runs at sites and server."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.grid.asked.clear()
        self.grid._memories.clear()

    def conduct(self, **changes):
        from fnlkit.sites.server import flower, tasks

        options = {name: value for name, value in (self.options | changes).items() if value}
        if options["task"] != "train":
            options.pop("server_data", None)  # refused by the other tasks
        tasks.conduct(flower.FlowerTransport(self.grid), self.project, tasks.options_of(options))


@functools.cache
def _deployed(folder, name, process):
    return Deployed(Path(folder) / "flower", name)


# ---- a server's message to a site
def to_site(folder, rng, loud=False):
    """Return "" if a site handles a sequence of one to four changed requests correctly, otherwise the failure.

    The requests share the memory of the site; half of the sequences continue the requests of a valid run.
    """
    from flwr.common.serde import message_from_proto
    from flwr.proto.message_pb2 import Message

    deployed = _deployed(folder, name := pick(rng, list(SETTINGS)), os.getpid())
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
    before = _outside(deployed)
    log = io.StringIO()
    try:
        with contextlib.redirect_stderr(log):
            reply, raw = _answered(deployed, message)
    except Exception as error:  # noqa: BLE001 - whatever got past the outlet
        return f"to a site: escaped: {type(error).__name__}: {str(error)[:200]}"
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
    from fnlkit.artifacts.message import Unreadable, decode
    from fnlkit.federated.engines.flower.messages import bytes_of
    from fnlkit.sites.site.door import CODES
    from fnlkit.sites.site.opening import Place, open_site

    if reply.has_error():
        return "" if re.fullmatch(r"[a-z-]+ \w{1,61}", reply.error.reason) else f"to a site: error {reply.error.reason[:80]!r}"
    if "secaggplus_configs" in reply.content.config_records:
        return "" if name in MASKED else "to a site: a masked reply that nobody agreed on"
    numbers = range(SITES) if name in TASKS else (1,)
    try:
        value = decode(bytes_of(reply))
    except Unreadable:
        return "to a site: a reply that is no message"
    match value:
        case {"client": 1, "samples": 60, "version": str(version), **more} if version.isascii() and not more:
            return ""
        case {"replies": [[number, ("failure", code, kind, "")]]} if (
            number in (-1, *numbers) and code in CODES and re.fullmatch(r"\w{1,61}", kind)
        ):
            return ""
        case {"replies": [[number, dict(arrays)]]} if name not in MASKED and number in numbers:
            place = Place.of(deployed.grid.nodes[HOSTILE])
            declared = open_site(place, deployed.project, deployed.options["task"])
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
    from fnlkit.core.errors import InputError, WorkStopped

    deployed = _deployed(folder, name := pick(rng, list(SETTINGS)), os.getpid())
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
    if stopped and not hello and name not in MASKED:  # this run needs no more than three sites
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
        if others and name not in MASKED:
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
    missing = {"site-0", "site-2", "site-3"} - {row["site"] for row in result["sites"]}
    return f"to the server, {name}: {sorted(missing)} are missing in the result" if missing else ""


def _not_finite(text):
    raise ValueError(f"{text} is no finite number")
