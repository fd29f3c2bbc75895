#!/usr/bin/env bash
# Package: cleanlab 2.9.0, cleanlab.multiannotator.
# Guess: annotator_quality of CROWDLAB estimates the share of right labels of an annotator, and comes close to
#   it with 20 annotators and 2,000 samples.
# Behavior: it is 11 to 12 points below this share if 70 % of the labels are right and 5 to 6 points if 95 % are, with
#   5 annotators as with 20. The order of annotators is right, but a limit such as "drop annotators below 0.6" drops
#   those of 0.7. The quality mixes the agreement with the labels of other annotators, who err, too.
# Source: cleanlab/multiannotator.py, get_annotator_stats.
"$(dirname "$0")/fresh" cleanlab==2.9.0 numpy==2.4.6 pandas==2.3.3 <<'PYTHON'
from importlib.metadata import version

import numpy as np
import pandas as pd
from cleanlab.multiannotator import get_label_quality_multiannotator

SAMPLES, CLASSES = 2000, 4
below = {}
for annotators, share in ((5, 1.0), (20, 0.15)):
    for right in (0.7, 0.95):
        rng = np.random.default_rng(0)
        true = rng.integers(0, CLASSES, SAMPLES)
        labels = np.full((SAMPLES, annotators), np.nan)
        for j in range(annotators):
            has = rng.random(SAMPLES) < share
            has[j::annotators] = True
            other = (true + rng.integers(1, CLASSES, SAMPLES)) % CLASSES
            labels[has, j] = np.where(rng.random(SAMPLES) < right, true, other)[has]
        given = ~np.isnan(labels)
        accuracy = np.mean([(labels[given[:, j], j] == true[given[:, j]]).mean() for j in range(annotators)])
        probabilities = np.full((SAMPLES, CLASSES), 0.1)
        probabilities[np.arange(SAMPLES), true] = 0.7
        found = get_label_quality_multiannotator(pd.DataFrame(labels), probabilities, verbose=False)
        quality = found["annotator_stats"]["annotator_quality"].mean()
        below[annotators, right] = 100 * (accuracy - quality)
        print(
            f"cleanlab {version('cleanlab')}: {annotators} annotators, {accuracy:.3f} of the labels right: "
            f"annotator_quality {quality:.3f}"
        )
expected = {(5, 0.7): (10, 13), (20, 0.7): (10, 13), (5, 0.95): (4, 7), (20, 0.95): (4, 7)}
if not all(low < below[key] < high for key, (low, high) in expected.items()):
    raise SystemExit(f"the behavior has changed: {below} points below the share of right labels")
PYTHON
