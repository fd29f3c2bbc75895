"""Audits and evaluations over sites: equal to a simulation, resumable, and sites that disappear are named.

Sites answer in this process, with Flower's own messages.
"""

import errno
import functools
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.audit import audit
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.estimators.intervals import wilson
from fnlkit.experiment import Settings
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import predict
from fnlkit.sites import flower_app
from fnlkit.sites.network import network_of
from fnlkit.sites.samples import load_for_task, samples_like
from fnlkit.sites.server import roster, tasks
from fnlkit.sites.site import labels, ledger
from tests.commands import refuse_call
from tests.sites.by_folder import same
from tests.sites.deployed import CANARY, NUMBER, SITES, Judged, lines, sent, told
from tests.tables import edit_csv


def test_an_audit_over_sites_equals_the_simulation(audited, tmp_path, capsys):
    deployed = Judged(audited, tmp_path)
    found, simulated = deployed.run(), audit_of(deployed)
    assert same(found, simulated, *deployed.simulated()) and found["transition"] == simulated.transition.tolist()
    assert found["lost"] == {} and found["covers"] == [f"site-{k}" for k in range(SITES)]
    # Each site has the judgment of its samples, as the simulation has it.
    for k in range(SITES):
        judged = Federation.read(str(tmp_path / f"memory-{k}" / labels.JUDGED))
        here = slice(60 * k, 60 * k + 60)
        assert np.array_equal(judged.extra["estimate_issue_score"], np.clip(simulated.judgment.issue[here], 0, 1))
        assert np.array_equal(judged.extra["estimate_flagged"], simulated.judgment.flagged[here])


def audit_of(deployed, sites=range(SITES)):
    """Return the audit of the same samples in one place."""
    federation, data = deployed.simulated(sites)
    return audit(federation, data, detectors=())


def test_training_and_evaluation_follow_in_the_same_project(audited, tmp_path, capsys):
    deployed = Judged(audited, tmp_path)
    run = str(tmp_path / "run.pt")
    weights = deployed.run(task="train", output=run).weights
    found = deployed.run(task="evaluate", run=run)
    _, data = deployed.simulated()
    inputs = Inputs(True, tuple(deployed.project.mean), tuple(deployed.project.std))
    x = torch.from_numpy(data.x_train)
    guess = predict(network_of(deployed.task, (1, 8, 8)), weights, x, inputs).argmax(1).numpy()
    for k, row in enumerate(found["sites"]):  # 60 samples of 10 classes with fewer than 20 each: one group
        here = slice(60 * k, 60 * k + 60)
        wrong = int((guess[here] != data.y_train[here]).sum())
        fewest, most = (wrong - wrong % 5, wrong - wrong % 5 + 4) if wrong < 55 else (55, 60)
        low, high = float(wilson(60 - most, 60)[0]), float(wilson(60 - fewest, 60)[1])
        agreement = 1 - (fewest + most) / 120
        expected = {"samples": 60, "agreement": agreement, "low": low, "high": high, "balanced": agreement}
        assert row == {"site": f"site-{k}"} | expected
    refuse_call("output", deployed.run, task="evaluate", run=run)


def test_sites_with_one_class_or_one_sample_take_part(audited, tmp_path, capsys):
    """Classes are the project's, matched by name; the audit equals the simulation, and training and evaluation cover all."""
    few = tmp_path / "few"
    shutil.copytree(audited, few)
    for k, texts in ((1, ["3"] * 20), (2, ["8"])):
        site = np.load(audited / f"{CANARY}-{k}.npz")
        np.savez(few / f"{CANARY}-{k}.npz", x=site["x"][: len(texts)], y=np.array(texts))
    deployed = Judged(few, tmp_path)
    found = deployed.run()
    rows = sorted(found["sites"], key=lambda row: row["client"])
    assert [row["samples"] for row in rows] == [52, 20, 0, 58] and found["lost"] == {}  # a single sample has no sums
    run = str(tmp_path / "run.pt")
    deployed.run(task="train", output=run)
    rows = deployed.run(task="evaluate", run=run, output=str(tmp_path / "evaluation"))["sites"]
    assert [row["samples"] for row in rows] == [60, 20, 0, 60] and rows[2] == {
        "site": "site-2", "samples": 0, "agreement": None, "low": 0.0, "high": 1.0, "balanced": None
    }  # fmt: skip
    assert all(0 <= rows[k]["balanced"] <= 1 for k in (0, 1, 3))


