"""A custom method: the work of server and clients in each round.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise -o noisy.npz
    fnlkit train noisy.npz --method 'mine.py:part(skip=1)' --rounds 2 --fraction 0.5 -o run.pt
"""

import numpy as np

from fnlkit.core import method
from fnlkit.methods.fedavg import Round


# Replies of a client in addition to weights: none here, otherwise sends={"name": "description"}.
@method()
def part(clients, model, opt, select, *, rounds, skip: int = 0):
    """Run FedAvg without the first `skip` clients.

    select(clients, model, among) draws the cohort.  opt.round(clients, ids, model) trains it and returns the new model and the
    replies.  Each yielded Round is saved, evaluated and written to metrics.jsonl with its report.
    """
    among = np.arange(len(clients)) >= skip
    for _ in range(rounds):
        model, replies = opt.round(clients, select(clients, model, among), model)
        yield Round(model, "mine", replies, {"took_part": np.array(len(replies.ids))})
    return model
