#!/usr/bin/env bash
# Package: crowd-kit 1.4.2, metrics uncertainty and consistency.
# Guess: twenty workers of skill 0.9 who agree leave less uncertainty than one; both metrics of the
#   module rest on one distribution of the label.
# Behavior: uncertainty is 0.325 nats for one worker, for five and for twenty, since it adds the
#   probabilities of the workers; consistency multiplies them and rises from 0.9 to 1. A threshold on
#   uncertainty therefore never rewards more answers.
# Source: crowdkit/metrics/data/_classification.py.
"$(dirname "$0")/fresh" crowd-kit==1.4.2 numpy==2.4.6 pandas==3.0.0 <<'PYTHON'
from importlib.metadata import version

import pandas as pd
from crowdkit.metrics.data import consistency, uncertainty

seen = {}
for workers in (1, 5, 20):
    names = [f"worker {i}" for i in range(workers)]
    rows = [("task 1", name, "cat") for name in names] + [("task 2", names[0], "dog")]
    answers = pd.DataFrame(rows, columns=["task", "worker", "label"])
    skills = pd.Series(0.9, index=names)
    doubt = uncertainty(answers, skills, compute_by="task", aggregate=False)["task 1"]
    agreement = consistency(answers, skills, by_task=True)["task 1"]
    seen[workers] = (round(float(doubt), 3), round(float(agreement), 3))
    print(
        f"crowd-kit {version('crowd-kit')}: {workers} workers of skill 0.9 agree: "
        f"uncertainty {doubt:.3f}, consistency {agreement:.3f}"
    )
expected = {1: (0.325, 0.9), 5: (0.325, 1.0), 20: (0.325, 1.0)}
if seen != expected:
    raise SystemExit(f"the behavior has changed: {seen} instead of {expected}")
PYTHON
