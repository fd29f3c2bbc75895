"""What a site agreed to holds against its server, and what a server agreed to holds against its sites."""

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fnlkit.artifacts import message
from fnlkit.core.errors import WorkStopped
from fnlkit.federated.client.failure import CODES
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines.flower import messages
from fnlkit.methods.feddpcont import release_labels
from fnlkit.sites import flower_app, identity, project
from fnlkit.sites.server import roster, training
from fnlkit.sites.site import opening as site_module
from tests.commands import refuse, refuse_call, succeed
from tests.sites.deployed import RUN, Deployed, about, gather, lines, request, sent, told, write_keys


# ---- the server against the site
@pytest.mark.parametrize(
    ("method", "asked", "code"),
    [
        ("feddpcont(epsilon=0.5)", 0.5, ["epsilon", "private_counts"]),
        ("feddpcont(epsilon=0.5)", 0.25, ["epsilon", "private_counts"]),
        ("feddpcont(epsilon=0.5)", 0.51, "release"),
        ("feddpcont(epsilon=0.5)", None, "release"),
        ("fedavg", None, "request"),
        ("feddpcont(release=exact)", None, ["exact_counts"]),
    ],
)
def test_labels_leave_at_the_agreed_price_at_most(method, asked, code, place, tmp_path):
    deployed = Deployed(place, tmp_path, method)
    assert told(sent(deployed, request(deployed, partial(release_labels, epsilon=asked)))) == code
    (line,) = lines(deployed)
    assert line.get("failure", [[]])[0] == (code if isinstance(code, str) else [])
    assert (tmp_path / "memory-1/released.json").exists() == isinstance(code, list)


def test_labels_are_released_once_for_all_runs(place, tmp_path):
    """A new run name, another round, or a lost memory of the client: the counts are those of the first time."""
    deployed = Deployed(place, tmp_path, "feddpcont(epsilon=0.5)")
    step = partial(release_labels, epsilon=0.5)
    first = sent(deployed, request(deployed, step))["replies"][0][1]["private_counts"]
    for number, (run, round) in enumerate([("a" * 16, 0), ("b" * 16, 7), (RUN, 3), ("c" * 16, 0)]):
        if number == 3:
            shutil.rmtree(tmp_path / "memory-1" / RUN)
        again = sent(deployed, request(deployed, step, run=run, round=round))["replies"][0][1]
        assert torch.equal(again["private_counts"], first) and again["epsilon"].item() == 0.5
    # At another price both releases would add up, whichever is the smaller.
    assert told(sent(deployed, request(deployed, partial(release_labels, epsilon=0.4), run="d" * 16))) == "release"


def test_other_labels_are_no_second_release(place, tmp_path):
    deployed = Deployed(place, tmp_path, "feddpcont(epsilon=0.5)")
    step = partial(release_labels, epsilon=0.5)
    assert told(sent(deployed, request(deployed, step))) == ["epsilon", "private_counts"]
    site = dict(np.load(deployed.nodes[101]["data"]))
    site["y_train"][0] = (site["y_train"][0] + 1) % 10
    np.savez(tmp_path / "changed.npz", **site)
    deployed.nodes[101]["data"] = str(tmp_path / "changed.npz")
    assert told(sent(deployed, request(deployed, step, run="a" * 16))) == "release"
    for text in ("{}", '{"kind": "fnlkit.requests/1"}'):  # an old kind is "no request yet", but only for requests
        (tmp_path / "memory-1/released.json").write_text(text)
        assert told(sent(deployed, request(deployed, step, run="b" * 16))) == "release"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"settings": {"protect": "none"}}, "protect"),
        ({"settings": {"method": "flr"}}, "method"),
        ({"settings": {"lr": 9.0}}, "lr"),
        ({"max_samples": 10**9}, "max_samples"),
        ({"open_tasks": True}, "open_tasks"),
    ],
)
def test_a_site_runs_only_agreed_settings(change, name, place, tmp_path, capsys, caplog):
    deployed = Deployed(place, tmp_path, "fedavg", protect="secagg")
    agreed = deployed.project
    settings = agreed.settings | change.get("settings", {})
    deployed.project = replace(agreed, **change | {"settings": settings})
    refuse_call(rf"3 of 3 sites .*did not agree.*\b{name}\b", deployed.train, error=WorkStopped)
    site_log = capsys.readouterr().err
    assert f"another {name} than" in site_log and not any(record.exc_info for record in caplog.records)
    assert [line["failure"] for line in lines(deployed)] == [["terms", name]]
    # Settings of the server alone.
    deployed.project = replace(agreed, wait=1.0, timeout=7.0, settings=agreed.settings | {"rounds": 1, "seed": 3})
    assert set(sent(deployed, {"hello": 1}, kind="query")) == {"client", "samples", "version"}


