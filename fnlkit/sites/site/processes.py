"""The process of a site that answers one message, forked from a process that has imported everything.

Flower starts Python and imports fnlkit and PyTorch for every message, which takes seconds of computing time, often more than
the work itself.  Here the processes are forked from one that imports this module once.
"""

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing import forkserver

from fnlkit.federated.engines.flower import disable_telemetry

_MODULE = "fnlkit.sites.site.preload"


def superexec(arguments: Sequence[str]) -> None:
    """Run Flower's `flower-superexec` with these arguments, and fork a process for each message.

    Parameters
    ----------
    arguments : sequence of str
    """
    disable_telemetry()
    from fnlkit.federated.engines.flower import api

    os.environ["PYTHONSAFEPATH"] = "1"  # no module is taken from the folder of the site
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_MODULE])
    forkserver.ensure_running()
    ready = context.Process(target=disable_telemetry)  # starts when all is imported; a task would expire in the meantime
    ready.start()
    ready.join()

    def launch(words: list[str]) -> None:
        context.Process(target=answer, args=(words,), daemon=True).start()

    api.superexec(arguments, launch)


def answer(words: list[str]) -> None:
    """Answer a message as the command line `words` (flwr-clientapp and options) does."""
    disable_telemetry()
    from fnlkit.federated.engines.flower import api

    api.clientapp(words)
