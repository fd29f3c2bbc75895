"""FedRG: evidence, mixture, map and loss against the public code's results; the matrix, small clients, the default path."""

import numpy as np
import pytest
import torch

from fnlkit.core import registry
from fnlkit.federated.client.client import Batch, LocalModel
from fnlkit.federated.client.losses.absorbing import absorbing
from fnlkit.methods.fedrg import find_noisy, judge_by_geometry, learn_absorption, posteriors, start_mixture, update_mixture
from tests.methods.test_golden import Scored, golden
from tests.methods.test_methods import run
from tests.toy import toy

CHOSEN = {"groups": -1, "threshold": 0.5, "temperature": 2.0, "rate": 0.1, "batch_size": 10}


def test_two_batches_give_the_public_codes_evidence_and_mixture():
    """With one view: its certainty of a sample, from two views, is then 1 for all."""
    found = golden("fedrg")
    z = found["embedding"] / (np.linalg.norm(found["embedding"], axis=1, keepdims=True) + 1e-8)
    mixture = start_mixture(5, 4, 6, np.random.default_rng(0)) | {"directions": found["start"]}
    for batch in (slice(0, 30), slice(30, 60)):
        labels = found["labels"][batch]
        group, other = posteriors(mixture, z[batch], 2.0)
        np.testing.assert_allclose(group.sum(1) + other, 1)
        evidence = (mixture["map"][labels] * group).sum(1)
        np.testing.assert_allclose(evidence, found["evidence"][batch], rtol=1e-9)
        noisy = find_noisy(evidence, 0.5)
        assert np.array_equal(noisy, found["noisy"][batch]) and 0 < noisy.sum() < 30
        update_mixture(mixture, z[batch], labels, group, other, ~noisy, 0.1)
    for name, value in mixture.items():
        np.testing.assert_allclose(value, found[name], rtol=1e-9, err_msg=name)


def first_batch(found):
    noisy = torch.from_numpy(found["noisy"][:30]).double()
    state = {"rg_absorption": torch.from_numpy(found["absorption"])}
    return Batch(y=torch.from_numpy(found["labels"][:30]), rows={"rg_noisy": noisy}, state=state)


def test_loss_and_gradient_equal_the_public_codes():
    found = golden("fedrg")
    logits = torch.from_numpy(found["logits"][:30]).requires_grad_()
    value = absorbing(logits, first_batch(found)).mean()
    assert value.item() == pytest.approx(float(found["loss"]), rel=1e-9)
    np.testing.assert_allclose(torch.autograd.grad(value, logits)[0].numpy(), found["gradient"], rtol=1e-6, atol=1e-9)


def test_a_step_of_the_matrix_is_the_public_codes_gradient_then_rows_sum_to_one():
    found, (fed, _) = golden("fedrg"), toy(count=1)
    client, batch = fed.members[0], first_batch(found)
    client.samples, client.y, client.given = torch.zeros(30, 1), batch.y, batch.y
    client.rows, client.state = dict(batch.rows), dict(batch.state)
    learn_absorption(client, Scored(torch.from_numpy(found["logits"][:30])), {}, lr=0.01, momentum=0.9, absorb=1.0, epochs=1)
    wanted = np.maximum(found["absorption"] - 0.01 * found["gradient_absorption"], 1e-6)
    np.testing.assert_allclose(client.state["rg_absorption"].numpy(), wanted / wanted.sum(1, keepdims=True), rtol=1e-6)
    assert "rg_noisy" not in client.rows
    client.rows["rg_noisy"] = torch.zeros(30)
    before = client.state["rg_absorption"]
    learn_absorption(client, None, {}, lr=0.01, momentum=0.9, absorb=1.0, epochs=1)  # no noisy sample, no step
    assert client.state["rg_absorption"] is before


@pytest.mark.parametrize("evidence", [[], [0.3], [0.3, 0.3, 0.3]])
def test_equal_evidence_is_clean(evidence):
    assert not find_noisy(np.array(evidence), 0.5).any()


@pytest.mark.parametrize("size", [1, 2])
def test_a_client_of_few_samples_or_without_a_direction_is_judged(size):
    fed, model = toy(count=1)
    client = fed.members[0]
    client.samples, client.y, client.given = client.x[:size], client.y[:size], client.given[:size]
    client.rows["input/embedding"] = torch.zeros(size, 3)
    client.begin_round(0, 0)
    local = LocalModel(fed.network, model.weights, model.weights, client.inputs)
    for _ in range(2):
        judge_by_geometry(client, local, {}, **CHOSEN)
        assert torch.isfinite(client.rows["rg_noisy"]).all() and client.state["rg_directions"].shape == (4, 3)
        assert all(torch.isfinite(value).all() for value in client.state.values())


def test_the_default_path_needs_an_embedding_and_sends_only_weights():
    assert registry.needs("fedrg") == {"embedding"}
    fed, model, _ = run("fedrg", rounds=4)
    assert torch.isfinite(model.weights).all() and set(fed.traffic.sent) == {"weights"}
