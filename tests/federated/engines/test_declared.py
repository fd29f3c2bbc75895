"""Only declared replies leave a client, whatever the engine; under --protect only a protected sum of updates does."""

import math

import pytest
import torch

from fnlkit.artifacts.run import Run
from fnlkit.core import Sent, registry
from fnlkit.core.declarations import parse_replies
from fnlkit.federated import engines
from fnlkit.federated.client.failure import Failure
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.clients import TooManyLost
from tests.commands import fnlkit, refuse_call, succeed
from tests.federated.engines.test_engines import mlp
from tests.toy import toy

FIT = Fit(epochs=1, lr=0.1, batch_size=8)
IDS = [0, 1, 2, 3]


def tell_mean(client, model, received):
    """What a method that declares no replies must not learn: a mean of samples."""
    return {"mean": client.x.double().mean()}


def one_tells_more(client, model, received):
    return {"fit": torch.tensor(1.0)} | ({"mean": client.x.double().mean()} if client.id == 2 else {})


def tell_samples(client, model, received):
    return {"scores": client.x[:, 0].double() if client.id != 1 else client.x[:1, 0].double().repeat(3, 1)}


# `Clients.round` checks replies for all engines alike; only `flower` sends them as messages first.
CHECKED = [name if name in ("sequential", "flower") else pytest.param(name, marks=pytest.mark.slow) for name in engines.ENGINES]


@pytest.fixture(params=CHECKED, scope="module")
def federation(request):
    """A federation and its model on an engine."""
    options = {"workers": 1} if request.param == "workers" else {}
    if request.param == "flower":
        pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")
    fed, model = toy(request.param, network=mlp, count=6, **options)
    yield fed, model
    fed.close()


def test_a_reply_that_is_not_declared_stops_the_run_or_is_refused_on_every_engine(federation):
    fed, model = federation
    fed.sends = {}
    for steps in ((tell_mean,), (FIT, tell_mean)):
        refuse_call("'mean'.*sends=", fed.round, IDS, model, *steps)
        fed.rollback()
    refuse_call("'mean'.*sends=", fed.round, IDS, model, tell_mean, expect=("mean",))
    fed.sends = parse_replies(["fit"])
    replies = fed.round(IDS, model, one_tells_more)
    assert replies.ids.tolist() == [0, 1, 3] and set(replies) == {"fit"}
    assert [row["client"] for row in fed.rejected] == [2] and set(fed.traffic.sent) == {"fit", "refused"}
    fed.sends = parse_replies({"scores": "of its samples"})  # by name alone: one number a sample, but of client 1
    assert fed.round(IDS, model, tell_samples).ids.tolist() == [0, 2, 3]
    fed.sends = {"scores": Sent("of its samples", "once", ("n",))}
    assert fed.round(IDS, model, tell_samples, expect="scores").ids.tolist() == [0, 2, 3]


def test_under_protection_nothing_leaves_but_protected_sums_on_every_engine(federation):
    fed, model = federation
    fed.sends, fed.protect = parse_replies(["mean"]), "secagg"
    for steps in ((tell_mean,), (FIT,), (FIT, tell_mean)):
        refuse_call("`protect` secagg", fed.round, IDS, model, *steps)
        fed.rollback()
    refuse_call("`protect` secagg", registry.optimizer("fedavg", FIT).round, fed, IDS, model)
    fed.rollback()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_round_of_masked_sums_needs_all_clients(lost, monkeypatch):
    """Without `min_replies`: a client that misses a round has another memory, and its masks no longer cancel."""
    fed, model = toy("sequential", network=mlp, count=6, min_replies=0.0)
    fed.sends, fed.protect = {"mean": Sent("sum", "once", (), summed=True, sum_only=True)}, "secagg"

    def run_secretly(ask, protection):
        assert protection.shapes == {"mean": ()}
        return [Failure("silent", "")] * lost + [{"mean": torch.tensor(2.0)}] * (4 - lost), 0

    monkeypatch.setattr(fed.engine, "run_secretly", run_secretly)
    if lost:
        refuse_call("1 of 4 replies", fed.round, IDS, model, tell_mean, expect=("mean",), error=TooManyLost)
    else:
        assert fed.round(IDS, model, tell_mean, expect=("mean",))["mean"].tolist() == [8]


OWN = """
import numpy as np
import torch
from fnlkit.core import Sent, method
from fnlkit.methods.fedavg import Round

def tell(client, model, received):
    return {{"mean": client.x.double().mean()}}

@method(sends={sends})
def leaks(clients, model, opt, select, *, rounds):
    for _ in range(rounds):
        told = clients.round(np.arange(len(clients)), model, tell)
        model, replies = opt.round(clients, select(clients, model), model)
        yield Round(model, "training", replies, {{"mean": float(told["mean"].mean())}})
    return model
"""


@pytest.mark.parametrize("sends", ['["mean"]', '{"mean": Sent("of all its values", "each round", (), low=-1e9)}'])
def test_declared_replies_of_a_user_method_arrive(sends, noisy, tmp_path):
    """By name alone, or with a shape; the commands that show declarations read both."""
    (tmp_path / "own.py").write_text(OWN.format(sends=sends))
    line = f"fnlkit train {noisy} --method own.py:leaks --rounds 1 --epochs 1 -o run.pt"
    succeed(line, tmp_path)
    run = Run.read(str(tmp_path / "run.pt"))
    assert run.traffic.sent["mean"] == 8 * 20 and math.isfinite(run.history[0]["mean"])
    assert fnlkit("fnlkit report run.pt --trust -o run.html", tmp_path).returncode == 0
    done = fnlkit(f"{line} --protect secagg", tmp_path)
    assert done.returncode == 2 and "--protect secagg" in done.stderr.splitlines()[-1]


def test_a_single_reply_is_checked_against_the_declaration():
    """A cohort of one has no majority."""
    fed, model = toy(count=6, network=mlp)
    fed.sends = parse_replies(["fit", "mean"])
    replies = fed.round([3], model, tell_mean, expect=("fit",))
    assert replies.ids.tolist() == [] and fed.rejected[0]["reason"] == "lacks 'fit'; sent unexpected 'mean'"
    for _ in range(4):
        fed.round([3], model, tell_mean, expect=("fit",))
    refuse_call("", fed.round, [3], model, tell_mean, expect=("fit",), error=TooManyLost)
