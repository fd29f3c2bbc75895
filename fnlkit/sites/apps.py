"""ServerApp and ClientApp of a deployment, called by the files of a generated project."""

import os
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from fnlkit.client.failure import failure, log_failures
from fnlkit.errors import InputError
from fnlkit.sites import leaving
from fnlkit.sites.agreement import NotAgreed
from fnlkit.sites.flower import disable_telemetry, secret, wire
from fnlkit.sites.flower.notebook import Notebook
from fnlkit.sites.flower.visits import answer, check_request
from fnlkit.sites.gate import must_be_small
from fnlkit.sites.leaving import Undeclared
from fnlkit.sites.releases import Withheld
from fnlkit.sites.time_limit import cpu_limit

if TYPE_CHECKING:
    import numpy as np


disable_telemetry()
# Errors with which a site refuses a request; the ledger contains their reason.
_REFUSALS = (Undeclared, Withheld, secret.Refused)


def server_app(conduct: Callable[..., None]) -> Any:
    """Return a ServerApp that trains.

    Parameters
    ----------
    conduct : callable (grid, config dict) -> None
        Function that trains. Any exception marks the run as failed.
    """
    from fnlkit.sites.flower.api import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        conduct(grid, dict(context.run_config))

    return app


def client_app(open_site: Callable[..., Any]) -> Any:
    """Return the ClientApp of a site.

    Parameters
    ----------
    open_site : callable (run config dict, node config dict) -> (NodeObjects, Declared, folder)
        Function that opens the site. `folder` contains the memory of clients and the ledger of the replies.
    """
    from fnlkit.sites.flower.api import ClientApp, Message

    opened = lru_cache(maxsize=1)(lambda config, node: open_site(dict(config), dict(node)))

    def site(context: Any) -> Any:
        try:
            return opened(tuple(sorted(context.run_config.items())), tuple(sorted(context.node_config.items())))
        except Withheld:
            raise
        except InputError as error:
            raise Withheld(str(error)) from error

    class Outlet(ClientApp):
        """Answer messages of every kind. Every reply is written to the ledger before it is sent."""

        def __call__(self, message, context):
            """Return a reply with the declared arrays only; for a failure, its code and class name."""
            with log_failures():
                return respond(message, context, super().__call__)

    def respond(message: Any, context: Any, call_next: Callable[..., Any]) -> Any:
        declared, about = None, {"run": "", "round": None}
        try:
            desk, declared, _ = site(context)
            if message.metadata.message_type == "train":
                must_be_small(message.content, desk.network)
                about = _about(message) or about
                reply, line = (_mask_reply if declared.secret else _open)(message, context, call_next, declared, about["run"])
            else:
                call_next(message, context)
                line = declared.hello()
                reply = Message(wire.encode(line), reply_to=message)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the error text stays at the site
            reply, line = _reply_with_failure(message, error, declared, about["round"])
        try:
            leaving.enter(_ledger(context), **about, said=line)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a reply without a ledger entry is not sent
            reply, _ = _reply_with_failure(message, error, declared, about["round"])
        return reply

    app = Outlet()

    @app.query()
    def hello(message: Any, context: Any) -> Any:
        return Message(wire.encode({}), reply_to=message)

    @app.train()
    def visit(message: Any, context: Any) -> Any:
        desk, declared, folder = site(context)
        asked = check_request(wire.decode(message.content), clients=declared.numbers, network=desk.network)
        desk.notebook = lambda i: Notebook(os.path.join(folder, asked["run"], f"client-{int(i)}"))
        number, base, *_ = asked["visits"][0]
        names = declared.gate.admit(asked, partial(desk.notebook(number).digest, base))
        desk.allowed = declared.gate.may_be_named
        with cpu_limit(declared.gate.seconds, declared.gate.task) as check_time:
            desk.accept = partial(_accept, declared, asked, names, check_time)
            reply = answer(desk, asked)
        return Message(wire.encode(reply), reply_to=message)

    return app


def _ledger(context):
    """Return the path of a site's ledger, which is available before the site is opened."""
    if not isinstance(folder := context.node_config.get("memory"), str) or not folder:
        raise InputError(
            "the node config lacks memory; give the folder where the site keeps its ledger and what clients remember"
        )
    return os.path.join(folder, "left.jsonl")


def _about(message):
    """Return {"run": ..., "round": ...} of a request for the ledger, None if invalid."""
    try:
        asked = wire.decode(message.content)
        right = isinstance(asked["run"], str) and re.fullmatch("[0-9a-f]{16}", asked["run"]) and type(asked["round"]) is int
        return {"run": asked["run"], "round": asked["round"]} if right and abs(asked["round"]) < 2**53 else None
    except (wire.Unreadable, KeyError, TypeError, AttributeError):
        return None


def _open(message, context, call_next, declared, run):
    """Return (reply, ledger entry) of a visit whose reply is sent unmasked."""
    from fnlkit.sites.flower.api import Message

    said = declared.reply(wire.decode(call_next(message, context).content), run)
    return Message(wire.encode(said), reply_to=message), said


def _accept(declared, asked, names, check_time, number, reply):
    """Check a reply before the site stores the memory of the visit: a refused request leaves no memory."""
    check_time()
    ((_, found),) = declared.reply({"replies": [[number, reply]]}, asked["run"])["replies"]
    if more := sorted(set(found) - names):
        raise Undeclared(f"{more[0]!r} is no reply of this request")
    if declared.secret:
        secret.must_be_within(_compute_update(found, asked), declared.secret)


def _compute_update(found, asked):
    """Return the update (P + Q,) float64 of a visit whose reply is masked."""
    if set(found) != {"weights"}:
        raise secret.Refused("it asks for more than masked weights")
    return (found["weights"].double() - asked["weights"].double()).numpy()


def _mask_reply(message, context, call_next, declared, run):
    """Return (reply, ledger entry) of a step of secure aggregation."""

    def update() -> "tuple[np.ndarray, int]":
        asked = wire.decode(message.content)
        ((_, found),) = declared.reply(wire.decode(call_next(message, context).content), run)["replies"]
        if isinstance(found, tuple):
            raise secret.Failed(*found[1:3])
        return _compute_update(found, asked), secret.rounding(asked["seed"], asked["round"], declared.client)

    reply = secret.answer(message, context, update, declared.secret)
    return reply, secret.summarize_records(reply.content)


def _reply_with_failure(message, error, declared, round):
    """Return (reply, ledger entry) of a failure.

    The message of the failure is written only to the site's log.
    """
    from fnlkit.sites.flower.api import Error, Message

    if isinstance(error, secret.Failed):
        code, name = error.args
    else:
        found = failure(error, -1 if declared is None else declared.client, -1 if round is None else round)
        codes = {Undeclared: "undeclared"}
        code = error.code if isinstance(error, Withheld) else codes.get(type(error), found.code)
        name = error.setting if isinstance(error, NotAgreed) else found.name if code != "undeclared" else "Undeclared"
    _, code, name, _ = told = leaving.failure(code, name)
    line = {"failure": [code, name]} | ({"refused": str(error)} if isinstance(error, _REFUSALS) else {})
    if declared is not None and declared.secret and message.metadata.message_type == "train":
        return Message(Error(code=0, reason=f"{code} {name}"), reply_to=message), line
    content = wire.encode({"replies": [[-1 if declared is None else declared.client, told]]})
    return Message(content, reply_to=message), line
