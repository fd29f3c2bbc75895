"""Reconstruct the samples of a client from its replies, for each method.

    python -m benchmarks.reconstruction --seeds 1 > benchmarks/results/reconstruction.txt

Each method trains a perceptron (64-128-10) on digits, with 40 % of the labels wrong, 5 epochs in batches of 10, SGD with
learning rate 0.01 and momentum 0.5.  The attacker holds the models that the server sent and every single reply of one client,
and tries three attacks on each reply:

- closed form: the rows of the update of the first layer, divided by the update of the bias.  The row of a unit that a single
  sample activates is this sample.
- rows: rows of sums and means of features, for example of a class with one sample, and differences of sums of two rounds.
- span: the rows of an update, or sums of all rounds with the same model, or a sum of products f f', span the samples if they
  are fewer than the sides.  Samples have no negative entries, so that many are vertices, which linear programs find (for
  weights in the first two rounds).

A sample is recovered exactly if a candidate differs by at most 1e-3 of its length, and approximately if a candidate is closer
than half its distance to the nearest other sample of the data set.  Candidates of the attacks on features are compared with
features, up to their length.  Other replies (counts, losses, scores) have no attack here; the row `one number` shows an
attacker who knows the class of each sample and guesses the mean of the class.  `fedem`: replies of a client without secure
aggregation, which real sites refuse.  `auto` sends the replies of its methods, and has no row.
"""

import argparse
from functools import partial

import numpy as np
import torch
from scipy.optimize import linprog

from fnlkit import datasets
from fnlkit.core import registry
from fnlkit.federated import engines
from fnlkit.federated.client.client import Client
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.clients import Public
from fnlkit.kernels.streams import stream
from fnlkit.models.mlp import mlp
from fnlkit.models.pair import Pair

SIZES, OTHERS, CLASSES, WIDTH, WRONG = (1, 5, 20, 100, 500), (20, 20, 20), 10, 128, 0.4
EXACT, RANK = 1e-3, 1e-5
# Linear programs per reply. With 600 instead of 60, products of 20 samples give 80 instead of 20 % of them; weights no more.
PROGRAMS, PROGRAMS_OF_PRODUCTS = 60, 600
REFERENCES = ("centralized", "local", "oracle")


# ---- attacks
def closed_form(update, bias):
    """Return candidates (m, D) from the update (H, D) of a first layer and of its bias (H,)."""
    used = np.abs(bias) > 1e-3 * np.abs(bias).max(initial=0)
    return update[used] / bias[used, None]


def basis_of(rows):
    """Return an orthonormal basis (r, D) of the span of rows (m, D)."""
    if not np.abs(rows).max(initial=0) > 0:
        return rows[:0]
    _, size, basis = np.linalg.svd(rows / np.abs(rows).max(), full_matrices=False)
    return basis[size > RANK * size[0]]


def span(rows, rng, programs=PROGRAMS):
    """Return vertices (m, D) of the non-negative vectors with sum 1 in the span of rows; none if it is everything."""
    basis = basis_of(rows)
    if not 0 < len(basis) < basis.shape[1]:
        return basis[:0]
    found = []
    for _ in range(min(programs, 30 * len(basis))):
        goal = basis @ rng.normal(size=basis.shape[1])
        done = linprog(goal, A_ub=-basis.T, b_ub=np.zeros(basis.shape[1]), A_eq=basis.sum(1)[None], b_eq=[1.0],
                       bounds=(None, None), method="highs")  # fmt: skip
        if done.status == 0:
            found.append(done.x @ basis)
    return np.array(found).reshape(-1, basis.shape[1])


def recovered(candidates, own, every, *, scaled=False):
    """Return (exactly, approximately) recovered shares of samples (n, D), the first of all samples (N, D) of the data set.

    With `scaled`, candidates count up to their length.
    """
    candidates = candidates[np.isfinite(candidates).all(1) & (np.abs(candidates).max(1, initial=0) > 0)]
    if not len(candidates):
        return 0.0, 0.0
    if scaled:
        candidates, own, every = (v / np.maximum(lengths(v)[:, None], 1e-12) for v in (candidates, own, every))
    error = distances(own, candidates).min(1)
    apart = distances(own, every)
    np.fill_diagonal(apart, np.inf)
    return float((error <= EXACT * lengths(own)).mean()), float((error < 0.5 * apart.min(1)).mean())


def lengths(rows):
    """Return the Euclidean length of each row (n,)."""
    return np.linalg.norm(rows, axis=1)


