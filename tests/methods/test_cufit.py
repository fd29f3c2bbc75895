"""CUFIT: samples are chosen by the agreement of the label with the probe, then with the intermediate model."""

import numpy as np
import pytest
import torch

from fnlkit.federated.client.training import Fit
from fnlkit.methods.cufit import cufit
from tests.commands import refuse_call
from tests.methods.test_methods import run
from tests.toy import clients


def train(people=None, rounds=8, **settings):
    """Return (clients, the models before and after each round)."""
    models = []

    def program(clients, model, *parts, rounds):
        models.append(model)
        return cufit(clients, model, *parts, rounds=rounds, **settings)

    fed, _, steps = run(program, people=people or clients(count=6), rounds=rounds)
    return list(fed.members), [*models, *(step.model for step in steps)]


def predictions(model, client):
    twin = model.network.twin()
    twin.load(model.weights)
    with torch.no_grad():
        return twin.module.eval()(client.inputs.plain(client.x)).argmax(-1)


@pytest.mark.parametrize(("intermediate", "judge"), [(0, 0), (3, 3), (-1, 4), (8, 0)])
def test_the_last_model_learns_where_the_model_before_it_agrees(intermediate, judge):
    people, models = train(intermediate=intermediate)
    for client in people:
        agreed = predictions(models[judge], client) == client.y
        np.testing.assert_array_equal(client.rows["keep"].bool().numpy(), agreed.numpy())


def test_nothing_is_learned_from_samples_on_which_the_probe_disagrees():
    people = clients()
    probe = train(rounds=1)[1][0]
    for client in people:
        client.y.copy_((predictions(probe, client) + 1) % client.classes)
        client.given.copy_(client.y)
    for model in train(people, rounds=4)[1]:
        torch.testing.assert_close(model.weights, probe.weights)


def test_labels_are_not_mixed():
    refuse_call("cannot be mixed", run, "cufit", fit=Fit(epochs=1, lr=0.1, batch_size=8, mixup=1.0))
