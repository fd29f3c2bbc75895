"""Audit from two files per site as a job of NVIDIA FLARE: `fnlkit.sites.mail` over messages of FLARE.

A job contains no code and no path of a site. Each site names the project and the data in local environment variables.
"""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

from fnlkit.artifacts import files, saving
from fnlkit.audits import report
from fnlkit.errors import InputError
from fnlkit.sites import mail, mail_files

SUMMARIZE, JUDGE = "summarize", "judge"
PROJECT, DATA = "FNLKIT_PROJECT", "FNLKIT_DATA"
RESULT, PAGE = "audit.json", "audit.html"
_FILE = "file"


class SiteAudit(Executor):
    """Answer the tasks ``summarize`` and ``judge`` with the files of `fnlkit site summarize` and `fnlkit site judge`.

    The environment variables ``FNLKIT_PROJECT`` and ``FNLKIT_DATA`` of the site are the option ``--project`` and the argument
    DATA of these commands. ``{site}`` in both is replaced by the name of the client, which is the name of the site in the
    project. If a site refuses, the reason is logged at the site and is not sent.
    """

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Return the site's file as a Shareable, or a reply with the code of a failure."""
        if task_name not in (SUMMARIZE, JUDGE):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            with _folder() as folder:
                site = _open_site(fl_ctx.get_identity_name())
                if task_name == SUMMARIZE:
                    answer, lines = mail.summarize(site, *(site.budget or ()))
                else:
                    answer, lines = mail.judge(site, _save(shareable, folder, "heads"))
                self.log_info(fl_ctx, "\n".join(lines))
                files.write(answer, str(folder / "answer.npz"))
                return Shareable({_FILE: (folder / "answer.npz").read_bytes()})
        except InputError as error:
            self.log_error(fl_ctx, str(error))
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)


class Audit(Controller):
    """Collect the first files, send the heads, collect the second files, and write audit.json and audit.html.

    Parameters
    ----------
    timeout : int
        Seconds to wait for the files of all sites. Sites without a first file are listed as lost.
    """

    def __init__(self, timeout=600):
        super().__init__()
        self.timeout = timeout

    def start_controller(self, fl_ctx: Any) -> None:
        """Do nothing: all work is in `control_flow`."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Do nothing: all work is in `control_flow`."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the audit. The files of all sites and the result are in the folder ``fnlkit`` of the job at the server."""
        folder = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())) / "fnlkit"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            sums = self._collect(SUMMARIZE, Shareable(), None, folder, fl_ctx, abort_signal)
            firsts, _, about = mail_files.read_all(sums.values())
            files.write(mail.heads(firsts, about), str(folder / "heads.npz"))
            heads = Shareable({_FILE: (folder / "heads.npz").read_bytes()})
            judged = self._collect(JUDGE, heads, list(sums), folder, fl_ctx, abort_signal)
            result = mail.result(*mail_files.read_all([*sums.values(), *judged.values()]))
        except InputError as error:
            self.system_panic(str(error), fl_ctx)
            return
        saving.write_bytes([report.page(result, "").encode()], str(folder / PAGE))
        saving.write_bytes([json.dumps(result, indent=1).encode()], str(folder / RESULT))
        self.log_info(fl_ctx, f"wrote {folder / RESULT} and {folder / PAGE}")

    def _collect(self, name, data, sites, folder, fl_ctx, abort_signal):
        """Return {site: path of the file} of the sites that answered a task."""
        paths = {}

        def keep(client_task: Any, fl_ctx: Any) -> None:
            reply, site = client_task.result, client_task.client.name
            try:
                if (code := reply.get_return_code()) != ReturnCode.OK:
                    raise InputError(f"replied {code}; the reason is in the log of the site")
                path = _save(reply, folder, f"{site}-{name}")
                if (named := mail_files.read_mail_file(path, mail_files.SUMS, mail_files.JUDGED).meta["site"]) != site:
                    raise InputError(f"sent the file of {named}")
                paths[site] = path
            except InputError as error:
                self.log_error(fl_ctx, f"{site}: {name}: {error}")

        task = Task(name, data, timeout=self.timeout, result_received_cb=keep)
        self.broadcast_and_wait(task, fl_ctx, targets=sites, min_responses=0, abort_signal=abort_signal)
        return paths


def _open_site(name):
    missing = [variable for variable in (PROJECT, DATA) if not os.environ.get(variable)]
    if missing:
        raise InputError(f"{missing[0]}: is not set; set it at the site before NVFlare starts (docs/nvflare.md)")
    project, data = (os.environ[variable].replace("{site}", name) for variable in (PROJECT, DATA))
    return mail_files.open_site(data, project, name=name)


def _save(message, folder, name):
    """Write the file of a message to a folder and return its path."""
    content = message.get(_FILE)
    if not isinstance(content, bytes):
        raise InputError(f"{name}: the message contains no file")
    path = str(folder / f"{name}.npz")
    saving.write_bytes([content], path)
    return path


@contextlib.contextmanager
def _folder():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