def test_a_name_that_only_the_site_has_stays_there(place, tmp_path, capsys):
    deployed = Deployed(place, tmp_path, "fedavg")
    text = json.loads(deployed.agreed.read_text())
    text["settings"]["CanarySetting"] = 1
    deployed.agreed.write_text(json.dumps(text))
    reply = sent(deployed, {"hello": 1}, kind="query", facts=about(deployed, project=deployed.project.agreement()))
    assert reply["replies"][0][1][1:3] == ("terms", "UnknownEntry")
    assert not any(b"Canary" in each for each in deployed.grid.left)


def test_a_site_computes_nothing_for_a_server_of_another_version(place, tmp_path, capsys):
    deployed = Deployed(place, tmp_path, "fedavg")
    facts = about(deployed, hello="0.0.1")
    assert sent(deployed, {"hello": 1}, kind="query", facts=facts)["replies"][0][1][1:3] == ("terms", "version")
    assert "install the same version" in capsys.readouterr().err


def test_a_changed_setting_is_agreed_by_the_one_new_file(place, tmp_path, capsys):
    """The site replaces project.json, and nothing else, and need not start again."""
    deployed = Deployed(place, tmp_path, "fedavg")
    agreed = tmp_path / "agreed.json"
    agreed.write_bytes(deployed.agreed.read_bytes())
    deployed.nodes[101]["agreed"] = str(agreed)
    deployed.agree(settings=deployed.project.settings | {"lr": 0.02})
    facts = about(deployed, project=deployed.project.agreement())
    assert told(sent(deployed, {"hello": 1}, kind="query", facts=facts)) == "terms"
    assert "another lr than" in capsys.readouterr().err
    agreed.write_bytes(deployed.agreed.read_bytes())
    deployed.restart_sites()  # each message has a process of its own
    assert set(sent(deployed, {"hello": 1}, kind="query")) == {"client", "samples", "version"}


def test_the_ledger_has_the_reason_of_a_refusal(place, tmp_path, monkeypatch):
    from fnlkit.sites import folders

    masked = Deployed(place, tmp_path, "fedavg", protect="secagg")
    assert sent(masked, request(masked))["replies"][0][1][2] == "Refused"  # an update that is not masked
    (line,) = lines(masked)
    assert line["failure"][1] == "Refused" and "is not masked" in line["told"]["refused"]
    monkeypatch.setattr(folders, "read_site", lambda folder: {"memory": str(tmp_path / "memory-1")})
    done = succeed("fnlkit site log", tmp_path)
    assert "refused: the server requests" in " ".join((done.stdout + done.stderr).split())


def test_masks_of_sites_that_were_asked_for_different_things_do_not_cancel():
    """A server that makes all other updates known, by other weights or steps, would read the last one from the sum."""
    updates = 0.25 * (np.arange(3) == 2)[:, None] * np.ones(50)
    one, other = ({"weights": torch.full((50,), v), "visits": []} for v in (0.0, 1.0))
    mean, *_ = gather(updates, [1] * 3, [one, one, one])
    assert np.abs(mean.numpy() - 0.25 / 3).max() < 1e-5
    mean, *_ = gather(updates, [1] * 3, [one, one, other])
    # Random entries: one of them can be close to the mean by chance.
    assert mean is None or np.median(np.abs(mean.numpy() - 0.25 / 3)) > 0.1


