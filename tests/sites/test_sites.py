"""Sites of their own: what they send is declared and nothing else, and they end where a simulation does.

Sites answer in this process here, with Flower's own messages; tests/sites/test_deployment.py starts real ones.
"""

import functools
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.estimators import run_estimator

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")

import flwr.supercore.cli  # noqa: E402
from flwr.supercore.constant import TaskType  # noqa: E402
from flwr.supercore.superexec.executor import subprocess_executor  # noqa: E402
from flwr.supercore.superexec.executor.types import ExecutionSpec  # noqa: E402

from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.experiment import Settings
from fnlkit.federated.client.losses.correction import forward_given
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines.flower import api
from fnlkit.federated.server.clients import TooManyLost
from fnlkit.sites import flower_app, project
from fnlkit.sites.server import flower, roster, tasks, training
from fnlkit.sites.site import door, ledger
from tests.commands import fnlkit, refuse, refuse_call, succeed
from tests.sites.deployed import CANARY, NUMBER, Deployed

METHODS = [
    ("fedcorr", {"optimizer": "feddyn(alpha=0.1)", "aggregator": "median", "selector": "power-of-choice(d=2)"}),
    ("fedefc(latest=2)", {}),
    ("feddpcont(epsilon=50)", {}),  # keeps every label: a site draws from a secret of its own
    ("flr", {}),
    ("na-fedavg", {}),
    ("dividemix", {}),
]


@pytest.mark.parametrize(("method", "more"), METHODS)
def test_sites_end_where_a_simulation_does(method, more, place, tmp_path, capsys):
    deployed = Deployed(place, tmp_path, method, **more)
    run, plain = deployed.train(), deployed.simulated()
    assert torch.equal(run.weights, plain.weights) and vars(run.traffic) == vars(plain.traffic)
    assert [row.get("accuracy") for row in run.history] == [row.get("accuracy") for row in plain.history]
    assert not run.rejected and run.finished
    told = succeed(f"fnlkit evaluate {deployed.options['output']} --json", tmp_path)
    assert json.loads(told.stdout)["accuracy_last"] == plain.history[-1]["accuracy"]
    for k in range(3):
        left = ledger.read_ledger(str(tmp_path / f"memory-{k}/left.jsonl"))
        sent = {name for line in left for name in line.get("arrays", {})}
        assert "weights" in sent and sent <= set(run.traffic.sent)
        assert sum(a["bytes"] for line in left for a in line.get("arrays", {}).values()) > 0


def test_a_stopped_server_resumes(place, tmp_path, capsys):
    """Sites need not know: what they remember is named by the run and the round."""
    deployed = Deployed(place, tmp_path, "fedcorr", optimizer="feddyn(alpha=0.1)")
    whole = deployed.simulated()
    deployed.stop_before_replies(4, 9)
    for _ in range(2):
        refuse_call("", deployed.train, error=KeyboardInterrupt)
    run = deployed.train()
    assert torch.equal(run.weights, whole.weights) and len(run.history) == len(whole.history)


def test_too_few_sites_are_no_success(place, tmp_path, capsys):
    deployed = Deployed(place, tmp_path, "fedavg", min_replies=0.6)
    del deployed.nodes[101]
    refuse_call("1 of 3 sites did not come within 0 s: site-1", deployed.train, error=WorkStopped)
    deployed = Deployed(place, tmp_path / "again", "fedavg", min_replies=0.7)
    gone, push = deployed.nodes[101], deployed.lose(101, kind="train")
    refuse_call("site-1: its node did not reply.*then run the same command$", deployed.train, error=TooManyLost)
    deployed.grid.push_messages = push
    deployed.nodes[205] = gone  # restarted, it has another number
    assert deployed.train().finished


def test_a_site_that_is_lost_in_every_round_is_named_once_and_counted(place, tmp_path, capsys):
    deployed = Deployed(place, tmp_path, "fedavg", min_replies=0.6, rounds=3)
    deployed.lose(101, kind="train")
    run = deployed.train()
    missed = [entry for entry in run.rejected if entry["client"] == 1]
    assert len(run.history) == len(missed) == 3
    lines = [line for line in capsys.readouterr().out.splitlines() if "without site-1" in line]
    reason = "without site-1: its node did not reply"
    assert lines == [f"round 0 {reason}", f"3 rounds {reason}"]


# ---- what leaves


def _has_canary(data):
    forms = [CANARY.encode(), np.float32(NUMBER).tobytes(), np.float64(np.float32(NUMBER)).tobytes()]
    return [form for form in forms if form in data]


def misbehave(how):
    """Return a step that fails with a text or class of the site, or replies what its method does not declare."""

    def step(client, model, received):
        if how == "text":
            raise ValueError(f"{CANARY}: {client.x[0].tolist()} {client.y.tolist()}")
        if how == "class":
            raise type(CANARY, (Exception,), {})
        name = {"array": "labels", "shape": "lid", "name": CANARY}[how]
        return {name: client.y if how == "array" else client.x.flatten().double()}

    return step


