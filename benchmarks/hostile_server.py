"""A server that tries to recover samples from sites, with every request that the sites' table permits.

Sites answer in this process with Flower's own messages.  Each attack sends a sequence of requests and returns the rows and
labels that it recovered; `report` prints the shares of each site's samples, single values and labels, and which requests were
refused.  Rows count as recovered if every value is within a thousandth of the standard deviation of the true row.
"""

import contextlib
import io
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts import message
from fnlkit.audits.messages import rotation, widen
from fnlkit.estimators import em, federated
from fnlkit.federated.client import private_counts, scaling
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines import travel
from fnlkit.federated.engines.flower import visits
from fnlkit.methods import energy_levels, fedcorr, feddpcont, fedsums
from fnlkit.sites.site import audit

# Samples of each site. The last class has few samples at each site.
SIZES = (1, 4, 20, 60, 200)
COLUMNS, CLASSES, HIDDEN = 6, 3, 16
# Rows and single values within this many standard deviations of the true ones are recovered.
NEAR = 1e-3
# Requests that the attack on training sends to a site; the table permits more.
VISITS = 120


@dataclass
class Outcome:
    """Result of an attack on a site.

    Attributes
    ----------
    rows : list of (COLUMNS,)
        Guessed samples.
    labels : list of int
        Guessed label of each row, -1 if unknown.
    values : list of (column, value)
        Guessed values of single samples whose other values stay unknown.
    """

    rows: list[Any] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)


class Federation:
    """Sites with vectors, a project, and a hostile server in this process.

    Parameters
    ----------
    folder : path
    seed : int
    **settings
        Of the project: method, protect, scaling.
    """

    def __init__(self, folder, seed, *, method="fedavg", scaling="project", **settings):
        from fnlkit import datasets
        from fnlkit.experiment.settings import Settings
        from fnlkit.sites import flower_app, project
        from fnlkit.sites.network import network_of
        from fnlkit.sites.site.door import Door
        from fnlkit.sites.site.opening import Place

        self.folder, rng = Path(folder), np.random.default_rng(seed)
        self.samples, self.answers, self.doors = [], Counter(), []
        for k, size in enumerate(SIZES):
            y = rng.choice(CLASSES, size, p=[0.6, 0.35, 0.05])
            x = (rng.standard_normal((size, COLUMNS)) + y[:, None]).astype(np.float32)
            np.savez(self.folder / f"site-{k}.npz", x=x, y=y, class_names=np.array(list("012")))
            self.samples.append((x.astype(np.float64), y))
        x = rng.standard_normal((60, COLUMNS)).astype(np.float32)
        np.savez(
            self.folder / "server.npz", x_train=x, y_train=np.arange(60) % CLASSES, x_test=x[:9], y_test=np.arange(9) % CLASSES
        )
        common = {
            "rounds": 5,
            "fraction": 1.0,
            "epochs": 1,
            "batch_size": 10,
            "model": f"mlp(hidden={HIDDEN})",
            "precision": "fp64",
        }
        fields = {"names": [f"site-{k}" for k in range(len(SIZES))], "keys": [], "wait": 0.0, "max_samples": 500}
        fields |= {"tasks": list(project.TASKS)}
        data = datasets.load(str(self.folder / "server.npz"))
        self.project = flower_app.describe(data, Settings(method=method, **common | settings), scaling=scaling, **fields)
        flower_app.write_project(self.folder / "project", self.project)
        agreed = str(self.folder / "project/project.json")
        for k in range(len(SIZES)):
            self.doors.append(Door(Place(k, str(self.folder / f"site-{k}.npz"), str(self.folder / f"memory-{k}"), agreed)))
        self.mean, self.std = np.array(self.project.mean), np.array(self.project.std)
        task = project.task_of(self.project, "scale" if scaling == "sites" else "train")
        self.network = network_of(task, (COLUMNS,))

    def scaled(self, x):
        """Return samples (..., COLUMNS) as the sites' models receive them."""
        return (x - self.mean) / self.std if len(self.mean) else x

    def unscaled(self, x):
        """Return samples from the inputs of the sites' models."""
        return x * self.std + self.mean if len(self.mean) else x

    def ask(self, k, task, *steps, received=None, weights=None, round=0, base=-1, run="0" * 16):
        """Return the arrays that site k replies to steps, or None if it refuses or fails."""
        empty = task in ("audit", "scale")
        weights = torch.zeros(0) if empty else self.network.flat.clone() if weights is None else weights
        packed = [travel.pack(step) for step in steps]
        value = visits.request(run=run, round=round, seed=0, weights=weights, steps=packed, broadcast=received or {},
                               visits=[(k, base, -1, {})])  # fmt: skip
        about = {"agreement": self.project.digest, "task": task, "scale": ""}
        with contextlib.redirect_stderr(io.StringIO()):
            reply = self.doors[k].answer(message.encode(value, about))
        ((_, found),) = message.decode(reply)["replies"]
        self.answers[found[1] if isinstance(found, tuple) else "answered"] += 1
        return None if isinstance(found, tuple) else {name: values.double().numpy() for name, values in found.items()}