# ---- every message has a line
def hostile(deployed):
    """Yield messages that a site does not answer, as (value, kind)."""
    from flwr.app import ConfigRecord, RecordDict

    right = request(deployed)
    for name, values in {
        "run": ["../../x", "", 3, None, "A" * 16], "round": [-1, 2**70, "0", True, 1.5], "seed": [-1, "x", None],
        "weights": [torch.zeros(3), None, right["weights"].float(), right["weights"].long()],
        "steps": [None, "x", [("function", "os", "system")], [3], [()], [("record", "Net", {})], [("plain",)], [None] * 65],
        "broadcast": [None, [], {3: torch.zeros(1)}, {"x": "y"}], "extra": [1],
        "visits": [[], [1], [[1, -1, -1, {}]] * 2, [[0, -1, -1, {}]], [[True, -1, -1, {}]], [[1, "../x", -1, {}]],
                   [[1, -1, 2**64, {}]], [[1, -1, -1, []]], [[1, 5, -1, {}]]],
    }.items():  # fmt: skip
        yield from ((right | {name: value}, "train") for value in values)
    yield from (({k: v for k, v in right.items() if k != name}, "train") for name in right)
    yield from ((value, kind) for value in (None, 3, [], {}, "x") for kind in ("train", "evaluate"))
    yield RecordDict({}), "train"
    yield RecordDict({"text": ConfigRecord({"text": "{"})}), "train"
    yield b"no message of fnlkit", "train"
    yield message.encode(right, about(deployed, "other")), "train"
    yield message.encode(right, about(deployed, scale=3)), "train"
    yield message.encode(right, {}), "train"


def test_every_message_has_a_line_in_the_ledger(place, tmp_path):
    deployed = Deployed(place, tmp_path, "fedavg")
    for number, (value, kind) in enumerate(hostile(deployed), 1):
        reply = sent(deployed, value, kind=kind)
        assert told(reply) in CODES, (value, kind, reply)
        assert len(lines(deployed)) == number and "failure" in lines(deployed)[-1], (value, kind)
    assert number > 50 and told(sent(deployed, request(deployed, Fit(epochs=1, batch_size=16)))) == ["weights"]


def test_a_reply_without_a_line_in_the_ledger_does_not_leave(place, tmp_path):
    deployed = Deployed(place, tmp_path, "fedavg")
    (tmp_path / "memory-1").mkdir()
    (tmp_path / "memory-1/left.jsonl").mkdir()  # no line can be written
    assert told(sent(deployed, request(deployed, Fit(epochs=1, batch_size=16)))) in CODES
    (tmp_path / "memory-1/left.jsonl").rmdir()
    assert (
        told(sent(deployed, request(deployed, Fit(epochs=1, batch_size=16), run="a" * 16))) == ["weights"]
        and len(lines(deployed)) == 1
    )


@pytest.mark.parametrize("content", [None, b"no npz", b"PK\x03\x04", b""])
def test_the_reason_of_a_failing_site_stays_in_its_own_log(content, place, tmp_path, capsys):
    """Its file is missing or broken."""
    deployed = Deployed(place, tmp_path / "run", "fedavg")
    deployed.admit_keys()
    path = tmp_path / "secret.npz"
    if content is not None:
        path.write_bytes(content)
    deployed.nodes[101]["data"] = str(path)
    refuse_call("1 of 3 sites .*site-1: its site cannot be opened: InputError", deployed.train, error=WorkStopped)
    server, site = capsys.readouterr()
    assert "secret.npz" in site and "secret" not in server and "cannot be opened: InputError" in server
    assert lines(deployed)[0]["failure"] == ["setup", "InputError"] and lines(deployed)[0]["run"] == ""


