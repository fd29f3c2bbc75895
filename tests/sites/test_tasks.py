"""Audits, estimates and evaluations over sites: equal to a simulation, resumable, and sites that disappear are named.

Sites answer in this process, with Flower's own messages.
"""

import errno
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.audit import SENDS
from fnlkit.errors import InputError, WorkStopped
from fnlkit.estimators import run_estimator
from fnlkit.estimators.intervals import wilson
from fnlkit.experiment.plan import Plan
from fnlkit.sites import labels, leaving, opening, sites, tasks, terms
from tests.engines.here import Grid
from tests.sites.deployed import CANARY, NUMBER, SITES, Judged, apps

# Counts of single samples, which stay at a real site.
AT_SITES = ("copies", "near_copies", "far", "unlabeled", "review", "detectors", "agreed")


def same(found, expected, names=("sites", "transition", "classes", "samples")):
    left, right = found, json.loads(json.dumps({name: expected[name] for name in names}))
    rows = [[{key: row[key] for key in row if key not in AT_SITES} for row in each["sites"]] for each in (left, right)]
    return rows[0] == rows[1] and all(left[name] == right[name] for name in names if name != "sites")


def test_an_audit_over_sites_equals_the_simulation(audited, tmp_path, capsys):
    deployed = Judged(audited, tmp_path)
    found, (expected, simulated) = deployed.run(), deployed.audited()
    assert same(found, expected) and found["lost"] == {} and found["covers"] == [f"site-{k}" for k in range(SITES)]
    assert set(found["sent"]) == set(SENDS) - {"known", "total", "squares"}
    # Each site has the judgment of its samples, as the simulation has it.
    for k in range(SITES):
        judged = Federation.read(str(tmp_path / f"memory-{k}" / labels.JUDGED))
        here = slice(60 * k, 60 * k + 60)
        assert np.array_equal(judged.extra["estimate_issue_score"], np.clip(simulated.judgment.issue[here], 0, 1))
        assert np.array_equal(judged.extra["estimate_flagged"], simulated.judgment.flagged[here])
        assert np.array_equal(judged.extra["estimate_far"], simulated.far[here])


ESTIMATORS = [
    "em(folds=2)",
    "confident(folds=2, thresholds=pooled)",
    "knn(k=3)",
    "loss(scope=client)",
    "lid(k=5)",
    "anchor",
    "energy",
    "loss",
]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_an_estimate_over_sites_equals_the_simulation(estimator, audited, tmp_path, capsys):
    single = estimator in ("anchor", "energy", "loss")
    if single:
        with pytest.raises(InputError, match="`per_sample`"):
            Judged(audited, tmp_path, "estimate", estimator=estimator)
    deployed = Judged(audited, tmp_path, "estimate", estimator=estimator, per_sample=single)
    found, (federation, data, warm_up) = deployed.run(), deployed.simulated()
    arrays, facts = run_estimator(federation, data, estimator, form="federated", warm_up=warm_up, engine="sequential")
    assert [row["level"] for row in found["sites"]] == arrays["estimate_client_level"].tolist()
    assert [row["low"] for row in found["sites"]] == arrays["estimate_client_level_low"].tolist()
    assert found["transition"] == arrays["estimate_transition"].tolist() and found["sent"] == facts["sent"]
    judged = [Federation.read(str(tmp_path / f"memory-{k}" / labels.JUDGED)) for k in range(SITES)]
    for name in ("issue_score", "flagged", "suggested_label"):
        assert np.array_equal(np.concatenate([one.extra[f"estimate_{name}"] for one in judged]), arrays[f"estimate_{name}"])