@pytest.mark.parametrize("form", ["table", "folder", "npz"])
def test_a_table_folder_or_array_of_one_sample_is_read(form, tmp_path):
    """Others need two classes, because nothing can be learned from one."""
    names = {"ours": ["ill", "well"] * 5, "site": ["well"]}
    for name, texts in names.items():
        if form == "table":
            rows = [f"{i},{label}" for i, label in enumerate(texts)]
            (tmp_path / f"{name}.csv").write_text("\n".join(["a,label", *rows]) + "\n")
        elif form == "npz":
            classes, given = np.unique(texts, return_inverse=True)
            np.savez(tmp_path / f"{name}.npz", x_train=np.ones((len(given), 3)), y_train=given, class_names=classes)
        else:
            for i, label in enumerate(texts):
                (tmp_path / name / label).mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((4, 4), i, np.uint8)).save(tmp_path / name / label / f"{i}.png")
    ours, site = (str(tmp_path / name) + {"table": ".csv", "npz": ".npz", "folder": ""}[form] for name in names)
    refuse_call("", datasets.load, site)
    task = flower_app.describe(datasets.load(ours), Settings(), names=["a", "b"], keys=[], tasks=["train"])
    assert samples_like(site, task).class_names == ["well"]
    assert load_for_task(site, task).y_train.tolist() == [1]


def test_a_task_that_the_sites_did_not_agree_to_is_refused(audited, tmp_path, capsys):
    deployed = Judged(audited, tmp_path, "train", tasks=["train", "evaluate"])
    refuse_call("task", deployed.run, task="audit")
    assert told(sent(deployed, {"hello": 1}, task="audit")) == "setup"


# ---- sites that disappear, and servers that stop
@pytest.fixture(scope="module")
def undisturbed(audited, tmp_path_factory):
    """A function that returns the result of a task without any disturbance."""
    return functools.cache(lambda task: Judged(audited, tmp_path_factory.mktemp(task), task).run())


def test_a_site_that_disappears_is_named_and_the_audit_covers_the_others(audited, tmp_path, capsys):
    """Before the sums, the classifiers are those of the other sites; after them, the sums stay in the classifiers."""
    for after in (0, 1, 2):
        deployed = Judged(audited, tmp_path / str(after))
        deployed.lose(102, after)
        found = deployed.run()
        assert list(found["lost"]) == ["site-2"] and found["covers"] == ["site-0", "site-1", "site-3"]
        if after < 2:
            assert found["transition"] == audit_of(deployed, [0, 1, 3]).transition.tolist()


@pytest.mark.parametrize("after", [1, 2])
def test_a_site_that_comes_back_is_asked_again(after, audited, undisturbed, tmp_path, capsys):
    """The loss of a reply is noticed at every step."""
    deployed = Judged(audited, tmp_path)
    push, seen, gone = deployed.grid.push_messages, [], 101

    def pushed(messages):
        for message in messages:
            seen.append(message.metadata.dst_node_id)
            if message.metadata.dst_node_id == gone and seen.count(gone) > after and gone in deployed.grid.nodes:
                deployed.grid.nodes[201] = deployed.grid.nodes.pop(gone)  # restarted as another node; the message is lost
                yield None
            elif message.metadata.dst_node_id == 201 and seen.count(201) == 2:
                yield None
            else:
                yield from push([message])

    deployed.grid.push_messages = pushed
    found = deployed.run()
    assert found["sites"] == undisturbed("audit")["sites"] and found["lost"] == {}


