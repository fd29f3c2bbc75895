"""A method of your own: what the server asks of the clients, round by round.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise -o noisy.npz
    fnlkit train noisy.npz --method 'mine.py:part(skip=1)' --rounds 2 --fraction 0.5 -o run.pt
"""

import numpy as np

from fnlkit.methods.fedavg import Round

# What leaves a client beside its weights, for `fnlkit methods`: nothing here.
SENDS = {}


def part(clients, model, opt, select, *, rounds, skip: int = 0):
    """Train plainly, but leave the first `skip` clients out.

    select(clients, model, among) draws who takes part, opt.round(clients, ids, model) trains them and returns the new
    model and the replies, and each Round that is yielded is saved, evaluated and written to metrics.jsonl with its report.
    """
    among = np.arange(len(clients)) >= skip
    for _ in range(rounds):
        model, replies = opt.round(clients, select(clients, model, among), model)
        yield Round(model, "mine", replies, {"took_part": np.array(len(replies.ids))})
    return model
