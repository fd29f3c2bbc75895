"""A site answers only the requests of its table; messages are those of a hostile server."""

import functools
import json
import time
from functools import partial

import numpy as np
import pytest
import torch

from fnlkit.artifacts import message
from fnlkit.audits.changes import Change
from fnlkit.audits.site import inputs, judging
from fnlkit.audits.site.samples import Samples
from fnlkit.estimators import federated
from fnlkit.experiment import Settings
from fnlkit.experiment.plan import Plan
from fnlkit.federated.client import private_counts
from fnlkit.federated.client.drift import decorrelate, proximal
from fnlkit.federated.client.inputs import Augment
from fnlkit.federated.client.losses.consistency import self_regularized
from fnlkit.federated.client.losses.exchange import exchanged
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines import travel
from fnlkit.federated.server.clients import Ask, Clients
from fnlkit.methods import energy_levels, fedcorr
from fnlkit.sites import project
from fnlkit.sites.site import audit, door, limits, preview, steps
from fnlkit.sites.site.allowed import functions
from tests import toy
from tests.commands import refuse_call
from tests.sites.deployed import RUN, Deployed, Judged, about, lines, request, sent, told


def memory_of(folder, run=RUN):
    """Return the files that site 1 keeps of a run."""
    return [path.name for path in (folder / f"memory-1/{run}").rglob("*")]


def ask(deployed, *steps, received=None, scattered=None, **changes):
    """Return what site 1 replies to the steps."""
    visit = [1, -1, -1, scattered or {}]
    return told(sent(deployed, request(deployed, *steps, broadcast=received or {}, visits=[visit], **changes)))


HEAD = {
    "coefficients": torch.zeros(10, 16, dtype=torch.float64), "sizes": torch.tensor(16), "differ": torch.tensor(False),
    "offsets": torch.zeros(10, dtype=torch.float64), "known": torch.ones(10, dtype=torch.bool),
    "shares": torch.full((10,), 0.1, dtype=torch.float64), "center": torch.tensor([[0.5], [1.0]], dtype=torch.float64),
    "tone": torch.tensor([0.5, 1.0], dtype=torch.float64), "fits": torch.tensor([[1.0], [0.0]], dtype=torch.float64),
    "suspects": torch.full((8,), -1), "compared": torch.tensor(4),
}  # fmt: skip


def changed(name, change):
    return HEAD | {name: change(HEAD[name])}


REFUSED = [
    # Local training and weights where only counts are agreed.
    ("evaluate", [Fit(epochs=1)], {}),
    ("evaluate", [private_counts.reply_tested, Fit(epochs=1)], {}),
    ("evaluate", [federated.reply_predicted], {}),
    ("evaluate", [audit.summarize], {}),
    ("evaluate", [Fit(loss=private_counts.reply_tested)], {}),
    ("evaluate", [private_counts.reply_tested] * (steps.RUNS + 1), {}),
    ("audit", [Fit(epochs=1)], {}),
    ("audit", [private_counts.reply_tested], {}),
    ("audit", [partial(energy_levels.score_samples, name="sums", score="energy")], {}),
    # Parameters that only the site binds, and arrays that no step takes.
    ("audit", [partial(audit.summarize, scale=(np.zeros(64), np.ones(64)))], {}),
    ("audit", [audit.summarize], {"x": torch.zeros(1)}),
    ("audit", [partial(audit.judge, seed=1)], HEAD),
    ("audit", [audit.judge], {}),
    # Values that no audit sends.
    ("audit", [audit.judge], HEAD | {"x": torch.zeros(1)}),
    ("audit", [audit.judge], {name: HEAD[name] for name in HEAD if name != "fits"}),
    ("audit", [audit.judge], changed("coefficients", lambda v: v + 1e9)),
    ("audit", [audit.judge], changed("coefficients", lambda v: v + torch.nan)),
    ("audit", [audit.judge], changed("coefficients", lambda v: torch.zeros(10, 4096))),
    ("audit", [audit.judge], changed("offsets", lambda v: v[:2])),
    ("audit", [audit.judge], changed("compared", lambda v: torch.tensor(10**6))),
    ("audit", [audit.judge], changed("suspects", lambda v: v + 10**6)),
    ("audit", [audit.judge], changed("shares", lambda v: v - 1)),
    # No steps.
    ("audit", [], {}),
    ("audit", [3], {}),
    ("audit", [torch.ones(2)], {}),
    ("audit", [[audit.summarize]], {}),
    ("audit", [Augment()], {}),
    ("audit", [Fit(loss=3)], {}),
    ("evaluate", [Fit(corrections=3)], {}),
]


