"""Transport over Flower: SuperLink and SuperNodes, with secure aggregation (SecAgg+) of masked updates."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fnlkit.artifacts.message import encode
from fnlkit.core.errors import InputError
from fnlkit.federated.client.failure import failure, log_failures
from fnlkit.federated.engines.flower import disable_telemetry, messages
from fnlkit.sites import identity, secret
from fnlkit.sites.door import Door, update_of
from fnlkit.sites.site import Place

disable_telemetry()


class FlowerTransport:
    """Messages between the server and the nodes of a grid.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    """

    named, awaits_hello, poll_seconds = False, True, 0.3

    def __init__(self, grid: Any):
        self.grid = grid

    def peers(self) -> dict[int, str]:
        """Return the fingerprint of the key of each connected node."""
        return {node.node_id: identity.fingerprint(node.public_key) for node in self.grid.get_nodes()}

    def exchange(
        self, contents: Mapping[int, bytes], limit: float | None, kind: str, *, on_error: Any, on_silent: Any
    ) -> Iterator[tuple[int, Any]]:
        """Yield (node, bytes) of the replies as they arrive; see `fnlkit.federated.engines.flower.messages.exchange`."""

        def failed(node: int, error: Any) -> None:
            on_error(node, error.code, error.reason)

        how = {"poll": self.poll_seconds, "kind": kind, "on_error": failed, "on_silent": on_silent}
        yield from messages.exchange(self.grid, contents, limit, **how)

    def sum_secretly(self, requests: Mapping[int, Any], **how: Any) -> Any:
        """Return the masked sum of updates, or why there is none, as a text; see `fnlkit.sites.secret.gather_sum`."""
        return secret.gather_sum(self.grid, requests, **how)


def server_app(file: str) -> Any:
    """Return the ServerApp of a project, which runs the task of the run configuration.

    Parameters
    ----------
    file : str
        Module in the folder of a package of the project.
    """
    from fnlkit.federated.engines.flower.api import ServerApp
    from fnlkit.sites import project, tasks

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        given = {name: value for name, value in context.run_config.items() if value != ""}
        tasks.conduct(FlowerTransport(grid), project.read(Path(file).parents[1]), tasks.options_of(given))

    return app


def client_app() -> Any:
    """Return the ClientApp of a site: each message goes through the door."""
    from fnlkit.federated.engines.flower.api import ClientApp, Error, Message

    doors = lru_cache(maxsize=1)(lambda config: Door(Place.of(dict(config))))

    class Outlet(ClientApp):
        """Answer messages of every kind."""

        def __call__(self, message, context):
            """Return the reply of the door."""
            try:
                door = doors(tuple(sorted(context.node_config.items())))
            except InputError as error:
                with log_failures():
                    code = failure(error, -1, -1)
                return messages.reply_to(message, encode({"replies": [[-1, ("failure", "setup", code.name, "")]]}))
            if not secret.is_step(message):
                return messages.reply_to(message, door.answer(messages.bytes_of(message) or b"\0"))

            def masked(site: Any, asked: Any) -> tuple[dict[str, Any], Any]:
                def update() -> Any:
                    found = update_of(door.visit(site, asked), asked)
                    return found, secret.rounding(asked["seed"], asked["round"], site.client.id)

                reply = secret.answer(message, context, update, site.secret)
                return secret.summarize_records(reply.content), reply

            line, reply = door.respond(messages.bytes_of(message), masked)
            return reply or Message(Error(code=0, reason=" ".join(line["failure"])), reply_to=message)

    return Outlet()