def test_the_text_of_a_failed_visit_stays_in_the_log_of_the_site(place, tmp_path, monkeypatch, capsys):
    deployed = Deployed(place, tmp_path, "feddpcont")
    monkeypatch.setattr(site_module, "read_or_draw", lambda path: None)
    reply = sent(deployed, request(deployed, partial(release_labels, epsilon=0.5)))
    server, site = capsys.readouterr()
    assert told(reply) == "input" and "client 1, round 0: " in site and "secret" in site and "secret" not in server
    assert all("secret" not in str(part) for part in reply["replies"][0][1])


def test_the_servers_data_is_checked_before_sites_are_waited_for(place, tmp_path):
    deployed = Deployed(place, tmp_path, "fedavg")
    deployed.grid.get_nodes = None  # nobody is asked
    deployed.options |= {"server_data": str(tmp_path / "none.npz")}
    refuse_call("none.npz", deployed.train)


def test_the_servers_data_have_test_samples_of_the_classes_of_the_project(place, tmp_path):
    """Data without test samples were read and ignored; classes in another order were refused without the reason."""
    with np.load(place / "server.npz") as server:
        arrays = dict(server)
    project_ = Deployed(place, tmp_path, "fedavg").project
    cases = {
        "empty": ({name: arrays[name] for name in ("x_train", "y_train")}, "no test samples"),
        "names": (arrays | {"class_names": np.array([*"abcdefghij"])}, "'a' is none of the project"),
        "shape": (arrays | {name: arrays[name][:, :4] for name in ("x_train", "x_test")}, "(4, 8, 1)"),
    }
    for name, (content, reason) in cases.items():
        np.savez(tmp_path / f"{name}.npz", **content)
        refuse_call(re.escape(reason), training._read_test_set, str(tmp_path / f"{name}.npz"), project_)
    y = {part: 9 - arrays[part] for part in ("y_train", "y_test")}
    np.savez(tmp_path / "turned.npz", **arrays | y | {"class_names": np.array([*"9876543210"])})
    assert np.array_equal(training._read_test_set(str(tmp_path / "turned.npz"), project_)[1], arrays["y_test"])


# ---- a site against the server
def saying(deployed, changes):
    """Make sites say other things in their hellos: {node: changes}."""

    def mangle(node, reply):
        if reply.metadata.message_type == "query" and node in changes:
            reply.content = messages.record(message.encode(message.decode(messages.bytes_of(reply)) | changes[node]))
        return reply

    deployed.grid.mangle = mangle


@pytest.mark.parametrize("samples", [10**9, 10**30, 61, 0, -5, True, 2.0, "50", None])
def test_a_number_of_samples_beyond_the_bound_is_refused(samples, place, tmp_path, capsys):
    deployed = Deployed(place, tmp_path, "fedavg")
    saying(deployed, {101: {"samples": samples}})
    refuse_call("site-1", deployed.train, error=WorkStopped)
    assert len(capsys.readouterr().out) < 1000


@pytest.mark.parametrize(
    ("change", "words"), [({"version": "0.0.1"}, "fnlkit 0.0.1"), ({"client": 2}, "claims"), ({"samples": 61}, "(max_samples)")]
)
def test_a_refused_site_is_named_and_the_audit_covers_the_others(change, words, place, tmp_path, capsys):
    """Another version, a number that is not that of the key, or more samples than agreed."""
    deployed = Deployed(place, tmp_path / "run", "fedavg", min_replies=0.6)
    deployed.admit_keys()
    deployed.train()
    facts = {"task": "evaluate", "run": str(tmp_path / "run/run.pt")}
    saying(deployed, {101: change})
    found, server = deployed.run(output=str(tmp_path / "found"), **facts), capsys.readouterr().out
    assert found["covers"] == ["site-0", "site-2"] and list(found["lost"]) == ["site-1"]
    assert words in found["lost"]["site-1"]
    assert [line for line in server.splitlines() if words in line and "site-1" in line]
    del deployed.grid.mangle
    assert not deployed.run(output=str(tmp_path / "again"), **facts)["lost"]


