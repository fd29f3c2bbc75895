"""Networks of the user's own: frozen parameters neither train nor travel, and token ids are not scaled."""

import dataclasses

import numpy as np
import pytest
import torch

import fnlkit
from fnlkit.experiment import Experiment
from fnlkit.experiment.network import load_trained
from fnlkit.federated.engines import make
from tests.commands import refuse_call
from tests.experiment.test_experiment import finish, problem, reread, same, settings

NETS = """
import torch
from torch import nn


class LowRank(nn.Module):
    def __init__(self, size, classes, rank):
        super().__init__()
        self.base = nn.Linear(size, 64).requires_grad_(False)
        self.down, self.up = nn.Linear(size, rank, bias=False), nn.Linear(rank, 64, bias=False)
        self.out = nn.Linear(64, classes)

    def forward(self, x):
        return self.out((self.base(x) + self.up(self.down(x))).relu())


def low_rank(*, input_shape, classes, rank=2, shift=0.0):
    net = LowRank(input_shape[0], classes, rank)
    with torch.no_grad():
        net.base.bias += shift
    return net


def solid(*, input_shape, classes):
    return low_rank(input_shape=input_shape, classes=classes).requires_grad_(False)


class Words(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.table, self.out = nn.Embedding(50, 8), nn.Linear(8, classes)

    def forward(self, x):
        return self.out(self.table(x.long()).mean(-2))


def words(*, input_shape, classes):
    return Words(classes)
"""
TRAINABLE = 6 * 2 + 2 * 64 + 64 * 4 + 4  # of six features and four classes


@pytest.fixture
def net(tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    return lambda name: f"{tmp_path}/nets.py:{name}"


@pytest.mark.parametrize("engine", ["sequential", "stacked", pytest.param("workers", marks=pytest.mark.slow)])
def test_frozen_parameters_neither_train_nor_travel(engine, net):
    chosen = settings(model=net("low_rank"), rounds=3, weight_decay=0.1, precision="fp64")
    options = {"workers": 1} if engine == "workers" else {}
    experiment = Experiment(*problem(), chosen, engine=engine, **options)
    before = experiment.network.module.base.weight.clone()
    run = experiment.run()
    assert len(run.weights) == TRAINABLE
    assert run.traffic.sent["weights"] == run.traffic.bytes_up - run.traffic.sent["moments"] == 3 * 2 * TRAINABLE * 8
    assert torch.equal(experiment.network.module.base.weight, before)
    expected = finish(*problem(), chosen)
    torch.testing.assert_close(run.weights, expected.weights, rtol=1e-9, atol=1e-12)
    assert run.history[-1]["accuracy"] == pytest.approx(expected.history[-1]["accuracy"])


def test_a_run_with_frozen_parameters_is_judged_and_resumed_with_the_same_ones(net, tmp_path):
    federation, dataset = problem()
    chosen = settings(model=net("low_rank"), rounds=4)
    whole = finish(federation, dataset, chosen)
    run = reread(finish(federation, dataset, chosen, stop_after=1), tmp_path)
    same(finish(federation, dataset, chosen, resume=run), whole)
    trained = load_trained(whole, dataset)
    hits = trained.logits(torch.from_numpy(dataset.x_test)).argmax(-1).numpy() == dataset.y_test
    assert hits.mean() == pytest.approx(whole.history[-1]["accuracy"])
    (tmp_path / "other.py").write_text(NETS.replace("shift=0.0", "shift=0.5"))  # a file is imported once a process
    moved = dataclasses.replace(run, settings=run.settings | {"model": f"{tmp_path}/other.py:low_rank"})
    refuse_call("frozen", load_trained, moved, dataset)
    refuse_call("frozen", finish, federation, dataset, dataclasses.replace(chosen, model=moved.settings["model"]), resume=moved)


def test_a_network_that_is_frozen_altogether_is_refused(net):
    refuse_call("no trainable parameter", Experiment, *problem(), settings(model=net("solid")), engine="sequential")


def test_a_layer_of_a_built_in_network_may_be_frozen(tmp_path):
    """The compiled kernels train every weight, so that such a network takes another engine."""
    (tmp_path / "half.py").write_text(
        "from fnlkit.models import build\n\n\ndef half(*, input_shape, classes):\n"
        "    net = build('mlp(hidden=[8])', input_shape=input_shape, classes=classes)\n"
        "    net.fc1.requires_grad_(False)\n    return net\n"
    )
    experiment = Experiment(*problem(), settings(model=f"{tmp_path}/half.py:half", rounds=1), engine="auto", workers=1)
    assert experiment.clients.engine.name == "sequential"
    refuse_call("`engine`", make, "fused", experiment.clients.members, experiment.network, experiment.inputs, workers=1)
    assert experiment.network.parameters_count == 8 * 4 + 4
    experiment.run()


def tokens():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 50, (160, 12))
    return dict(x_train=x[:120], y_train=x[:120, 0] % 4, x_test=x[120:], y_test=x[120:, 0] % 4)


def test_token_ids_reach_a_table_of_embeddings_as_they_are(net, tmp_path):
    np.savez(tmp_path / "tokens.npz", **tokens())
    federation = fnlkit.partition(str(tmp_path / "tokens.npz"), clients=4, say=None)
    common = {"rounds": 1, "fraction": 0.5, "engine": "sequential", "say": None}
    run = fnlkit.train(federation, model=net("words"), **common)
    assert run.finished and not run.meta["samples"]["mean"] and "moments" not in run.traffic.sent
    assert torch.equal(run.weights, fnlkit.train(federation, model=net("words"), standardize="none", **common).weights)
    assert fnlkit.evaluate(run).rows[0]["measured"]["test"]["share"] == run.history[-1]["agreement"]
    assert fnlkit.train(federation, model="mlp", **common).meta["samples"]["mean"]
    refuse_call("`standardize` always", fnlkit.train, federation, model=net("words"), standardize="always", **common)
