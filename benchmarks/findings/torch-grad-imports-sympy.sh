#!/usr/bin/env bash
# Package: torch 2.14.1, torch.autograd.grad with `grad_outputs`.
# Guess: a gradient of given output gradients costs the same as that of their sum; nothing is imported in a training step.
# Behavior: the first call with `grad_outputs` imports sympy, because the shapes of outputs and gradients are compared as if they
#   could be symbolic. The gradient of a scalar does not. A program whose step is otherwise compiled pays the import (about
#   half a second of CPU time) in its first step, in each process.
# Source: torch/autograd/__init__.py, _make_grads.
"$(dirname "$0")/fresh" torch==2.14.1 numpy==2.4.6 <<'PYTHON'
import subprocess
import sys
from importlib.metadata import version

PROGRAM = """
import sys, torch
x = torch.ones(3, requires_grad=True)
before = "sympy" in sys.modules
(gradient,) = {}
print(before, "sympy" in sys.modules, gradient.tolist())
"""
CALLS = {
    "grad_outputs": "torch.autograd.grad(2 * x, [x], torch.ones(3))",
    "scalar": "torch.autograd.grad((2 * x).sum(), [x])",
}
print(f"torch {version('torch')}")
lines = {}
for name, call in CALLS.items():
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM.replace("{}", call)]
    lines[name] = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    print(f"{name}: sympy before, after the call, gradient: {lines[name]}")
if lines != {"grad_outputs": "False True [2.0, 2.0, 2.0]", "scalar": "False False [2.0, 2.0, 2.0]"}:
    raise SystemExit("the behavior has changed")
PYTHON
