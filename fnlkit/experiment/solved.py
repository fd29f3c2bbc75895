"""Runs of methods that compute a linear head from sums, without torch: the clients of a block reply together.

The method is the generator that real sites and other engines run. Here a "client" has the samples of many clients side by
side, and replies their sums, so that the work does not grow with the number of clients.
"""

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fnlkit.artifacts.exchange import Traffic
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.core.spec import parse
from fnlkit.datasets.dataset import Dataset, must_be
from fnlkit.encoders.features import choose_head
from fnlkit.evidence.gaussian import softmax
from fnlkit.evidence.linear import BLOCK, Head, Scaling
from fnlkit.experiment.bound_method import BoundMethod
from fnlkit.experiment.evaluation_set import held_out_positions, tested_samples
from fnlkit.experiment.identity import (
    describe_data,
    labels_of,
    must_have_same_data,
    must_have_same_settings,
    peak_bytes,
    truth_of,
    versions,
)
from fnlkit.experiment.scale import scale_of
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.scaling import statistics_bytes
from fnlkit.kernels.neighbors import on_one_blas_thread
from fnlkit.kernels.scores import confusion
from fnlkit.models import COSINES, cosines_of

# Largest size in bytes of the features of all samples that are kept between messages.
MOST = 2**30

# Largest numbers of inputs and of training samples for which random Fourier features are used by default.
MOST_INPUTS, MOST_SAMPLES = 256, 100_000


@dataclass
class Block:
    """Clients side by side, in place of `fnlkit.federated.client.client.Client`."""

    source: Any
    positions: np.ndarray
    owner: np.ndarray
    numbers: np.ndarray
    given: np.ndarray
    y: np.ndarray
    classes: int
    inputs: Scaling
    largest: float = math.inf
    rows: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)

    def __len__(self):
        return len(self.positions)

    @property
    def x(self) -> np.ndarray:
        return np.asarray(self.source[self.positions])

    def keep(self, name: str, values: np.ndarray) -> None:
        self.rows[name] = values


class Session:
    """All clients of a federation, in place of `fnlkit.federated.server.clients.Clients`.

    Parameters
    ----------
    offsets : int (N + 1,)
    indices, given : int (m,)
        Positions in `source` and given labels of the clients' samples, client by client.
    classes : int
    source : array (n, ...)
    inputs : Scaling

    Attributes
    ----------
    y : int64 (m,)
        Corrected labels.
    """

    def __init__(self, offsets, indices, given, classes, source, inputs):
        self.sizes = np.diff(offsets)
        self.classes = int(classes)
        self.traffic = Traffic()
        self.y = np.array(given, np.int64)
        width = int(np.prod(source.shape[1:]))
        self._keeps = len(indices) * width * 4 <= MOST
        self.blocks, start = [], 0
        while start < len(self):
            end = max(start + 1, int(np.searchsorted(offsets, offsets[start] + BLOCK, side="right")) - 1)
            rows = slice(offsets[start], offsets[end])
            owner = np.repeat(np.arange(end - start), self.sizes[start:end])
            self.blocks.append(Block(source, indices[rows], owner, np.arange(start, end), self.y[rows].copy(), self.y[rows],
                                     self.classes, inputs))  # fmt: skip
            start = end

    def __len__(self):
        return len(self.sizes)

    def round(self, ids, model, step, *, expect=(), broadcast=None, **options) -> Any:
        """Sum the replies of all clients."""
        received = broadcast or {}
        totals: dict[str, Any] = {}
        for block in self.blocks:
            for name, value in step(block, model, received).items():
                totals[name] = totals[name] + value if name in totals else np.asarray(value, np.float64)
            if not self._keeps:
                block.kept.clear()
        for name, value in totals.items():
            self.traffic.received(name, len(self) * value.nbytes)
        self.traffic.broadcast(sum(np.asarray(value).nbytes for value in received.values()), len(self))
        return Sums({name: value[None] for name, value in totals.items()}, np.arange(len(self)))


class Sums(dict[str, Any]):
    """Replies of a round, one sum (1, ...) by name."""

    def __init__(self, values, ids):
        super().__init__(values)
        self.ids = ids


@on_one_blas_thread
def compute_head(method: str, session: Session, model: Head) -> Any:
    """Run the only Round of a method that computes a linear head."""
    (last,) = registry.method(method)(session, model, None, None, rounds=1)
    return last


def linear_network(model, method, say):
    """Choose the network of a method that computes a linear head; hidden layers of a perceptron are left out, with a note."""
    spec = parse(model)
    if spec.name == "fourier":
        cosines_of(spec.parameters)
        return model
    if spec.name not in ("auto", "mlp"):
        raise InputError(f"{model}: {method} computes a linear head; omit the network, and encode images", parameter="model")
    hidden = spec.parameters.get("hidden", spec.name == "mlp")  # by default, `mlp` has hidden layers, `auto` has none
    if say and hidden:
        say(f"`model` {model}: hidden layers are left out, because {parse(method).name} computes a linear head")
    return model if hidden == [] else "auto"


def has_few_inputs(data, samples):
    """Whether the sums of Fourier features of this number of samples are cheap."""
    return math.prod(data.x_train.shape[1:]) <= MOST_INPUTS and samples <= MOST_SAMPLES


def choose_features(data, samples, needs):
    """Return the network of a method that computes a head, by the size of the data."""
    small, encoded = has_few_inputs(data, samples), choose_head(data, "auto") != "auto"
    return f"fourier(features={COSINES})" if small and not encoded and "fourier" in needs else "mlp(hidden=[])"


