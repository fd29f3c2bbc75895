"""Conditions of a run: machine, versions and peak memory."""

import platform
import resource
from importlib.metadata import version

import numpy as np
import torch


def machine(clients, device):
    """Return engine, threads, CPU and versions, which must be equal for equal results."""
    return {
        "engine": getattr(clients, "name", type(clients).__name__.lower()),
        "device": str(device) if str(device) == "cpu" else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "sklearn": version("scikit-learn"),
    }


def peak_bytes():
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
