"""Twelve kinds of bad update on every engine: refused, named, and the mean of the others exact."""

from functools import partial

import numpy as np
import pytest
import torch

from fnlkit.artifacts.exchange import Exchange, pack_log, unpack_log
from fnlkit.core import registry
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.federated import engines
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.admission import check_any_accepted, disagreeing
from fnlkit.federated.server.aggregation import mean
from fnlkit.federated.server.clients import TooManyLost
from fnlkit.federated.server.optimizers import FedOpt
from fnlkit.methods.flr import local_training
from fnlkit.models import build
from tests import toy
from tests.commands import refuse_call

FIT = Fit(epochs=1, lr=0.1, batch_size=8)
mlp = partial(build, "mlp(hidden=[12])", input_shape=(toy.FEATURES,), classes=toy.CLASSES)
BAD, COHORT = 2, [0, 1, 2, 4]


def with_first(weights, value):
    return torch.where(torch.arange(len(weights)) == 0, value, weights)


# What a broken or hostile client replies in place of its weights after local training, and the reason of the refusal.
UPDATES = {
    "nan": (lambda weights: with_first(weights, torch.nan), "'weights' has NaN entries"),
    "infinite": (lambda weights: with_first(weights, torch.inf), "'weights' has infinite entries"),
    "minus infinite": (lambda weights: with_first(weights, -torch.inf), "'weights' has infinite entries"),
    "shorter": (lambda weights: weights[:-1], "'weights' is (159,) torch.float"),
    "one for all": (lambda weights: weights[:1], "'weights' is (1,) torch.float"),
    "a row": (lambda weights: weights[None], "'weights' is (1, 160) torch.float"),
    "half precision": (torch.Tensor.half, "'weights' is (160,) torch.float16, expected (160,)"),
    "integers": (torch.Tensor.long, "'weights' is (160,) torch.int64, expected"),
    "text": (lambda weights: "0.1 0.2", "'weights' is str, expected an array"),
    "nothing": (lambda weights: None, "'weights' is NoneType, expected an array"),
    "extra": (lambda weights: weights, "sent unexpected 'labels'"),
    "raises": (lambda weights: 1 / 0, "failed: ZeroDivisionError"),
}
REASONS = {kind: reason for kind, (_, reason) in UPDATES.items()}


def spoil(client, model, received, *, kind, bad=(BAD,)):
    if client.id in bad:
        extra = {"labels": torch.arange(3)} if kind == "extra" else {}
        return {"weights": UPDATES[kind][0](model.weights), **extra}


def misses(client, model, received):
    return {"score": torch.tensor(1.0)} if client.id != BAD else None


# Workers run the code of `sequential`; starting them takes seconds.
OWN_CODE = [
    pytest.param(name, marks=pytest.mark.slow if name == "workers" else ()) for name in engines.ENGINES if name != "flower"
]


@pytest.fixture(scope="module", params=OWN_CODE)
def federation(request):  # flower: tests/federated/engines/test_flower.py
    # The precision that users compile: its kernels have one source with those of the other one.
    options = {"workers": {"workers": 1}, "fused": {"dtype": torch.float32}}.get(request.param, {})
    fed, model = toy.toy(request.param, network=mlp, count=6, **options)
    yield fed, model
    fed.close()


@pytest.mark.parametrize("kind", REASONS)
def test_a_bad_update_is_refused_and_named(federation, kind):
    fed, model = federation
    fed.rejected.clear()
    fed.rounds = 7
    said = fed.round(COHORT, model, FIT, partial(spoil, kind=kind))
    (refusal,) = fed.rejected
    assert (refusal["client"], refusal["round"]) == (BAD, 7) and refusal["reason"].startswith(REASONS[kind])
    assert said.ids.tolist() == [0, 1, 4] and set(said) == {"weights"}
    fed.rounds = 7
    good = fed.round([0, 1, 4], model, FIT)
    assert torch.equal(said["weights"], good["weights"])
    assert torch.equal(mean(said["weights"], fed.sizes[said.ids]), mean(good["weights"], fed.sizes[good.ids]))


