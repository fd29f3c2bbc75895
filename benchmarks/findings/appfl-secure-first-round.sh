#!/usr/bin/env bash
# Package: appfl 1.12.0, FedAvgAggregator with use_secure_agg, and SecureAggregator of the clients.
# Guess: masks change the result by rounding only: the new model is the old one plus the mean of the clients' updates, in the first
#   round as later, and with client_weights_mode sample_size plus the weighted mean.
# Behavior: in the first round the model becomes the mean update alone, so that the weights at the start, random or pretrained, are
#   lost; later rounds are right. With sample_size the masked updates are multiplied by different weights, so that the masks,
#   with a standard deviation above 1, do not cancel: each round adds noise with a standard deviation of about 0.7 to each
#   weight. There is no message.
# Source: appfl/algorithm/aggregator/fedavg_aggregator.py, aggregate (secure_enabled).
"$(dirname "$0")/fresh" appfl==1.12.0 torch==2.14.1 numpy==2.4.6 <<'PYTHON'
from importlib.metadata import version

import torch
from appfl.algorithm.aggregator import FedAvgAggregator
from appfl.privacy import SecureAggregator
from omegaconf import OmegaConf

ROWS = {"clinic": 100, "hospital": 300, "practice": 50}
LEARNED = {"clinic": 0.01, "hospital": 0.03, "practice": -0.02}


def train(secure, mode):
    """Return for two rounds the mean and the greatest deviation of what the round adds to the weights, which start at 1."""
    model = torch.nn.Linear(200, 5)
    with torch.no_grad():
        for values in model.parameters():
            values.fill_(1.0)
    aggregator = FedAvgAggregator(model, OmegaConf.create({"client_weights_mode": mode, "use_secure_agg": secure}))
    for name, rows in ROWS.items():
        aggregator.set_client_sample_size(name, rows)
    added, before = [], {name: values.clone() for name, values in aggregator.get_parameters().items()}
    for number in range(2):
        sent = {}
        for name, rows in ROWS.items():
            update = {key: torch.full_like(values, LEARNED[name]) for key, values in before.items()}
            sent[name] = {key: values + update[key] for key, values in before.items()}
            if secure:
                masks = SecureAggregator(name, list(ROWS), b"a shared secret", torch.device("cpu"))
                flat, shapes = masks.mask_update(update, number)
                sent[name] = {"type": "masked_update_flat", "flat": flat, "shapes": shapes, "num_examples": rows}
        after = aggregator.aggregate(sent)
        change = torch.cat([(after[key] - before[key]).ravel() for key in before])
        added.append((round(float(change.mean()), 3), round(float(change.std()), 3)))
        before = after
    return added


seen = {}
for mode in ("equal", "sample_size"):
    for secure in (False, True):
        seen[mode, secure] = train(secure, mode)
        print(f"appfl {version('appfl')}, weights {mode}, secure aggregation {secure}: added to each weight in rounds 1 and 2 "
              f"(mean, standard deviation): {seen[mode, secure]}")
equal, masked, weighted, noisy = seen.values()
right = equal == [(0.007, 0.0)] * 2 and weighted == [(0.02, 0.0)] * 2
if not right or masked != [(-0.993, 0.0), (0.007, 0.0)] or min(deviation for _, deviation in noisy) < 0.3:
    raise SystemExit(f"the behavior has changed: {seen}")
PYTHON
