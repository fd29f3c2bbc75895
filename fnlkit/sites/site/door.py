"""The door of a site: a site sends nothing but replies to requests, through `Door.answer`.

A request is read (size, form, agreement), admitted (table of agreed steps, limits, budgets), computed (with a limit of CPU
time), and its reply is released: declared names, types and shapes only, rounded as agreed, within the budgets, and entered in
the ledger.  Then it is sent.  A refused request computes, stores and sends nothing except a code.  Transports carry the bytes.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts import message
from fnlkit.audits.rounding import STEP
from fnlkit.core.errors import InputError
from fnlkit.federated.client.failure import failure, log_failures
from fnlkit.federated.engines.flower.notebook import Notebook
from fnlkit.federated.engines.flower.visits import NodeObjects, answer, check_request
from fnlkit.federated.engines.travel import unpack
from fnlkit.sites import project
from fnlkit.sites.site import ledger, secret
from fnlkit.sites.site.errors import NotAgreed, NotInTable, Undeclared, Withheld
from fnlkit.sites.site.limits import must_fit, name_of
from fnlkit.sites.site.opening import Place, Site, open_site
from fnlkit.sites.site.steps import parts_of
from fnlkit.sites.site.time_limit import cpu_limit

LEDGER = "left.jsonl"
# Seconds of CPU time of a request, unless the sites agreed to a longer timeout.
MOST_SECONDS = 3600
# Largest size of the arrays of a request: bytes, and models in addition.
MOST_ARRAY_BYTES, MOST_MODELS = 2**26, 8
# Largest side of a reply that neither its declaration nor `replies.open_sides` limits; or the number of samples.
MOST_SIDE = 4096
CODES = (
    "failed", "input", "one-sample", "lost", "disk", "reply", "entry", "undeclared", "setup", "terms", "request", "release"
)  # fmt: skip
_CLASS = re.compile(r"[A-Za-z_]\w{0,60}")
# Errors with which a site refuses a request; the ledger contains their reason.
_REFUSALS = (Undeclared, Withheld, secret.Refused)


class Door:
    """The door of a site.

    Parameters
    ----------
    place : fnlkit.sites.site.opening.Place
    """

    def __init__(self, place: Place):
        self.place = place
        self._open: dict[Any, Any] = {}

    def answer(self, data: bytes) -> bytes:
        """Answer a request; for a failure, by its code and class name."""

        def work(site: Site, asked: Any) -> tuple[dict[str, Any], None]:
            introduces = message.about_of(data).get("hello") is not None
            return self._reply(site, asked) | (self._introduction(site) if introduces else {}), None

        line, _ = self.respond(data, work)
        if "failure" in line:
            return message.encode({"replies": [[self.place.client, ("failure", *line["failure"], "")]]})
        return message.encode(line)

    def respond(self, data: bytes, work: Callable[[Site, Any], tuple[dict[str, Any], Any]]) -> tuple[dict[str, Any], Any]:
        """Answer a request and write it to the ledger: (ledger entry, reply), the reply None for a failure.

        Parameters
        ----------
        data : bytes
        work : callable (Site, request) -> (ledger entry, reply)
        """
        about: dict[str, Any] = {"run": "", "round": None}
        with log_failures():
            try:
                site, asked = self._read(data)
                about = _about(asked) or about
                line, reply = work(site, asked)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the error text stays at the site
                line, reply = self._refusal(error, about["round"]), None
            try:
                ledger.enter(os.path.join(self.place.memory, LEDGER), **about, said=line)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a reply without a ledger entry is not sent
                line, reply = self._refusal(error, about["round"]), None
        return line, reply

    # ---- read
    def _read(self, data):
        """Read (Site, request) of bytes, after a comparison of the agreement; the request of b"" is None."""
        try:
            about = message.about_of(data) if data else {"task": "train"}
        except message.Unreadable as error:
            raise NotInTable(f"the request is no message of fnlkit ({error})") from None
        agreed = self._memo("project", lambda: project.read(self.place.agreed))
        if data and about.get("agreement") != agreed.digest:
            named = agreed.difference(about.get("project"))
            text = f"the run has another {named or 'project'} than {self.place.agreed}; replace this file if you agree to it"
            raise NotAgreed(text, named or "UnknownEntry")
        if about.get("hello") not in (None, ours := metadata.version("fnlkit")):
            raise NotAgreed(f"the server runs another version of fnlkit than {ours}; install the same version", "version")
        name, scale = about.get("task"), about.get("scale", "")
        if name not in {*project.TASKS, "scale"} or not isinstance(scale, str):
            raise NotInTable("the request names no task")
        if not data:  # a stage of secure aggregation before the update, which needs no scale of the samples
            agreed = replace(agreed, scaling="project")
        site = self._memo((name, scale), lambda: open_site(self.place, agreed, name, scale))
        if len(data) > (most := message.MOST_TEXT + MOST_ARRAY_BYTES + 8 * MOST_MODELS * site.network.size):
            raise NotInTable(f"the request has {len(data):,} bytes, and this site reads {most:,}")
        try:
            return site, message.decode(data) if data else None
        except message.Unreadable as error:
            raise NotInTable(f"the request is no message of fnlkit ({error})") from None

    def _memo(self, key, make):
        """Make a value once; an InputError of the site's own files is a refusal."""
        try:
            if key not in self._open:
                self._open[key] = make()
        except Withheld:
            raise
        except InputError as error:
            raise Withheld(str(error)) from error
        return self._open[key]

    def _reply(self, site, asked):
        if asked == {"hello": 1}:
            return self._introduction(site)
        if site.secret:
            raise secret.Refused("the server requests an update that is not masked")
        reply = self.visit(site, asked)
        return {"replies": [[site.client.id, reply]]}

    def _introduction(self, site):
        """Facts by which the server admits a site."""
        return {"client": self.place.client, "samples": len(site.client), "version": metadata.version("fnlkit")}

    def visit(self, site: Site, asked: Any) -> dict[str, torch.Tensor]:
        """Run the visit that a request asks for: the arrays of the reply.

        Raises
        ------
        Exception
            If the request is refused, or if the visit fails.
        """
        asked = check_request(asked, clients=site.numbers, network=site.network)
        number, base, *_ = asked["visits"][0]
        site.client.id = int(number)  # selects the random streams
        notebook = Notebook(os.path.join(self.place.memory, asked["run"], f"client-{int(number)}"))
        rows, key = admit(site, asked, partial(notebook.digest, base))
        stored = site.budgets.stored(rows, key)
        if stored is not None:
            return message.decode(stored)
        node = NodeObjects(site.network, {number: site.client}, lambda i: notebook, keep=site.keep)
        node.resolve = partial(_resolve, site)
        with cpu_limit(max(MOST_SECONDS, site.task.project.timeout), site.task.name) as check_time:

            def accept(number: int, reply: dict[str, Any]) -> dict[str, torch.Tensor]:
                check_time()
                return release(site, rows, key, asked, reply)

            node.accept = accept
            ((_, outcome),) = answer(node, asked)["replies"]
        if isinstance(outcome, tuple):
            raise secret.Failed(*outcome[1:3])
        return outcome

    def _refusal(self, error, round):
        """Make the ledger entry of a failure.  Its reason is not sent."""
        if isinstance(error, secret.Failed):
            code, name = error.args
        else:
            reason = failure(error, self.place.client, -1 if round is None else round)
            code = error.code if isinstance(error, Withheld | Undeclared) else reason.code
            name = error.setting if isinstance(error, NotAgreed) else reason.name
        code, name = str(code), str(name)
        named = [code if code in CODES else "failed", name if _CLASS.fullmatch(name) else "Exception"]
        return {"failure": named} | ({"refused": str(error)} if isinstance(error, _REFUSALS) else {})