def test_a_missing_name_is_refused(federation):
    fed, model = federation
    fed.rejected.clear()
    said = fed.round(COHORT, model, FIT, misses)
    assert said.ids.tolist() == [0, 1, 4] and fed.rejected[0]["reason"] == "lacks 'score'"


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0, 0.0])
def test_aggregation_weights_must_be_positive(federation, weight):
    fed, model = federation
    opt, weights = registry.optimizer("fedavg", FIT), torch.ones(6, dtype=torch.float64)
    weights[BAD] = weight
    fed.rejected.clear()
    fed.rounds = 7
    found, _ = opt.round(fed, COHORT, model, weights=weights)
    assert fed.rejected == [{"round": 7, "client": BAD, "reason": f"its aggregation weight is {weight:g}"}]
    fed.rounds = 7
    assert torch.equal(found.weights, opt.round(fed, [0, 1, 4], model, weights=torch.ones(6))[0].weights)
    weights[:] = weight
    refuse_call("4 of 4 replies rejected", opt.round, fed, COHORT, model, weights=weights, error=TooManyLost)
    fed.rollback()


def test_a_round_that_lost_too_many_is_as_if_never_asked(federation, monkeypatch):
    fed, model = federation
    fed.commit()
    before, rounds, refused = [c.y.clone() for c in fed.members], fed.rounds, len(fed.rejected)
    refuse_call("3 of 4 replies", fed.round, COHORT, model, FIT, partial(spoil, kind="nan", bad=(0, 1, 4)), error=TooManyLost)
    fed.rollback()
    assert fed.rounds == rounds and len(fed.rejected) == refused
    assert all(torch.equal(c.y, y) for c, y in zip(fed.members, before, strict=True))
    said = fed.round(COHORT, model, FIT)
    assert said.ids.tolist() == COHORT
    fed.commit()
    monkeypatch.setattr(fed, "min_replies", 0.25)
    assert fed.round(COHORT, model, FIT, partial(spoil, kind="nan", bad=(0, 1, 4))).ids.tolist() == [2]
    fed.rollback()
    runs_off = FIT.changed(lr=torch.finfo(model.weights.dtype).max ** 0.65, epochs=2)  # no planted fault: weights overflow
    refuse_call("4 of 4 replies rejected .client 0: 'weights' has NaN", fed.round, COHORT, model, runs_off, error=TooManyLost)
    fed.rollback()


def poison(client, model, received):
    """A fault that passes: the client starts from NaN, once."""
    if client.id == BAD:
        model.weights = model.weights * torch.nan


MEMORIES = {
    "feddyn": ("feddyn(alpha=0.1)", {}),
    "flr": ("fedavg", local_training(5, 10, warmup=0)[0]),
    "elr": ("fedavg", local_training(5, 10, warmup=0, alpha=0.0, beta=0.0, rates="constant")[0]),
}


def poisoned(fed, model, optimizer, step):
    """Three rounds of which the second poisons a client; return the last model and what the client remembered."""
    fed.rejected.clear()
    fed.rounds, fed.log[:], memories = 7, [], []
    opt, before = registry.optimizer(optimizer, FIT), step.get("before", ())
    for r in range(3):
        first = (poison, *before) if r == 1 else before
        model, said = opt.round(fed, COHORT, model, **{**step, "before": first})
        assert (BAD in said.ids) == (r != 1)
        memories.append({i: _remembered(fed.members[i]) for i in COHORT})
    fed.rollback()
    return model, memories


def _remembered(client):
    named = {**client.rows, **client.state, "labels": client.y}
    return {name: value.tolist() for name, value in named.items() if torch.is_tensor(value)}


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_refused_visit_leaves_no_trace_on_its_client(federation, memory):
    fed, model = federation
    fed.commit()
    found, (first, second, third) = poisoned(fed, model, *MEMORIES[memory])
    assert [(r["client"], r["round"]) for r in fed.rejected] == []  # rolled back with the rest
    assert second[BAD] == first[BAD] != third[BAD] and second[0] != first[0]
    other, same = toy.toy(network=mlp, count=6)
    expected, memories = poisoned(other, same, *MEMORIES[memory])
    exact = found.weights.dtype == torch.float64
    torch.testing.assert_close(found.weights.double(), expected.weights, rtol=0, atol=1e-9 if exact else 1e-5)
    assert memories[1][BAD].keys() == second[BAD].keys()


def grow(client, model, received, *, factor):
    return {"weights": model.start + (model.weights - model.start) * (factor if client.id == BAD else 1)}


def test_an_update_out_of_all_proportion_is_refused(federation):
    """Finite weights of 1e15 are no number to average."""
    fed, model = federation
    fed.commit()
    fed.rejected.clear()
    fed.log.clear()
    said = fed.round(COHORT, model, FIT, partial(grow, factor=1e15))
    (refusal,) = fed.rejected
    assert said.ids.tolist() == [0, 1, 4] and refusal["client"] == BAD
    assert refusal["reason"].startswith("its update is 1") and "times as long as the median update" in refusal["reason"]
    assert any("`max_update_ratio`" in note for note in fed.notes)
    # Nothing to compare with in its own cohort: the rounds before it are.
    assert fed.round([BAD], model, FIT, partial(grow, factor=1e15)).ids.tolist() == []
    # Ten times the median one, or no longer than the model itself: differences between honest clients.
    assert fed.round(COHORT, model, FIT, partial(grow, factor=10)).ids.tolist() == COHORT
    fed.max_update_ratio = 0
    assert fed.round(COHORT, model, FIT, partial(grow, factor=1e15)).ids.tolist() == COHORT
    fed.max_update_ratio = 100
    fed.rollback()


