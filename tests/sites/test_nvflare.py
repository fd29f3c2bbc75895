"""The transport over NVIDIA FLARE: the files of examples/nvflare_audit, and the commands of docs/deployment.md."""

import ast
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from fnlkit.artifacts import message
from tests.sites.deployed import Deployed, about

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


@pytest.fixture
def nvflare():
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'fnlkit[nvflare]'")
    from fnlkit.sites import nvflare

    return nvflare


def test_a_client_that_is_no_site_or_has_no_settings_sends_nothing(nvflare, place, tmp_path, monkeypatch):
    deployed = Deployed(place, tmp_path, "fedavg")
    executor, log = nvflare.Site(), []
    executor.log_error = lambda context, text: log.append(text)

    def answer(name, task="answer", data=b"x"):
        context = SimpleNamespace(get_identity_name=lambda: name)
        return executor.execute(task, nvflare.Shareable({"message": data}), context, None)

    assert answer("site-0").get_return_code() == "EXECUTION_EXCEPTION" and "FNLKIT_PROJECT" in log[0]
    monkeypatch.setenv("FNLKIT_PROJECT", str(deployed.agreed))
    monkeypatch.setenv("FNLKIT_DATA", "{site}.npz")
    assert answer("zurich").get_return_code() == "EXECUTION_EXCEPTION" and "zurich" in log[1]
    for task, data in (("train", b"x"), ("answer", "text")):
        assert answer("site-0", task, data).get_return_code() == "TASK_UNKNOWN"


def test_a_thread_answers_in_a_process_of_its_own(nvflare, place, tmp_path):
    """Only the main thread of a process can limit the time of a computation."""
    deployed = Deployed(place, tmp_path, "fedavg")
    hello, out = message.encode({"hello": 1}, about(deployed)), []
    site = nvflare.Place.of(deployed.nodes[101])
    thread = threading.Thread(target=lambda: out.append(nvflare.answer_request(site, hello)))
    thread.start()
    thread.join()
    assert message.decode(out[0])["client"] == 1


@pytest.mark.slow
def test_the_commands_of_the_page_run_the_audit_in_the_simulator(tmp_path):
    pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'fnlkit[nvflare]'")
    page = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    names = ["files", "nvflare"]
    first, second = (
        re.search(rf"<!-- run by: tests/sites/test_{name}.py -->\n```sh\n(.*?)```", page, re.DOTALL)[1] for name in names
    )
    block = first + second
    done = subprocess.run(["bash", "-ec", block], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    folder = tmp_path / "workspace/server/simulate_job/fnlkit"
    result = load(folder / "audit.json")
    assert [row["site"] for row in result["sites"] if row["noisier"]] == ["cork"] and not result["lost"]
    assert (folder / "audit.html").is_file()
