"""The same rounds over Flower: simulated on this machine's Ray, or deployed on SuperLink and SuperNodes."""

import importlib.util
import os

from fnlkit.errors import InputError

_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_worker_niceness": "0",  # Ray's own is 15, which starves beside anything else
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a notice of every start
}


def required():
    """Switch Flower's and Ray's messages to their makers off, before either is imported; what the user set stays.

    Raises
    ------
    InputError
        When Flower is not installed.
    """
    if importlib.util.find_spec("flwr") is None:
        raise InputError("--engine flower needs Flower, which is not installed; pip install 'fnlkit[flower]' adds it")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