@pytest.mark.parametrize("refusing", [{100, 101, 102}, {100, 101}])
def test_the_wait_ends_with_the_cause_of_each_refusing_site(refusing, place, tmp_path, capsys):
    """Refused sites and sites that are not connected have different remedies."""
    deployed = Deployed(place, tmp_path / "run", "fedavg")
    deployed.admit_keys()
    if len(refusing) < 3:
        nodes = deployed.grid.get_nodes
        deployed.grid.get_nodes = lambda: [node for node in nodes() if node.node_id != 102]
    deployed.options["wait"] = 1.0
    saying(deployed, {node: {"version": "0.0.1"} for node in refusing})
    with pytest.raises(WorkStopped) as stopped:
        deployed.train()
    text = str(stopped.value)
    assert text.startswith("3 of 3 sites did not come within 1 s") and text.count("fnlkit 0.0.1") == len(refusing)
    assert "remove the cause" in text and ("not connected (site-2): start" in text) == (len(refusing) < 3)
    assert len([line for line in capsys.readouterr().out.splitlines() if ": runs fnlkit 0.0.1" in line[:30]]) == len(refusing)


@pytest.mark.parametrize("task", ["train", "evaluate"])
def test_a_site_without_an_answer_is_not_counted_as_refused(task, place, tmp_path, monkeypatch, capsys):
    """Site 1 has another version and is refused, site 2 is connected and does not answer."""
    deployed = Deployed(place, tmp_path / "run", "fedavg", min_replies=0.3)
    deployed.admit_keys()
    deployed.train()
    of_task = {"run": str(tmp_path / "run/run.pt")} if task == "evaluate" else {}
    facts = {"task": task, "output": str(tmp_path / "result"), **of_task}
    saying(deployed, {101: {"version": "0.0.1"}})
    push = deployed.grid.push_messages

    def pushed(messages):
        for one in messages:
            yield from ["unanswered"] if one.metadata.dst_node_id == 102 else push([one])

    monkeypatch.setattr(deployed.grid, "push_messages", pushed)
    monkeypatch.setattr(roster, "_PATIENT_SECONDS", 0.5)
    monkeypatch.setattr(roster.Roster.start, "__defaults__", (0.5,))
    if task == "train":
        with pytest.raises(WorkStopped) as stopped:
            deployed.run(**facts)
        text = str(stopped.value)
        assert "refused (site-1): remove the cause at each site" in text
        assert "no answer in time (site-2): look at the log" in text and "start.sh" not in text
    else:
        found = deployed.run(**facts)
        assert found["covers"] == ["site-0"] and "0.0.1" in found["lost"]["site-1"]
        assert found["lost"]["site-2"].startswith("no answer in time")


def test_a_site_that_does_not_reply_is_named_while_it_is_awaited(place, tmp_path, monkeypatch, capsys):
    """Its process was killed, and the server still lists it: no error comes back, and the reply is late."""
    deployed = Deployed(place, tmp_path, "fedavg", rounds=1)
    for name in ("silent_seconds", "computing_seconds", "look_seconds"):
        monkeypatch.setattr(roster.Roster, name, 0)
    hidden, pull = [], deployed.grid.pull_messages

    def pulled(numbers):
        late = [number for number in numbers if number in deployed.grid._answers and not hidden]
        if late and deployed.grid._answers[late[-1]].metadata.message_type == "train":
            hidden.append(late.pop())
            return pull(late)
        return pull(numbers)

    monkeypatch.setattr(deployed.grid, "pull_messages", pulled)
    run = deployed.train()
    assert run.finished and not run.rejected and hidden
    assert len([line for line in capsys.readouterr().out.splitlines() if "site-" in line and "no reply" in line]) == 1


def test_a_connected_site_that_computes_is_not_reported_as_silent():
    said = []
    sites = roster.Roster.__new__(roster.Roster)
    sites.__dict__ |= {"_awaited": set(), "_look": 0.0, "_say": said.append, "nodes": {}, "_owners": {}, "_keys": {}}
    sites.transport, sites.look_seconds = SimpleNamespace(peers=lambda: {1: "key"}), 0
    sites.report_silent([1, 2], 41)
    assert [line.partition(":")[0] for line in said] == ["node 2"]
    sites.report_silent([1, 2], 301)
    assert [line.partition(":")[0] for line in said] == ["node 2", "node 1"]


