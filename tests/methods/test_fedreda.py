"""FedReDA: loss and class-wise split against the public code's results, teachers without the client, weights of clients."""

import numpy as np
import pytest
import torch

from fnlkit.federated.client.client import Batch, LocalModel
from fnlkit.federated.client.losses.reliable import reliable
from fnlkit.federated.client.network import Model
from fnlkit.methods.fedreda import FEWEST, find_small_losses, judge_samples, predict_as_teacher, teachers_of
from tests.methods.test_golden import golden
from tests.toy import toy, train


def batch_of(found, **rows):
    tensors = {name: torch.from_numpy(found[key]) for name, key in
               (("reda_teacher", "teacher"), ("reda_clean", "probability"), ("reda_loss", "before"))}  # fmt: skip
    tensors |= {"reda_uses": torch.zeros(len(found["labels"]), dtype=torch.float64)} | rows
    return Batch(y=torch.from_numpy(found["labels"]), rows=tensors, state={"class_share": torch.from_numpy(found["shares"])})


def test_loss_gradient_and_average_losses_equal_the_public_codes():
    found = golden("fedreda")
    logits = torch.from_numpy(found["logits"]).requires_grad_()
    values, rows = reliable(logits, batch_of(found))
    assert values.mean().item() == pytest.approx(float(found["loss"]), rel=1e-12)
    gradient = torch.autograd.grad(values.mean(), logits)[0]
    np.testing.assert_allclose(gradient.numpy(), found["gradient"], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(rows["reda_loss"].numpy(), found["average"], rtol=1e-12)
    assert np.array_equal(rows["reda_uses"].numpy() > 0, found["used"]) and 0 < found["used"].sum() < 16


def test_small_losses_by_class_equal_the_public_codes():
    found = golden("fedreda")
    clean = find_small_losses(found["losses"], found["loss_labels"])
    assert np.array_equal(clean, found["clean"])
    assert clean[found["loss_labels"] == 2].all()  # 12 samples are too few for a mixture
    assert find_small_losses(np.ones(FEWEST + 5), np.zeros(FEWEST + 5, int)).all()


def test_the_teacher_is_the_mean_of_the_other_clients():
    start = torch.tensor([9.0, 9.0])
    model = Model(None, start)
    memory = {f"fedreda/{i}": torch.tensor([float(i), 2.0 * i]) for i in (0, 1, 3)}
    found = teachers_of(np.array([0, 2, 3]), model, memory, 4)
    torch.testing.assert_close(found, torch.tensor([[2, 4], [4 / 3, 8 / 3], [0.5, 1]]))  # client 2 has no model yet
    assert teachers_of(np.array([1, 0]), model, {"fedreda/1": start / 9}, 2).tolist() == [[9, 9], [1, 1]]


def test_probabilities_move_by_a_fifth_and_the_reply_is_the_share_of_clean_uses():
    fed, model = toy(count=2)
    client = fed.members[1]
    local = LocalModel(fed.network, model.weights, model.weights, client.inputs)
    predict_as_teacher(client, local, {"teacher": 2 * model.weights})
    torch.testing.assert_close(client.rows["reda_teacher"], fed.predict(2 * model.weights, client.x))
    assert (client.rows["reda_loss"] == -1).all() and (client.rows["reda_clean"] == 1).all()
    client.y[:] = 0
    client.rows["reda_loss"] = torch.linspace(0, 1, len(client), dtype=torch.float64) ** 4
    client.rows["reda_uses"] = torch.full((len(client),), 3.0, dtype=torch.float64)
    reply = judge_samples(client, local, {}, judge=False, momentum=0.8, epochs=4)
    assert reply["clean_share"] == 0.75 and (client.rows["reda_clean"] == 1).all()
    assert set(client.rows) == {"reda_loss", "reda_clean"}
    predict_as_teacher(client, local, {"teacher": model.weights})
    judge_samples(client, local, {}, judge=True, momentum=0.8, epochs=4)
    clean = torch.from_numpy(find_small_losses(client.rows["reda_loss"].numpy(), client.y.numpy()))
    assert len(client) >= FEWEST and 0 < clean.sum() < len(client)
    torch.testing.assert_close(client.rows["reda_clean"], torch.where(clean, 1.0, 0.8).double())


def test_the_default_path_weights_clients_equally_then_by_their_clean_share(monkeypatch):
    from fnlkit.federated.server.optimizers.optimizer import FedOpt

    counted, real = [], FedOpt._counted

    def record(self, clients, replies, weights):
        out = real(self, clients, replies, weights)
        counted.append((out[1].tolist(), replies["clean_share"].tolist() if "clean_share" in replies else None))
        return out

    monkeypatch.setattr(FedOpt, "_counted", record)
    fed, model, steps = train(method="fedreda", rounds=7)
    assert [step.stage for step in steps] == ["warm-up"] + ["reliability"] * 6 and torch.isfinite(model.weights).all()
    assert all(set(weights) == {1.0} for weights, _ in counted[:4])
    assert all(weights == pytest.approx(shares) for weights, shares in counted[4:]) and len(counted) == 7
    last = steps[-1].report["clean_share"]
    assert len(last) == len(fed) and 0 < last.min() <= 1
