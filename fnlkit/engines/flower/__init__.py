"""Rounds over Flower: simulated with Ray, or deployed with SuperLink and SuperNodes."""

from __future__ import annotations

import importlib.util
import os

from fnlkit.errors import InputError

_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_worker_niceness": "0",  # the default of Ray is 15, with which actors starve next to other processes
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # suppresses a notice at every start
}


def disable_telemetry() -> None:
    """Switch off the telemetry of Flower and Ray before either is imported.

    Environment variables set by the user are not changed.

    Raises
    ------
    InputError
        If Flower is not installed.
    """
    if importlib.util.find_spec("flwr") is None:
        raise InputError("`engine` flower needs Flower, which is not installed; pip install 'fnlkit[flower]' adds it")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