@pytest.mark.parametrize("task", ["evaluate", "audit"])
def test_a_request_outside_the_table_is_refused_before_anything_is_computed(task, audited, tmp_path):
    deployed, began = Judged(audited, tmp_path, task), time.process_time()
    for number, (_, asked, received) in enumerate(case for case in REFUSED if case[0] == task):
        assert ask(deployed, *asked, received=received) == "request", asked
        line = lines(deployed)[number]
        assert line["failure"] == ["request", "InputError"] and line["told"]["refused"].startswith(f"{task}: ")
    assert number > 1 and time.process_time() - began < 60
    assert not memory_of(tmp_path) and not (tmp_path / "memory-1/requests.json").exists()


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("sizes", lambda v: v + 1, "out of range"),
        ("compared", lambda v: torch.tensor(3), "out of range"),
        ("known", lambda v: v.double(), "description"),
        ("center", lambda v: v - torch.tensor([[0.0], [1.0]]), "description"),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(name, change, reason, audited, tmp_path):
    deployed = Judged(audited, tmp_path)
    assert ask(deployed, audit.judge, received=changed(name, change)) == "release"
    assert reason in lines(deployed)[0]["told"]["refused"] and not (tmp_path / "memory-1/requests.json").exists()


def test_a_site_gives_one_reply_to_one_message_of_an_audit(audited, tmp_path):
    """Two classifiers of the server's choice are two thresholds on each sample; two sums reveal the changes between them."""
    deployed = Judged(audited, tmp_path)
    first, second = sorted(audit.FIRST), sorted(audit.SECOND)
    assert [ask(deployed, audit.summarize, run=f"{number:016x}") for number in range(2)] == [first] * 2
    assert ask(deployed, audit.judge, received=HEAD) == second
    other = changed("offsets", lambda v: v + 1)
    for run in ("a" * 16, "b" * 16):
        deployed.restart_sites()
        assert ask(deployed, audit.judge, received=other, run=run) == "release" and not memory_of(tmp_path, run)
    assert "answers one" in lines(deployed)[-1]["told"]["refused"]
    assert ask(deployed, audit.judge, received=HEAD, run="c" * 16) == second  # the same message again
    site = dict(np.load(deployed.nodes[101]["data"]))
    site["y"][0] = (site["y"][0] + 1) % 10
    np.savez(tmp_path / "changed.npz", **site)
    deployed.nodes[101]["data"] = str(tmp_path / "changed.npz")
    assert ask(deployed, audit.summarize, run="d" * 16) == "release"
    assert "data changed" in lines(deployed)[-1]["told"]["refused"]
    # An agreement in between does not make the site forget the message.
    deployed.agree(audits=2)
    assert ask(deployed, audit.summarize, run="e" * 16) == first
    deployed.agree(audits=1)
    assert ask(deployed, audit.judge, received=other, run="f" * 16) == "release"


@pytest.mark.parametrize(
    ("more", "words"), [({"low": np.array(3)}, "multiples of 5"), ({"sums": np.zeros((10, 16))}, "no reply of this request")]
)
def test_other_replies_than_those_of_the_request_stay_at_the_site(more, words, audited, tmp_path, monkeypatch):
    """Counts are multiples of 5; sums leave in the first reply of an audit, not in the second."""
    right = judging.judge
    monkeypatch.setattr(judging, "judge", lambda *given, **options: right(*given, **options) | more)
    deployed = Judged(audited, tmp_path)
    assert ask(deployed, audit.judge, received=HEAD) == "undeclared"
    assert words in lines(deployed)[0]["told"]["refused"] and not memory_of(tmp_path)