@pytest.mark.parametrize("how", ["text", "class", "array", "shape", "name"])
def test_undeclared_replies_stay_at_the_site_and_are_logged(how, place, tmp_path, monkeypatch, capsys):
    """A step that the server chose misbehaves: it is refused at the site, not at the server."""
    undeclared = "its reply has names or values that the method does not declare"
    monkeypatch.setattr(door, "may_be_named", lambda site, module, name: True)
    monkeypatch.setattr(door, "admit", lambda site, asked, remembered: ([*site.rows.values()], ""))
    monkeypatch.setattr(door, "_resolve", lambda site, packed: misbehave(how))
    deployed = Deployed(place, tmp_path, "fedcorr")
    with pytest.raises(TooManyLost) as stopped:
        _round_of(deployed, Fit(epochs=1))
    assert {"text": "failed: ValueError", "class": "failed: Exception"}.get(how, undeclared) in str(stopped.value)
    data = b"".join(deployed.grid.left)
    assert not _has_canary(data) and data
    left = ledger.read_ledger(str(tmp_path / "memory-1/left.jsonl"))
    refused = [line["told"]["refused"] for line in left if "refused" in line.get("told", {})]
    assert bool(refused) == (how not in ("text", "class"))
    assert not any("labels" in line.get("arrays", {}) for line in left)


def _round_of(deployed, step):
    """One round of `step` with the deployment's own server."""
    sites = roster.Roster(flower.FlowerTransport(deployed.grid), deployed.task, run="0" * 16, wait=0)
    options = tasks.options_of(deployed.options)
    experiment = training._experiment(deployed.task, sites, None, options, None)
    return experiment.clients.round(range(3), experiment.model, step)


def test_no_canary_in_a_whole_run(place, tmp_path, capsys):
    deployed = Deployed(place, tmp_path, "fedcorr", optimizer="feddyn(alpha=0.1)")
    deployed.train()
    data = b"".join(deployed.grid.left)
    assert len(data) > 10_000 and not _has_canary(data)
    for k in range(3):
        site = np.load(place / f"{CANARY}-{k}.npz")
        for dtype in (np.int64, np.int32, np.uint8):
            assert site["y_train"].astype(dtype).tobytes() not in data
    assert _has_canary(pickle.dumps([site["x_train"], CANARY]))  # that one would be found


@pytest.mark.parametrize(
    "change", [{"data": "/no/CanaryQ7x.npz"}, {"client": "CanaryQ7x"}, {"memory": "/proc/CanaryQ7x"}, {"data": None}]
)
def test_a_misconfigured_site_sends_only_a_code(change, place, tmp_path, capsys):
    deployed = Deployed(place, tmp_path, "fedavg")
    deployed.nodes[101] |= change
    refuse_call("1 of 3 sites", deployed.train, error=WorkStopped)
    assert not _has_canary(b"".join(deployed.grid.left))


