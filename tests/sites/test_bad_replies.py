"""A site whose reply cannot be right is named and left out; the task ends with the other sites."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fnlkit.audits.changes import possible
from fnlkit.audits.messages import described_columns, described_features
from fnlkit.audits.server import plausibility
from fnlkit.audits.server.heads import make_heads
from fnlkit.audits.site import judging, summaries
from fnlkit.audits.site import private as noisy_site
from fnlkit.audits.site.samples import Samples
from fnlkit.core.declarations import Sent
from fnlkit.federated.client import private_counts, scaling
from fnlkit.federated.server.admission import Malformed, convert, least_of
from fnlkit.sites.server import scale, tasks
from tests.commands import refuse_call
from tests.sites.deployed import CANARY, SITES, Judged

HOSTILE = 1


def test_a_share_of_the_sites_is_a_number_of_sites():
    """With 9 sites of which 3 take no part, 7 of 6 had to remain."""
    assert all(least_of(1 - k / n, n) == n - k for n in range(2, 60) for k in range(1, n))
    assert least_of(0, 5) == 1 and least_of(0.5, 5) == 3 and least_of(0.14, 50) == 7


def test_a_declared_total_is_required():
    sends = {"counts": Sent.counts("", "", ("C",), total="n")}
    known = {"classes": 3, "samples": 5}
    names, network = frozenset(sends), None
    assert convert({"counts": torch.tensor([1, 4, 0])}, names, sends, network, **known)["counts"].sum() == 5
    for wrong in ([0, 0, 0], [5, 5, 0], [1, 3, 0]):
        refuse_call("sum to", convert, {"counts": torch.tensor(wrong)}, names, sends, network, error=Malformed, **known)


def tamper(patch, audited, module, name, change):
    """Replace a function of a client: the site HOSTILE, recognized by its labels, replies with `change(reply)`."""
    right, labels = getattr(module, name), np.load(audited / f"{CANARY}-{HOSTILE}.npz")["y"]

    @functools.wraps(right)
    def tampered(client, *given, **more):
        reply = right(client, *given, **more)
        return change(reply) if np.array_equal(getattr(client, "given", client.y), labels) else reply

    patch.setattr(module, name, tampered)


def test_counts_that_no_samples_have_are_refused_in_an_evaluation(audited, tmp_path, monkeypatch, capsys):
    deployed, run = Judged(audited, tmp_path, "evaluate"), str(tmp_path / "run.pt")
    deployed.run(task="train", output=run)
    for change, reason in (
        (lambda reply: reply | {"wrong": reply["wrong"] + 1}, "no ranges"),
        (lambda reply: {name: 1000 * counts for name, counts in reply.items()}, "above 60"),  # outvotes all other sites
        (lambda reply: reply | {"wrong": reply["wrong"][1:]}, "expected (11,)"),
        (lambda reply: {"tested": reply["tested"]}, "lacks 'wrong'"),
    ):
        with monkeypatch.context() as patch:
            tamper(patch, audited, private_counts, "reply_tested", change)
            found = deployed.run(run=run, output=str(tmp_path / reason))
        assert found["covers"] == [f"site-{k}" for k in range(SITES) if k != HOSTILE]
        assert reason in found["lost"][f"site-{HOSTILE}"]
    # The steps that were finished with the bad reply are not used again.
    again = deployed.run(run=run, output=str(tmp_path / "again"))
    assert again["lost"] == {} and again["samples"] == 60 * SITES


@pytest.mark.parametrize(
    ("step", "change", "reason"),
    [
        ("summarize", lambda first: first | {"moments": -first["moments"]}, "variance"),
        ("judge", lambda second: second | {"within": second["within"] + 10**6 * (1 - np.eye(10, dtype=int))}, "within"),
        ("judge", lambda second: second | {"chosen": np.array(99)}, "change"),
    ],
)
def test_replies_that_no_samples_have_are_refused_in_an_audit(step, change, reason, audited, tmp_path, monkeypatch, capsys):
    """The other values of both replies: the tests of files below."""
    tamper(monkeypatch, audited, {"summarize": summaries, "judge": judging}[step], step, change)
    found = Judged(audited, tmp_path).run()
    assert found["covers"] == [f"site-{k}" for k in range(SITES) if k != HOSTILE]
    assert reason in found["lost"][f"site-{HOSTILE}"]


@pytest.fixture(scope="module")
def messages_of_sites():
    """The first files, the heads and the second files of three small sites of a table, and the agreed changes."""
    changes, sites = possible("vector", (4,)), []
    for k in range(3):
        y = np.arange(60) % 2
        x = np.random.default_rng(k).normal(size=(60, 4)) + 2 * y[:, None]
        sites.append(Samples(x.astype(np.float32), y, 2, number=k))
    scale = np.ones(4), np.ones(4)
    firsts = [summaries.summarize(site, scale) for site in sites]
    heads = make_heads(firsts, scale)
    return firsts, heads, [judging.judge(site, heads, k, changes=changes) for k, site in enumerate(sites)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda first: {}, ""),
        (lambda first: {"columns": np.zeros((5, 2))}, "columns"),
        (lambda first: {"class_columns": np.zeros((2, 2, 0))}, "class_columns"),
        (lambda first: {"counts": first["counts"] * 1000}, "the counts sum to"),
        (lambda first: {"sums": first["sums"] * 1e6}, "class sum"),
    ],
)
def test_a_first_file_has_the_columns_of_the_project_and_possible_sums(change, reason, messages_of_sites):
    """One site with other columns ended the audit of all with an internal error."""
    first = messages_of_sites[0][0]
    found = plausibility.impossible(first | change(first), 2, 100, described_columns(False, 4))
    assert reason in found and bool(found) == bool(reason)


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda values: values, False),
        (lambda values: values + np.triu(np.full(values.shape[1:], 1e6), 1), True),
        (lambda values: values - np.diag(np.eye(len(values[0]))[0] * (values[0, 0, 0] + 1e-9)), True),
        (lambda values: values[:1], True),
        (lambda values: values[:, :2, :2], True),
    ],
)
def test_a_second_file_has_covariances_of_the_agreed_changes(change, refused, messages_of_sites):
    """A covariance with a negative variance, not symmetric, or of another size, ended the audit of all sites."""
    firsts, heads, seconds = messages_of_sites
    second, agreed = dict(seconds[0]), (2, min(int(heads["compared"]), described_features(False, 4)))
    second["covariances"] = change(second["covariances"])
    second["class_means"] = second["class_means"][: len(second["covariances"]), :, : second["covariances"].shape[1]]
    assert bool(plausibility.implausible(second, firsts[0], *agreed)) is refused


def test_sums_with_noise_have_one_number_of_features(audited, tmp_path, monkeypatch, capsys):
    pytest.importorskip("dp_accounting")
    tamper(monkeypatch, audited, noisy_site, "summarize_with_noise", lambda first: {
        "counts": first["counts"], "sums": first["sums"][:, :4], "moments": 0 * first["moments"][:4, :4]})  # fmt: skip
    found = Judged(audited, tmp_path, sums_epsilon=50.0, sums_delta=1e-5).run()
    assert "4 features" in found["lost"][f"site-{HOSTILE}"] and len(found["covers"]) == SITES - 1


def moments(mean, std=1.0, known=50):
    mean, std = (np.broadcast_to(np.asarray(each, float), (3,)) for each in (mean, std))
    values = {"known": np.full(3, known), "total": mean * known, "squares": std**2 * known}
    return {name: torch.from_numpy(each) for name, each in values.items()}


@pytest.mark.parametrize(
    ("odd", "refused"),
    [
        (moments([0, 2e12, 0]), True),  # a total of 1e14
        (moments(0, 1e6), True),
        (moments([0, 100, 0], 3), False),  # an odd but possible site
        (moments([0, 1000, 0], 1000), False),  # grams instead of kilograms
        (moments(0, 0, known=0), False),  # nothing known
    ],
)
def test_one_site_cannot_move_the_scale_of_all(odd, refused):
    replies = {k: moments([0.1 * k, 1, -1]) for k in range(3)} | {7: odd}
    assert set(scale.implausible(replies)) == ({7} if refused else set())
    assert scale.implausible({0: moments(0), 7: odd}) == {}  # of two sites, none is the usual one


def test_a_site_that_is_odd_beside_the_remaining_ones_is_left_out():
    lost, replies = {}, dict(enumerate(map(moments, (1e12, 1e12, 1e6, 1, 1))))
    remote = SimpleNamespace(ask_all=lambda *_, **__: replies, lose=lost.__setitem__, must_remain=lambda *_: None, present=[])
    project = SimpleNamespace(sites=5, names="abcde")
    task = SimpleNamespace(settings=SimpleNamespace(min_replies=0.4), project=project)
    covered, _ = tasks._ask_once(remote, task, None, scaling.SENDS, {}, scale.implausible)
    assert covered == ["d", "e"] and set(lost) == {0, 1, 2}
