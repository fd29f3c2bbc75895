"""Tasks by files: the commands of docs/deployment.md, bad files, and audits with noise within the budget."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from fnlkit.artifacts import message
from fnlkit.artifacts.federation import Federation
from fnlkit.audits import private
from fnlkit.audits.audit import audit
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.datasets.loading import to_dataset
from fnlkit.sites import project
from fnlkit.sites.server import folder, tasks
from fnlkit.sites.site import ledger, request_files
from fnlkit.sites.site.door import Door
from fnlkit.sites.site.opening import Place
from tests import commands
from tests.pages.steps import ROOT
from tests.sites.by_folder import run_by_folder, same

SPEC = importlib.util.spec_from_file_location("audit_by_mail", ROOT / "examples/audit_by_mail.py")
EXAMPLE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(EXAMPLE)
NAMES, WRONG, SHIFTED = EXAMPLE.NAMES, EXAMPLE.NOISY, EXAMPLE.OTHER_UNIT


def fnlkit(text, place, ends=0):
    done = commands.fnlkit(f"fnlkit {text}", place)
    assert done.returncode == ends, done.stderr
    return done


def write(place, samples, *more):
    EXAMPLE.main(place, samples)
    names = " ".join(f"--name {name}" for name in NAMES)
    fnlkit(f"flower-app project --dataset public.csv --sites 5 {names} {' '.join(more)}", place)


def door_of(place, name, memory=""):
    agreed = place / "project/project.json"
    return Door(Place(NAMES.index(name), str(place / f"{name}.csv"), str(place / f"memory-{memory or name}"), str(agreed)))


def run(place, doors, **values):
    """Run an audit over files to the end; return the result."""
    options = tasks.options_of({"task": "audit", "output": str(place / "audit.json"), "wait": 0.0} | values)
    return run_by_folder(project.read(place / "project"), options, doors, place / "mail")


@pytest.mark.slow
def test_the_commands_of_the_page_find_the_noisy_site(tmp_path):
    text = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- run by: tests/sites/test_files.py -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block in blocks:
        done = subprocess.run(["bash", "-ec", block], cwd=tmp_path, env=commands.ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "audit.json").read_text())
    assert [row["site"] for row in found["sites"] if row["noisier"]] == [WRONG] and not found["lost"]
    assert (tmp_path / "audit.html").is_file() and (tmp_path / "review/decisions.csv").is_file()


@pytest.fixture(scope="module")
def mailed(few_trees_of_a_module, tmp_path_factory):
    """A folder with all files of an audit, and its result."""
    place = tmp_path_factory.mktemp("mail")
    write(place, 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "flwr", None)  # files need no Flower
        return place, run(place, {name: door_of(place, name) for name in NAMES})


def test_an_audit_over_files_equals_the_audit_in_one_place(mailed):
    place, found = mailed
    agreed = project.read(place / "project")
    fnlkit("partition --dataset all.csv --scheme sites --labels observed -o fed.npz", place)
    whole = Federation.read(place / "fed.npz")
    scale = np.array(agreed.mean), np.array(agreed.std)
    data = to_dataset(str(place / "all.csv"))
    assert same(found, audit(whole, data, detectors=(), scale=scale), whole, data)
    rows = {row["site"]: row for row in found["sites"]}
    assert [name for name in NAMES if rows[name]["noisier"]] == [WRONG] and 0.2 < rows[WRONG]["level"] < 0.4
    assert [name for name in NAMES if rows[name]["inputs"]["differ"]] == [SHIFTED]
    for name in NAMES:
        lines = ledger.read_ledger(str(place / f"memory-{name}/left.jsonl"))
        assert [("arrays" in line, set(line["told"])) for line in lines] == [(True, {"client", "samples", "version"})] * 2
        assert len([*(place / "mail").glob(f"{name}-*.request")]) == 2  # a site introduces itself in its replies


def test_files_that_do_not_fit_are_named_in_one_line(mailed, tmp_path, capsys):
    place = shutil.copytree(mailed[0], tmp_path / "copy")
    (path,) = [one for one in (place / "mail").glob("aix-*.reply") if "sums" in str(message.decode(one.read_bytes()))]
    agreed, right = project.read(place / "project"), path.read_bytes()
    transport = folder.Folder(place / "mail", NAMES)

    def changed(**introduction):
        return message.encode(message.decode(right) | introduction)

    cases = [
        (b"text", "did not reply"),
        (right[:-8], "did not reply"),
        (changed(replies=[[0, {"x": np.zeros(3)}]]), "declare"),
        (changed(version="0.0.1"), "fnlkit 0.0.1"),
        (changed(client=3), "claims"),
        (changed(samples=10**9), "(max_samples)"),
        (message.encode({"failure": 0} | message.decode(right) | {"samples": 10**9}), "(max_samples)"),
    ]
    for number, (content, reason) in enumerate(cases):
        path.write_bytes(content)
        options = tasks.options_of({"task": "audit", "output": str(place / f"{number}.json"), "wait": 0.0, "min_replies": 0.8})
        with pytest.raises(folder.Waiting):  # the classifiers of the other sites, which answer no second one
            tasks.conduct(transport, agreed, options, folder=str(place / "mail"))
        events = capsys.readouterr().out.splitlines()
        assert any("aix" in text and reason in text for text in events), events
    for words, named in ((["site", "answer", "aix.csv"], "aix.csv"), (["site", "answer", "project"], "no request of aix")):
        line = fnlkit(" ".join([*words, "--project project/project.json --site aix --data aix.csv"]), place, ends=2).stderr
        assert named in line and len(line.splitlines()) == 1


def test_an_audit_of_two_sites_is_refused_before_anything_is_written(mailed, tmp_path):
    two = replace(project.read(mailed[0] / "project"), names=["aix", "bonn"])
    options = tasks.options_of({"task": "audit", "output": str(tmp_path / "audit.json"), "wait": 0.0})
    with pytest.raises(InputError, match="at least 3 sites, and the project has 2"):
        tasks.conduct(folder.Folder(tmp_path / "mail", two.names), two, options, folder=str(tmp_path / "mail"))
    assert not any(tmp_path.rglob("*.request"))


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("site judge x.csv heads.npz", "site answer"),
        ("sites audit a.npz b.npz -o heads.npz", "--folder"),
        ("flower-app p --dataset digits --sites 2 --folds 3", "--folds was removed"),
    ],
)
def test_former_commands_name_the_present_ones(words, instead, tmp_path):
    line = fnlkit(words, tmp_path, ends=2).stderr
    assert instead in line and len(line.splitlines()) == 1


# ---- noise
def test_noise_is_charged_once_and_drawn_once(few_trees, tmp_path):
    pytest.importorskip("dp_accounting")
    write(tmp_path, 1000, "--sums-epsilon 1")
    doors = {name: door_of(tmp_path, name) for name in NAMES}
    found = run(tmp_path, doors)
    rows = {row["site"]: row for row in found["sites"]}
    assert found["privacy"] == {"epsilon": 1.0, "delta": 1e-5} and set(found["sent"]) == set(private.SENDS)
    assert all(rows[name]["low"] < 0.1 for name in NAMES if name != WRONG)  # the draws are secret
    releases = json.loads((tmp_path / "memory-aix/released-sums.json").read_text())["releases"]
    assert [one["epsilon"] for one in releases] == [1.0]
    # The same request has the same reply, from a new process and after the data changed.
    requests = [path for path in (tmp_path / "mail").glob("aix-*.request") if path.with_suffix(".reply").exists()]
    before = {path: path.with_suffix(".reply").read_bytes() for path in requests}
    lines = (tmp_path / "aix.csv").read_text().splitlines()
    (tmp_path / "aix.csv").write_text("\n".join(lines[:-9]) + "\n")
    for path in requests:
        if b'"hello"' not in path.read_bytes():
            again = request_files.answer_file(door_of(tmp_path, "aix"), path).read_bytes()
            assert again == before[path]
    # Another agreement is another release, which the budget does not cover; another folder draws other noise.
    agreed = project.read(tmp_path / "project")
    (tmp_path / "project/project.json").write_bytes(project.text_of(replace(agreed, max_samples=9_000)))
    shutil.rmtree(tmp_path / "mail")
    (tmp_path / "audit.json").unlink()
    with pytest.raises((InputError, WorkStopped)):
        run(tmp_path, {"aix": door_of(tmp_path, "aix"), "bonn": door_of(tmp_path, "bonn", "other")}, min_replies=0.2)
    (refused,) = [line for line in ledger.read_ledger(str(tmp_path / "memory-aix/left.jsonl")) if "failure" in line]
    assert refused["failure"][0] == "release" and "this site agreed to 1" in refused["told"]["refused"]
    drawn = [
        next(line["arrays"]["sums"]["sha256"] for line in ledger.read_ledger(str(tmp_path / f"memory-{memory}/left.jsonl"))
             if "sums" in line.get("arrays", ()))
        for memory in ("bonn", "other")
    ]  # fmt: skip
    assert drawn[0] != drawn[1]


def ask_for(step, place, **received):
    """Return what aix replies to a step of the audit."""
    asked = {"run": "0" * 16, "round": 0, "seed": 0, "weights": torch.zeros(0), "broadcast": received,
             "steps": [("function", "fnlkit.sites.site.audit", step)], "visits": [[0, -1, -1, {}]]}  # fmt: skip
    about = {"agreement": project.read(place / "project").digest, "task": "audit", "scale": ""}
    return message.decode(door_of(place, "aix").answer(message.encode(asked, about)))["replies"][0][1]


def test_a_site_of_a_project_with_noise_sends_no_exact_sums(tmp_path):
    pytest.importorskip("dp_accounting")
    write(tmp_path, 200, "--sums-epsilon 1", "--sums-budget 2")
    assert ask_for("summarize", tmp_path)[1] == "request"


def test_the_second_reply_with_noise_is_charged_without_the_first(tmp_path):
    """A server that asked for the counts alone, under one agreement after another, got them beyond the budget."""
    pytest.importorskip("dp_accounting")
    write(tmp_path, 200, "--sums-epsilon 1")
    head = {"coefficients": torch.zeros(4, private.FEATURES).double(), "offsets": torch.zeros(4).double()}
    assert set(ask_for("judge_with_noise", tmp_path, **head)) == {"agreement", "predicted"}
    assert set(ask_for("summarize_with_noise", tmp_path)) == {"counts", "sums", "moments"}  # paid for by the first reply
    releases = json.loads((tmp_path / "memory-aix/released-sums.json").read_text())["releases"]
    assert [one["epsilon"] for one in releases] == [1.0]
    again = replace(project.read(tmp_path / "project"), audits=2)
    (tmp_path / "project/project.json").write_bytes(project.text_of(again))
    assert ask_for("judge_with_noise", tmp_path, **head)[1] == "release"


def test_a_request_stays_open_until_it_has_a_reply_with_values(tmp_path):
    """A site whose data could not be read left a reply with a failure, and the next call found no request."""
    write(tmp_path, 200)
    fnlkit("sites run project --task audit --folder mail -o audit.json", tmp_path, ends=1)
    answer = "site answer mail --project project/project.json --site aix --data"
    for data in ("missing.csv", "missing.csv", "aix.csv"):
        said = fnlkit(f"{answer} {data}", tmp_path, ends=0 if data == "aix.csv" else 2)
        assert ("missing.csv: no such file" in said.stdout) is (data != "aix.csv")
    assert "no request of aix" in fnlkit(f"{answer} aix.csv", tmp_path, ends=2).stderr
    (reply,) = (tmp_path / "mail").glob("aix-*.reply")
    reply.write_bytes(reply.read_bytes()[:-8])
    fnlkit(f"{answer} aix.csv", tmp_path)


def test_a_site_answers_no_request_of_a_site_with_a_longer_name(tmp_path):
    for name in ("bonn-0123456789ab.request", "bonn-2-0123456789ab.request", "bonn-x.request", "bonn-0123456789ab.txt"):
        (tmp_path / name).write_bytes(b"")
    assert request_files.list_requests([str(tmp_path)], "bonn") == [tmp_path / "bonn-0123456789ab.request"]


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ("--sites 5", "--task audit -o audit.json"),
        ("--sites 2", "--task train -o run.pt"),
        ("--sites 5 --task train", "--task train -o run.pt"),
        ("--sites 2 --task evaluate", "--task evaluate --run run.pt -o evaluate.json"),
        ("--sites 5 --scale sites", "--task scale -o scale.json"),
    ],
)
def test_the_next_command_is_of_an_agreed_task(options, step, tmp_path):
    EXAMPLE.main(tmp_path, 50)
    made = fnlkit(f"flower-app project --dataset public.csv {options}", tmp_path)
    assert f"fnlkit sites run project {step} --folder mail" in made.stderr
    masked = fnlkit("flower-app masked --dataset public.csv --sites 5 --protect secagg --fraction 1", tmp_path)
    assert "--folder" not in masked.stderr  # masks need Flower
    assert "over Flower only" in fnlkit("sites run masked --task train --folder mail -o r.pt", tmp_path, ends=2).stderr
    assert "--sums-delta" in fnlkit("flower-app p --dataset digits --sites 3 --sums-delta 1e-6", tmp_path, ends=2).stderr
    (tmp_path / "s.json").write_text('{"kind": "fnlkit.sites/1", "task": "scale"}')  # without its values
    refused = fnlkit("sites run project --task audit --scale s.json --folder mail -o a.json", tmp_path, ends=2).stderr
    assert "s.json: is no result of `fnlkit sites run --task scale`" in refused