def test_training_and_evaluation_follow_in_the_same_project(audited, tmp_path, capsys):
    deployed = Judged(audited, tmp_path)
    run = deployed.run(task="train", output=str(tmp_path / "run.pt"))
    found = deployed.run(task="evaluate", run=str(tmp_path / "run.pt"))
    _, data, _ = deployed.simulated()
    settings, task = terms.read_config(deployed.config)
    network = opening.network_of(Plan.of(settings), task, (1, 8, 8))
    from fnlkit.client.inputs import Inputs
    from fnlkit.client.network import predict

    guess = predict(network, run.weights, torch.from_numpy(data.x_train), Inputs(True, task.mean, task.std)).argmax(1).numpy()
    for k, row in enumerate(found["sites"]):  # 60 samples of 10 classes with fewer than 20 each: one group
        here = slice(60 * k, 60 * k + 60)
        wrong = int((guess[here] != data.y_train[here]).sum())
        fewest, most = (wrong - wrong % 5, wrong - wrong % 5 + 4) if wrong < 55 else (55, 60)
        low, high = float(wilson(60 - most, 60)[0]), float(wilson(60 - fewest, 60)[1])
        agreement = 1 - (fewest + most) / 120
        assert {**row, "site": k} == {
            "site": k, "samples": 60, "agreement": agreement, "low": low, "high": high, "balanced": agreement
        }  # fmt: skip
    with pytest.raises(InputError, match="output"):  # a finished result is not overwritten
        deployed.run(task="evaluate", run=str(tmp_path / "run.pt"))


def test_sites_with_one_class_or_one_sample_take_part(audited, tmp_path, capsys):
    """Classes are the project's, matched by name; the audit equals the simulation, and training and evaluation cover all."""
    few = tmp_path / "few"
    shutil.copytree(audited, few)
    for k, texts in ((1, ["3"] * 20), (2, ["8"])):
        site = np.load(audited / f"{CANARY}-{k}.npz")
        np.savez(few / f"{CANARY}-{k}.npz", x=site["x"][: len(texts)], y=np.array(texts))
    deployed = Judged(few, tmp_path)
    found = deployed.run()
    assert same(found, deployed.audited()[0]) and [row["samples"] for row in sorted(
        found["sites"], key=lambda row: row["client"])] == [52, 20, 0, 58]  # fmt: skip
    assert len(deployed.run(task="estimate", output=str(tmp_path / "estimate"))["sites"]) == SITES
    run = str(tmp_path / "run.pt")
    deployed.run(task="train", output=run)
    rows = deployed.run(task="evaluate", run=run, output=str(tmp_path / "evaluation"))["sites"]
    assert [row["samples"] for row in rows] == [60, 20, 0, 60] and rows[2] == {
        "site": "site-2", "samples": 0, "agreement": None, "low": 0.0, "high": 1.0, "balanced": None
    }  # fmt: skip
    assert all(0 <= rows[k]["balanced"] <= 1 for k in (0, 1, 3))


@pytest.mark.parametrize("form", ["table", "folder", "npz", "npy"])
def test_a_table_folder_or_array_of_one_sample_is_read(form, tmp_path):
    """Others need two classes, because nothing can be learned from one."""
    from PIL import Image

    from fnlkit.sites.agreement import load_for_task, samples_like

    if form == "table":
        (tmp_path / "ours.csv").write_text("a,b,label\n1,2,well\n3,4,ill\n5,6,well\n")
        (tmp_path / "site.csv").write_text("b,a,label\n2,1,well\n")
        ours, site = datasets.load(str(tmp_path / "ours.csv")), str(tmp_path / "site.csv")
    elif form in ("npz", "npy"):
        two, one = {"class_names": np.array(["ill", "well"])}, {"class_names": np.array(["well"])}
        two |= {"x_train": np.zeros((4, 3), np.float32), "y_train": np.array([0, 1, 0, 1])}
        one |= {"x_train": np.zeros((1, 3), np.float32), "y_train": np.array([0])}
        for name, arrays in (("ours", two), ("site", one)):
            (tmp_path / name).mkdir()
            np.savez(tmp_path / f"{name}.npz", **arrays)
            for key, values in arrays.items():
                np.save(tmp_path / name / f"{key}.npy", values)
        ours, site = (str(tmp_path / (name if form == "npy" else f"{name}.npz")) for name in ("ours", "site"))
        ours = datasets.load(ours)
    else:
        for name in ("ours/ill/0", "ours/ill/1", "ours/well/0", "ours/well/1", "ours/well/2", "ours/well/3", "site/well/0"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4), int(name[-1]), np.uint8)).save(tmp_path / f"{name}.png")
        ours, site = datasets.load(str(tmp_path / "ours")), str(tmp_path / "site")
    with pytest.raises(InputError):
        datasets.load(site)
    task = terms.Task(2, ours.kind, tuple(ours.x_train.shape[1:]), tuple(ours.class_names), columns=ours.table)
    assert samples_like(site, task).class_names == ["well"]
    assert load_for_task(site, task).y_train.tolist() == [1]