def test_the_first_update_of_a_run_is_compared_with_the_model():
    fed, model = toy.toy(network=mlp, count=6)
    assert fed.round([BAD], model, FIT, partial(grow, factor=1e15)).ids.tolist() == []
    assert fed.round([BAD], model, FIT).ids.tolist() == [BAD]


class Normed(toy.Net):
    """With batch norm after features of a large scale, so that the buffers move more than the parameters."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(self.width)

    def features(self, x):
        return self.norm(1000 * self.hidden(x)).relu()


def grow_part(client, model, received, *, factor, buffers):
    update, count = model.weights - model.start, model.network.parameters_count
    part = slice(count, None) if buffers else slice(count)
    update[part] *= factor if client.id == BAD else 1
    return {"weights": model.start + update}


@pytest.mark.parametrize("buffers", [False, True])
def test_parameters_and_buffers_are_each_compared_with_their_own_length(buffers):
    fed, model = toy.toy(network=Normed, count=6)
    replies = fed.round(COHORT, model, FIT)
    count = model.network.parameters_count
    parameters, statistics = (
        (replies["weights"] - model.weights)[:, part].norm(dim=1) for part in (slice(count), slice(count, None))
    )
    assert statistics.min() > 1000 * parameters.max()
    assert fed.log[-1].norms == pytest.approx(parameters.tolist())
    grown = partial(grow_part, factor=1e4, buffers=buffers)
    assert fed.round(COHORT, model, FIT, grown).ids.tolist() == [0, 1, 4]


def test_the_lengths_of_updates_are_part_of_a_run():
    fed, model = toy.toy(network=mlp, count=6)
    fed.round(COHORT, model, FIT)
    index, _, data = pack_log(fed.log)
    ((entry,), _) = unpack_log(index, [], data)
    assert len(entry.norms) == 4 and entry.norms.tolist() == fed.log[0].norms.tolist()


def test_of_two_forms_that_equally_many_replies_have_the_shape_decides():
    """Two replies have five numbers, and two have a number per sample; the choice follows from no hash."""
    values = {j: torch.zeros(size) for j, size in enumerate((5, 5, 7))}
    assert list(disagreeing(values, {0: 5, 1: 9, 2: 7})) == [2]


@pytest.mark.parametrize("part", ["aggregate", "server"])
def test_a_result_of_the_server_that_is_no_finite_model_stops_the_round_and_blames_no_client(part):
    def result(first, second, factor=1.0):
        return (first[0] if part == "aggregate" else second) * factor

    for change, error, reason in (
        (lambda *values: result(*values, torch.nan), WorkStopped, "returned NaN or infinite entries"),
        (lambda *values: result(*values)[:3], InputError, r"returned \(3,\); expected one vector"),
        (lambda *values: None, InputError, "returned NoneType; expected one vector"),
    ):
        fed, model = toy.toy(count=3)
        refuse_call(reason, FedOpt(FIT, **{part: change}).round, fed, [0, 1, 2], model, error=error)
        assert not fed.rejected


def test_a_run_whose_replies_all_have_no_weight_fails():
    """Rounds of one client: each reply was logged before its aggregation weight was refused."""
    log = [Exchange(np.array([k]), np.array([k]), {}, np.array([1.0])) for k in range(3)]
    rejected = [{"round": k, "client": k, "reason": "its aggregation weight is 0"} for k in range(3)]
    refuse_call("client 2: its aggregation weight is 0", check_any_accepted, log, rejected, error=TooManyLost)
    check_any_accepted(log, rejected[1:])


def test_single_visits_whose_weight_is_refused_are_counted_once():
    fed, model = toy.toy(count=10, min_replies=0.5)
    opt = registry.optimizer("fedavg", FIT)
    weights = (torch.arange(10) < 5).double()
    for k in range(10):  # 5 of 10, then 4 of 10
        opt.round(fed, [k], model, weights=weights)
    refuse_call("client 9: its aggregation weight is 0", opt.round, fed, [9], model, weights=weights, error=TooManyLost)
