"""Transport over Flower at the server: SuperLink, with secure aggregation (SecAgg+) of masked updates."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fnlkit.federated.engines.flower import disable_telemetry, messages
from fnlkit.sites import identity, project
from fnlkit.sites.server import secret, tasks

disable_telemetry()


class FlowerTransport:
    """Messages between the server and the nodes of a grid.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    """

    named, poll_seconds = False, 0.3
    repair = "start these sites (start.sh)"

    def __init__(self, grid: Any):
        self.grid = grid

    def peers(self) -> dict[int, str]:
        """Fingerprint of the key of each connected node."""
        return {node.node_id: identity.fingerprint(node.public_key) for node in self.grid.get_nodes()}

    def exchange(
        self, contents: Mapping[int, bytes], limit: float | None, kind: str, *, on_error: Any, on_silent: Any
    ) -> Iterator[tuple[int, Any]]:
        """Yield (node, bytes) of the replies as they arrive; see `fnlkit.federated.engines.flower.messages.exchange`."""

        def failed(node: int, error: Any) -> None:
            on_error(node, error.code, error.reason)

        options = {"poll": self.poll_seconds, "kind": kind, "on_error": failed, "on_silent": on_silent}
        yield from messages.exchange(self.grid, contents, limit, **options)

    def sum_secretly(self, requests: Mapping[int, Any], **how: Any) -> Any:
        """Gather the masked sum of updates, or the reason why there is none; see `fnlkit.sites.server.secret.gather_sum`."""
        return secret.gather_sum(self.grid, requests, **how)


def server_app(file: str) -> Any:
    """Make the ServerApp of a project, which runs the task of the run configuration.

    Parameters
    ----------
    file : str
        Module in the folder of a package of the project.
    """
    from fnlkit.federated.engines.flower.api import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        config = {name: value for name, value in context.run_config.items() if value != ""}
        tasks.conduct(FlowerTransport(grid), project.read(Path(file).parents[1]), tasks.options_of(config))

    return app
