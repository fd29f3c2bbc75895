"""Networks of the user with frozen parameters or token ids, and the scale of images from statistics of clients."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

import fnlkit
from fnlkit.core.errors import SampleError
from fnlkit.datasets.dataset import moments as moments_of
from fnlkit.experiment import Experiment, Settings
from fnlkit.experiment.network import load_trained
from fnlkit.experiment.scale import scale_of
from fnlkit.federated.client.scaling import channel_moments, pool_channel_moments
from fnlkit.federated.engines import make
from fnlkit.simulate import partitioning
from fnlkit.sites.flower_app import describe
from tests.commands import refuse_call
from tests.experiment.test_experiment import finish, problem, reread, same, settings

# ---- networks of the user's own: frozen parameters neither train nor travel, and token ids are not scaled
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


# ---- scale of images: statistics from clients equal pooled statistics, are metered, and are saved with a run
QUICK = Settings(rounds=1, fraction=1.0, epochs=1, eval_every=9)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32, np.float64])
def test_moments_of_clients_are_those_of_all(kind):
    """Of whole bytes to the last bit; of other numbers, and far from 0, to rounding.  One client's channel never varies."""
    rng = np.random.default_rng(0)
    x = (rng.random((90, 4, 5, 3)) * 200 + (1000 if kind != np.uint8 else 0)).astype(kind)
    x[..., 1] = 7
    parts = np.split(x, [1, 2, 40, 40, 70])  # one image, none, many
    mean, std = pool_channel_moments(map(channel_moments, parts), x.dtype)
    expected = moments_of(x)
    assert std[1] == expected[1][1] == 1
    if kind == np.uint8:
        assert (tuple(mean), tuple(std)) == expected
    else:
        np.testing.assert_allclose(mean, expected[0], rtol=1e-12)
        np.testing.assert_allclose(std, expected[1], rtol=1e-6)


def test_scaling_uses_metered_moments_of_clients(digits):
    federation = partitioning.federation(digits, clients=4, holdout=0.2, public=0.1, seed=0)
    experiment = Experiment(federation, digits, QUICK, engine="sequential")
    assert (experiment.inputs.mean, experiment.inputs.std) == (digits.mean, digits.std)
    assert experiment.clients.traffic.sent["moments"] == experiment.clients.traffic.bytes_up == 4 * (8 + 2 * 8)
    assert experiment.clients.traffic.bytes_down == 4 * 2 * 8
    run = experiment.run()
    assert run.meta["samples"]["mean"] == list(digits.mean)
    # A run's own numbers scale the samples that it judges, whatever the data set at hand would say.
    other = replace(digits, statistics=((0.9,), (0.2,)))
    assert load_trained(run, other).inputs.mean == digits.mean


def test_without_a_scale_a_network_reads_the_values_of_images(digits):
    federation, plain = partitioning.federation(digits, clients=4, seed=0), replace(QUICK, standardize="none")
    for data in (digits, replace(digits, statistics=((0.5,), (0.25,)))):
        experiment = Experiment(federation, data, plain, engine="sequential")
        assert torch.equal(experiment.inputs.plain(torch.from_numpy(data.x_train[:2])).flatten(), digits_to_one(data))
        assert "moments" not in experiment.clients.traffic.sent
        assert describe(data, plain, names=["a"], keys=[], tasks=["train"]).std == [1.0]


def digits_to_one(data):
    return torch.from_numpy(data.x_train[:2].flatten().astype(np.float32) / (255 if data.x_train.dtype == np.uint8 else 1))


def test_published_moments_need_no_reply(digits):
    published = replace(digits, statistics=((0.5,), (0.25,)))
    experiment = Experiment(partitioning.federation(digits, clients=4, seed=0), published, QUICK, engine="sequential")
    assert experiment.inputs.mean == (0.5,) and "moments" not in experiment.clients.traffic.sent


def test_statistics_are_computed_once_per_partition(digits):
    """Reading all images again for every run of a recipe would take minutes where they are decoded; another split asks anew."""
    asked, known = [], {}

    def remember(name, compute):
        asked.append(name)
        return known.setdefault(name, compute())

    data = replace(digits, remember=remember)
    split = [partitioning.federation(digits, clients=4, seed=seed) for seed in (0, 0, 1)]
    found = [scale_of(federation, data, data.x_train) for federation in split]
    assert found[0] == found[1] and found[0].from_clients and asked[0] == asked[1] != asked[2] and len(known) == 2


def test_an_unreadable_image_is_not_named_to_the_server(digits):
    """The scale comes from the readable images; a scale with failures is not cached, and an error is raised if all fail."""
    remembered = []

    class Broken:
        dtype, shape, nbytes = digits.x_train.dtype, digits.x_train.shape, digits.x_train.nbytes

        def __len__(self):
            return len(digits.x_train)

        def __getitem__(self, which):
            if np.isin(broken, np.asarray(which)).any():
                raise SampleError("cannot be read")
            return digits.x_train[which]

    def remember(name, compute):
        remembered.append(compute())
        return remembered[-1]

    federation = partitioning.federation(digits, clients=4, seed=0)
    data, broken = replace(digits, remember=remember), federation.clients[1][:1]
    rest = np.concatenate([federation.clients[k] for k in (0, 2, 3)])
    assert scale_of(federation, data, Broken())[:2] == moments_of(digits.x_train[rest]) and not remembered
    broken = np.arange(len(digits.x_train))
    refuse_call("no client could read all of its images", scale_of, federation, data, Broken())
