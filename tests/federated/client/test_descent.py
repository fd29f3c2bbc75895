"""The SGD of local training against `torch.optim.SGD`, bit for bit."""

import pytest
import torch

from fnlkit.federated.client.training import Descent, Fit


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
