"""A client is positions in shared samples, held only while it is visited; what that changes in results is nothing."""

import itertools
import threading

import numpy as np
import pytest
import torch

from fnlkit.artifacts.stored import Rows, Stored
from fnlkit.core import registry
from fnlkit.federated import engines
from fnlkit.federated.client import private_counts
from fnlkit.federated.client.client import ClientList, in_blocks, read_ahead
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.client.training import Descent, Fit
from fnlkit.models import build

SIZES = np.array([9, 1, 4, 13, 6, 6])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])


class Slow(Rows):
    """Rows that say which thread read them."""

    slow = True

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.readers = values, values.shape, values.dtype, set()

    def _read(self, positions):
        self.readers.add(threading.current_thread().name)
        return self.values[np.asarray(positions)]


def samples():
    rng = np.random.default_rng(3)
    return rng.normal(size=(50, 5)).astype(np.float32), rng.permutation(50)[: SIZES.sum()], rng.integers(0, 3, 50)


def run(engine, source, method="fedavg", embedding=None):
    """Train a few rounds; return weights, labels and the members."""
    _, indices, given = samples()
    network = Network(build("mlp(hidden=[6])", input_shape=(5,), classes=3))
    rows = {"input/embedding": source if embedding is None else embedding}
    members = ClientList(source, OFFSETS, indices, given, 3, Inputs(False), rows)
    options = {"workers": 2} if engine == "workers" else {}
    fed = engines.make(engine, members, network, members.inputs, **options)
    opt = registry.optimizer("feddyn(alpha=0.1)", Fit(epochs=2, batch_size=4, lr=0.1))
    program = registry.method(method)(
        fed, Model(network, network.flat.clone()), opt, registry.selector("uniform", 0.5), rounds=3
    )
    try:
        for step in program:
            model = step.model
            fed.commit()
        return model.weights, members.y.clone(), fed
    finally:
        fed.close()


@pytest.mark.parametrize(("engine", "method"), [
    *itertools.product(["sequential", "stacked", "fused"], ["nnc(k=3)", "akd(k=3)"]),
    pytest.param("workers", "nnc(k=3)", marks=pytest.mark.slow),
])  # fmt: skip
def test_where_samples_lie_changes_nothing(engine, method, tmp_path):
    x, *_ = samples()
    x.tofile(tmp_path / "x")
    stored = Stored(tmp_path / "x", 0, x.dtype, x.shape)
    weights, labels, _ = run("sequential" if engine == "workers" else engine, x, method)  # both have the same digest
    other, same, fed = run(engine, stored, method, embedding=x)
    assert torch.equal(weights, other) and torch.equal(labels, same)
    for client in fed.members:
        assert client._x is None and "input/embedding" not in client.rows
        assert client.dropped == ({"input/embedding"} if method.startswith("nnc") else set())


def test_decoders_run_ahead_of_the_trainer_and_change_nothing():
    x, *_ = samples()
    slow = Slow(x)
    assert torch.equal(run("sequential", slow)[0], run("sequential", x)[0])
    assert slow.readers and all(name.startswith("fnlkit-fetch") for name in slow.readers - {"MainThread"})
    members = ClientList(slow, OFFSETS, np.arange(SIZES.sum()), np.zeros(50, int), 2, Inputs(False))
    for k, client in enumerate(read_ahead(members)):
        assert client.id == k and client._x is not None
        client.leave()


def test_clients_without_memory_are_let_go_and_labels_stay():
    x, indices, given = samples()
    members = ClientList(x, OFFSETS, indices, given, 3, Inputs(False))
    members[2].y[0] = 1 - given[indices[10]] % 2
    members[3].rows["seen"] = torch.ones(13)
    members.forget()
    assert list(members._made) == [3] and [c.id for c in members.with_memory()] == [3]
    assert members[2].y[0] == members.y[10] != given[indices[10]] and torch.equal(
        members.given, torch.from_numpy(given[indices])
    )


def test_a_step_that_drops_what_was_given_is_undone_by_a_rollback():
    x, indices, given = samples()
    network = Network(build("mlp(hidden=[6])", input_shape=(5,), classes=3))
    members = ClientList(x, OFFSETS, indices, given, 3, Inputs(False), {"input/embedding": x})
    fed = engines.make("sequential", members, network, members.inputs)
    model = Model(network, network.flat.clone())
    fed.round([1, 3], model, _drop)
    assert members[3].dropped
    fed.rollback()
    assert not members[3].dropped
    assert fed.round([3], model, _count)["rows"].item() == 13


def _drop(client, model, received):
    del client.rows["input/embedding"]


