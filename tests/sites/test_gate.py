"""A site answers only the requests of its table; messages are those of a hostile server."""

import functools
import json
import time
from functools import partial

import numpy as np
import pytest
import torch

from fnlkit.audits.audit import SENDS
from fnlkit.audits.steps import send_sums
from fnlkit.client import testing
from fnlkit.client.drift import proximal
from fnlkit.client.inputs import Augment
from fnlkit.client.losses.consistency import self_regularized
from fnlkit.client.losses.exchange import exchanged
from fnlkit.client.penalties import decorrelate
from fnlkit.client.training import Fit
from fnlkit.engines import travel
from fnlkit.estimators import em, federated
from fnlkit.experiment import Settings
from fnlkit.experiment.plan import Plan
from fnlkit.methods import energy_levels, fedcorr
from fnlkit.server.clients import Clients
from fnlkit.sites import checking, gate, gate_limits, gate_table, terms
from fnlkit.sites.allowed import may_be_named
from fnlkit.sites.flower import wire
from tests import toy
from tests.sites.deployed import Deployed, Judged
from tests.sites.test_site_terms import RUN, lines, request, sent, told


def memory_of(folder, run=RUN):
    """Return the files that site 1 keeps of a run."""
    return [path.name for path in (folder / f"memory-1/{run}").rglob("*")]


def ask(deployed, *steps, received=None, scattered=None, **changes):
    """Return what site 1 replies to the steps."""
    visit = [1, -1, -1, scattered or {}]
    return told(sent(deployed, request(deployed, *steps, broadcast=received or {}, visits=[visit], **changes)))


LSR = {"entropy": 0.3, "power": 3.0, "variant": "public"}
SALT = {"salt": torch.tensor([1, 2])}


REFUSED = [
    # Local training and weights where only counts are agreed.
    ("evaluate", [Fit(epochs=1)], {}),
    ("evaluate", [testing.reply_tested, Fit(epochs=1)], {}),
    ("evaluate", [federated.reply_predicted], {}),
    ("evaluate", [send_sums], {}),
    ("evaluate", [Fit(loss=testing.reply_tested)], {}),
    ("evaluate", [testing.reply_tested] * (gate_table.RUNS + 1), {}),
    # A score of each sample, under the name of a reply with an open side.
    ("audit", [partial(energy_levels.score_samples, name="columns", score="energy")], {}),
    # Limits that a message states.
    ("audit", [partial(em.judge_at_home, prior=1.0, seed=0)], {}),
    ("audit", [Fit(epochs=10**6)], {}),
    ("audit", [send_sums, partial(send_sums, x=1)], {}),
    ("audit", [Fit(augment=Augment(pad=10**6))], {}),
    ("audit", [Fit(mixup=np.int64(10**6))], {}),
    ("audit", [Fit(mixup=torch.tensor(10**6))], {}),
    ("audit", [Fit(mixup=partial(send_sums, x=10**6))], {}),
    ("audit", [Fit(mixup=Fit(epochs=10**6))], {}),
    # No steps.
    ("audit", [], {}),
    ("audit", [3], {}),
    ("audit", [torch.ones(2)], {}),
    ("audit", [[send_sums]], {}),
    ("audit", [Augment()], {}),
    ("audit", [Fit(loss=3)], {}),
    ("audit", [Fit(corrections=3)], {}),
]


@pytest.mark.parametrize("task", ["evaluate", "audit"])
def test_a_request_outside_the_table_is_refused_before_anything_is_computed(task, audited, tmp_path):
    deployed, began = Judged(audited, tmp_path, task), time.process_time()
    for number, (_, steps, received) in enumerate(case for case in REFUSED if case[0] == task):
        assert ask(deployed, *steps, received=received) == "request", steps
        line = lines(deployed)[number]
        assert line["failure"] == ["request", "InputError"] and line["told"]["refused"].startswith(f"{task}: ")
    assert number > 1 and time.process_time() - began < 60
    assert not memory_of(tmp_path) and not (tmp_path / "memory-1/requests.json").exists()


