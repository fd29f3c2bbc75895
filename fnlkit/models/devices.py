"""Devices of this machine."""

from typing import Any

import torch

from fnlkit.core.errors import InputError


def device_of(name: str, what: str = "`device`") -> str:
    """Choose the torch device of an option: ``auto`` is a GPU if there is one, else the CPU.

    Raises
    ------
    InputError
        If torch has no such device here.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"{what} {name}: not available here; write auto or one of: {', '.join(available())}") from error
    return name


def available() -> list[Any]:
    """List the names of all devices that torch can use here."""
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *(["cuda"] if gpus else []), *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]