def weights_of(federation, first, bias, second):
    """Return the flat weights of a perceptron with these first (H, D), bias (H,) and second (C, H) layers."""
    flat = torch.zeros_like(federation.network.flat)
    parts = {tuple(np.shape(values)): values for values in (first, bias, second)}
    for _, start, end, shape in federation.network.slots:
        if tuple(shape) in parts:
            flat[start:end] = torch.as_tensor(parts[tuple(shape)], dtype=flat.dtype).reshape(-1)
    return flat


def layers_of(federation, flat):
    """Return the first (H, D), bias (H,) and second (C, H) layers of flat weights."""
    return [flat[start:end].reshape(shape) for _, start, end, shape in federation.network.slots][:3]


# ---- attacks: functions (federation, site) -> Outcome
def train_on_traps(federation, k, task="train"):
    """Recover samples from local training: units that only one sample activates (Fowl et al. 2022).

    Unit j has the value relu(v x - c_j).  The differences of the gradients of adjacent units contain the samples between both
    thresholds; with one sample, the ratio of the weights' and the bias' difference is the sample.
    """
    rng, out, scale = np.random.default_rng(0), Outcome(), 1e-4
    for visit in range(VISITS):
        direction = rng.standard_normal(COLUMNS)
        direction /= np.linalg.norm(direction)
        cuts = np.sort(rng.uniform(-4, 4, HIDDEN))
        first = np.tile(direction, (HIDDEN, 1))
        second = np.tile(scale * np.array([1.0, -1.0, 0.5])[:, None], (1, HIDDEN))
        weights = weights_of(federation, first, -cuts, second)
        reply = federation.ask(k, task, Fit(epochs=1), weights=weights, run=f"{visit:016x}")
        if reply is None:
            break
        before, after = layers_of(federation, weights.numpy()), layers_of(federation, reply["weights"])
        moved = [new - old for new, old in zip(after, before, strict=True)]
        rows, biases = -np.diff(moved[0], axis=0, append=0), -np.diff(moved[1], append=0)
        for j in np.flatnonzero(np.abs(biases) > 1e-12):
            x = federation.unscaled(rows[j] / biases[j])
            if np.abs(x).max() < 100:
                out.rows.append(x)
                out.labels.append(int(np.argmax(moved[2][:, j] - (moved[2][:, j + 1] if j + 1 < HIDDEN else 0))))
    return out


def read_scores(federation, k):
    """Read each sample from its energy: a model whose log-sum-exp of the outputs is one column."""
    columns = []
    for j in range(COLUMNS):
        first, bias, second = np.zeros((HIDDEN, COLUMNS)), np.zeros(HIDDEN), np.zeros((CLASSES, HIDDEN))
        first[0, j], bias[0], second[0, 0] = 1.0, 100.0, 1.0  # relu(x + 100) = x + 100
        step = partial(energy_levels.score_samples, name="scores_global", score="energy")
        reply = federation.ask(k, "train", step, weights=weights_of(federation, first, bias, second), run=f"{j:016x}")
        if reply is None:
            return Outcome()
        columns.append(np.abs(reply["scores_global"]) - 100.0)
    rows = federation.unscaled(np.stack(columns, 1))
    return Outcome(list(rows), [-1] * len(rows))