@pytest.mark.parametrize(
    ("method", "step"),
    [
        ("fedavg", partial(fedcorr.relabel_confident, confidence=0.5, strict=False)),
        ("fedavg", send_sums),
        ("na-fedavg(at=1)", partial(energy_levels.score_samples, name="noise_level", score="energy")),
        ("na-fedavg(at=1)", federated.keep_predictions),
    ],
)
def test_only_steps_of_the_agreed_method_run(method, step, place, tmp_path):
    deployed = Deployed(place, tmp_path, method)
    assert ask(deployed, step) == "request" and not memory_of(tmp_path)
    assert ask(deployed, Fit(epochs=2)) == "request"  # the agreed number is 1
    assert ask(deployed, Fit(epochs=1, batch_size=16)) == ["weights"] and memory_of(tmp_path)


def test_a_reply_that_is_refused_after_the_visit_leaves_no_memory(place, tmp_path):
    """Round 0 set the state of a victim, and round 1 asked all sites the same: the sum contained the victim's state only."""
    deployed = Deployed(place, tmp_path, "fedavg", rounds=1, protect="secagg(clip=1e-9)", optimizer="ditto")
    with pytest.raises(Exception, match="AboveClip"):
        deployed.train()
    for k in range(3):
        assert [line for line in lines(deployed, k) if line.get("failure") == ["failed", "AboveClip"]]
        assert not list((tmp_path / f"memory-{k}").rglob("state-*"))


def test_scattered_values_are_part_of_the_masks(place, tmp_path):
    from fnlkit.sites.flower import secret

    deployed = Deployed(place, tmp_path, "fedavg", protect="secagg")
    one, other = (request(deployed, visits=[[1, -1, -1, {"x": torch.tensor(v)}]]) for v in (0.0, 1.0))
    third = request(deployed, visits=[[2, 0, -1, {"x": torch.tensor(1.0)}]])
    assert secret.common(one) != secret.common(other) == secret.common(third)


def test_requests_are_counted_for_each_agreement(audited, tmp_path, monkeypatch):
    """A counter of predictions is a threshold on a value: with enough models, it gave the value and label of all samples."""
    monkeypatch.setattr(gate_table, "RUNS", 3)
    deployed = Judged(audited, tmp_path, "evaluate")
    runs = [f"{number:016x}" for number in range(5)]
    assert [ask(deployed, testing.reply_tested, run=run) for run in runs] == [["tested", "wrong"]] * 3 + ["request"] * 2
    assert not memory_of(tmp_path, runs[3]) and "delete" in lines(deployed)[-1]["told"]["refused"]
    record = tmp_path / "memory-1/requests.json"
    (counts,) = json.loads(record.read_text())["counts"].values()
    (digest,) = (name for name in counts if name.count(" ") == 2)
    assert counts == {"evaluate fnlkit.client.testing:reply_tested": 3, digest: 3}
    agreed = tmp_path / "project/pyproject.toml"
    agreed.write_text(agreed.read_text() + "\n")  # the site agrees to another file
    deployed.restart_sites()  # each message has a process of its own
    assert ask(deployed, testing.reply_tested) == ["tested", "wrong"]
    record.write_text("{")
    assert ask(deployed, testing.reply_tested) == "request"


def test_a_site_evaluates_few_models(audited, tmp_path):
    """The range of wrong predictions is a threshold on a value; 20 models located one value at each large site."""
    deployed, answers = Judged(audited, tmp_path, "evaluate"), []
    flat = request(deployed)["weights"]
    for number in range(gate_table.MODELS + 2):
        weights = flat + min(number, gate_table.MODELS)
        answers.append(ask(deployed, testing.reply_tested, weights=weights, run=f"{number:016x}"))
    assert answers == [["tested", "wrong"]] * gate_table.MODELS + ["request"] * 2
    assert ask(deployed, testing.reply_tested, weights=flat, run="f" * 16) == answers[0]