def test_a_task_that_the_sites_did_not_agree_to_is_refused(audited, tmp_path, capsys):
    deployed = Judged(audited, tmp_path, "train", tasks=("train", "evaluate"))
    with pytest.raises(InputError, match="task"):
        opening.open_site(deployed.config | {"task": "audit"}, deployed.nodes[100])
    with pytest.raises(InputError, match="task"):
        deployed.run(task="audit")


# ---- sites that disappear, and servers that stop
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_site_that_disappears_is_named_and_the_audit_covers_the_others(after, audited, tmp_path, capsys):
    deployed = Judged(audited, tmp_path)
    deployed.lose(102, after)
    found = deployed.run()
    assert list(found["lost"]) == ["site-2"] and found["covers"] == ["site-0", "site-1", "site-3"]
    assert same(found, deployed.audited([0, 1, 3])[0], ("sites", "transition", "samples"))
    status = json.loads((tmp_path / "result.status.json").read_text())
    assert status["state"] == "completed" and list(status["lost"]) == ["site-2"]


@pytest.mark.parametrize("after", [3, 6])
def test_a_site_that_comes_back_is_asked_again(after, audited, tmp_path, capsys):
    """Two of three sites train a model that a single site judges; the loss of this site's reply is noticed at every step."""
    deployed = Judged(audited, tmp_path)
    config = deployed.config | {"sites": 3, "names": json.dumps([f"site-{k}" for k in range(3)])}
    agreed = tmp_path / "project/pyproject.toml"
    names = json.dumps(json.dumps([f"site-{k}" for k in range(4)]))
    text = agreed.read_text().replace("sites = 4", "sites = 3").replace(names, json.dumps(config["names"]))
    agreed.write_text(text)
    for site in range(3):
        folder = tmp_path / f"run-{site}"
        folder.mkdir()
        nodes = {100 + k: node | {"memory": str(folder / f"m{k}")} for k, node in enumerate(list(deployed.nodes.values())[:3])}
        deployed.config = config | {"output": str(folder / "result")}
        deployed.grid = Grid(apps.client_app(opening.open_site), deployed.config, nodes)
        push, seen = deployed.grid.push_messages, []

        def pushed(messages, grid=deployed.grid, push=push, seen=seen, gone=100 + site):
            for message in messages:
                seen.append(message.metadata.dst_node_id)
                if message.metadata.dst_node_id == gone and seen.count(gone) > after and gone in grid.nodes:
                    grid.nodes[gone + 100] = grid.nodes.pop(gone)  # restarted as another node; the message is lost, twice
                    yield None
                elif message.metadata.dst_node_id == gone + 100 and seen.count(gone + 100) == 2:
                    yield None
                else:
                    yield from push([message])

        deployed.grid.push_messages = pushed
        found = deployed.run()
        assert same(found, deployed.audited(range(3))[0]) and found["lost"] == {}, site


