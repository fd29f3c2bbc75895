#!/usr/bin/env bash
# Package: crowd-kit 1.4.2, aggregator MACE with its defaults.
# Guess: the order of the rows in the table of answers changes no task's label, as for majority vote and Dawid-Skene.
# Behavior: the same 600 answers to 200 tasks, with two classes of which one is rare, give 0.77 of the tasks the right label
#   if the table is sorted by worker and label, and 0.88 if it is sorted the other way round; majority vote has 0.88 and
#   Dawid-Skene 0.87 in both orders. What MACE learns of how a worker guesses is stored in sorted order, and read in the order
#   in which workers and classes first occur, so that it belongs to another worker or class, without a message. Read in sorted
#   order, it gives 0.77 for both tables.
# Source: crowdkit/aggregation/classification/mace.py, fit (factorize) and _e_step (strategy_expected_counts).
"$(dirname "$0")/fresh" crowd-kit==1.4.2 numpy==2.4.6 pandas==3.0.0 <<'PYTHON'
from importlib.metadata import version

import numpy as np
import pandas as pd
from crowdkit.aggregation import MACE, DawidSkene, MajorityVote

TASKS, WORKERS = 200, 10
rng = np.random.default_rng(0)
true = (rng.random(TASKS) < 0.1).astype(int)
rows = []
for task in range(TASKS):
    for worker in rng.choice(WORKERS, 3, replace=False):
        rows.append((task, worker, int(true[task] if rng.random() < 0.8 else 1 - true[task])))
answers = pd.DataFrame(rows, columns=["task", "worker", "label"])
columns = ["worker", "label", "task"]
up, down = answers.sort_values(columns), answers.sort_values(columns, ascending=False)
seen = {}
for kind in (MajorityVote, DawidSkene, MACE):
    labels = [kind().fit_predict(table).sort_index().to_numpy() for table in (up, down)]
    right = [round(float((given == true).mean()), 3) for given in labels]
    seen[kind.__name__] = (right, int((labels[0] != labels[1]).sum()))
    print(
        f"crowd-kit {version('crowd-kit')}: {kind.__name__}: right if sorted up {right[0]}, down {right[1]}; "
        f"{seen[kind.__name__][1]} of {TASKS} labels differ"
    )
(mace_up, mace_down), changed = seen["MACE"]
if seen["MajorityVote"][1] or seen["DawidSkene"][1] or not (mace_up < 0.8 and mace_down > 0.86 and changed > 15):
    raise SystemExit(f"the behavior has changed: {seen}")
PYTHON
