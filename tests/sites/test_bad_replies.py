"""A site whose reply cannot be right is named and left out; the task ends with the other sites."""

import functools

import numpy as np
import pytest
import torch

from fnlkit.audits.site import judging, summaries
from fnlkit.core.declarations import Sent
from fnlkit.federated.client import private_counts
from fnlkit.federated.server.admission import Malformed, convert
from fnlkit.sites.server import scale
from tests.sites.deployed import CANARY, SITES, Judged

HOSTILE = 1


def test_a_declared_total_is_required():
    sends = {"counts": Sent.counts("", "", ("C",), total="n")}
    known = {"classes": 3, "samples": 5}
    names, network = frozenset(sends), None
    assert convert({"counts": torch.tensor([1, 4, 0])}, names, sends, network, **known)["counts"].sum() == 5
    for wrong in ([0, 0, 0], [5, 5, 0], [1, 3, 0]):
        with pytest.raises(Malformed, match="sum to"):
            convert({"counts": torch.tensor(wrong)}, names, sends, network, **known)


def tamper(patch, audited, module, name, change):
    """Replace a function of a client: the site HOSTILE, recognized by its labels, replies with `change(reply)`."""
    right, labels = getattr(module, name), np.load(audited / f"{CANARY}-{HOSTILE}.npz")["y"]

    @functools.wraps(right)
    def tampered(client, *given, **more):
        reply = right(client, *given, **more)
        return change(reply) if np.array_equal(getattr(client, "given", client.y), labels) else reply

    patch.setattr(module, name, tampered)


def test_counts_that_are_no_ranges_are_refused_in_an_evaluation(audited, tmp_path, monkeypatch, capsys):
    deployed, run = Judged(audited, tmp_path, "evaluate"), str(tmp_path / "run.pt")
    deployed.run(task="train", output=run)
    with monkeypatch.context() as patch:
        tamper(patch, audited, private_counts, "reply_tested", lambda reply: reply | {"wrong": reply["wrong"] + 1})
        found = deployed.run(run=run)
    assert found["covers"] == [f"site-{k}" for k in range(SITES) if k != HOSTILE]
    assert "no ranges" in found["lost"][f"site-{HOSTILE}"]
    # The steps that were finished with the bad reply are not used again.
    again = deployed.run(run=run, output=str(tmp_path / "again"))
    assert again["lost"] == {} and again["samples"] == 60 * SITES


@pytest.mark.parametrize(
    ("step", "change", "reason"),
    [
        ("summarize", lambda first: first | {"moments": -first["moments"]}, "variance"),
        ("summarize", lambda first: first | {"counts": first["counts"] * 1000}, "samples"),
        ("summarize", lambda first: first | {"sums": first["sums"] * 1e6}, "class sum"),
        ("judge", lambda second: second | {"covariances": -second["covariances"] - 1}, "variance"),
        ("judge", lambda second: second | {"within": second["within"] + 10**6 * (1 - np.eye(10, dtype=int))}, "within"),
        ("judge", lambda second: second | {"chosen": np.array(99)}, "change"),
    ],
)
def test_replies_that_no_samples_have_are_refused_in_an_audit(step, change, reason, audited, tmp_path, monkeypatch, capsys):
    """A covariance with a negative eigenvalue ended the audit with an internal error."""
    tamper(monkeypatch, audited, {"summarize": summaries, "judge": judging}[step], step, change)
    found = Judged(audited, tmp_path).run()
    assert found["covers"] == [f"site-{k}" for k in range(SITES) if k != HOSTILE]
    assert reason in found["lost"][f"site-{HOSTILE}"]


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