def can_solve(settings: Settings, dataset: Dataset, engine: str) -> bool:
    """Whether `solve` runs these settings: a method that computes a linear head, on vectors or images."""
    usual = {"protect": "none", "select": "last", "measure": "auto", "memorization": False, "warmup_head": 0, "patience": 0}
    same = all(getattr(settings, name, value) in (value, None) for name, value in usual.items())
    return same and engine == "auto" and dataset.kind in ("vector", "image") and dataset.x_train.dtype != object


@on_one_blas_thread
def solve(
    federation: Federation,
    dataset: Dataset,
    settings: Settings,
    *,
    provenance: list[Any],
    resume: Run | None = None,
    say: Any = None,
) -> Run:
    """Train a method that solves a linear head from sums, and return its finished Run.

    Parameters
    ----------
    federation : Federation
    dataset : Dataset
    settings : Settings
    provenance : list of dict
        Entries for the command.
    resume : Run, optional
        A run of the same settings and data, which is computed again.
    say : callable(str), optional
        Receives notes.
    """
    if resume is not None:
        must_have_same_settings(resume, settings)
        must_have_same_data(resume, federation, dataset)
    method = BoundMethod.of(settings.method)
    method.refuse_idle(settings)
    start = time.monotonic()
    if len(federation.client_offsets) < 2:
        raise InputError("the federation has no clients yet; pipe it through `fnlkit partition -` first")
    notes = [must_be(dataset, federation.meta, len(federation.given), what="the federation")]
    image = dataset.kind == "image"
    scale = scale_of(federation, dataset, dataset.x_train, settings.standardize)
    inputs = Scaling(image, scale.mean, scale.std)
    offsets, mine = np.asarray(federation.client_offsets), np.asarray(federation.client_indices)
    session = Session(offsets, mine, np.asarray(federation.given)[mine], federation.classes, dataset.x_train, inputs)
    if scale.from_clients:
        up, down = statistics_bytes(len(session), len(scale.mean))
        session.traffic.received("moments", up)
        session.traffic.broadcast(down)
    network = parse(settings.model)
    step = compute_head(settings.method, session, Head(cosines_of(network.parameters) if network.name == "fourier" else 0))
    values = {name: np.asarray(value) for name, value in step.report.items()}
    row = {"round": 0, "stage": step.stage, "clients": step.replies.ids.tolist(), "client_rounds": 0,
           "bytes_up": session.traffic.bytes_up, "bytes_down": session.traffic.bytes_down}  # fmt: skip
    history = [row | {name: value.item() for name, value in values.items() if value.ndim == 0}]
    arrays = {name: value for name, value in values.items() if value.ndim}
    times = [round(time.monotonic() - start, 3)]
    head = step.model
    if federation.true is not None:
        arrays["label_confusion"] = confusion(np.asarray(federation.true)[mine], session.y, federation.classes)
    samples = tested_samples(federation, dataset.x_train, dataset.x_test)
    logits = {name: head.of_samples(x, inputs) for name, x in samples.items()}
    scores = _scores(federation, dataset, logits)
    if federation.true is not None:
        scores["label_accuracy"] = float(np.mean(session.y == np.asarray(federation.true)[mine]))
    history.append({"round": 1, "stage": "final", **scores})
    times.append(round(time.monotonic() - start, 3))
    for note in notes:
        if note and say:
            say(note)
    shape = [int(side) for side in dataset.x_train.shape[1:]]
    corrected = np.array(federation.given, np.int64)
    corrected[mine] = session.y
    state = {"weights": head.flat()}
    if all("inferred" in block.rows for block in session.blocks):
        state["memory/rows/inferred"] = np.concatenate([block.rows["inferred"] for block in session.blocks])
        state["memory/rows/inferred/clients"] = np.arange(len(session))
    return Run.of_arrays(
        state,
        settings=asdict(settings),
        labels=labels_of(federation, corrected),
        client_offsets=offsets,
        client_indices=mine,
        history=history,
        records={name: (np.array([0]), value[None]) for name, value in arrays.items()},
        truth=truth_of(federation),
        log=[],
        traffic=session.traffic,
        rejected=[],
        finished=True,
        predicted={name: each.argmax(1).astype(np.int32) for name, each in logits.items()},
        logits={name: each.astype(np.float32) for name, each in logits.items()},
        meta={
            **describe_data(federation, dataset, scale.mean, scale.std),
            "input_shape": [shape[-1], *shape[:-1]] if image else shape,
            "embedding": None,
            "head": 0,
            "frozen": None,
            "pair": False,
            "committee": 0,
            "needs": sorted(method.needs),
            "own": {},
            "provenance": [*federation.meta.get("provenance", []), *provenance],
            "selection": None,
            "unsaved": [],
            "privacy_key": "",
            "machine": {"engine": "sums", "device": "cpu", "threads": 1, **versions(), "seconds": times[-1],
                        "peak_bytes": peak_bytes(), "row_seconds": times},
        },
    )  # fmt: skip


def _scores(federation, dataset, logits):
    """Measure the share of labels that logits predict, by name, and the mean cross entropy, as for a network."""
    if len(dataset.y_test):
        name = "accuracy" if federation.true is not None or dataset.test_verified else "agreement"
        values, labels = logits["test"], {name: np.asarray(dataset.y_test)}
    elif "held_out" in logits:
        positions = held_out_positions(federation)
        truth = {} if federation.true is None else {"accuracy": np.asarray(federation.true)[positions]}
        values, labels = logits["held_out"], truth | {"agreement": np.asarray(federation.given)[positions]}
    else:
        return {}
    classes, first = values.argmax(1), next(iter(labels.values()))
    p = softmax(values.astype(np.float64))[np.arange(len(first)), first]
    shares = {name: float(np.mean(classes == assigned)) for name, assigned in labels.items()}
    return shares | {"loss": float(-np.log(np.maximum(p, 1e-300)).mean())}
