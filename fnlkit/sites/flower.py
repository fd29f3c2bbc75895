"""Flower's apps of a project; the files that `fnlkit flower-app` wrote import them from here."""

from typing import Any


def server_app(file: str) -> Any:
    """Make the ServerApp of a project, see `fnlkit.sites.server.flower.server_app`."""
    from fnlkit.sites.server import flower

    return flower.server_app(file)


def client_app() -> Any:
    """Make the ClientApp of a site, see `fnlkit.sites.site.flower.client_app`."""
    from fnlkit.sites.site import flower

    return flower.client_app()
