"""Rounds as messages of Flower: in one process, or deployed with SuperLink and SuperNodes."""

import importlib.util
import os

from fnlkit.core.errors import InputError

_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


def disable_telemetry() -> None:
    """Switch off the telemetry of Flower before it is imported.

    Environment variables set by the user are not changed.

    Raises
    ------
    InputError
        If Flower is not installed.
    """
    if importlib.util.find_spec("flwr") is None:
        raise InputError("flower needs Flower; run: pip install 'fnlkit[flower]'", parameter="engine")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