@pytest.mark.parametrize("what", ["text", "arrays"])
def test_a_huge_request_is_refused_before_it_is_parsed(what, audited, tmp_path, monkeypatch):
    deployed, parsed = Judged(audited, tmp_path, "audit"), []
    if what == "text":
        nested = ("plain", [[0, 0]] * (gate.MOST_TEXT // 10))
        changes = {"steps": [("partial", travel.pack(send_sums), ("tuple", []), ("dict", {"x": nested}))]}
    else:
        monkeypatch.setattr(gate, "MOST_ARRAY_BYTES", 2**16)
        changes = {"broadcast": {"x": torch.zeros(2**17)}}
    message, read = request(deployed, send_sums) | changes, wire.decode
    monkeypatch.setattr(wire, "decode", lambda content: parsed.append(content) or read(content))
    answer = told(sent(deployed, message))
    assert answer == "request" and len(parsed) == 1  # the reply, by this test
    assert "this site reads" in lines(deployed)[0]["told"]["refused"] and not memory_of(tmp_path)


@pytest.mark.parametrize("caught", [False, True])
def test_a_request_ends_at_the_limit_of_its_cpu_time(caught, audited, tmp_path, monkeypatch):
    """With `caught`, the code of a step handles all exceptions and returns a reply."""
    right = testing.reply_tested

    @functools.wraps(right)
    def endless(client, model, received):
        try:
            while True:
                pass
        except Exception:
            if not caught:
                raise
        return right(client, model, received)

    monkeypatch.setattr(gate, "MOST_SECONDS", 0.5)
    deployed = Judged(audited, tmp_path, "evaluate")
    deployed.agree(timeout=0.5)
    ask(deployed, right, run="f" * 16)
    monkeypatch.setattr(testing, "reply_tested", endless)
    began = time.process_time()
    assert ask(deployed, endless) == "request" and time.process_time() - began < 5
    assert "CPU time" in lines(deployed)[-1]["told"]["refused"] and not memory_of(tmp_path)
    monkeypatch.setattr(testing, "reply_tested", right)
    assert ask(deployed, right) == ["tested", "wrong"]


@pytest.mark.parametrize(
    ("method", "more", "open"),
    [("fedavg", {"protect": "secagg"}, False), ("feddpcont(epsilon=0.5)", {}, False), ("feddpcont(release=exact)", {}, True)],
)
def test_a_project_that_hides_updates_or_counts_agrees_to_training_only(method, more, open, place, tmp_path):
    """Other tasks return open weights and exact counts of labels."""
    counted = sorted(name for name, one in SENDS.items() if one.when == "first message")
    deployed = Deployed(place, tmp_path, method, **more)
    agreed = tmp_path / "project/pyproject.toml"
    for task, step in (("audit", send_sums), ("evaluate", testing.reply_tested)):
        reply = sent(deployed, request(deployed, step), config=deployed.config | {"task": task})
        assert told(reply) == ((counted if task == "audit" else ["tested", "wrong"]) if open else "setup")
    assert {row.task for row in checking.requests_of(str(agreed))} == ({*terms.TASKS} if open else {"train"})
    agreed.write_text(agreed.read_text().replace("open_tasks = false", "open_tasks = true"))
    deployed.restart_sites()
    config = deployed.config | {"task": "audit", "open_tasks": True}
    assert told(sent(deployed, request(deployed, send_sums), config=config)) == counted


def test_listed_replies_are_those_of_the_answered_requests(place, tmp_path):
    deployed = Deployed(place, tmp_path, "fedavg")
    rows = checking.leaving_of(deployed.nodes[101]["data"], deployed.nodes[101]["agreed"])
    answered = {(row.task, reply) for row in checking.requests_of(deployed.nodes[101]["agreed"]) for reply in row.replies}
    assert {(row["task"], row["name"]) for row in rows} <= answered
    assert [row["name"] for row in rows if row["task"] == "evaluate"] == ["tested", "wrong"]


def test_an_entry_per_sample_leaves_only_if_agreed(audited, place, tmp_path):
    def per_sample(deployed):
        rows = checking.leaving_of(deployed.nodes[101]["data"], deployed.nodes[101]["agreed"])
        return {(row["task"], row["name"]) for row in rows if set(row["shape"]) & {"n", 60}}

    for name in ("plain", "na-fedavg"):
        (tmp_path / name).mkdir()
    assert not per_sample(Judged(audited, tmp_path / "plain", "audit"))
    deployed = Deployed(place, tmp_path / "na-fedavg", "na-fedavg")
    rows = checking.leaving_of(deployed.nodes[101]["data"], deployed.nodes[101]["agreed"])
    assert {row["name"] for row in rows if row["shape"] == [50]} == {"scores_global", "scores_local"}


@pytest.mark.parametrize(
    ("method", "more", "step", "fits"),
    [
        ("fedavg", {}, Fit(epochs=1, batch_size=1), False),
        ("fedavg", {}, Fit(epochs=1, batch_size=16, lr=0.031), False),
        ("fedavg", {}, Fit(epochs=1, batch_size=16, lr=0.01), True),
        ("fedavg", {}, Fit(epochs=1, batch_size=16, clip=1e-9), False),
        ("fedavg", {}, Fit(epochs=1, batch_size=16, momentum=0.99), False),
        ("fedavg", {}, Fit(epochs=1, batch_size=16, augment=Augment(pad=2)), False),
        ("fedavg", {"augment": "augment(pad=1, flip=false)"}, Fit(epochs=1, batch_size=16, augment=Augment(pad=1)), True),
        ("fedavg", {"augment": "augment(pad=1, flip=false)"}, Fit(epochs=1, batch_size=16, augment=Augment(pad=2)), False),
        ("fedcorr(confidence=0.9)", {}, partial(fedcorr.relabel_confident, confidence=0.1, strict=False), False),
        ("fedcorr(confidence=0.9)", {}, partial(fedcorr.relabel_confident, confidence=0.9, strict=False), True),
        ("na-fedavg(at=1)", {}, partial(energy_levels.score_samples, name="scores_global", score="loss"), False),
        (
            "fedavg",
            {"optimizer": "fedprox(mu=0.1)"},
            Fit(epochs=1, batch_size=16, corrections=(partial(proximal, mu=9.0),)),
            False,
        ),
        (
            "fedavg",
            {"optimizer": "fedprox(mu=0.1)"},
            Fit(epochs=1, batch_size=16, corrections=(partial(proximal, mu=0.1),)),
            True,
        ),
        ("fedavg", {"optimizer": "feddecorr"}, Fit(epochs=1, batch_size=16, penalty=partial(decorrelate, strength=9.0)), False),
        # Parameters that change by round.
        ("fedlsr", {}, Fit(epochs=1, batch_size=16, loss=partial(self_regularized, **LSR, consistency=0.1)), True),
        ("fedlsr", {}, Fit(epochs=1, batch_size=16, loss=partial(self_regularized, **LSR, consistency=0.41)), False),
        ("fedlsr", {}, Fit(epochs=1, batch_size=16, loss=partial(self_regularized, **LSR, consistency=-0.1)), False),
        (
            "fedlsr",
            {},
            Fit(epochs=1, batch_size=16, loss=partial(self_regularized, **LSR | {"entropy": 9.0}, consistency=0)),
            False,
        ),
        ("coteaching", {}, Fit(epochs=1, batch_size=16, loss=partial(exchanged, forget=0.3)), False),
    ],
)
def test_parameters_of_a_message_are_those_that_the_site_agreed_to(method, more, step, fits, place, tmp_path):
    deployed = Deployed(place, tmp_path, method, **more)
    assert (ask(deployed, step) != "request") == fits
    if not fits:
        assert "beyond the limit" in lines(deployed)[0]["told"]["refused"]


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        *(("fedcorr", "feddyn"), ("flr", "fedprox"), ("fedrn", "ditto"), ("fedcorr(code=all)", "scaffold")),
        ("elr", "feddecorr"),
        *((method, "fedavg") for method in ("na-fedavg", "fedelc", "coteaching", "rofl", "fedlsr", "dividemix", "feddpcont")),
        *((method, "fedavg") for method in ("fednoro", "feddiv", "t-revision", "rhfl", "flr-plus", "slr", "elr", "forward")),
        *((method, "fedavg") for method in ("coteaching-plus", "maskedoptim", "fedsir(least_similar=3)")),
    ],
)
def test_steps_of_an_honest_server_meet_the_agreed_limits(method, optimizer, monkeypatch):
    """The table follows from the code of the method: a run sends no step that it lacks, and a site finds each step by name."""
    settings = Settings(method=method, optimizer=optimizer, rounds=6, epochs=2, lr=0.1, batch_size=8)
    task = terms.Task(3, "image", (8, 8, 1), ("a", "b"), name="train")
    rows = {row.step: row for row in gate_table.table(Plan.of(settings), task)}
    plain, checked = Clients.round, set()

    def round(self, ids, model, *given, **more):
        for step in given:
            travel.unpack(travel.pack(step), may_be_named)
            for part in gate_table.parts_of(step):
                gate_limits.must_fit(rows[gate_table.name_of(part)], part, {})
                checked.add(gate_table.name_of(part))
        return plain(self, ids, model, *given, **more)

    monkeypatch.setattr(Clients, "round", round)
    toy.train(method=method, optimizer=optimizer, rounds=6)
    reachable = gate_table.reachable(*gate_table.components(Plan.of(settings)))
    assert len(checked) > 1 and checked <= {*rows} and len(reachable) < 20
