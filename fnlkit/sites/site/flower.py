"""Transport over Flower at a site: a SuperNode, whose messages go through the door."""

import os
from functools import lru_cache
from typing import Any

from fnlkit.artifacts.message import encode
from fnlkit.core.errors import InputError
from fnlkit.federated.client.failure import failure, log_failures
from fnlkit.federated.engines.flower import disable_telemetry, messages
from fnlkit.sites.secret import is_step
from fnlkit.sites.site import secret
from fnlkit.sites.site.door import Door
from fnlkit.sites.site.opening import Place

disable_telemetry()


def client_app() -> Any:
    """Make the ClientApp of a site: each message goes through the door."""
    from fnlkit.federated.engines.flower.api import ClientApp, Error, Message

    doors = lru_cache(maxsize=1)(lambda config: Door(Place.of(dict(config))))

    class Outlet(ClientApp):
        """Answer messages of every kind."""

        def __call__(self, message, context):
            """Let the door answer a message."""
            try:
                door = doors(tuple(sorted(context.node_config.items())))
            except InputError as error:
                with log_failures():
                    code = failure(error, -1, -1)
                return messages.reply_to(message, encode({"replies": [[-1, ("failure", "setup", code.name, "")]]}))
            if not is_step(message):
                return messages.reply_to(message, door.answer(messages.bytes_of(message) or b"\0"))

            def masked(site: Any, asked: Any) -> tuple[dict[str, Any], Any]:
                def visit() -> Any:
                    return secret.masked_values(door.visit(site, asked), asked, site.secret)

                sums = site.secret is not None and site.secret.unit is not None
                history = secret.History(os.path.join(door.place.memory, "masked.json")) if sums else None
                reply = secret.answer(message, context, visit, site.secret, history)
                return secret.summarize_records(reply.content), reply

            line, reply = door.respond(messages.bytes_of(message), masked)
            return reply or Message(Error(code=0, reason=" ".join(line["failure"])), reply_to=message)

    return Outlet()
