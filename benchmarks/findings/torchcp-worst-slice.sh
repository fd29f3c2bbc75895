#!/usr/bin/env bash
# Package: torchcp 1.2.1, metric WSC (worst-slice coverage, Romano et al. 2020).
# Guess: if the sets of all rows beyond a plane, 16 % of the data, miss the label, WSC with slices of at least 10 % is near 0. The order
#   in which the classes are numbered has no effect.
# Behavior: WSC is 0.91, above the coverage of all rows (0.84), and 0.84 if the classes are numbered the other way round. The search
#   for the slice gets labels and coverage in each other's place: it looks for the slice with the lowest mean class number, and the
#   coverage there is returned. Sets that fail for one group of patients or one site pass as evenly covered, without a message.
# Source: torchcp/classification/utils/metrics.py, the call of calWSC(X, y, covered) in WSC. Packages that torchcp imports, and WSC does
#   not use, are replaced by empty modules, because they are large or have to be compiled.
"$(dirname "$0")/fresh" torch==2.13.0 numpy==2.4.6 scikit-learn==1.9.1 pandas==3.1.1 tqdm networkx==3.6.1 <<'PYTHON'
import subprocess
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from unittest.mock import MagicMock

import numpy as np
import torch

command = [sys.executable, "-m", "pip", "install", "--quiet", "--quiet", "--no-compile", "--no-deps", "torchcp==1.2.1"]
subprocess.run(command, check=True)


class Empty(MetaPathFinder, Loader):
    """Imports of packages that the metric does not use."""

    def find_spec(self, name, path=None, target=None):
        unused = name.split(".")[0] in {"torchsort", "transformers", "torchvision", "torch_geometric"}
        return ModuleSpec(name, self, is_package=True) if unused else None

    def create_module(self, spec):
        return MagicMock(__path__=[])

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Empty())
from torchcp.classification.utils.metrics import Metrics, calWSC

rng, rows = np.random.default_rng(0), 4_000
features = rng.normal(size=(rows, 3))
missed = features[:, 0] > 1
labels = np.where(features[:, 1] > 1, 0, rng.integers(1, 5, rows))
seen = {}
for name, y in (("classes 0 to 4", labels), ("classes 4 to 0", 4 - labels)):
    sets = np.ones((rows, 5), bool)
    sets[missed, y[missed]] = False
    arguments = torch.tensor(features), torch.tensor(sets), torch.tensor(y)
    seen[name] = round(float(Metrics()("WSC")(*arguments, delta=0.1, M=100)), 2)
    print(f"torchcp {version('torchcp')}: {name}: coverage {1 - missed.mean():.2f}, 0 beyond a plane; worst-slice coverage {seen[name]}")

lowest = calWSC(features[:1000], labels[:1000], ~missed[:1000], delta=0.1, M=100, verbose=False)[0]
print(f"calWSC with the arguments in the order of its signature: {lowest:.2f}")
if min(seen.values()) < 0.8 or len(set(seen.values())) == 1 or lowest > 0.2:
    raise SystemExit(f"the behavior has changed: {seen}, {lowest}")
PYTHON