def test_a_site_permits_the_values_that_a_step_declares():
    scheduled = limits.as_agreed("fnlkit.methods.rofl:move_centroids", [("forget", 0.2)])["forget"]
    assert [scheduled.fits(value) for value in (0.0, 0.1, 0.2, 0.3)] == [True, True, True, False]
    chosen = limits.as_agreed(limits.name_of(energy_levels.score_samples), [("score", "energy")])
    assert [chosen["name"].fits(value) for value in ("scores_local", "true")] == [True, False]
    assert [chosen["score"].fits(value) for value in ("energy", "loss")] == [True, False]


@pytest.mark.parametrize(
    ("method", "step"),
    [
        ("fedavg", partial(fedcorr.relabel_confident, confidence=0.5, strict=False)),
        ("fedavg", audit.summarize),
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
    refuse_call("AboveClip", deployed.train, error=Exception)
    for k in range(3):
        assert [line for line in lines(deployed, k) if line.get("failure") == ["failed", "AboveClip"]]
        assert not list((tmp_path / f"memory-{k}").rglob("state-*"))


def test_scattered_values_are_part_of_the_masks(place, tmp_path):
    from fnlkit.sites import secret

    deployed = Deployed(place, tmp_path, "fedavg", protect="secagg")
    one, other = (request(deployed, visits=[[1, -1, -1, {"x": torch.tensor(v)}]]) for v in (0.0, 1.0))
    third = request(deployed, visits=[[2, 0, -1, {"x": torch.tensor(1.0)}]])
    digests = [secret.common(each, {}, None) for each in (one, other, third)]
    assert digests[0] != digests[1] == digests[2] != secret.common(third, {"scale": "{}"}, None)


def test_requests_are_counted_for_each_agreement(audited, tmp_path, monkeypatch):
    """A counter of predictions is a threshold on a value: with enough models, it gave the value and label of all samples."""
    monkeypatch.setattr(steps, "RUNS", 3)
    deployed = Judged(audited, tmp_path, "evaluate")
    runs = [f"{number:016x}" for number in range(5)]
    assert [ask(deployed, private_counts.reply_tested, run=run) for run in runs] == [["tested", "wrong"]] * 3 + ["request"] * 2
    assert not memory_of(tmp_path, runs[3]) and "delete" in lines(deployed)[-1]["told"]["refused"]
    record = tmp_path / "memory-1/requests.json"
    (entry,) = json.loads(record.read_text())["agreements"].values()
    counts = entry["counts"]
    (digest,) = (name for name in counts if name.count(" ") == 2)
    assert counts == {"evaluate fnlkit.federated.client.private_counts:reply_tested": 3, digest: 3}
    deployed.agree(max_samples=99)
    assert ask(deployed, private_counts.reply_tested) == ["tested", "wrong"]
    for damaged in ("{", '{"kind": "fnlkit.requests/2"}', '{"kind": "fnlkit.requests/2", "agreements": {"a": {"counts": {}}}}'):
        record.write_text(damaged)
        assert ask(deployed, private_counts.reply_tested) == "request"


def test_a_site_evaluates_few_models(audited, tmp_path):
    """The range of wrong predictions is a threshold on a value; 20 models located one value at each large site."""
    deployed, answers = Judged(audited, tmp_path, "evaluate"), []
    flat = request(deployed)["weights"]
    for number in range(steps.MODELS + 2):
        weights = flat + min(number, steps.MODELS)
        answers.append(ask(deployed, private_counts.reply_tested, weights=weights, run=f"{number:016x}"))
    assert answers == [["tested", "wrong"]] * steps.MODELS + ["request"] * 2
    assert ask(deployed, private_counts.reply_tested, weights=flat, run="f" * 16) == answers[0]


@pytest.mark.parametrize("what", ["text", "arrays"])
def test_a_huge_request_is_refused_before_it_is_parsed(what, audited, tmp_path, monkeypatch):
    deployed = Judged(audited, tmp_path, "evaluate")
    right, parsed, read = request(deployed, private_counts.reply_tested), [], message.decode
    if what == "text":
        data = message.encode(right | {"steps": ["x" * message.MOST_TEXT]}, about(deployed))
    else:
        monkeypatch.setattr(door, "MOST_ARRAY_BYTES", 2**16)
        data = message.encode(right | {"broadcast": {"x": torch.zeros(2**19)}}, about(deployed))
    monkeypatch.setattr(message, "decode", lambda content: parsed.append(content) or read(content))
    assert told(sent(deployed, data)) == "request" and len(parsed) == 1  # the reply, by this test
    assert ("bytes" in lines(deployed)[0]["told"]["refused"]) and not memory_of(tmp_path)


@pytest.mark.parametrize("caught", [False, True])
def test_a_request_ends_at_the_limit_of_its_cpu_time(caught, audited, tmp_path, monkeypatch):
    """With `caught`, the code of a step handles all exceptions and returns a reply."""
    right = private_counts.reply_tested

    @functools.wraps(right)
    def endless(client, model, received):
        try:
            while True:
                pass
        except Exception:
            if not caught:
                raise
        return right(client, model, received)

    monkeypatch.setattr(door, "MOST_SECONDS", 0.5)
    deployed = Judged(audited, tmp_path, "evaluate")
    deployed.agree(timeout=0.5)
    ask(deployed, right, run="f" * 16)
    monkeypatch.setattr(private_counts, "reply_tested", endless)
    began = time.process_time()
    assert ask(deployed, endless) == "request" and time.process_time() - began < 5
    assert "CPU time" in lines(deployed)[-1]["told"]["refused"] and not memory_of(tmp_path)
    monkeypatch.setattr(private_counts, "reply_tested", right)
    assert ask(deployed, right) == ["tested", "wrong"]


@pytest.mark.parametrize(
    ("method", "more", "open"),
    [("fedavg", {"protect": "secagg"}, False), ("feddpcont(epsilon=0.5)", {}, False), ("feddpcont(release=exact)", {}, True)],
)
def test_a_project_that_hides_updates_or_counts_agrees_to_training_only(method, more, open, place, tmp_path):
    """Other tasks return open weights and exact counts of labels."""
    deployed = Deployed(place, tmp_path, method, **more)
    evaluated = request(deployed, private_counts.reply_tested, task="train")
    assert told(sent(deployed, evaluated, task="evaluate")) == (["tested", "wrong"] if open else "setup")
    assert {task.name for task in preview.agreed_tasks(str(deployed.agreed))} == ({*project.TASKS} if open else {"train"})
    deployed.agree(open_tasks=True)
    assert told(sent(deployed, evaluated | {"run": "a" * 16}, task="evaluate")) == ["tested", "wrong"]


def test_listed_replies_are_those_of_the_answered_requests(place, tmp_path):
    deployed = Deployed(place, tmp_path, "fedavg")
    rows = preview.list_replies(deployed.nodes[101]["data"], deployed.nodes[101]["agreed"])
    table = [row for task in preview.agreed_tasks(deployed.nodes[101]["agreed"]) for row in steps.table(task)]
    answered = {(row.task, reply) for row in table for reply in row.replies}
    assert {(row["task"], row["name"]) for row in rows} <= answered
    assert [row["name"] for row in rows if row["task"] == "evaluate"] == ["tested", "wrong"]


def test_listed_sizes_are_the_largest_that_leave(audited, tmp_path):
    """The list stated 17 features of the coarse description of images, of which up to 34 left."""
    project_, x = Judged(audited, tmp_path).project, np.zeros((1, 8, 8, 1), np.float32)
    samples = Samples(x, np.zeros(1, np.int64), 10, image=True)
    message_ = {"tone": np.array([0.0, 1.0]), "fits": np.zeros((2, 1))}
    (described,) = inputs.describe(samples, message_, [Change()])
    assert audit.open_sides(project_)["features"] == described.shape[1] == 34


def test_an_entry_per_sample_leaves_only_for_its_method(audited, place, tmp_path):
    def per_sample(deployed, size=60):
        rows = preview.list_replies(deployed.nodes[101]["data"], deployed.nodes[101]["agreed"])
        return {(row["task"], row["name"]) for row in rows if set(row["shape"]) & {"n", size}}

    assert not per_sample(Judged(audited, tmp_path / "plain", "audit"))
    rows = per_sample(Deployed(place, tmp_path / "na-fedavg", "na-fedavg"), 50)
    assert {name for _, name in rows} == {"scores_global", "scores_local"}


def fit(**changes):
    return Fit(**{"epochs": 1, "batch_size": 16} | changes)


AUGMENTED = "fedavg", {"augment": "augment(pad=1, flip=false)"}
NEAR = "fedavg", {"optimizer": "fedprox(mu=0.1)"}
LSR = "fedlsr", {}
PUBLIC = partial(self_regularized, entropy=0.3, power=3.0, variant="public")


@pytest.mark.parametrize(
    ("project", "step", "fits"),
    [
        (("fedavg", {}), fit(batch_size=1), False),
        (("fedavg", {}), fit(lr=0.031), False),
        (("fedavg", {}), fit(lr=0.01), True),
        (("fedavg", {}), fit(clip=1e-9), False),
        (("fedavg", {}), fit(augment=Augment(pad=2)), False),
        (AUGMENTED, fit(augment=Augment(pad=1)), True),
        (AUGMENTED, fit(augment=Augment(pad=2)), False),
        (("fedcorr(confidence=0.9)", {}), partial(fedcorr.relabel_confident, confidence=0.1, strict=False), False),
        (("fedcorr(confidence=0.9)", {}), partial(fedcorr.relabel_confident, confidence=0.9, strict=False), True),
        (("na-fedavg(at=1)", {}), partial(energy_levels.score_samples, name="scores_global", score="loss"), False),
        (NEAR, fit(corrections=(partial(proximal, mu=9.0),)), False),
        (NEAR, fit(corrections=(partial(proximal, mu=0.1),)), True),
        (("fedavg", {"optimizer": "feddecorr"}), fit(penalty=partial(decorrelate, strength=9.0)), False),
        # Parameters that change by round.
        (LSR, fit(loss=partial(PUBLIC, consistency=0.1)), True),
        (LSR, fit(loss=partial(PUBLIC, consistency=0.41)), False),
        (LSR, fit(loss=partial(PUBLIC, consistency=-0.1)), False),
        (LSR, fit(loss=partial(PUBLIC, entropy=9.0, consistency=0)), False),
        (("coteaching", {}), fit(loss=partial(exchanged, forget=0.3)), False),
    ],
)
def test_parameters_of_a_message_are_those_that_the_site_agreed_to(project, step, fits, place, tmp_path):
    method, more = project
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
    settings = Settings(method=method, optimizer=optimizer, rounds=6, epochs=2, lr=0.1, batch_size=20)
    about = {"names": ["a", "b", "c"], "keys": [], "tasks": ["train"], "kind": "image", "shape": [8, 8, 1]}
    described = project.Project(**about, mean=[], std=[], classes=["a", "b"], settings={})
    task = project.Task("train", described, settings, Plan.of(settings))
    rows = {row.step: row for row in steps.table(task)}
    plain, checked = Clients.round, set()

    def round(self, ask, *given, **more):
        for step in ask.steps if isinstance(ask, Ask) else given[1:]:
            travel.unpack(travel.pack(step), lambda *named: named in functions())
            for part in steps.parts_of(step):
                limits.must_fit(rows[steps.name_of(part)], part, {}, None)
                checked.add(steps.name_of(part))
        return plain(self, ask, *given, **more)

    monkeypatch.setattr(Clients, "round", round)
    toy.train(method=method, optimizer=optimizer, rounds=6)
    reachable = steps.reachable(*steps.components(task.plan))
    assert len(checked) > 1 and checked <= {*rows} and len(reachable) < 20
