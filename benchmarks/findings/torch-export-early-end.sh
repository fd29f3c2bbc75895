#!/usr/bin/env bash
# Package: torch 2.14.1, torch.export.export with its default strict=False.
# Guess: non-strict export runs the Python code of a module, so that a forward pass that a hook ends by an exception, which the
#   outer module catches to read an intermediate layer, is exported as it runs eagerly.
# Behavior: AssertionError about an unexpected key. Export keeps a stack of the modules that were entered; the modules that the
#   exception leaves stay on it. An encoder that is cut in this way trains and predicts, and cannot be exported.
# Source: torch/fx/experimental/proxy_tensor.py, _ModuleStackTracer.
"$(dirname "$0")/fresh" torch==2.14.1 numpy==2.4.6 <<'PYTHON'
import torch
from torch import nn


class Reached(Exception):
    pass


def stop(module, inputs):
    raise Reached(inputs[0])


class Early(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.encoder[2].register_forward_pre_hook(stop)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        try:
            self.encoder(x)
        except Reached as reached:
            return self.head(reached.args[0])


x = torch.rand(3, 4)
shape, found = tuple(Early()(x).shape), "no error"
try:
    torch.export.export(Early(), (x,))
except AssertionError as error:
    found = str(error)
print(f"torch {torch.__version__}: eager output {shape}; export: {found}")
if shape != (3, 3) or "Unexpected key" not in found:
    raise SystemExit(f"the behavior has changed: {shape}, {found}")
PYTHON
