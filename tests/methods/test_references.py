"""References: all data in one place, nobody together with anybody, labels without a fault."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.experiment import Experiment
from fnlkit.experiment.network import network_of
from fnlkit.federated.server.schedules import pooled_rounds
from tests.experiment.test_experiment import finish, problem, settings


@pytest.fixture(scope="module")
def data():
    return problem()


def test_centralized_passes_over_all_samples_as_often_as_fedavg(data):
    federation, dataset = data
    run = finish(federation, dataset, settings("centralized", rounds=12, fraction=0.25))
    assert run.traffic.client_rounds == 3 == pooled_rounds(12, 0.25) and pooled_rounds(1, 0.1) == 1
    assert run.client_offsets.tolist() == [0, len(federation.client_indices)]
    assert run.client_indices.tolist() == sorted(federation.client_indices.tolist())
    # It is plain training on the whole set: one client that holds everything, of a federation of one.
    whole = np.array([0, len(federation.client_indices)])
    one = replace(federation, client_offsets=whole, client_indices=np.sort(federation.client_indices))
    one.noise_client_level = one.noise_client_noisy = None
    same = finish(one, dataset, settings("fedavg", rounds=3, fraction=1.0))
    assert torch.equal(run.weights, same.weights)
    assert finish(federation, dataset, settings("centralized", loss="gce", rounds=4)).finished
    # The learning rate has decayed as far over the whole run.
    decayed = finish(federation, dataset, settings("centralized", rounds=8, fraction=0.25, decay=0.9))
    same = finish(one, dataset, settings("fedavg", rounds=2, fraction=1.0, decay=0.9**4))
    assert torch.equal(decayed.weights, same.weights)


def test_centralized_runs_another_method_on_the_whole_set(data):
    federation, dataset = data
    for method, kept in (("jointopt(warmup=1)", "joint_history"), ("dividemix(warmup=1)", "divided_clean")):
        run = finish(federation, dataset, settings(f"centralized(usual={method})", rounds=6, fraction=0.5))
        assert run.traffic.client_rounds == 3 and len(run.client_offsets) == 2
        assert any(kept in name for name in run.memory)
    with pytest.raises(InputError, match="own loss"):
        finish(federation, dataset, settings("centralized(usual=elr)", loss="gce"))
    # Its stages follow from the share of the rounds in which it runs, so that it resumes with the same budget only.
    assert registry.of_budget("centralized(usual=elr)", 8) != registry.of_budget("centralized(usual=elr)", 9)
    assert registry.of_budget("centralized", 8) == registry.of_budget("centralized", 9)


def test_local_models_never_meet_and_their_mean_accuracy_is_the_runs(data):
    federation, dataset = data
    experiment = Experiment(federation, dataset, settings("local", rounds=4, fraction=0.5), engine="sequential")
    start = experiment.model.weights.clone()
    run = experiment.run()
    assert torch.equal(run.weights, start)  # nothing was averaged
    clients, found, x = experiment.clients, [], torch.from_numpy(dataset.x_test)
    trained = {i for row in run.history for i in row["clients"]}
    assert 0 < len(trained) <= len(clients)
    for i in range(len(clients)):
        own = clients.members[i].state.get("own", start)
        assert torch.equal(own, start) == (i not in trained)
        found.append(np.mean(clients.predict(own, x).argmax(-1).numpy() == dataset.y_test))
    assert run.history[-1]["accuracy"] == pytest.approx(np.mean(found), abs=1e-12)
    with pytest.raises(InputError, match="no global model"):
        network_of(run)


def test_oracle_requires_true_labels_and_trains_on_them(data):
    federation, dataset = data
    wrong = federation.given.copy()
    wrong[::3] = (wrong[::3] + 1) % federation.classes
    noisy = replace(federation, given=wrong)
    run = finish(noisy, dataset, settings("oracle", loss="sce"))
    assert run.history[-1]["label_accuracy"] == 1 and np.array_equal(run.labels["given"], wrong)
    assert np.array_equal(run.labels["corrected"][run.client_indices], federation.true[run.client_indices])
    clean = finish(replace(federation, given=federation.true.copy()), dataset, settings("fedavg", loss="sce"))
    accuracy = [[row["accuracy"] for row in r.history] for r in (run, clean)]
    assert np.mean(accuracy[0]) == pytest.approx(np.mean(accuracy[1]), abs=0.1)
    assert finish(noisy, dataset, settings("oracle(usual=flr)", rounds=4)).finished
    with pytest.raises(InputError, match="oracle trains on true labels, but blobs declares none; declare them"):
        finish(replace(federation, true=None), dataset, settings("oracle"))


@pytest.mark.parametrize(("name", "value"), [("optimizer", "feddyn"), ("aggregator", "median")])
def test_methods_without_averages_refuse_aggregators(name, value, data):
    with pytest.raises(InputError, match=f"`{name}` {value}: local averages no models; omit `{name}`"):
        Experiment(*data, settings("local", **{name: value}))
