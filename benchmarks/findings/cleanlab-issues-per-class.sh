#!/usr/bin/env bash
# Package: cleanlab 2.9.0, find_label_issues with num_to_remove_per_class.
# Guess: num_to_remove_per_class=[5, 0, 0, 0] returns five samples whose given label is class 0, as the documentation states
#   ("the 5 most likely mislabeled examples in class 0"); with the default filter one more or less, as its note states.
# Behavior: with the default filter, prune_by_noise_rate, no returned sample has the given label 0; they have the other labels,
#   and cleanlab's suggestion 0. The list counts predicted classes there. With filter_by="both" nothing is returned.
# Source: cleanlab/filter.py, find_label_issues, where prune_count_matrix is scaled (tmp = psy.T * num_to_remove_per_class).
"$(dirname "$0")/fresh" cleanlab==2.9.0 scikit-learn==1.9.1 numpy==2.4.6 pandas==2.3.3 <<'PYTHON'
from importlib.metadata import version

import numpy as np
from cleanlab.filter import find_label_issues

rng = np.random.default_rng(0)
samples, classes = 600, 4
true = rng.integers(0, classes, samples)
given = np.where(rng.random(samples) < 0.25, rng.integers(0, classes, samples), true)
probabilities = 0.4 * rng.dirichlet(np.ones(classes), samples)
probabilities[np.arange(samples), true] += 0.6
seen = {}
for name in ("prune_by_class", "prune_by_noise_rate", "both"):
    issues = find_label_issues(given, probabilities, filter_by=name, num_to_remove_per_class=[5, 0, 0, 0])
    seen[name] = np.bincount(given[issues], minlength=classes).tolist()
    predicted = np.bincount(probabilities[issues].argmax(1), minlength=classes).tolist()
    print(f"cleanlab {version('cleanlab')}: {name}: issues by given label {seen[name]}, by prediction {predicted}")
default = find_label_issues(given, probabilities, num_to_remove_per_class=[5, 0, 0, 0])
seen["default"] = np.bincount(given[default], minlength=classes).tolist()
first = {name: counts[0] for name, counts in seen.items()}
expected = {"prune_by_class": 5, "prune_by_noise_rate": 0, "both": 0, "default": 0}
if first != expected or sum(seen["default"]) != 5 or sum(seen["both"]) != 0:
    raise SystemExit(f"the behavior has changed: {seen}, issues of given class 0 {expected}")
PYTHON