@pytest.mark.parametrize("task", ["train", "audit"])
@pytest.mark.parametrize("visits", [1, 2])
def test_a_site_with_a_full_disk_is_named_and_awaited(task, visits, audited, tmp_path, monkeypatch, capsys):
    """The result is that of an undisturbed task, and the line is in the state before the task ends."""
    whole = Judged(audited, tmp_path / "plain", task).run()
    enter, failed = leaving.enter, []

    def full(path, **about):
        # The first visits of site-1 and the question after each of them find a full disk.
        if "memory-1" in path and "full" in path and (about["round"] is not None or failed) and len(failed) < 2 * visits:
            failed.append(about["round"])
            raise OSError(errno.ENOSPC, "No space left on device", path)
        enter(path, **about)

    monkeypatch.setattr(leaving, "enter", full)
    monkeypatch.setattr(sites, "_DISK_SECONDS", 0)
    deployed = Judged(audited, tmp_path / "full", task)
    found = deployed.run(wait=60.0)
    assert len(failed) == 2 * visits
    if task == "train":
        assert torch.equal(found.weights, whole.weights) and not found.rejected
    else:
        assert same(found, whole) and found["lost"] == {}
    events = [text for _, text in json.loads(Path(f"{deployed.config['output']}.status.json").read_text())["events"]]
    assert any("site-1" in text and "disk is full" in text for text in events)


def test_an_internal_error_of_the_server_is_named_as_one(audited, tmp_path, monkeypatch, capsys):
    """The text of a KeyError alone is a word in quotes, and running the command again repeats it."""
    deployed = Judged(audited, tmp_path)

    def fails(remote, task, settings, config, report):
        raise KeyError("level")

    monkeypatch.setattr(tasks, "_run_audit", fails)
    with pytest.raises(KeyError):
        deployed.run()
    reason = json.loads((tmp_path / "result.status.json").read_text())["reason"]
    assert reason == "internal error at the server (KeyError: 'level'); its log has the traceback"


def test_too_few_sites_end_the_task_and_the_same_command_continues(audited, tmp_path, capsys):
    deployed = Judged(audited, tmp_path)
    gone, push = deployed.nodes[102], deployed.lose(102, 2)
    with pytest.raises(WorkStopped, match="site-2"):
        deployed.run(min_replies=1.0)
    state = json.loads((tmp_path / "result.status.json").read_text())
    assert state["state"] == "failed" and state["reason"].endswith("start these sites, then run the same command")
    assert not (tmp_path / "result").exists()
    deployed.grid.push_messages, asked = push, []
    deployed.nodes[205] = gone  # restarted, the site has another node
    deployed.grid.mangle = lambda node, reply: asked.append(node) or reply
    found = deployed.run(min_replies=1.0)
    assert same(found, deployed.audited()[0]) and found["lost"] == {}
    assert {step["seconds"] is None for step in found["steps"]} == {True, False}  # finished steps are not repeated


@pytest.mark.parametrize("stop", [2, 3])
def test_a_stopped_server_continues_an_audit(stop, audited, tmp_path, capsys):
    """Sites did the last step, and the server stopped before it wrote the replies."""
    deployed = Judged(audited, tmp_path)
    deployed.stop_before_replies(stop)
    with pytest.raises(KeyboardInterrupt):
        deployed.run()
    found = deployed.run()
    assert same(found, deployed.audited()[0]) and not (tmp_path / "result.steps").exists()


