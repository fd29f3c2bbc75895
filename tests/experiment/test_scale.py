"""Scale of images: statistics from clients equal pooled statistics, are metered, and are saved with a run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fnlkit.core.errors import SampleError
from fnlkit.datasets.dataset import moments
from fnlkit.experiment import Experiment, Settings
from fnlkit.experiment.network import load_trained
from fnlkit.experiment.scale import scale_of
from fnlkit.federated.client.scaling import channel_moments, pool_channel_moments
from fnlkit.simulate import partitioning
from fnlkit.sites.flower_app import describe
from tests.commands import refuse_call

QUICK = Settings(rounds=1, fraction=1.0, epochs=1, eval_every=9)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32, np.float64])
def test_moments_of_clients_are_those_of_all(kind):
    """Of whole bytes to the last bit; of other numbers, and far from 0, to rounding.  One client's channel never varies."""
    rng = np.random.default_rng(0)
    x = (rng.random((90, 4, 5, 3)) * 200 + (1000 if kind != np.uint8 else 0)).astype(kind)
    x[..., 1] = 7
    parts = np.split(x, [1, 2, 40, 40, 70])  # one image, none, many
    mean, std = pool_channel_moments(map(channel_moments, parts), x.dtype)
    expected = moments(x)
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
    assert scale_of(federation, data, Broken())[:2] == moments(digits.x_train[rest]) and not remembered
    broken = np.arange(len(digits.x_train))
    refuse_call("no client could read all of its images", scale_of, federation, data, Broken())