def _about(asked):
    """Read {"run": ..., "round": ...} of a request for the ledger; None if invalid."""
    run, round = (asked.get(name) for name in ("run", "round")) if isinstance(asked, dict) else (None, None)
    right = isinstance(run, str) and re.fullmatch("[0-9a-f]{16}", run) and type(round) is int and abs(round) < 2**53
    return {"run": run, "round": round} if right else None


# ---- admit
def admit(site: Site, asked: dict[str, Any], remembered: Callable[..., str] = lambda: "") -> tuple[list[Any], str]:
    """Count a request and return (rows of its steps, digest of the request), or refuse it before anything is computed.

    Parameters
    ----------
    site : Site
    asked : dict
        As returned by fnlkit.federated.engines.flower.visits.check_request.
    remembered : callable () -> str
        Digest of the memory with which the visit begins.

    Raises
    ------
    NotInTable
        If a step, a parameter, an array or the number of requests is not in the table.
    """
    task = site.task.name
    if not asked["steps"]:
        raise NotInTable(f"{task}: the request has no step")
    try:
        steps = [unpack(step, partial(may_be_named, site)) for step in asked["steps"]]
        parts = [(site.rows[name_of(part)], part) for step in steps for part in parts_of(step)]
    except (InputError, ValueError, TypeError, KeyError, AttributeError, RecursionError, IndexError):
        raise NotInTable(f"{task}: the request contains a step that the table of this site does not have") from None
    received = {**asked["broadcast"], **asked["visits"][0][3]}
    for row, part in parts:
        must_fit(row, part, received, site.client)
    rows = [site.rows[name_of(step)] for step in steps]
    key = site.budgets.count(rows, partial(_digest, site.task.project, asked, received, remembered))
    return rows, key


