"""Steps for processes of their own: a worker imports this file and nothing that pytest needs."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import torch

from fnlkit.core.spec import parse
from fnlkit.kernels import get_threads
from tests.toy import Net


class NotInWorkers(Net):
    """A network that only the process that made it can read."""

    def __setstate__(self, state):
        if multiprocessing.parent_process():
            raise RuntimeError("no library")
        super().__setstate__(state)


def dies(client, model, received, *, flag):
    """Kill the own process, once."""
    client.state["visits"] = client.state.get("visits", torch.tensor(0)) + 1
    if client.id == 3 and not os.path.exists(flag):
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"drawn": torch.tensor(client.rng.random())}


def always_dies(client, model, received):
    if client.id == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"ok": torch.tensor(1.0)}


def counts_threads(client, model, received):
    return {"threads": torch.tensor(get_threads())}


def wrong(client, model, received):
    parse("mlp(")


def fails(client, model, received):
    if client.id == 1:
        raise FloatingPointError("overflow")
    client.rows["seen"] = torch.ones(len(client))
    return {"ok": torch.tensor(1.0)}


def writes_its_process(client, model, received, *, folder):
    Path(folder, f"{os.getpid()}").write_text(f"{os.getppid()}")


def draws(client, model, received):
    return {"number": torch.tensor(np.random.random())}  # noqa: NPY002 - as a user component might


def stops_in_client_1(client, model, received):
    """Stop the process in client 1."""
    if client.id == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return {"ok": torch.tensor(1.0)}


def sleeps(client, model, received, *, folder):
    """Leave a file named by the process and do not end."""
    Path(folder, str(os.getpid())).touch()
    while True:
        time.sleep(1)
