"""The audit from summaries as a job of NVFlare: the files of examples/nvflare_audit, and the commands of docs/nvflare.md."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from fnlkit.artifacts import files
from fnlkit.sites import mail, mail_files
from tests import commands
from tests.sites.test_mail import EXAMPLE, NAMES, WRONG

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples/nvflare_audit/job"
SERVER, CLIENT = (JOB / f"app/config/config_fed_{side}.json" for side in ("server", "client"))
MODULE = "fnlkit.sites.nvflare"


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def classes():
    """Return {class: names of the parameters} of the module, which is not imported."""
    tree = ast.parse((ROOT / "fnlkit/sites/nvflare.py").read_text(encoding="utf-8"))
    out = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
            out[f"{MODULE}.{node.name}"] = {one.arg for each in made for one in each.args.args[1:]}
    return out


def test_the_job_names_classes_and_parameters_that_exist_and_that_a_site_allows():
    (workflow,), (executor,) = load(SERVER)["workflows"], load(CLIENT)["executors"]
    for part in (workflow, executor["executor"]):
        assert set(part["args"]) <= classes()[part["path"]]
    allowed = load(JOB.parent / "resources.json")["class_allow_list"]
    assert allowed == [workflow["path"], executor["executor"]["path"]]
    assert load(JOB / "meta.json")["deploy_map"] == {"app": ["@ALL"]}
    assert not [path for path in JOB.rglob("*") if path.is_file() and path.suffix != ".json"]


class Context(SimpleNamespace):
    """The part of NVFlare's context that a site reads."""

    def get_identity_name(self):
        return self.name


class Message(dict):
    """The part of NVFlare's Shareable that both ends use."""

    code = "OK"

    def get_return_code(self):
        return self.code


def failure(code):
    reply = Message()
    reply.code = code
    return reply


# Stand-ins for the names that the module imports, where NVFlare is not installed.
CODES = SimpleNamespace(OK="OK", TASK_UNKNOWN="TASK_UNKNOWN", EXECUTION_EXCEPTION="EXECUTION_EXCEPTION")
STAND_INS = {
    "controller_spec": {"Task": SimpleNamespace},
    "executor": {"Executor": object},
    "fl_constant": {"ReturnCode": CODES},
    "impl.controller": {"Controller": object},
    "shareable": {"Shareable": Message, "make_reply": failure},
}


@pytest.fixture(params=["installed", "stand-in"])
def module(request, monkeypatch):
    """fnlkit.sites.nvflare, with NVFlare and with stand-ins."""
    if request.param == "installed":
        pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'fnlkit[nvflare]'")
    else:
        for name in ("nvflare", "nvflare.apis", "nvflare.apis.impl"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        for name, parts in STAND_INS.items():
            monkeypatch.setitem(sys.modules, f"nvflare.apis.{name}", SimpleNamespace(**parts))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


@pytest.fixture
def site(module, tmp_path, monkeypatch):
    """The executor of a site with a project and the data of aix."""

    EXAMPLE.main(tmp_path)
    names = " ".join(f"--name {name}" for name in NAMES)
    commands.succeed(f"fnlkit flower-app project --dataset public.csv --sites 5 {names}", tmp_path)
    monkeypatch.setenv("FNLKIT_PROJECT", str(tmp_path / "project/pyproject.toml"))
    monkeypatch.setenv("FNLKIT_DATA", str(tmp_path / "{site}.csv"))
    executor = module.SiteAudit()
    executor.make_message = module.Shareable
    executor.log, executor.info = [], []
    executor.log_error = lambda context, text: executor.log.append(text)
    executor.log_info = lambda context, text: executor.info.append(text)
    return executor


def answer(executor, task, message=None, name="aix"):
    """Return the code and the file of a site's reply."""
    reply = executor.execute(task, executor.make_message(message or {}), Context(name=name), None)
    return reply.get_return_code(), reply.get("file")


def test_a_site_sends_the_file_of_the_command(site, tmp_path):
    code, content = answer(site, "summarize")
    assert code == "OK"
    commands.succeed("fnlkit site summarize aix.csv --project project/pyproject.toml --site aix -o aix-1.npz", tmp_path)
    (tmp_path / "sent.npz").write_bytes(content)
    with np.load(tmp_path / "sent.npz") as sent, np.load(tmp_path / "aix-1.npz") as written:
        assert sent["sums"].tobytes() == written["sums"].tobytes()


def test_the_messages_of_all_sites_are_an_audit(site, tmp_path):
    """Both tasks at all sites, and the result that the controller computes from the files."""
    for name in NAMES:
        code, content = answer(site, "summarize", name=name)
        assert code == "OK", site.log
        (tmp_path / f"{name}-1.npz").write_bytes(content)
    firsts, _, about = mail_files.read_all([tmp_path / f"{name}-1.npz" for name in NAMES])
    files.write(mail.heads(firsts, about), tmp_path / "heads.npz")
    heads = (tmp_path / "heads.npz").read_bytes()
    for name in NAMES:
        code, content = answer(site, "judge", {"file": heads}, name=name)
        assert code == "OK", site.log
        (tmp_path / f"{name}-2.npz").write_bytes(content)
    assert sum("Second file of" in text for text in site.info) == len(NAMES)
    result = mail.result(*mail_files.read_all([tmp_path / f"{name}-{i}.npz" for name in NAMES for i in (1, 2)]))
    assert [row["site"] for row in result["sites"] if row["noisier"]] == [WRONG] and not result["lost"]


def test_a_site_refuses_a_message_and_keeps_the_reason(site):
    assert answer(site, "summarize")[0] == "OK"
    for message in ({}, {"file": "text"}, {"file": b"no file of fnlkit"}):
        assert answer(site, "judge", message) == ("EXECUTION_EXCEPTION", None)
    assert len(site.log) == 3
    assert answer(site, "train") == ("TASK_UNKNOWN", None)


def test_a_client_that_is_no_site_or_has_no_settings_sends_nothing(site, monkeypatch):
    assert answer(site, "summarize", name="zurich") == ("EXECUTION_EXCEPTION", None)
    monkeypatch.delenv("FNLKIT_DATA")
    assert answer(site, "summarize") == ("EXECUTION_EXCEPTION", None)
    assert "zurich" in site.log[0] and "FNLKIT_DATA" in site.log[1]


@pytest.mark.slow
def test_the_commands_of_the_page_run_the_audit_in_the_simulator(tmp_path):
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'fnlkit[nvflare]'")
    page = (ROOT / "docs/nvflare.md").read_text(encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    block = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1]
    done = subprocess.run(["bash", "-ec", block], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    folder = tmp_path / "workspace/server/simulate_job/fnlkit"
    result = load(folder / "audit.json")
    assert [row["site"] for row in result["sites"] if row["noisier"]] == [WRONG] and not result["lost"]
    files = " ".join(f"{name}-{task}.npz" for task in ("summarize", "judge") for name in NAMES)
    commands.succeed(f"fnlkit sites audit {files} -o again.json", folder)
    assert load(folder / "again.json")["digest"] == result["digest"] and (folder / "audit.html").is_file()
