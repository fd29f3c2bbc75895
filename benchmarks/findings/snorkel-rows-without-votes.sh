#!/usr/bin/env bash
# Package: snorkel 0.10.0, LabelModel with its defaults.
# Guess: a row on which every labeling function abstains says nothing about their accuracy, so that such rows change no estimate.
# Behavior: they change every estimated accuracy, because agreements are shares of all rows, also of those without a vote. Five
#   functions whose votes are right in 73 to 95 % of the cases, with a coverage of 30 %, are estimated within 8 points without such
#   rows. With as many empty rows as others the weakest looks like 85 % and the two best like 100 %; with twelve times as many, all
#   five look like 68 to 72 %. The labels of the same rows become worse, down to those of a majority vote. No warning. Rows
#   without a vote are usual where rules label texts.
# Source: snorkel/labeling/model/label_model.py, _generate_O and _init_params.
"$(dirname "$0")/fresh" snorkel==0.10.0 torch==2.14.1 numpy==2.4.6 <<'PYTHON'
import warnings
from importlib.metadata import version

import numpy as np

warnings.simplefilter("ignore")
from snorkel.labeling.model import LabelModel, MajorityLabelVoter

rng, rows = np.random.default_rng(0), 2_000
true = rng.integers(0, 3, rows)


def vote(skill):
    """Return votes that are right with probability skill + (1 - skill) / 3 and missing (-1) in 70 % of the rows."""
    votes = np.where(rng.random(rows) < skill, true, rng.integers(0, 3, rows))
    return np.where(rng.random(rows) < 0.3, votes, -1)


votes = np.stack([vote(skill) for skill in (0.9, 0.8, 0.7, 0.6, 0.5)], 1)
some = (votes >= 0).any(1)
votes, true = votes[some], true[some]
right = [(votes[votes[:, j] >= 0, j] == true[votes[:, j] >= 0]).mean() for j in range(5)]
print(f"snorkel {version('snorkel')}, {len(votes)} rows with votes; shares of right votes: {np.round(right, 2)}")
scores, weights = {}, {}
for empty in (0, len(votes), 12 * len(votes)):
    model = LabelModel(cardinality=3, verbose=False)
    model.fit(np.vstack([votes, np.full((empty, 5), -1)]), n_epochs=500, seed=0, progress_bar=False)
    weights[empty] = model.get_weights()
    scores[empty] = model.score(votes, true, tie_break_policy="random")["accuracy"]
    print(f"{empty} empty rows: accuracies {np.round(weights[empty], 2)}, {scores[empty]:.1%} of the rows with votes labeled right")
majority = MajorityLabelVoter(3).score(votes, true, tie_break_policy="random")["accuracy"]
print(f"majority vote: {majority:.1%}")
none, equal, many = weights.values()
if np.abs(none - right).max() > 0.1 or equal.min() < 0.8 or np.ptp(many) > 0.1 or min(scores.values()) == scores[0]:
    raise SystemExit("the behavior has changed")
PYTHON