def threshold(federation, column, cut):
    """Return weights of a model that predicts class 1 for samples whose column exceeds `cut`, class 0 otherwise."""
    first, bias, second = np.zeros((HIDDEN, COLUMNS)), np.zeros(HIDDEN), np.zeros((CLASSES, HIDDEN))
    row = np.zeros(COLUMNS)
    row[column] = cut
    first[0, column], bias[0], second[1, 0] = 1.0, -federation.scaled(row)[column], 1.0
    return weights_of(federation, first, bias, second)


def search(count):
    """Locate the threshold at which a reply changes, with at most 40 requests; None without an answer.

    Parameters
    ----------
    count : callable (number, cut) -> array or None
    """
    low, high = -10.0, 10.0
    none = count(0, 100.0)  # no sample exceeds it
    if none is None or np.array_equal(none, count(1, -100.0)):
        return None
    for number in range(2, 40):
        reply = count(number, (low + high) / 2)
        if reply is None:
            break
        low, high = (low, (low + high) / 2) if np.array_equal(reply, none) else ((low + high) / 2, high)
    return (low + high) / 2 if high - low < 0.1 else None  # a first guess near a value is chance


def evaluate_thresholds(federation, k):
    """Locate a value by `evaluate` with changed weights."""

    def count(number, cut):
        model = threshold(federation, 0, cut)
        reply = federation.ask(k, "evaluate", private_counts.reply_tested, weights=model, run=f"{number:016x}")
        return None if reply is None else reply["wrong"]

    found = search(count)
    return Outcome(values=[] if found is None else [(0, found)])


def head_of(federation, k, column, cut):
    """Return a message of an audit whose classifier predicts class 1 for samples whose column exceeds `cut`, else class 0."""
    width, (mean, std) = COLUMNS, audit.scale_of(federation.project)
    # The features are a rotation of the standardized columns, which is the same at all sites.
    rotated = rotation(width)
    coefficients, offsets = np.zeros((CLASSES, width)), np.array([0.0, 0.0, -1e3])
    coefficients[1] = 1e3 * rotated[column]
    offsets[1] = -1e3 * (cut - mean[column]) / std[column]
    head = {
        "coefficients": coefficients, "offsets": offsets, "sizes": np.array(width), "known": np.ones(CLASSES, bool),
        "shares": np.full(CLASSES, 1 / CLASSES), "differ": np.array(False),
        "center": widen(np.stack([mean, std]), (mean, std)),
        "tone": np.array([0.0, 1.0]), "fits": np.stack([np.ones(width), np.zeros(width)]), "suspects": np.full(8, -1),
        "compared": np.array(16),
    }  # fmt: skip
    return {name: torch.from_numpy(np.asarray(values)) for name, values in head.items()}


def audit_thresholds(federation, k):
    """Locate a value by the counts of an audit, with a classifier of the server's choice."""
    if federation.ask(k, "audit", audit.summarize) is None:
        return Outcome()

    def count(number, cut):
        reply = federation.ask(k, "audit", audit.judge, received=head_of(federation, k, 0, cut), run=f"{number:016x}")
        return None if reply is None else reply["predicted"]

    found = search(count)
    return Outcome(values=[] if found is None else [(0, found)])


def subtract_statistics(federation, k):
    """Subtract the described classes from the totals; the rest is a sample if it is one.  Class means are guesses, too."""
    reply = federation.ask(k, "audit", audit.summarize)
    if reply is None or not reply["counts"].any():
        return Outcome()
    counts, rows = reply["counts"], [reply["columns"][0], *reply["columns"][2:], *reply["class_columns"][0]]
    described = counts @ reply["class_columns"][0]
    for rest in (1, counts.sum()):
        rows.append((counts.sum() * reply["columns"][0] - described) / rest)
    rotated = rotation(COLUMNS)
    mean, std = audit.scale_of(federation.project)
    if reply["sums"].shape[1] >= COLUMNS:  # the first features are the rotated columns
        sums, moments = reply["sums"][:, :COLUMNS], reply["moments"][:COLUMNS, :COLUMNS]
        rows += [row @ rotated.T * std + mean for row in (*sums, *np.linalg.eigh(moments)[1].T)]
    return Outcome(rows, [-1] * len(rows))