@pytest.mark.parametrize(("task", "visits"), [("train", 2), ("audit", 1)])
def test_a_site_with_a_full_disk_is_named_and_awaited(task, visits, audited, undisturbed, tmp_path, monkeypatch, capsys):
    """The result is that of an undisturbed task, and the log has a line."""
    enter, failed = ledger.enter, []

    def full(path, **about):
        # The first visits of site-1 and the question after each of them find a full disk.
        if "memory-1" in path and "full" in path and (about["round"] is not None or failed) and len(failed) < 2 * visits:
            failed.append(about["round"])
            raise OSError(errno.ENOSPC, "No space left on device", path)
        enter(path, **about)

    monkeypatch.setattr(ledger, "enter", full)
    monkeypatch.setattr(roster, "_DISK_SECONDS", 0)
    deployed = Judged(audited, tmp_path / "full", task)
    found = deployed.run(wait=60.0)
    assert len(failed) == 2 * visits
    if task == "train":
        assert torch.equal(found.weights, undisturbed(task).weights) and not found.rejected
    else:
        assert found["sites"] == undisturbed(task)["sites"] and found["lost"] == {}
    events = capsys.readouterr().out.splitlines()
    assert any("site-1" in text and "disk is full" in text for text in events)


@pytest.mark.parametrize(
    ("task", "remedy"), [("audit", "remove the cause at each site"), ("train", "see the log at each site")]
)
def test_the_remedy_for_sites_that_all_fail_is_not_to_start_them(task, remedy, audited, tmp_path, monkeypatch, capsys):
    def fails(path, **about):
        if about["round"] is not None:
            raise InputError("the sum is above the limit")

    monkeypatch.setattr(ledger, "enter", fails)
    refuse_call(remedy, Judged(audited, tmp_path, task).run, error=(InputError, WorkStopped))
    assert "start these sites" not in capsys.readouterr().out


def test_an_internal_error_of_the_server_is_named_as_one(audited, tmp_path, monkeypatch, capsys):
    """The text of a KeyError alone is a word in quotes, and running the command again repeats it."""
    deployed = Judged(audited, tmp_path)

    def fails(remote, task, options):
        raise KeyError("level")

    monkeypatch.setattr(tasks, "_run_audit", fails)
    refuse_call("", deployed.run, error=KeyError)
    reason = capsys.readouterr().out.splitlines()[-1]
    assert reason == "failed: internal error at the server (KeyError: 'level'); its log has the traceback"


def test_too_few_sites_end_the_task_and_the_same_command_continues(audited, undisturbed, tmp_path, capsys):
    deployed = Judged(audited, tmp_path)
    gone, push = deployed.nodes[102], deployed.lose(102, 2)
    refuse_call("site-2", deployed.run, min_replies=1.0, error=WorkStopped)
    reason = capsys.readouterr().out.splitlines()[-1]
    assert reason.startswith("failed: ") and "start these sites" in reason and reason.endswith("then run the same command")
    assert not (tmp_path / "result").exists()
    deployed.grid.push_messages, asked = push, []
    deployed.nodes[205] = gone  # restarted, the site has another node
    deployed.grid.mangle = lambda node, reply: asked.append(node) or reply
    found = deployed.run(min_replies=1.0)
    assert found["sites"] == undisturbed("audit")["sites"] and found["lost"] == {}
    # Finished visits are not repeated: an audit asks the sites with sums for counts only, and each says hello.
    assert [asked.count(node) for node in (100, 101, 103, 205)] == [1, 1, 1, 2]


