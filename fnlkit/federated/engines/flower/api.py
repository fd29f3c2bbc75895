"""Everything that fnlkit imports from Flower: differences between versions of Flower belong into this file.

Other files import this module inside functions, because Flower is optional and takes half a second to import.
"""

import importlib
import sys
import types
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.serverapp import ServerApp

from fnlkit.core.errors import WorkStopped


def secagg_mod() -> types.ModuleType:
    """Flower's module with a client's steps of secure aggregation."""
    return _module("flwr.client.mod.secure_aggregation.secaggplus_mod")


def secagg_workflow() -> types.ModuleType:
    """Flower's module with the server's steps of secure aggregation."""
    return _module("flwr.server.workflow.secure_aggregation.secaggplus_workflow")


def superexec(arguments: Sequence[str], launch: Callable[[list[str]], Any]) -> None:
    """Run `flower-superexec`, which starts a process for each task; `launch` starts the processes of ClientApps.

    Parameters
    ----------
    arguments : sequence of str
        Of the command line.
    launch : callable (list of str)
        Starts the command `flwr-clientapp` with its options.

    Raises
    ------
    WorkStopped
        If Flower's program ends with a code.
    """
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    start = subprocess_executor.subprocess.Popen

    def popen(words: Sequence[str], **how: Any) -> Any:
        return launch(list(words)) if words[0] == _CLIENTAPP else start(words, **how)

    only: Any = SimpleNamespace(Popen=popen, DEVNULL=subprocess_executor.subprocess.DEVNULL)
    subprocess_executor.subprocess = only
    sys.argv = ["flower-superexec", *arguments]
    try:
        flower_superexec()
    except SystemExit as end:
        if end.code:
            raise WorkStopped(f"flower-superexec ended with code {end.code}; its log is above") from end


def prepare() -> None:
    """Import everything that `clientapp` needs."""
    for name in ("flwr.supernode.cli", "httpcore"):
        importlib.import_module(name)


def clientapp(words: Sequence[str]) -> None:
    """Run the command line `words` of `flwr-clientapp` in this process."""
    from flwr.supernode.cli import flwr_clientapp

    sys.argv = list(words)
    flwr_clientapp()


_CLIENTAPP = "flwr-clientapp"


def _module(name):
    importlib.import_module(name)
    return sys.modules[name]  # a package can contain a function of that name
