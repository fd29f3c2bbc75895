#!/usr/bin/env bash
# Package: torchmetrics 1.9.0, MulticlassAUROC and MulticlassAveragePrecision, both macro averages by default.
# Guess: a class that does not occur in a site's test set is left out of the average, as by the macro accuracy and F1 of the same package;
#   a perfect model has 1 everywhere, and `thresholds` (bins instead of all scores) only rounds.
# Behavior: absent classes count as 0 in MulticlassAUROC: a perfect model at a site with five of ten classes has 0.5, and one at a site
#   with two has 0.2, the number of classes in another unit; a warning calls single values meaningless, but they stay in the average.
#   MulticlassAveragePrecision leaves them out and has 1; with `thresholds=100`, which saves memory, it counts them as 0 without a
#   warning, as AUROC does then. Such scores rank sites by their number of classes. A binary AUROC at a site with one class is 0.
# Source: torchmetrics/functional/classification/auroc.py, _reduce_auroc; average_precision.py, _reduce_average_precision: only NaN is
#   left out, and the curves of absent classes have zeros.
"$(dirname "$0")/fresh" torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6 <<'PYTHON'
import warnings
from importlib.metadata import version

import torch

from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy, MulticlassAUROC, MulticlassAveragePrecision, MulticlassF1Score

ROWS, CLASSES = 500, 10
generator = torch.Generator().manual_seed(0)
seen, silent = {}, {}
for present in (10, 5, 2):
    labels = torch.arange(ROWS) % present
    scores = torch.nn.functional.one_hot(labels, CLASSES) * 0.8 + torch.rand(ROWS, CLASSES, generator=generator) * 0.2
    scores = scores / scores.sum(1, keepdim=True)
    metrics = {
        "accuracy": MulticlassAccuracy(CLASSES, average="macro"),
        "F1": MulticlassF1Score(CLASSES, average="macro"),
        "AUROC": MulticlassAUROC(CLASSES),
        "AUROC of 100 thresholds": MulticlassAUROC(CLASSES, thresholds=100),
        "average precision": MulticlassAveragePrecision(CLASSES),
        "average precision of 100 thresholds": MulticlassAveragePrecision(CLASSES, thresholds=100),
    }
    for name, metric in metrics.items():
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            seen[name, present] = round(float(metric(scores, labels)), 3)
        silent[name, present] = not messages
        print(f"torchmetrics {version('torchmetrics')}: perfect model, {present} of 10 classes occur: macro {name} {seen[name, present]}"
              f"{'' if silent[name, present] else ' (with a warning)'}")
warnings.simplefilter("ignore")
single = float(BinaryAUROC()(torch.rand(50, generator=generator), torch.ones(50, dtype=torch.long)))
print(f"binary AUROC of a site with one class: {single}")
low = {"AUROC", "AUROC of 100 thresholds", "average precision of 100 thresholds"}
wanted = {(name, present): present / 10 if name in low else 1.0 for name, present in seen}
warned = {name for (name, present), quiet in silent.items() if present < 10 and not quiet}
if seen != wanted or single != 0 or warned != {"AUROC", "average precision"}:
    raise SystemExit(f"the behavior has changed: {seen}, binary {single}, warnings of {warned}")
PYTHON