@pytest.mark.parametrize("stop", [2, 3])
def test_a_stopped_server_continues(stop, audited, undisturbed, tmp_path, capsys):
    """Sites did the last step, and the server stopped before it wrote the replies."""
    deployed = Judged(audited, tmp_path)
    deployed.stop_before_replies(stop)
    refuse_call("", deployed.run, error=KeyboardInterrupt)
    found = deployed.run()
    assert found["sites"] == undisturbed("audit")["sites"] and not (tmp_path / "result.steps").exists()


# ---- what leaves, and what stays
def test_no_canary_leaves_a_site_in_an_audit(audited, tmp_path, capsys):
    """Paths, ids, pixels, labels and scores of single samples stay at the site, and each reply is in the ledger."""
    deployed = Judged(audited, tmp_path / CANARY)
    found = deployed.run()
    data = b"".join(deployed.grid.left)
    secrets, entered = [CANARY.encode(), np.float32(NUMBER).tobytes(), np.float64(np.float32(NUMBER)).tobytes()], set()
    for k in range(SITES):
        memory = tmp_path / CANARY / f"memory-{k}"
        judged = Federation.read(str(memory / labels.JUDGED))
        scores = judged.extra["estimate_issue_score"]
        secrets += [value.tobytes() for value in scores if value not in (0, 1)]
        secrets += [judged.given.astype(kind).tobytes() for kind in (np.int64, np.int32, np.uint8)]
        entered |= {name for line in ledger.read_ledger(str(memory / "left.jsonl")) for name in line.get("arrays", {})}
    assert entered == set(found["sent"])
    assert len(secrets) > 100 and [secret for secret in secrets if secret in data] == []


def test_reviewed_labels_are_used_in_the_next_run(audited, tmp_path, capsys):
    deployed = Judged(audited, tmp_path)
    deployed.run()
    memory = tmp_path / "memory-3"
    data = load_for_task(deployed.nodes[103]["data"], deployed.project)
    judged = Federation.read(str(memory / labels.JUDGED))
    fnlkit.export_review(judged, 0, tmp_path / "review", budget=10, dataset=data, say=None)
    table, first = tmp_path / "review/decisions.csv", iter([{"decision": "drop"}])
    edit_csv(table, lambda row: next(first, {"decision": "relabel", "label": "7"}))
    labels.store_review(str(memory), fnlkit.import_review(judged, table, dataset=data, say=None))
    client = deployed.site(3).client
    assert len(client) == 59 and int(client.reviewed.sum()) == 9
    assert (client.y[client.reviewed] == 7).all()
    assert np.array_equal(Federation.read(str(memory / labels.REVIEWED)).extra["received"], data.y_train)
    deployed.restart_sites()  # each message has a process of its own
    for node in (100, 101, 102):
        deployed.nodes.pop(node)
    refuse_call("0 of 4 sites remain", deployed.run, output=str(tmp_path / "again"), min_replies=0.25, error=WorkStopped)
    assert lines(deployed, 3)[-1]["failure"] == ["release", "InputError"]
    site = dict(np.load(deployed.nodes[103]["data"]))
    site["y"][0] = (site["y"][0] + 1) % 10
    np.savez(tmp_path / "changed.npz", **site)
    refuse_call("reviewed.npz", deployed.site, 3, data=str(tmp_path / "changed.npz"))


# ---- agreement by name
def test_classes_are_matched_by_name(audited, tmp_path):
    """A site lacks classes, has them in another order, and has an additional class."""
    deployed, about = Judged(audited, tmp_path), {"k": 0, "data": str(tmp_path / "few.npz")}
    x, names = np.random.default_rng(0).random((6, 8, 8, 1), np.float32), np.array(["9", "extra", "3"])
    np.savez(tmp_path / "few.npz", x=x, y=[0, 1, 2, 2, 0, 1], class_names=names)
    refuse_call("'extra'", deployed.site, **about)
    client = deployed.site(leave_out="extra", **about).client
    assert client.y.tolist() == [9, 3, 3, 9] and client.classes == 10
    refuse_call("leave_out", deployed.site, leave_out="9", **about)
