"""The one verb, its border, its journal, and the plain loop that is the specification."""

import numpy as np
import pytest
import torch

from fnlkit.artifacts.exchange import Traffic
from fnlkit.core import registry
from fnlkit.federated.client.inputs import Augment, Inputs
from fnlkit.federated.client.training import Fit, plan
from fnlkit.federated.server.selection import average_for
from tests.commands import refuse_call
from tests.toy import toy

pytestmark = pytest.mark.smoke


def test_one_client_equals_a_plain_torch_loop():
    fed, model = toy()
    fit = Fit(epochs=3, batch_size=8, lr=0.1, momentum=0.5, weight_decay=0.01)
    said = fed.round([5], model, fit)
    client, module = fed.members[5], toy()[0].network.module
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    for batch in plan(len(client), fit, seed=0, round=0, client=5).order:
        index = torch.from_numpy(batch[batch >= 0])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(client.x[index]), client.y[index]).backward()
        optimizer.step()
    expected = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    torch.testing.assert_close(said["weights"][0], expected, rtol=0, atol=1e-12)


def test_every_sample_comes_once_an_epoch_and_short_batches_stay_short():
    for n in (1, 3, 8, 9, 23):
        draws = plan(n, Fit(epochs=4, batch_size=8), seed=3, round=2, client=1)
        assert draws.first.sum() == 4
        for epoch in draws.order.reshape(4, -1):
            assert sorted(epoch[epoch >= 0].tolist()) == list(range(n))
        other = plan(n, Fit(epochs=4, batch_size=8), seed=3, round=3, client=1)
        assert n < 3 or not np.array_equal(draws.order, other.order)


def test_replies_come_in_client_order_whatever_the_order_asked():
    fed, model = toy()
    ids = [7, 2, 9]
    said = fed.round(ids, model, _echo, scatter={"tag": torch.tensor([7.0, 2.0, 9.0])})
    assert said.ids.tolist() == [2, 7, 9]
    assert said["tag"].tolist() == [2.0, 7.0, 9.0]


def _echo(client, model, received):
    return {"tag": received["tag"]}


def _touch(client, model, received):
    client.y[0] = (client.y[0] + 1) % 4
    client.rows["seen"] = client.rows.get("seen", torch.zeros(len(client))) + 1
    client.state["count"] = client.state.get("count", torch.tensor(0)) + 1


def test_rollback_restores_the_last_commit():
    fed, model = toy()
    fed.round([1, 2], model, _touch)
    fed.commit()
    before = fed.members[1].y.clone(), fed.members[1].rows["seen"].clone(), fed.rounds, len(fed.log)
    fed.round([1, 3], model, _touch)
    fed.round([1], model, _touch)
    fed.rollback()
    assert torch.equal(fed.members[1].y, before[0]) and torch.equal(fed.members[1].rows["seen"], before[1])
    assert fed.members[1].state["count"] == 1 and "count" not in fed.members[3].state
    assert (fed.rounds, len(fed.log)) == before[2:]
    assert all(torch.equal(c.given, d.given) for c, d in zip(fed.members, toy()[0].members, strict=True))


def test_ids_must_be_distinct_and_known():
    fed, model = toy()
    for ids in ([0, 0], [-1], [12]):
        refuse_call("distinct clients", fed.round, ids, model, Fit())


def test_traffic_counts_bytes_of_payload():
    fed, model = toy()
    fed.round([0, 1], model, Fit(epochs=1), broadcast={"a": torch.zeros(3)}, scatter={"b": torch.zeros(2, 5)})
    size = model.weights.numel() * 8
    assert fed.traffic.bytes_up == 2 * size and fed.traffic.bytes_down == 2 * (size + 12 + 20)
    assert fed.traffic.client_rounds == 2 and fed.traffic.sent == {"weights": 2 * size}


def test_traffic_since_a_copy_adds_up_to_the_whole():
    """Up: 3 + 4 and 5 bytes under two names; down: 2 clients of 10 bytes and 1 byte; 2 + 1 visits."""
    whole = Traffic()
    whole.received("weights", 3)
    whole.broadcast(10, clients=2)
    whole.trained(2)
    before = whole.copy()
    whole.received("weights", 4)
    whole.received("fit", 5)
    whole.broadcast(1)
    whole.trained(1)
    assert before == Traffic(20, 3, 2, {"weights": 3})
    assert whole.since(before) == Traffic(1, 9, 1, {"weights": 4, "fit": 5})
    before.add(whole.since(before))
    assert before == whole == Traffic(21, 12, 3, {"weights": 7, "fit": 5})


def test_traffic_outside_of_a_round_is_undone_by_a_rollback():
    fed, _ = toy()
    fed.count_traffic("moments", up=5, down=7)
    fed.commit()
    fed.count_traffic("moments", up=1)
    assert (fed.traffic.bytes_up, fed.traffic.bytes_down, fed.traffic.sent) == (6, 7, {"moments": 6})
    fed.rollback()
    assert (fed.traffic.bytes_up, fed.traffic.bytes_down, fed.traffic.sent) == (5, 7, {"moments": 5})


def test_power_of_choice_averages_equally():
    """Candidates are drawn by size already: the next model is the plain mean, `weights=samples` weighs by size again."""
    fed, model = toy(count=3)
    local = fed.round([0, 1, 2], model, Fit(epochs=1, lr=0.1))["weights"]
    sizes = fed.sizes / fed.sizes.sum()
    for spec, wanted in (("", local.mean(0)), ("(weights=samples)", (sizes[:, None] * local).sum(0))):
        fed, model = toy(count=3)
        opt, select = registry.optimizer("fedavg", Fit(epochs=1, lr=0.1)), registry.selector(f"power-of-choice{spec}", 1.0)
        average_for(select, opt)
        torch.testing.assert_close(opt.round(fed, [0, 1, 2], model)[0].weights, wanted, rtol=0, atol=1e-12)


def test_feddyn_server_step_by_hand():
    # One round, two of two clients, alpha 0.5. With h = -alpha/N sum(w_k - w) = -0.5 (mean - w), the new model is
    # mean - h/alpha = mean + (mean - w) = 2 mean - w.
    fed, model = toy(count=2)
    opt = registry.optimizer("feddyn(alpha=0.5)", Fit(epochs=1, lr=0.1))
    plain = registry.optimizer("fedprox(mu=0.5)", Fit(epochs=1, lr=0.1), uniform_weights=True)
    merged = plain.round(toy(count=2)[0], [0, 1], model)[0].weights
    new, _ = opt.round(fed, [0, 1], model)
    torch.testing.assert_close(new.weights, 2 * merged - model.weights, rtol=0, atol=1e-12)


def test_augmentation_equals_slicing_by_hand():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (5, 9, 7, 3), dtype=np.uint8))
    augment, inputs = Augment(pad=2, flip=True, cutout=3), Inputs(True, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), torch.float64)
    shift, flip, center = augment.draw(rng, (5,), (9, 7))
    out = inputs.augment_images(x, augment, *(torch.from_numpy(v) for v in (shift, flip, center)))
    for i in range(5):
        padded = np.zeros((13, 11, 3))
        padded[2:11, 2:9] = x[i].numpy() / 255
        image = padded[shift[i, 0] : shift[i, 0] + 9, shift[i, 1] : shift[i, 1] + 7]
        image = image[:, ::-1] if flip[i] else image
        image = (image - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7]
        top, left = center[i] - 1
        image[max(0, top) : max(0, top + 3), max(0, left) : max(0, left + 3)] = 0
        np.testing.assert_allclose(out[i].numpy(), image.transpose(2, 0, 1), atol=1e-12)