@pytest.mark.parametrize("transition", ["{}:f/..", "evil:f", "{}"])
def test_a_value_in_a_message_imports_and_reads_nothing_at_a_site(transition, place, tmp_path, monkeypatch, capsys):
    evil = tmp_path / "evil.py"
    evil.write_text("import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    loss = functools.partial(forward_given, transition=transition.format(evil))
    deployed = Deployed(place, tmp_path, "fedavg")
    refuse_call("", _round_of, deployed, Fit(loss=loss, epochs=1), error=(TooManyLost, InputError))
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("changed", [{"method": "evil:x"}, {"model": "evil:x"}, {"loss": "forward(transition=evil:x)"}])
def test_the_settings_of_a_deployment_import_nothing(changed, place, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    deployed = Deployed(place, tmp_path, "fedavg")
    refuse_call("evil:x", project.task_of, replace(deployed.project, settings=deployed.project.settings | changed), "train")
    assert not (tmp_path / "imported").exists()


def test_a_loss_that_reads_a_file_at_the_sites_is_refused_when_the_project_is_written(place, tmp_path):
    np.savetxt(tmp_path / "T.csv", np.full((10, 10), 0.1), delimiter=",")
    refuse_call("`loss`", Deployed, place, tmp_path, "fedavg", loss=f"forward(transition='{tmp_path}/T.csv')")


def enter(path, *rounds):
    """Write a line for each round to a ledger, and return the rounds of all its lines."""
    for round in rounds:
        ledger.enter(str(path), run="a", round=round, said={"replies": [[0, {"weights": torch.zeros(2)}]]})
    return [line["round"] for line in ledger.read_ledger(str(path))]


def test_a_changed_ledger_is_refused(tmp_path):
    """The chain has no key: it finds mistakes, and no person who computes the checksums again."""
    path = tmp_path / "left.jsonl"
    assert enter(path, 0, 1, 2) == [0, 1, 2] and enter(tmp_path / "again.jsonl", 0, 2) == [0, 2]
    lines = path.read_text().splitlines()
    for changed in (lines[:1] + lines[2:], [*lines[:1], lines[1].replace('"bytes": 8', '"bytes": 7'), lines[2]]):
        path.write_text("\n".join(changed) + "\n")
        refuse_call("line 2 is not a message that fnlkit wrote", enter, path)


def test_an_incomplete_last_line_of_the_log_is_ignored(tmp_path):
    path = tmp_path / "left.jsonl"
    enter(path, 0)
    whole = path.read_bytes()
    enter(path, 1)
    second = path.read_bytes()[len(whole) :]
    for length in (1, len(second) // 2, len(second) - 1):
        path.write_bytes(whole + second[:length])
        assert enter(path) == [0] and enter(path, 2) == [0, 2]
    path.write_bytes(b"{")
    assert enter(path, 3) == [3]


# ---- the project
def test_a_folder_with_files_is_not_overwritten(tmp_path):
    line = "fnlkit flower-app project --dataset digits --sites 3"
    assert fnlkit(line, tmp_path).returncode == 0
    refuse(line, tmp_path, "there is something already")


def test_a_site_flips_its_labels_with_a_secret_that_the_server_does_not_have(place, tmp_path):
    told = []
    for attempt in range(2):
        deployed = Deployed(place, tmp_path / str(attempt), "feddpcont(epsilon=0.5)", rounds=1)
        told.append(np.stack(deployed.train().log[0].values["private_counts"]))
        keys = [(tmp_path / f"{attempt}/memory-{k}/privacy.key").read_bytes() for k in range(3)]
        assert len(set(keys)) == 3 and not any(key.split()[1] in sent for key in keys for sent in deployed.grid.left)
    assert (told[0] != told[1]).any()  # of one seed, and of other keys


def test_a_project_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    described = flower_app.describe(datasets.load("digits"), Settings(), names=["a", "b"], keys=[], tasks=["train"])
    write = flower_app.saving.write_bytes

    def full(parts, path, **how):
        if Path(path).name == "client.py":
            raise OSError(28, "No space left on device")
        return write(parts, path, **how)

    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(flower_app.saving, "write_bytes", full)
    for name in ("new", "empty"):
        refuse_call("No space", flower_app.write_project, tmp_path / name, described, error=OSError)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"] and not any((tmp_path / "empty").iterdir())
    monkeypatch.undo()
    flower_app.write_project(tmp_path / "empty", described)
    assert len(list((tmp_path / "empty").rglob("*.py"))) == 3


def test_the_end_of_flowers_program_is_no_error_unless_it_has_a_code(monkeypatch):
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess_executor.subprocess)  # restored after the test
    monkeypatch.setattr(flwr.supercore.cli, "flower_superexec", lambda: sys.exit(0))
    api.superexec([], print)
    monkeypatch.setattr(flwr.supercore.cli, "flower_superexec", lambda: sys.exit(3))
    refuse_call("code 3", api.superexec, [], print, error=WorkStopped)


def test_processes_of_messages_are_forked_and_others_are_started(monkeypatch):
    """Flower's own executor, in place of the loop that waits for tasks."""
    forked, started = [], []

    def superexec():
        for number, kind in enumerate((TaskType.CLIENT_APP, TaskType.SERVER_APP), 1):
            about = {"insecure": True, "root_certificates_path": None, "runtime_dependency_install": False, "parent_pid": 7}
            about |= {"suppress_output": True, "task_id": number}
            subprocess_executor.SubprocessExecutor().launch(ExecutionSpec(kind, "127.0.0.1:1", f"token-{number}", **about))

    start = subprocess_executor.subprocess
    monkeypatch.setattr(flwr.supercore.cli, "flower_superexec", superexec)
    monkeypatch.setattr(start, "Popen", lambda words, **how: started.append(words))
    monkeypatch.setattr("sys.argv", [])
    try:
        api.superexec(["--insecure"], forked.append)
    finally:
        subprocess_executor.subprocess = start
    assert [words[0] for words in forked] == ["flwr-clientapp"] and "token-1" in forked[0] and "7" in forked[0]
    assert [words[0] for words in started] == ["flwr-serverapp"]


# ---- the steps of estimates as messages of the engine `flower`: the results of sequential, to the last bit
SITES, SIZE = 3, 50
WARM_UP = {"rounds": 2, "fraction": 1.0, "model": "mlp(hidden=8)", "standardize": "none", "min_replies": 1.0}


def federation():
    digits, rng = datasets.load("digits"), np.random.default_rng(2)
    order = rng.permutation(len(digits.y_train))[: SITES * SIZE]
    given = digits.y_train[order].copy()
    given[:15] = (given[:15] + 1) % 10
    x = digits.x_train[order]
    about = {"statistics": (digits.mean, digits.std), "observed": True}
    data = datasets.dataset.Dataset("all", "image", given, given[:0], digits.class_names, lambda: (x, x[:0]), **about)
    offsets = np.arange(SITES + 1) * SIZE
    return Federation("all", 10, offsets, np.arange(len(given)), given), data


@pytest.mark.parametrize("estimator", ["em(folds=2)", "lid(k=5)"])
def test_an_estimate_as_messages_of_flower_equals_sequential(estimator):
    found = [
        run_estimator(*federation(), estimator, form="federated", warm_up=WARM_UP, engine=engine)
        for engine in ("flower", "sequential")
    ]
    assert found[0][1] == found[1][1]
    assert all(np.array_equal(values, found[1][0][name]) for name, values in found[0][0].items())