def _count(client, model, received):
    return {"rows": torch.tensor(len(client.rows["input/embedding"]))}


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_reads_samples_and_leaves_them_as_they_are(channels, kind, monkeypatch):
    x = torch.arange(8 * channels, dtype=kind).reshape(2, 2, 2, channels)
    before, number = x.clone(), (0.5,) * channels
    own, moved = torch.Tensor.contiguous, []
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda image: moved.append(own(image)) or moved[-1])
    scaled = Inputs(True, number, (0.2,) * channels).plain(x)
    expected = (before.float() / (255 if kind == torch.uint8 else 1) - 0.5) / 0.2
    torch.testing.assert_close(scaled, expected.movedim(-1, 1))
    assert torch.equal(x, before)
    assert (scaled.data_ptr() == moved[0].data_ptr()) == (moved[0].data_ptr() != x.data_ptr())  # a copy is normalized in place


def test_an_array_larger_than_a_block_is_scored_in_blocks():
    x = torch.arange(5000.0).reshape(1000, 5)
    assert torch.equal(in_blocks(lambda part: 2 * part, x), 2 * x)
    seen = []

    def function(part):
        seen.append(len(part))
        return part + 1

    wide = np.broadcast_to(np.float32(1), (1100, 2**17))
    assert in_blocks(lambda part: function(part[:, :1]), wide).shape == (1100, 1) and len(seen) > 1


def test_a_look_at_samples_outside_of_a_visit_drops_nothing():
    """Evaluation reads samples too; `akd` with --memorization lost its embeddings at the first one."""
    x, indices, given = samples()
    members = ClientList(x, OFFSETS, indices, given, 3, Inputs(False), {"input/embedding": x})
    client = members[2]
    for _ in range(2):
        assert client.x.shape == (4, 5)
        client.leave()
        assert not client.dropped and client._x is None
    client.arrive()
    assert torch.equal(client.rows["input/embedding"], torch.from_numpy(x[indices[10:14]]))
    del client.rows["input/embedding"]  # a step may, and then it is gone for good
    client.leave()
    client.leave()
    assert client.dropped == {"input/embedding"}
    client.arrive()
    assert "input/embedding" not in client.rows


# ---- the SGD of local training against `torch
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-3])
def test_sgd_has_the_bits_of_torch(dtype, momentum, weight_decay):
    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(1001, dtype=dtype))
    theirs = torch.nn.Parameter(ours.detach().clone())
    settings = {"lr": 0.03, "momentum": momentum, "weight_decay": weight_decay}
    descent, optimizer = Descent(ours, Fit(**settings)), torch.optim.SGD([theirs], **settings)
    for _ in range(5):
        gradient = torch.randn(1001, dtype=dtype)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        descent.step()
        optimizer.step()
        assert torch.equal(ours, theirs)


# ---- ranges of wrong predictions
@pytest.mark.parametrize("size", range(private_counts.FEWEST, 60))
def test_ranges_contain_the_number_and_at_least_five_numbers(size):
    wrong = np.arange(size + 1)
    tested = np.full(size + 1, size)
    low = private_counts.lower_end(tested, wrong)
    found = private_counts.ranges(tested, low)
    assert ((found.fewest <= wrong) & (wrong <= found.most)).all() and (found.most <= size).all()
    assert np.unique(low, return_counts=True)[1].min() >= private_counts.RANGE
    assert all(set(wrong[low == each]) == set(range(each, found.most[each] + 1)) for each in np.unique(low))


def test_small_classes_are_merged_and_small_rests_are_left_out():
    counts = np.diag([40, 12, 9, 1])
    counts[0, 3] += 5  # 6 samples of class 3, 5 of them predicted as class 0
    assert [part.tolist() for part in private_counts.in_groups(counts)] == [[40, 0, 0, 0, 27], [0, 0, 0, 0, 5]]
    for few in (np.diag([40, 12, 7]), np.diag([10, 9])):  # 19 samples remain
        tested, wrong = private_counts.in_groups(few)
        assert tested.tolist() == [value if value >= 20 else 0 for value in few.diagonal()] + [0] and not wrong.any()


@pytest.mark.parametrize(
    ("tested", "wrong"), [([19, 0], [0, 0]), ([20, 0], [3, 0]), ([20, 0], [20, 0]), ([20, 0], [0, 5]), ([30, 0], [-5, 0])]
)
def test_replies_that_no_client_computes_are_named(tested, wrong):
    reply = {"tested": torch.tensor(tested), "wrong": torch.tensor(wrong)}
    right = {"tested": torch.tensor([20, 24]), "wrong": torch.tensor([15, 20])}
    assert list(private_counts.implausible({"a": reply, "b": right})) == ["a"]


def test_a_model_that_isolates_a_sample_gets_the_reply_of_another_model():
    """Models that mark the one, two or four largest values of a feature cannot be told from one that marks none."""
    x = torch.linspace(0, 1, 24, dtype=torch.float64)[:, None]

    class Client:
        classes, y = 2, torch.zeros(24, dtype=torch.int64)

    Client.x = x
    replies = []
    for marked in (0, 1, 2, 4, 5):
        model = lambda values, n=marked: torch.cat([torch.full_like(values, 0.5), (values > x[23 - n]).double()], 1)  # noqa: E731
        replies.append(private_counts.reply_tested(Client, model, {})["wrong"].tolist())
    assert replies == [[0, 0, 0]] * 4 + [[5, 0, 0]]