def move_centers(federation, k):
    """Locate the largest value of each column and class by means of values clipped at moving ends."""
    first, sums, out = federation.ask(k, "audit", audit.summarize), {}, Outcome()
    if first is None:
        return out
    for number, end in enumerate((50.0, 2.0, 2.2, 2.4, 2.6, 2.8, 3.0, 3.2, 3.4)):
        center = np.full(COLUMNS, end - 250.0 if number == 0 else end - 50.0)
        spread = np.full(COLUMNS, 50.0 if number == 0 else 10.0)
        told = head_of(federation, k, 0, 0.0) | {"center": torch.from_numpy(np.stack([center, spread]))}
        reply = federation.ask(k, "audit", audit.judge, received=told, run=f"{number:016x}")
        if reply is not None:
            sums[end] = (reply["class_means"][0][:, :COLUMNS] * spread + center) * first["counts"][:, None]
    ends = sorted(end for end in sums if end < 50)
    for a, b in zip(ends, ends[1:], strict=False):
        slope = (sums[b] - sums[a]) / (b - a)
        for c, j in zip(*np.nonzero(np.abs(slope - 1) < 1e-6), strict=True):
            out.values.append((j, sums[50.0][c, j] - (sums[a][c, j] - a)))
    return out


def change_a_label(federation, k):
    """Ask for sums before and after the site changes its data: the difference is the changed sample."""
    first = federation.ask(k, "audit", audit.summarize)
    if first is None or not first["counts"].any():
        return Outcome()
    path = federation.folder / f"site-{k}.npz"
    data = dict(np.load(path))
    data["x"], data["y"] = data["x"][1:], data["y"][1:]
    np.savez(path, **data)
    federation.doors[k] = type(federation.doors[k])(federation.doors[k].place)  # each message has a process of its own
    second = federation.ask(k, "audit", audit.summarize, run="1" * 16)
    if second is None or second["sums"].shape != first["sums"].shape:
        return Outcome()
    rotated = rotation(COLUMNS)
    mean, std = audit.scale_of(federation.project)
    row = (first["sums"] - second["sums"]).sum(0)[:COLUMNS] @ rotated.T * std + mean
    return Outcome([row], [int(np.abs(first["counts"] - second["counts"]).argmax())])


def divide_moments(federation, k):
    """Divide the sums of the task scale by their counts: one known value is the value."""
    reply = federation.ask(k, "scale", scaling.reply_moments)
    if reply is None:
        return Outcome()
    row = reply["total"] / np.maximum(reply["known"], 1)
    return Outcome([row], [-1])


def leave_the_table(federation, k):
    """Request all that no table contains: scores of samples, steps of other tasks, changed limits, state for later rounds."""
    head = head_of(federation, k, 0, 0.0) if len(federation.mean) else {}
    requests = [
        ("audit", partial(energy_levels.score_samples, name="sums", score="energy"), {}),
        ("audit", partial(em.judge_at_home, prior=1.0, seed=0), {}),
        ("audit", partial(audit.summarize, scale=(np.zeros(COLUMNS), np.ones(COLUMNS))), {}),
        ("audit", audit.summarize, {"x": torch.zeros(1)}),
        ("audit", partial(audit.judge, seed=1), head),
        ("audit", audit.judge, {name: head[name] for name in head if name != "fits"}),
        ("audit", audit.judge, {"coefficients": torch.zeros(CLASSES, 10**5)}),
        ("audit", feddpcont.release_labels, {}),
        ("evaluate", audit.summarize, {}),
        ("evaluate", federated.reply_predicted, {}),
        ("evaluate", Fit(epochs=1), {}),
        ("train", audit.summarize, {}),
        ("train", partial(fedcorr.relabel_confident, confidence=0.0, strict=False), {}),
        ("train", federated.keep_predictions, {}),
        ("train", Fit(epochs=50), {}),
        ("train", fedsums.reply_products, {}),
        ("scale", audit.summarize, {}),
    ]
    for number, (task, step, received) in enumerate(requests):
        federation.ask(k, task, step, received=received, run=f"{number:016x}")
        federation.ask(k, task, step, received=received, run=f"{number:016x}", round=1, base=0)
    return Outcome()