def distances(a, b):
    """Return Euclidean distances (n, m)."""
    return np.sqrt(np.maximum(((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T), 0))


# ---- runs
class Data:
    """Digits as vectors with their observed labels."""

    def __init__(self, seed):
        digits, rng = datasets.load("digits"), stream(seed, "reconstruction")
        x = digits.x_train.reshape(len(digits.y_train), -1).astype(np.float32)
        order = rng.permutation(len(x))
        self.x, self.true = x[order] / max(1.0, x.max()), digits.y_train[order].astype(np.int64)
        wrong = rng.random(len(x)) < WRONG
        self.y = np.where(wrong, rng.integers(0, CLASSES, len(x)), self.true)


def replies_of(method, data, size, *, rounds=8, seed=0):
    """Run a method and return [(weights sent, reply)] of a client with the first `size` samples of the data.

    Replies are those that the engine received, before the server adds them.
    """
    inputs, members, at = Inputs(False), [], 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        make = partial(mlp, input_shape=(data.x.shape[1],), classes=CLASSES, hidden=[WIDTH])
        network = Network(Pair(make(), make()) if "pair" in registry.needs(method) else make())
    for k, count in enumerate((size, *OTHERS)):
        x, y = torch.from_numpy(data.x[at : at + count]), torch.from_numpy(data.y[at : at + count])
        members.append(Client(k, x, y.clone(), y, CLASSES, inputs, secret=bytes(32)))
        members[-1].rows["input/embedding"] = x
        at += count
    clients, captured = engines.make("sequential", members, network, inputs, seed=seed), []
    clients.public = Public(torch.from_numpy(data.x[-50:]), torch.from_numpy(data.y[-50:]))
    run = clients.engine.run

    def listening(request):
        replies, weights = run(request), request.weights
        taken = [reply for i, reply in zip(request.ids, replies, strict=True) if i == 0 and isinstance(reply, dict)]
        captured.extend((weights.clone(), {name: torch.as_tensor(v).clone() for name, v in reply.items()}) for reply in taken)
        return replies

    clients.engine.run = listening
    opt = registry.optimizer("fedavg", Fit(epochs=5, batch_size=10, lr=0.01, momentum=0.5))
    model = Model(network, network.flat.clone())
    for _ in registry.method(method)(clients, model, opt, registry.selector("uniform", 1.0), rounds=rounds):
        pass
    return network, captured


# ---- attacks on a run
def attack(method, data, size, *, rounds=8, seed=0):
    """Return {reply: (exactly, approximately)} of a method and a client of `size` samples."""
    (network, captured), rng = replies_of(method, data, size, rounds=rounds, seed=seed), stream(seed, "programs")
    own, every, found = data.x[:size].astype(np.float64), data.x.astype(np.float64), {}
    updates = [(weights, reply["weights"]) for weights, reply in captured if "weights" in reply]
    if updates:
        found["weights"] = recovered(np.concatenate([of_update(network, *pair, rng) for pair in updates[:2]]), own, every)
    sums = {name for _, reply in captured for name, value in reply.items() if holds_features(name, value)}
    for name in sorted(sums):
        shares = []
        pairs = [(weights, reply) for weights, reply in captured if name in reply]
        pairs += [(reply["weights"], reply) for _, reply in pairs if "weights" in reply]  # features after local training
        for weights, values in by_model([(weights, reply[name]) for weights, reply in pairs]):
            features = [features_of(network, weights, v).astype(np.float64) for v in (data.x[:size], data.x)]
            shares.append(recovered(of_sums(values, rng), *features, scaled=True))
        found[name] = tuple(map(max, zip(*shares, strict=True)))
    return found


def of_update(network, before, after, rng):
    """Return candidates (m, D) from the change of the first layer: closed form, and the span of [x, 1]."""
    change = (after.double() - before.double()).numpy()
    slots = {name: (start, end, shape) for name, start, end, shape in network.slots}
    names = [name.removesuffix("weight") for name in slots if name.endswith("fc1.weight")]
    out = []
    for name in names:
        (start, end, shape), (first, last, _) = slots[f"{name}weight"], slots[f"{name}bias"]
        update, bias = change[start:end].reshape(shape), change[first:last]
        both = span(np.concatenate([update, bias[:, None]], 1), rng)
        both = both[both[:, -1] > 1e-9]
        out += [closed_form(update, bias), both[:, :-1] / both[:, -1:]]
    return np.concatenate(out)


def holds_features(name, value):
    """Return whether a reply has a row of features per class, or their products."""
    return value.dim() == 2 and value.shape[-1] == WIDTH or value.shape == (WIDTH * (WIDTH + 1) // 2,) and name != "weights"


def by_model(pairs):
    """Yield (weights, list of replies) for each model that the client received."""
    groups = {}
    for weights, value in pairs:
        groups.setdefault(weights.numpy().tobytes(), (weights, []))[1].append(value.double().numpy())
    return groups.values()


def of_sums(values, rng):
    """Return candidates (m, d) from sums of the features of one model in several rounds."""
    if values[0].ndim == 1:
        side = np.zeros((WIDTH, WIDTH))
        side[np.triu_indices(WIDTH)] = values[0]
        return span(side + np.triu(side, 1).T, rng, PROGRAMS_OF_PRODUCTS)
    stacked = np.concatenate(values)
    steps = [after - before for before, after in zip(values, values[1:], strict=False)]
    return np.concatenate([stacked, *steps, *(-step for step in steps), unmixed(values[0]), span(stacked, rng)])


def unmixed(sums):
    """Return sums by given class of the first pass of `fedem`, in which q depends on the label alone: 0.64 and 0.04 each."""
    mixed = 0.6 * np.eye(CLASSES) + 0.4 / CLASSES
    return np.linalg.solve(mixed / mixed.sum(0), sums)


def features_of(network, weights, x):
    """Return the features (n, d) of the first hidden layer under some weights."""
    slots = {name: weights[start:end].reshape(shape) for name, start, end, shape in network.slots}
    name = next(name for name in slots if name.endswith("fc1.weight")).removesuffix("weight")
    return (torch.from_numpy(x) @ slots[f"{name}weight"].T + slots[f"{name}bias"]).relu().numpy()


def guess(data, size):
    """Return the shares recovered by the mean of the class, from samples that do not belong to the client."""
    means = np.stack([data.x[size:][data.true[size:] == c].mean(0) for c in range(CLASSES)]).astype(np.float64)
    return recovered(means, data.x[:size].astype(np.float64), data.x.astype(np.float64))


# ---- table
def table(methods, sizes, seeds, say=print):
    """Print a line per method and reply: shares in %, exactly / approximately, by samples of the client."""
    say(f"samples of a client recovered in %, exactly / approximately, by number of its samples; seeds: {len(seeds)}")
    say("method | reply | " + " | ".join(f"n = {n}" for n in sizes))
    sets = [Data(seed) for seed in seeds]
    say(line("one number", "class of a sample", [[guess(data, n) for data in sets] for n in sizes]))
    for method in methods:
        runs = [[attack(method, data, n, rounds=6, seed=s) for s, data in enumerate(sets)] for n in sizes]
        for name in sorted({name for row in runs for found in row for name in found}):
            say(line(method, name, [[found.get(name, (0.0, 0.0)) for found in row] for row in runs]))


def line(method, name, shares):
    """Return a line of the table from shares (sizes, seeds, 2)."""
    means = 100 * np.asarray(shares).mean(1)
    return f"{method} | {name} | " + " | ".join(f"{exact:.0f} / {near:.0f}" for exact, near in means)


def page_table(text):
    """Return the lines of the table of docs/privacy.md from the stored output: replies, and the range over methods.

    A cell has the shares of all methods with this reply: the smallest and the largest, exactly / approximately.
    """
    rows = [each.split(" | ") for each in text.splitlines()[1:]]
    replies, cells = {}, [head.removeprefix("n = ") for head in rows[0][2:]]
    for method, reply, *shares in rows[2:]:
        replies.setdefault(reply, {})[method] = [tuple(map(int, share.split(" / "))) for share in shares]
    lines = ["| reply | methods | " + " | ".join(cells) + " |", "|---" * (2 + len(cells)) + "|"]
    for reply, methods in replies.items():
        names = f"{len(methods)} methods" if len(methods) > 6 else ", ".join(f"`{name}`" for name in methods)
        ranges = [" / ".join(map(spread, zip(*each, strict=True))) for each in zip(*methods.values(), strict=True)]
        lines.append(f"| `{reply}` | {names} | " + " | ".join(ranges) + " |")
    return lines


def spread(values):
    """Return numbers as their range."""
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", default=",".join(m for m in registry.METHODS if m not in (*REFERENCES, "auto")))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [int(size) for size in given.sizes.split(",")]
    table(given.methods.split(","), sizes, list(range(given.seeds)), say=partial(print, flush=True))


if __name__ == "__main__":
    main()
