"""Flower: the bytes of sequential, whatever happens to messages."""

import os
from functools import partial

import numpy as np
import pytest
import torch

from fnlkit.experiment import Experiment
from fnlkit.federated.client.training import Fit
from tests.experiment.test_experiment import problem, reread, same, settings
from tests.federated.engines.test_engines import agree, mlp
from tests.federated.engines.test_resume import finish
from tests.federated.server.test_bad_updates import BAD, COHORT, REASONS, spoil
from tests.toy import toy

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")

from tests.federated.engines.here import change_replies  # noqa: E402

FIT = Fit(epochs=1, lr=0.1, batch_size=8)
HARD = {"optimizer": "feddyn(alpha=0.1)", "aggregator": "median", "selector": "power-of-choice(d=4)"}
# Each sends or remembers in another way: the other methods' messages are of these kinds.
METHODS = [("fedcorr", HARD), ("feddpcont", {}), ("flr", {}), ("nnc", {}), ("fedavg", {"optimizer": "scaffold"}),
           ("dividemix", {}), ("rhfl", {}), ("local", {}), ("fedem", {})]  # fmt: skip


def trained(given, method, engine, **more):
    chosen = settings(method, precision="fp64", **more)
    return Experiment(*given, chosen, engine=engine).run()


@pytest.mark.parametrize("method, more", METHODS)
def test_one_digest(method, more):
    given = problem(public=16 if method == "rhfl" else 0)
    run = trained(given, method, "flower", **more)
    same(run, trained(given, method, "sequential", **more))
    assert not run.rejected


def test_a_resumed_run_ends_like_one_never_stopped(tmp_path):
    """It may begin on another engine too: what clients remember is in the run."""
    given, chosen, run = problem(), settings("fedcorr", **HARD), None
    whole = finish(given, chosen, "sequential")
    for stop in (2, 9):
        run = reread(finish(given, chosen, "flower", stop_after=stop, resume=run), tmp_path)
    same(finish(given, chosen, "flower", resume=run), whole)
    same(finish(given, chosen, "sequential", resume=run), whole)


def _writes_down(client, model, received):
    """Everything that can be remembered changes, and client 3 fails in round 1 after that."""
    client.y[0] = (client.y[0] + 1) % client.classes
    client.rows["seen"] = client.rows.get("seen", torch.zeros(len(client))) + 1
    client.state["visits"] = client.state.get("visits", torch.tensor(0)) + 1
    if client.id == 3 and client.state["visits"] == 2 and received["fail"]:
        raise FloatingPointError("samples")
    return {"visits": client.state["visits"]}


def test_a_visit_that_does_not_count_is_undone_on_the_node():
    pair = toy("flower", network=mlp, count=6), toy(network=mlp, count=6)
    for fed, model in pair:
        for fail in (1, 1, 0, 0):
            replies = fed.round([1, 3, 5], model, FIT, _writes_down, broadcast={"fail": fail})
            fed.refuse(fed.rounds - 1, replies.ids, [None] * (len(replies.ids) - 1) + ["its weight is 0"])
        fed.commit()
        fed.round([1, 3], model, _writes_down, broadcast={"fail": 0})
        fed.rollback()
        fed.round([1, 3], model, _writes_down, broadcast={"fail": 0})
    agree(*pair)
    fed = pair[0][0]
    assert [fed.members[i].state["visits"].item() for i in (1, 3)] == [5, 4] and "visits" not in fed.members[5].state
    kept = sorted(os.listdir(fed.engine.runtime.notebook(1).folder))
    assert len(kept) <= 3, kept  # no more than what can be asked for
    fed.close()


# `Clients.round` checks the arrays of all engines alike: tests/federated/server/test_bad_updates.py.
@pytest.mark.parametrize("kind", ["nan", "half precision", "text", "nothing", "extra", "raises"])
def test_a_bad_update_is_refused_and_named(kind):
    fed, model = toy("flower", network=mlp, count=6)
    replies = fed.round(COHORT, model, FIT, partial(spoil, kind=kind))
    (refusal,) = fed.rejected
    reason = {"text": "replied str among", "nothing": "replied NoneType among"}.get(kind, REASONS[kind])
    assert refusal["client"] == BAD and refusal["reason"].startswith(reason)
    assert replies.ids.tolist() == [0, 1, 4] and set(replies) == {"weights"}
    other, right = toy(network=mlp, count=6)
    assert torch.equal(replies["weights"], other.round([0, 1, 4], right, FIT)["weights"])
    fed.close()


def test_a_lost_reply_is_asked_for_again_and_a_client_that_never_replies_is_named(monkeypatch):
    """A repeated message gives the same reply: its visit begins with what counted before, not with what it left."""
    gone = {"once": lambda number, reply: None if number == 2 else reply}
    gone["ever"] = lambda number, reply: None if number in (2, 4) else reply
    for kind, mangle in gone.items():
        change_replies(monkeypatch, mangle)
        fed, model = toy("flower", network=mlp, count=3)
        replies = fed.round(range(3), model, FIT, _writes_down, broadcast={"fail": 0})
        twin, same_model = toy(network=mlp, count=3)
        kept = replies.ids.tolist()
        assert torch.equal(replies["weights"], twin.round(kept, same_model, FIT)["weights"])
        assert [fed.members[i].state["visits"].item() for i in kept] == [1] * len(kept)
        if kind == "once":
            assert kept == [0, 1, 2] and not fed.rejected and any("is repeated" in note for note in fed.notes)
        else:
            assert len(kept) == 2 and fed.rejected[0]["reason"] == "did not answer within 3600 s"
        fed.close()


def test_a_client_whose_node_lost_its_files_is_named(monkeypatch):
    fed, model = toy("flower", network=mlp, count=6)
    fed.round(range(4), model, _writes_down, broadcast={"fail": 0})
    monkeypatch.setattr(fed.engine.runtime, "hand_over", lambda *args: None)
    fed.engine.runtime.notebook(2).clear()
    assert fed.round(range(4), model, _writes_down, broadcast={"fail": 0}).ids.tolist() == [0, 1, 3]
    assert fed.rejected[0]["reason"] == "has lost the memory of this run"
    fed.close()


# ---- messages
@pytest.mark.parametrize("number", [np.array([0, 1]), np.array([]), "0", None, 0.0, [0]])
def test_an_answer_about_no_client_is_left_out(number):
    from fnlkit.federated.engines.flower.visits import replies_to

    assert replies_to({"replies": [[number, {"weights": torch.zeros(1)}]]}, {7: 0}) == {}
    assert replies_to({"replies": [[0, {"weights": torch.zeros(1)}]]}, {7: 0}).keys() == {7}
    failed = replies_to({"replies": [[0, ("failure", "failed", "E" * 10_000, "")]]}, {7: 0})
    assert len(str(failed[7])) < 100