def test_a_fingerprint_is_that_of_ssh_keygen(tmp_path):
    ((path, pem),) = write_keys(tmp_path, 1)
    found = hashlib.sha256(base64.b64decode(path.read_bytes().split()[1])).digest()
    assert identity.fingerprint(pem) == f"SHA256:{base64.b64encode(found).decode()[:-1]}" == flower_app.fingerprint_of(path)


def test_a_key_is_a_number(place, tmp_path, capsys):
    """A SuperNode takes part under the number of its key alone, whatever it claims and whoever came first."""
    deployed = Deployed(place, tmp_path / "run", "fedavg", rounds=1)
    deployed.admit_keys()
    deployed.nodes = deployed.grid.nodes = {99: deployed.nodes[100] | {"memory": str(tmp_path / "x")}} | deployed.nodes
    deployed.grid.keys[99] = write_keys(tmp_path, 1)[0][1]
    run = deployed.train()
    server = capsys.readouterr().out
    assert run.finished and not run.rejected and "node 99: its key SHA256:" in server and not (tmp_path / "x").exists()
    saying(deployed, {102: {"client": 0}})
    (tmp_path / "run/run.pt").unlink()
    refuse_call("site-2;.* site-2: claims to be client 0", deployed.train, error=WorkStopped)


@pytest.mark.parametrize("given", [2, "twice", "text"])
def test_keys_are_those_of_all_sites(given, tmp_path):
    paths = [str(path) for path, _ in write_keys(tmp_path, 3)]
    (tmp_path / "text").write_text("ssh-rsa AAAA")
    chosen = {2: paths[:2], "twice": [*paths[:2], paths[0]], "text": [*paths[:2], str(tmp_path / "text")]}[given]
    options = " ".join(f"--key {path}" for path in chosen)
    refuse(f"fnlkit flower-app project --dataset digits --sites 3 {options}", tmp_path, "--key")
    assert not (tmp_path / "project").exists()


def test_every_entry_of_a_project_is_checked(place, tmp_path):
    right = json.loads(Deployed(place, tmp_path, "fedavg").agreed.read_text())
    path = tmp_path / "changed.json"
    for name, values in {
        "names": [[1], "x", ["../a", "b", "c"], ["a", "A", "b"]], "shape": ["3", [0], [1.5], [], [2**40], [1] * 5],
        "classes": [[1], {}, [], ["a", "a"]], "mean": ["3", [[1]], ["x"]], "std": [[0.0], [-1], [1, 2, 3, 4]],
        "kind": ["wave", 3], "max_samples": [0, 1.5, True], "keys": [["x"], ["SHA256:x"], 3], "tasks": [[], ["other"], "train"],
        "columns": [[], [{"name": 1}], [{"name": "a", "kind": "number", "fill": "x", "missing": False}], 3],
        "sums_epsilon": [0.0, "1", 1000.0], "format": ["fnlkit.project/2"], "settings": [[], "x"],
    }.items():  # fmt: skip
        for value in values:
            path.write_text(json.dumps(right | {name: value}))
            refuse_call({"names": "name|key", "sums_epsilon": "epsilon"}.get(name, name.rstrip("s")), project.read, path)
    for name in ("names", "shape", "classes", "mean", "std", "kind", "keys", "tasks", "settings"):
        path.write_text(json.dumps({key: value for key, value in right.items() if key != name}))
        refuse_call(f"{name} is missing", project.read, path)
    for settings in ({"method": "none such"}, {"lr": -1.0}, {"other": 1}):
        path.write_text(json.dumps(right | {"settings": right["settings"] | settings}))
        refuse_call("none such|lr|other", project.task_of, project.read(path), "train")


def test_a_project_of_an_earlier_version_is_refused_with_the_command_that_writes_it_again(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.flwr.app.config]\nmethod = "fedavg"\n')
    refuse_call(r"a project of fnlkit 0.2; write it again with `fnlkit flower-app`", project.read, tmp_path / "pyproject.toml")
