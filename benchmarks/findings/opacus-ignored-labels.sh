#!/usr/bin/env bash
# Package: opacus 1.6.0, make_private with its defaults, and torch's CrossEntropyLoss(ignore_index=...) or (weight=...).
# Guess: samples whose label is -100, as a filter of suspects sets it, have a zero gradient, and the gradients of the other samples of
#   the batch stay as they are. A sample's gradient does not depend on the labels of the others.
# Behavior: it does. torch divides by the number of samples that are not ignored, opacus multiplies by the size of the batch: with 8 of
#   10 labels ignored, each other gradient is 5 times as long, so that the number of suspects in a batch decides which of the right
#   samples are clipped. With class weights the divisor is the sum of the weights of all labels: one sample that gets a rare class
#   shortens the gradients of all others, while the privacy accountant takes them as independent. `reduction="sum"` of the loss
#   with loss_reduction="sum" of opacus is free of both. No message.
# Source: opacus/grad_sample/grad_sample_module.py, rearrange_grad_samples (loss_reduction "mean"); torch, CrossEntropyLoss.
"$(dirname "$0")/fresh" opacus==1.6.0 torch==2.13.0 numpy==2.4.6 <<'PYTHON'
import logging
import warnings
from importlib.metadata import version

import torch

warnings.simplefilter("ignore")
logging.disable()
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(10, 4), torch.arange(10) % 2
filtered = y.clone()
filtered[2:] = -100
rare = y.clone()
rare[-1] = 2


def lengths(labels, reduction="mean", **options):
    """Return the norms of the samples' gradients before clipping."""
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3)
    loader = DataLoader(TensorDataset(x, labels), batch_size=10)
    model, optimizer, _ = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), data_loader=loader, noise_multiplier=0.0,
        max_grad_norm=10.0, loss_reduction=reduction, poisson_sampling=False,
    )
    torch.nn.CrossEntropyLoss(reduction=reduction, **options)(model(x), labels).backward()
    return torch.stack([gradient.flatten(1).norm(dim=1) for gradient in optimizer.grad_samples]).norm(dim=0)


weight = torch.tensor([1.0, 1.0, 50.0])
ratios = {
    "8 of 10 labels ignored": lengths(filtered)[0] / lengths(y)[0],
    "8 of 10 labels ignored, sums": lengths(filtered, "sum")[0] / lengths(y, "sum")[0],
    "last label of a class of weight 50": lengths(rare, weight=weight)[0] / lengths(y, weight=weight)[0],
    "last label of a class of weight 50, sums": lengths(rare, "sum", weight=weight)[0] / lengths(y, "sum", weight=weight)[0],
}
ratios = {name: round(float(ratio), 3) for name, ratio in ratios.items()}
for name, ratio in ratios.items():
    print(f"opacus {version('opacus')}, torch {version('torch')}: {name}: the gradient of the first sample is {ratio} times as long")
if list(ratios.values()) != [5.0, 1.0, 0.169, 1.0]:
    raise SystemExit(f"the behavior has changed: {ratios}")
PYTHON