@dataclass(frozen=True)
class Attack:
    """An attack on a project.

    Attributes
    ----------
    name : str
    project : dict
        Settings of `Federation`.
    run : callable (federation, site) -> Outcome
    allowed : str
        Replies of the agreed table that the attack uses; "" if none may be answered.
    """

    name: str
    project: dict[str, Any]
    run: object
    allowed: str


ATTACKS = [
    Attack("training on traps", {}, train_on_traps, "open weights of training"),
    Attack("training on traps, task audit", {}, partial(train_on_traps, task="audit"), ""),
    Attack("training on traps, secagg", {"protect": "secagg"}, train_on_traps, ""),
    Attack("energy of each sample", {"method": "na-fedavg"}, read_scores, "score of each sample"),
    Attack("energy of each sample, fedavg", {}, read_scores, ""),
    Attack("evaluate with changed weights", {}, evaluate_thresholds, "ranges of wrong predictions"),
    Attack("classifiers of an audit", {}, audit_thresholds, "sums of 5 samples, one table of counts"),
    Attack("sums and moments of an audit", {}, subtract_statistics, "sums of 5 samples"),
    Attack("moving centers of an audit", {}, move_centers, "sums of 5 samples, one description"),
    Attack("sums of changed data", {}, change_a_label, "sums of 5 samples, once"),
    Attack("sums of the task scale", {"scaling": "sites"}, divide_moments, "sums of 5 values"),
    Attack("requests outside the table", {}, leave_the_table, ""),
    Attack("requests outside the table, secagg", {"protect": "secagg"}, leave_the_table, ""),
    Attack("open sums instead of masked ones", {"method": "lda", "model": "auto", "protect": "secagg"}, leave_the_table, ""),
]


def recovered(outcome, x, y):
    """Return the shares of samples, single values and labels (n, COLUMNS), (n,) of a site that an Outcome contains.

    A label counts if its sample was recovered with it; a single value counts once.
    """
    spread, seen, labels, values = x.std(0) if len(x) > 1 else np.ones(COLUMNS), set(), set(), set()
    for row, label in zip(outcome.rows, outcome.labels, strict=True):
        near = np.flatnonzero((np.abs(x - row) < NEAR * spread).all(1))
        seen.update(near.tolist())
        labels.update(i for i in near.tolist() if y[i] == label)
    for j, value in outcome.values:
        values.update((int(i), int(j)) for i in np.flatnonzero(np.abs(x[:, j] - value) < NEAR * spread[j])[:1])
    values |= {(i, j) for i in seen for j in range(COLUMNS)}
    return len(seen) / len(x), len(values) / x.size, len(labels) / len(x)


def report(seed=0, attacks=ATTACKS):
    """Yield lines: for each attack the shares that were recovered at each site, and the requests.

    Raises
    ------
    AssertionError
        If an attack that uses no reply of the agreed table recovered anything, or got an answer.
    """
    yield f"Sites of {', '.join(map(str, SIZES))} samples with {COLUMNS} columns, seed {seed}; shares in % for each site."
    titles = f"{'attack':<36}{'samples':<24}{'single values':<32}{'labels':<24}{'answered':>9}{'refused':>9}"
    yield f"{titles}  replies that the table allows"
    for attack in attacks:
        with tempfile.TemporaryDirectory(prefix="fnlkit-attack-") as folder, contextlib.redirect_stdout(io.StringIO()):
            federation = Federation(folder, seed, **attack.project)
            shares = [recovered(attack.run(federation, k), *federation.samples[k]) for k in range(len(SIZES))]
        answered, refused = federation.answers["answered"], sum(federation.answers.values()) - federation.answers["answered"]
        assert attack.allowed or not (answered or np.any(shares)), f"{attack.name}: {answered} answers beyond the table"
        cells = [" ".join(f"{100 * share:.3g}" for share in column) for column in zip(*shares, strict=True)]
        numbers = f"{cells[0]:<24}{cells[1]:<32}{cells[2]:<24}{answered:>9,}{refused:>9,}"
        yield f"{attack.name:<36}{numbers}  {attack.allowed or 'none'}"
