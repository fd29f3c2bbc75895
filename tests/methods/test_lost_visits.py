"""A visit that fails costs that visit: it is named, and tried again when the method comes round to the client."""

import numpy as np
import pytest
import torch

from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.core.spec import parse
from fnlkit.federated.client.failure import Failure
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.clients import TooManyLost
from fnlkit.methods.missed import ask_again, complete_levels
from tests.toy import IN_SESSION, Net, fitting, toy


def test_levels_of_clients_without_a_reply():
    assert complete_levels([0.0, 0.2, 0.0, 0.5], [1, 3]).tolist() == [0.5, 0.2, 0.5, 0.5]
    assert complete_levels([0.0, 0.2], [0, 1]).tolist() == [0.0, 0.2] and complete_levels([0.0, 0.0], []).tolist() == [1.0, 1.0]


ONLY_ROUNDS = {"take_truth", "vote", "keep_anchor_transition", "prune", "score_classes", "score_samples"}
STAGED = "oracle", "nnc(k=3)", "t-revision", "confident-learning(local_epochs=1)", "fednoro", "na-fedavg", "akd(source=logits)"


@pytest.mark.parametrize("method", STAGED)
def test_a_client_that_missed_a_stages_only_round(method):
    """It makes up for the round at its next visit, keeps all samples, or counts as noisy."""
    fed, model = toy(count=6)
    for client in fed.members:
        client.rows |= {"input/true": 0 * client.y, "input/embedding": client.x.float()}
    opt = registry.optimizer("fedavg", Fit(epochs=1, lr=0.1, batch_size=8))
    program = registry.method(method)(fed, model, opt, registry.selector("uniform", 1.0), rounds=6)
    visit, only, steps = fed.engine.run, [], []

    def away(request):
        names = {getattr(part, "func", part).__name__ for part in request.steps if not isinstance(part, Fit)}
        replies = visit(request)
        if names & ONLY_ROUNDS and not only:
            only.append(fed.rounds)
            fed.members[2].rows, fed.members[2].state = dict(before[0]), dict(before[1])
            replies[2] = Failure("silent", "")
        return replies

    before = dict(fed.members[2].rows), dict(fed.members[2].state)
    fed.engine.run = away
    for step in program:
        steps.append(step)
    assert [row["client"] for row in fed.rejected] == [2] and only == [fed.rejected[0]["round"]]
    report = {name: value for step in steps for name, value in step.report.items()}
    client = fed.members[2]
    if method == "oracle":
        assert not client.y.any()
    elif method.startswith("nnc"):
        assert "input/embedding" not in client.rows and "neighbor_disagreement" in client.rows
    elif method == "t-revision":
        assert "transition" in client.state
    elif method.startswith("confident-learning"):
        assert (client.rows["keep"] == 1).all() and (fed.members[0].rows["keep"] != 1).any()
    elif method == "fednoro":
        assert report["noisy_clients"][2]
    else:
        assert report["noise_level"][2] == report["noise_level"].max() > 0


@pytest.mark.parametrize(("error", "back"), [(ValueError, (13, 20)), (InputError, ())])
def test_clients_that_are_still_away_do_not_stop_the_run(back, error):
    """Twelve of 24 clients miss a round; they are asked once more, and all but `back` miss this round too."""
    fed, model = toy(count=24, min_replies=0.5)
    visits = []

    def breaks(client, model, received):
        visits.append(client.id)
        if client.id >= 12 and not (client.id in back and visits.count(client.id) > 1):
            raise error("away")
        client.state["done"] = torch.ones(())

    replies = fed.round(range(24), model, breaks, expect=())
    ask_again(fed, range(24), replies, model, breaks)
    assert visits == [*range(24), *range(12, 24)]
    assert [i for i, client in enumerate(fed.members) if "done" in client.state] == [*range(12), *back]
    with pytest.raises((TooManyLost, InputError)):  # any other round
        fed.round(range(12, 24), model, breaks, expect=())


