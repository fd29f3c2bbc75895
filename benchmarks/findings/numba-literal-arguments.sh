#!/usr/bin/env bash
# Package: numba 0.68.1, a compiled function that another compiled function calls with a number that stands in the source.
# Guess: `inner(x, 0)`, `inner(x, 1)` and `inner(x, 2)` use the version of `inner` for int64; a version per value is made only for
#   functions that ask for it by `literally`.
# Behavior: every value gets a version of its own, also if the one for int64 is there and `inner` never asks for the value. Calls
#   from Python share one version. `np.int64(0)` in the source uses the version for int64, so that a large function that is
#   called with three constants compiles once instead of four times.
# Source: numba/core/dispatcher.py, get_call_template, which compiles for the types that it receives, literal ones included.
"$(dirname "$0")/fresh" numba==0.68.1 numpy==2.4.6 <<'PYTHON'
from importlib.metadata import version

import numba
import numpy as np


@numba.njit
def inner(x, k):
    return x[k]


@numba.njit
def converted(x):
    return inner(x, np.int64(0)) + inner(x, np.int64(1))


@numba.njit
def written(x):
    return inner(x, 0) + inner(x, 1) + inner(x, 2)


def versions():
    return [str(signature[1]) for signature in inner.signatures]


print(f"numba {version('numba')}, numpy {version('numpy')}")
x = np.arange(3.0)
found = {}
calls = {
    "from Python": lambda: (inner(x, 0), inner(x, 1)),
    "np.int64": lambda: converted(x),
    "in the source": lambda: written(x),
}
for name, call in calls.items():
    call()
    found[name] = versions()
    print(f"{name}: {found[name]}")
literals = ["Literal[int](0)", "Literal[int](1)", "Literal[int](2)"]
if found != {"from Python": ["int64"], "np.int64": ["int64"], "in the source": ["int64", *literals]}:
    raise SystemExit("the behavior has changed")
PYTHON
