"""What needs a Ray of its own, as programs: Ray's processes and warnings stay out of the tests' process.

python -m tests.engines.on_ray killed FOLDER
"""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch

from fnlkit.client.training import Fit
from tests.engines.steps import dies
from tests.engines.test_workers import digest
from tests.toy import toy

FIT = Fit(epochs=1, lr=0.1, batch_size=8)


def five_rounds(engine, folder, **options):
    """Train five rounds of 8 clients, in each of which client 3 kills its process once; return (federation, last model)."""
    fed, model = toy(engine, dtype=torch.float32, **options)
    for r in range(5):
        replies = fed.round(range(8), model, FIT, partial(dies, flag=os.path.join(folder, f"died-{r}")))
        model = model.with_weights(replies["weights"].mean(0))
    return fed, model


def killed(folder):
    """An actor is killed in mid-round, in each of five."""
    fed, model = five_rounds("flower", folder, workers=2)
    died, home, found = len(list(Path(folder).glob("died-*"))), Path(fed.engine.runtime.home), digest(fed, model)
    there = home.is_dir()
    fed.close()
    same = found == digest(*five_rounds("sequential", folder))
    return {"died": died, "same": same, "refused": len(fed.rejected), "left": home.exists() or not there}


def _kills_in_client_1(client, model, received):
    if client.id == 1:
        os.kill(os.getpid(), 9)
    return {"ok": torch.tensor(1.0)}


def _hangs_in_client_1(client, model, received):
    if client.id == 1:
        time.sleep(1000)
    return {"ok": torch.tensor(1.0)}


def lost(folder, step=_kills_in_client_1, patience=300):
    """A client kills every actor that visits it."""
    fed, model = toy("flower", workers=2, client_timeout=3)
    fed.round(range(6), model, FIT)
    fed.engine.runtime.start_seconds = patience
    kept = fed.round(range(6), model, step).ids.tolist()
    again = fed.round(range(6), model, FIT).ids.tolist()
    fed.close()
    return {"kept": kept, "refused": [(r["client"], r["reason"]) for r in fed.rejected], "again": again}


def late(folder):
    """A client never ends."""
    return lost(folder, _hangs_in_client_1, patience=45)


if __name__ == "__main__":
    from tests.engines import on_ray  # functions of __main__ do not travel

    print(json.dumps(getattr(on_ray, sys.argv[1])(sys.argv[2])))