def refuses(client, model, received):
    if client.id == 2:
        parse("mlp(")  # an InputError, as a part of fnlkit raises it


def run(method, *, before=(), rounds=12, fraction=0.5, min_replies=0.5, count=6, lost=None):
    """Run a method; `lost` says (client, visit of that client) -> whether it fails."""
    fed, model = toy(count=count, min_replies=min_replies, dtype=torch.float32, network=fitting(Net, method))
    visits = dict.fromkeys(range(count), 0)

    def breaks(client, model, received):
        visits[client.id] += 1
        if lost and lost(client.id, visits[client.id]):
            raise ValueError(f"a sample of mine: {client.x[0].tolist()}")

    opt = registry.optimizer("fedavg", Fit(epochs=1, lr=0.1, batch_size=8), before=(breaks, *before))
    program = registry.method(method)(fed, model, opt, registry.selector("uniform", fraction), rounds=rounds)
    return fed, list(program), visits


@pytest.mark.parametrize(("method", "min_replies"), [("fedcorr(iterations=2)", 0.0), ("flr-plus(iterations=2)", 0.5)])
def test_a_failed_visit_is_skipped_named_and_repeated(method, min_replies):
    fed, steps, visits = run(method, min_replies=min_replies, lost=lambda client, visit: client == 2 and visit == 1)
    assert [(r["client"], r["reason"]) for r in fed.rejected] == [(2, "failed: ValueError")]
    stage = [s for s in steps if s.stage == "pre-processing"]
    assert len(stage) == 12 and visits[2] >= 2  # an empty round is a round, and the next iteration asks again
    assert [2 in s.replies.ids for s in stage].count(True) == 1
    scores = [s.report["cumulative_lid"] for s in stage if "cumulative_lid" in s.report]
    assert scores[0][2] == 0 and scores[1][2] > 0
    # Its one score stands for both iterations: it is not the cleanest for having been away.
    assert scores[1][2] > np.median(scores[1]) / 2


def test_a_client_that_never_answers_takes_no_part_as_a_clean_one():
    fed, steps, _ = run("fedcorr(iterations=2, clean_level=1)", lost=lambda client, visit: client == 2)
    tuned = [s.replies.ids for s in steps if s.stage == "fine-tuning"]
    assert tuned and 2 not in np.concatenate(tuned)


def test_a_clients_own_input_error_is_its_own():
    fed, steps, _ = run("fedcorr(iterations=1)", before=(refuses,))
    assert {(r["client"], r["reason"]) for r in fed.rejected} == {(2, "failed: InputError")}


@pytest.mark.parametrize("method", ["fedavg", "fedcorr(iterations=1)"])
def test_a_mistake_that_meets_every_client_stops_the_run_with_its_sentence(method):
    def mistaken(client, model, received):
        parse("mlp(")

    with pytest.raises(InputError, match="cannot read 'mlp"):
        run(method, before=(mistaken,))


@pytest.mark.parametrize(("method", "min_replies"), [("fedavg", 0.5), ("fedavg", 0.0), ("fedcorr(iterations=1)", 0.0)])
def test_a_run_without_any_reply_stops(method, min_replies):
    with pytest.raises(TooManyLost, match="use -vv"):
        run(method, min_replies=min_replies, lost=lambda client, visit: True)


@pytest.mark.parametrize("method", [m for m in IN_SESSION if m not in ("nnc", "akd", "fedrg", "oracle")])
def test_every_method_continues_after_a_lost_cohort(method):
    """With min_replies=0 rounds may come back empty, here the second and every fifth visit of whoever is asked."""
    asked = []

    def lost(client, visit):
        asked.append(client)
        return len(asked) in (4, 5, 6)

    fed, steps, _ = run(method, min_replies=0.0, rounds=8, lost=lost)
    assert len(fed.rejected) == 3 and len(steps) >= 4


def test_fedcorr_spends_no_more_client_rounds_than_its_budget():
    fed, _, _ = run("fedcorr", rounds=16, fraction=0.3, count=8)
    assert fed.traffic.client_rounds <= 16 * 2