# ---- what leaves, and what stays
@pytest.mark.parametrize("task", ["audit", "estimate"])
def test_no_canary_leaves_a_site_in_an_audit(task, audited, tmp_path, capsys):
    """Paths, ids, pixels, labels and scores of single samples stay at the site, and each reply is in the ledger."""
    deployed = Judged(audited, tmp_path / CANARY, task)
    found = deployed.run()
    data = b"".join(deployed.grid.left)
    secrets, entered = [CANARY.encode(), np.float32(NUMBER).tobytes(), np.float64(np.float32(NUMBER)).tobytes()], {}
    for k in range(SITES):
        memory = tmp_path / CANARY / f"memory-{k}"
        judged = Federation.read(str(memory / labels.JUDGED))
        scores = judged.extra["estimate_issue_score"]
        # An estimate sends expected numbers by label, which are the score of a label's only sample.
        few = np.bincount(judged.given, minlength=10)[judged.given] < 5
        secrets += [value.tobytes() for value in scores[~few | (task == "audit")] if value not in (0, 1)]
        secrets += [judged.given.astype(kind).tobytes() for kind in (np.int64, np.int32, np.uint8)]
        lines = leaving.read_ledger(str(memory / "left.jsonl"))
        for name, array in [pair for line in lines for pair in line.get("arrays", {}).items()]:
            entered[name] = entered.get(name, 0) + array["bytes"]
    assert entered == {name: sent["bytes"] for name, sent in found["sent"].items()}  # what the server counted
    assert len(secrets) > 100 and [secret for secret in secrets if secret in data] == []
    assert (b"weights" if task == "estimate" else b"predicted") in data


def _with_secrets(deployed, folder, drawn):
    """Write each site's data as files named in a table; return the secrets: ids, paths, metadata and labels left out."""
    secrets = []
    for site in deployed.nodes.values():
        ours, home, rows = np.load(site["data"]), folder / f"data-{site['client']}", []
        home.mkdir()
        for i in range(50):
            name, path, patient = (next(drawn) for _ in range(3))
            label = str(ours["y"][i]) if i < 30 else next(drawn)  # some classes are those of this site only
            np.save(home / f"{path}.npy", ours["x"][i])
            rows.append([name, f"{path}.npy", patient, label])
            secrets += [name, path, patient, *([label] if i >= 30 else [])]
        (home / "table.csv").write_text("\n".join(map(",".join, [["id", "path", "patient", "label"], *rows])) + "\n")
        site |= {"data": str(home / "table.csv"), "leave_out": ",".join(row[3] for row in rows[30:])}
    return secrets


def _broken(secrets):
    """Return a function in audited of `open_site` that raises an error with the next secret, in the text or as the class."""

    def open_site(config, node):
        secret, kind = next(secrets), next(kinds)
        raise type(secret, (Exception,), {})(secret) if kind is None else kind(secret)

    kinds = itertools.cycle([ValueError, KeyError, OSError, InputError, SystemExit, None])
    return open_site


def test_none_of_a_thousand_canaries_leaves_a_site(audited, tmp_path, monkeypatch, capsys):
    """Secrets in labels, paths, ids, metadata and texts of errors, over all tasks."""
    from fnlkit.sites.agreement import load_for_task
    from fnlkit.sites.flower import wire
    from fnlkit.sites.flower.api import Message

    rng = np.random.default_rng(0)
    drawn = (f"Canary{rng.bytes(8).hex()}" for _ in itertools.count())
    deployed = Judged(audited, tmp_path, audit_rounds=1)
    secrets = _with_secrets(deployed, tmp_path, drawn)
    task = terms.read_config(deployed.config)[1]
    seen = [load_for_task(site["data"], task, leave_out=site["leave_out"]) for site in deployed.nodes.values()]
    assert all(len(data.ids) == 30 and data.fields["patient"][0] in secrets for data in seen)
    run = str(tmp_path / "run.pt")
    deployed.run()
    deployed.run(task="estimate", output=str(tmp_path / "estimate"))
    deployed.run(task="train", output=run)

    right = apps.answer

    def answer(desk, asked):
        if asked["visits"][0][0] == 3:
            raise RuntimeError(" ".join(secrets))
        return right(desk, asked)

    monkeypatch.setattr(apps, "answer", answer)
    found = deployed.run(task="evaluate", run=run, output=str(tmp_path / "evaluation"))
    assert list(found["lost"]) == ["site-3"]
    texts = [next(drawn) for _ in range(1000 - len(secrets))]
    broken = Grid(apps.client_app(_broken(iter(texts))), deployed.config, deployed.nodes)
    kinds = ["query", "train", "train", "query", "query"]
    messages = [Message(wire.encode({}), 100 + i % SITES, kinds[i % 5]) for i in range(len(texts))]
    list(broken.push_messages(messages))
    sent = b"".join([*deployed.grid.left, *broken.left])
    assert len({*secrets, *texts}) == 1000 and len(broken.left) == len(texts) == 320
    assert [secret for secret in [*secrets, *texts] if secret.encode() in sent or secret.encode("utf-16-le") in sent] == []
    assert b"Canary" not in sent and b"weights" in sent and b"ValueError" in sent


