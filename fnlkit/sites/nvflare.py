"""Transport over NVIDIA FLARE: a controller that runs a task at the server, and an executor that answers at a site.

A job contains no code and no path of a site.  Server and sites name the project, and the sites the data, in local environment
variables.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

from fnlkit.artifacts import saving
from fnlkit.audits import report
from fnlkit.engines.flower.messages import LATE
from fnlkit.errors import InputError, WorkStopped
from fnlkit.sites import folders, project, tasks
from fnlkit.sites.door import Door
from fnlkit.sites.site import Place

ANSWER = "answer"
PROJECT, DATA = "FNLKIT_PROJECT", "FNLKIT_DATA"
RESULT, PAGE = "audit.json", "audit.html"
_BYTES = "message"


class Site(Executor):
    """Answer the requests of a server through the door of this site.

    The environment variables ``FNLKIT_PROJECT`` and ``FNLKIT_DATA`` of the site are the option ``--project`` and the argument
    DATA of `fnlkit site answer`. ``{site}`` in both is replaced by the name of the client, which is the name of the site in the
    project. If a site refuses, the reason is logged at the site and is not sent.
    """

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Return the site's reply as a Shareable, or a reply with the code of a failure."""
        data = shareable.get(_BYTES)
        if task_name != ANSWER or not isinstance(data, bytes):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            return Shareable({_BYTES: answer_request(_place(fl_ctx.get_identity_name()), data)})
        except (InputError, WorkStopped) as error:
            self.log_error(fl_ctx, str(error))
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)


def answer_request(place: Place, data: bytes) -> bytes:
    """Return the reply of a site, computed in a process of its own if this thread cannot limit the time of the computation."""
    if threading.current_thread() is threading.main_thread():
        return Door(place).answer(data)
    words = [sys.executable, "-c", "from fnlkit.sites.door import main; main()", json.dumps(asdict(place))]
    done = subprocess.run(words, input=data, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise WorkStopped("the process that answers a request ended; its messages are above")
    return done.stdout


def _place(name):
    """Return the Place of a site from the local environment."""
    missing = [variable for variable in (PROJECT, DATA) if not os.environ.get(variable)]
    if missing:
        raise InputError(f"{missing[0]}: is not set; set it at the site before NVFlare starts (docs/deployment-site.md)")
    where, data = (os.environ[variable].replace("{site}", name) for variable in (PROJECT, DATA))
    site = folders.locate_site(where, name)
    return Place(site["client"], data, site["memory"], site["agreed"], site["leave_out"])


class Run(Controller):
    """Run a task over the clients of a job and write its result into the folder ``fnlkit`` of the job at the server.

    Parameters
    ----------
    task, run, scale : str
        As in fnlkit.sites.tasks.Options.
    timeout : int
        Seconds to wait for the replies of all sites. Sites without a reply are listed as lost.
    """

    def __init__(self, task="audit", run="", scale="", timeout=600):
        super().__init__()
        self.task, self.run, self.scale, self.timeout = task, run, scale, timeout

    def start_controller(self, fl_ctx: Any) -> None:
        """Do nothing: all work is in `control_flow`."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Do nothing: all work is in `control_flow`."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the task."""
        engine = fl_ctx.get_engine()
        folder = Path(engine.get_workspace().get_run_dir(fl_ctx.get_job_id())) / "fnlkit"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            agreed = project.read(os.environ.get(PROJECT) or "project")
            output = folder / ("run.pt" if self.task == "train" else RESULT)
            values = {"task": self.task, "output": str(output), "run": self.run, "scale": self.scale, "wait": 0.0}
            options = tasks.options_of({**values, "timeout": float(self.timeout)})
            tasks.conduct(FlareTransport(self, fl_ctx, abort_signal), agreed, options)
            if self.task == "audit":
                found = json.loads(output.read_text(encoding="utf-8"))
                saving.write_bytes([report.page(found, "").encode()], str(folder / PAGE))
        except (InputError, WorkStopped) as error:
            self.system_panic(str(error), fl_ctx)
            return
        self.log_info(fl_ctx, f"wrote {output}")


class FlareTransport:
    """Messages between a controller and the clients of a job, whose names are those of the sites.

    Parameters
    ----------
    controller : Run
    fl_ctx, abort_signal : NVFlare's
    """

    named, awaits_hello, poll_seconds = True, True, 0.2

    def __init__(self, controller: Any, fl_ctx: Any, abort_signal: Any):
        self.controller, self.fl_ctx, self.abort = controller, fl_ctx, abort_signal

    def peers(self) -> dict[str, str]:
        """Return the identity of each client: its name."""
        return {client.name: client.name for client in self.fl_ctx.get_engine().get_clients()}

    def exchange(
        self, contents: Mapping[str, bytes], limit: float | None, kind: str, *, on_error: Any, on_silent: Any
    ) -> Iterator[tuple[str, Any]]:
        """Yield (name, bytes) of the replies as they arrive, (name, LATE) for a late one."""
        replies: dict[str, Any] = {}

        def keep(client_task: Any, fl_ctx: Any) -> None:
            replies[client_task.client.name] = client_task.result

        seconds, began = int(limit or 0), time.monotonic()
        for name, data in contents.items():
            task = Task(ANSWER, Shareable({_BYTES: data}), timeout=seconds, result_received_cb=keep)
            self.controller.send(task, self.fl_ctx, targets=[name])
        waiting = set(contents)
        while waiting and not (self.abort is not None and self.abort.triggered):
            for name in sorted(waiting & set(replies)):
                waiting.discard(name)
                reply = replies[name]
                if reply.get_return_code() != ReturnCode.OK or not isinstance(reply.get(_BYTES), bytes):
                    on_error(name, 0, f"replied {reply.get_return_code()}; the reason is in the log of the site")
                else:
                    yield name, reply[_BYTES]
            if waiting:
                passed = time.monotonic() - began
                if limit and passed > limit:
                    break
                on_silent(waiting, passed)
                time.sleep(self.poll_seconds)
        yield from ((name, LATE) for name in sorted(waiting))