def may_be_named(site: Site, module: object, name: object) -> bool:
    """Whether a message can name a function: a step of the table, a loss or a gradient term."""
    return isinstance(module, str) and isinstance(name, str) and f"{module}:{name}" in site.rows


def _resolve(site, packed):
    """Bind a step of a request to the parameters that only the site knows."""
    step = unpack(packed, partial(may_be_named, site))
    site_values = site.rows[name_of(step)].own
    return partial(step, **site_values) if site_values else step


def _digest(project, asked, received, remembered):
    """Compute 16 hexadecimal digits of the SHA-256 of a request and of the memory, without names of runs.

    A scale that the request names is part of it: the same model on other inputs is another model.
    """
    total = hashlib.sha256(f"{json.dumps(asked['steps'], default=_text)} {remembered()}".encode())
    if project.scaling == "sites":
        total.update(json.dumps([project.mean, project.std, project.columns]).encode())
    for name, values in sorted({**received, "": asked["weights"]}.items()):
        total.update(repr((name, str(values.dtype), tuple(values.shape))).encode())
        total.update(values.contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def _text(value):
    """Write a bound value that JSON does not have as a text; that of an array has all entries."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{value.dtype} {tuple(value.shape)} {np.asarray(value).tobytes().hex()}"
    return repr(value)


# ---- release
def release(site: Site, rows: list[Any], key: str, asked: dict[str, Any], reply: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Select the arrays of a reply that can leave, before the site stores the memory of the visit.

    Raises
    ------
    Undeclared, Withheld, fnlkit.sites.site.secret.Refused
    """
    permitted = {name for row in rows for name in row.replies}
    arrays = {name: _declared(site, name, value) for name, value in reply.items()}
    if more := sorted(set(arrays) - permitted):
        raise Undeclared(f"{more[0]!r} is no reply of this request")
    for row in rows:
        for name in row.multiples:
            if name in arrays and (arrays[name] % STEP).any():
                raise Undeclared(f"{name!r} has counts that are no multiples of {STEP}")
    arrays = site.labels.replace_released(arrays, run=asked["run"])
    if site.secret:
        secret.must_be_within(secret.masked_values(arrays, asked, site.secret), site.secret)
    site.budgets.release(rows, key, message.encode(arrays))
    return arrays


def _declared(site, name, value):
    """Convert an array of a reply to its declared type."""
    if name not in site.arrays:
        raise Undeclared(f"{str(name)[:40]!r} is not declared")
    dtype, shape = site.arrays[name]
    if not isinstance(value, torch.Tensor):
        raise Undeclared(f"{name!r} is no array")
    sides, most = tuple(value.shape), max(MOST_SIDE, len(site.client))
    fits = len(sides) == len(shape) and all(
        side == wanted or (isinstance(wanted, str) and side <= site.open_sides.get(wanted, most))
        for side, wanted in zip(sides, shape, strict=True)
    )
    # As at the server, a type is converted if no entry can change.
    if not fits or not torch.can_cast(value.dtype, getattr(torch, dtype)):
        actual = str(value.dtype).removeprefix("torch.")
        raise Undeclared(f"{name!r} is {actual} {sides}, declared {dtype} {tuple(shape)}")
    return value.to(getattr(torch, dtype))