def test_reviewed_labels_are_used_in_the_next_run(audited, tmp_path, capsys):
    from fnlkit import pipeline
    from fnlkit.sites.agreement import load_for_task

    deployed = Judged(audited, tmp_path)
    deployed.run()
    memory, (_, task) = tmp_path / "memory-3", terms.read_config(deployed.config)
    data = load_for_task(deployed.nodes[103]["data"], task)
    judged = Federation.read(str(memory / labels.JUDGED))
    pipeline.export_review(judged, 0, tmp_path / "review", budget=10, dataset=data, say=None)
    lines = (tmp_path / "review/decisions.csv").read_text().splitlines()
    head = lines[0].split(",")
    rows = [line.split(",") for line in lines[1:]]
    for number, row in enumerate(rows):
        row[head.index("decision")], row[head.index("label")] = ("drop", "") if number == 0 else ("relabel", "7")
    (tmp_path / "review/decisions.csv").write_text("\n".join([lines[0], *map(",".join, rows)]) + "\n")
    reviewed = pipeline.import_review(judged, tmp_path / "review/decisions.csv", dataset=data, say=None)
    labels.store_review(str(memory), reviewed)
    desk, declared, _ = opening.open_site(deployed.config, deployed.nodes[103])
    client = desk.clients[0]
    assert declared.samples == 59 == len(client) and int(client.reviewed.sum()) == 9
    assert (client.y[client.reviewed] == 7).all()
    assert np.array_equal(Federation.read(str(memory / labels.REVIEWED)).extra["received"], data.y_train)
    found = deployed.run(output=str(tmp_path / "again"))
    counts = np.bincount(client.y.numpy())
    assert [row["samples"] for row in found["sites"] if row["site"] == "site-3"] == [counts[counts >= 5].sum()]
    site = dict(np.load(deployed.nodes[103]["data"]))
    site["y"][0] = (site["y"][0] + 1) % 10
    np.savez(tmp_path / "changed.npz", **site)
    with pytest.raises(InputError, match="reviewed.npz"):
        opening.open_site(deployed.config, deployed.nodes[103] | {"data": str(tmp_path / "changed.npz")})


# ---- agreement by name
def test_classes_are_matched_by_name(audited, tmp_path):
    """A site lacks classes, has them in another order, and has an additional class."""
    deployed = Judged(audited, tmp_path)
    names = np.array(["9", "extra", "3"])
    np.savez(
        tmp_path / "few.npz",
        x=np.random.default_rng(0).random((6, 8, 8, 1), np.float32),
        y=[0, 1, 2, 2, 0, 1],
        class_names=names,
    )
    node = deployed.nodes[100] | {"data": str(tmp_path / "few.npz")}
    with pytest.raises(InputError, match="'extra'"):
        opening.open_site(deployed.config, node)
    desk, declared, _ = opening.open_site(deployed.config, node | {"leave_out": "extra"})
    assert desk.clients[0].y.tolist() == [9, 3, 3, 9] and declared.samples == 4 and desk.clients[0].classes == 10
    with pytest.raises(InputError, match="leave_out"):
        opening.open_site(deployed.config, node | {"leave_out": "9"})
