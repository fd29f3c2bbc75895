"""Every engine gives what sequential gives: methods x optimizers x selectors, in float64 to 1e-9, labels exactly."""

import itertools
import os
import signal
import threading
import weakref
from dataclasses import replace
from functools import cache, lru_cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fnlkit.artifacts.run import Run
from fnlkit.core import registry
from fnlkit.federated import engines
from fnlkit.federated.client.client import Client
from fnlkit.federated.client.inputs import Augment, Inputs
from fnlkit.federated.client.losses.cross_entropy import cross_entropy, kept_cross_entropy, soft_cross_entropy
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines.forward import FORMS
from fnlkit.federated.engines.graphs import Graphs
from fnlkit.federated.engines.stacked_training import StackedTraining
from fnlkit.federated.server.clients import TooManyLost
from fnlkit.methods.fedcorr import adaptive_proximal_norm
from fnlkit.models import build
from fnlkit.models.dropout import Dropout2d, replace_dropout
from fnlkit.models.head import WithHead
from fnlkit.models.pair import Pair
from tests import toy
from tests.commands import fnlkit, refuse, refuse_call, succeed
from tests.federated.engines.shapes import check_steps
from tests.federated.engines.tape import Tape, stand_in

# Engine, precision, and largest difference from `sequential` in double precision.  The kernels of `fused` have one source for
# both precisions, and users compile the single one.  Workers run sequential's own code.
KINDS = {
    "stacked": ("stacked", torch.float64, 1e-9),
    "fused": ("fused", torch.float32, 5e-4),
    "fused-double": ("fused", torch.float64, 1e-9),
}
ENGINES = ("stacked", "fused", pytest.param("fused-double", marks=pytest.mark.slow))
DRIFTING = ("fedavg", "fedprox", "feddyn")
SELECTORS = ("uniform", "power-of-choice(d=4)")
FIT = Fit(epochs=2, lr=0.1, batch_size=16)
mlp = partial(build, "mlp(hidden=[12])", input_shape=(toy.FEATURES,), classes=toy.CLASSES)


def run(engine, method, optimizer, selector, rounds=4, fit=FIT, network=mlp, embedding=12, **options):
    """Run a method on six clients who hold an embedding too; return (federation, last model)."""
    fed, model = toy.toy(engine, network=toy.fitting(network, method), count=6, **options)
    for client in fed.members:
        client.rows["input/embedding"] = client.x[:, :5].repeat(1, 14)[:, :embedding].clone()
        if method.startswith("oracle"):
            client.rows["input/true"] = (client.given + 1) % client.classes
    fed.commit()
    opt, select = registry.optimizer(optimizer, fit), registry.selector(selector, 0.5)
    program = registry.method(method)(fed, model, opt, select, rounds=rounds)
    while True:
        try:
            next(program)
        except StopIteration as done:
            fed.close()
            return fed, done.value


specification = lru_cache(maxsize=1)(partial(run, "sequential"))


def agree(found, expected, tolerance=1e-9):
    """Same weights, labels, memories and refusals."""
    (fed, model), (other, right), close = found, expected, {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(model.weights.cpu(), right.weights, rtol=0, atol=tolerance, check_dtype=False)
    assert fed.rejected == other.rejected and fed.traffic.client_rounds == other.traffic.client_rounds
    assert fed.traffic == other.traffic or model.weights.dtype != right.weights.dtype
    for client, same in zip(fed.members, other.members, strict=True):
        assert torch.equal(client.y, same.y)
        for memory, twin in ((client.rows, same.rows), (client.state, same.state)):
            assert memory.keys() == twin.keys()
            for name, value in memory.items():
                torch.testing.assert_close(torch.as_tensor(value).cpu(), torch.as_tensor(twin[name]), **close)


def equals_sequential(kind, *case, **options):
    """Run a method on an engine, assert the results of `sequential`, and return the engine's notes."""
    engine, dtype, tolerance = KINDS[kind]
    found = run(engine, *case, dtype=dtype, **options)
    agree(found, specification(*case, **options), tolerance)
    return [note for note in found[0].notes if engine in note]


# Variants of methods beside the defaults.
VARIANTS = (
    "coteaching-plus(start=0, agreed=all)",
    "fedlsr(variant=plain, warmup=0)",
    "feddiv(level=0, clean_visits=0, warmup=1, confidence=0.3)",
)


def in_turn(methods, *others, quick):
    """Return the product of `methods` and `others`; all but `quick` rows of each method, in turn, are slow.

    Over all methods, every pair of the other values is among the quick rows.
    """
    rows, product = [], list(itertools.product(*others))
    for i, method in enumerate(methods):
        kept = {(i + k * (len(product) // quick)) % len(product) for k in range(quick)}
        for at, values in enumerate(product):
            rows.append(pytest.param(method, *values, marks=() if at in kept else pytest.mark.slow))
    return rows


# Quick on the fused engine too: compiled client steps, gradient terms, soft labels, pairs, and losses that read features.
# (`fedem`, `akd` and `rofl`, whose turn is on it, are others.)
COMPILED = ("t-revision", "rhfl", "fedcorr", "dividemix")


@pytest.mark.parametrize(
    ("method", "engine", "optimizer", "selector"),
    in_turn((*toy.IN_SESSION, *VARIANTS), ("stacked", "fused"), DRIFTING, SELECTORS, quick=1)
    + [
        pytest.param(*case, "fused-double", "feddyn", "uniform", marks=pytest.mark.slow)
        for case in zip(toy.IN_SESSION, strict=True)
    ]
    + [(method, "fused", "fedprox", "uniform") for method in COMPILED],
)
def test_product(method, optimizer, selector, engine):
    rounds = 6 if method == "fedsir" else 3  # FedSIR begins with three rounds of others
    case = (method, optimizer, selector)
    assert not equals_sequential(engine, *case, rounds=rounds, fit=replace(FIT, epochs=1))  # no note that it fell back


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", ["feddecorr", "scaffold", "fednova", "ditto"])
def test_other_optimizers(optimizer, engine):
    """Those that do something on a client; FedExp, FedAdam and FedYogi are FedAvg there, and their server knows no engine."""
    assert not equals_sequential(engine, "fedavg", optimizer, "uniform", rounds=3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("width", "optimizer"), [(12, "fedprox(mu=0.1)"), (70, "feddyn(alpha=0.1)")])
def test_a_head_is_trained_alike(engine, optimizer, width):
    case, fit = ("akd(above=0.2)", optimizer, "uniform"), Fit(epochs=2, lr=0.1, batch_size=8, momentum=0.5, weight_decay=0.01)
    settings = {"network": lambda: WithHead(mlp(), width), "embedding": width, "fit": fit}
    assert not equals_sequential(engine, *case, **settings)
    start = WithHead(mlp(), width)
    head = torch.cat([p.detach().flatten() for p in start.head.parameters()]).double()
    assert (specification(*case, **settings)[1].weights[-len(head) :] - head).abs().max() > 1e-3  # it did learn


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [
    "feddpcont(epsilon=2, delay=0, length=0)",
    "flr(warmup=0, rates=constant, start=zero, clamp=0.01)",
    "flr-plus(iterations=1, warmup=2)",
    "fedefc(latest=2)",
    "akd(distance=absolute)",
    "akd(source=logits, level=all)",
])  # fmt: skip
def test_every_loss_mixes_alike(method, engine):
    mixup = 0.0 if method.startswith("flr-plus") else 1.0  # flr-plus mixes by its parameter
    equals_sequential(engine, method, "fedavg", "uniform", rounds=3, fit=replace(FIT, mixup=mixup))


NEEDED = {"forward": "forward(transition=symmetric(eta=0.3))", "backward": "backward(transition=pairflip(eta=0.2))"}


# Mixup is a mean of two values of any loss, but compiled cross entropy mixes labels.
@pytest.mark.parametrize(
    ("engine", "name", "mixup"),
    [(engine, name, 0.0) for name in registry.LOSSES for engine in ("stacked", "fused")]
    + [("fused", name, 1.0) for name in ("ce", "smoothing", "gce", "elr")],
)
def test_every_named_loss_trains_alike(name, mixup, engine):
    fit = replace(FIT, loss=registry.loss(NEEDED.get(name, name)), mixup=mixup)
    assert not equals_sequential(engine, "fedavg", "fedprox", "uniform", rounds=2, fit=fit)


def fused_as_sequential(step, network=mlp, dtype=torch.float32, prepare=None, **received):
    """Assert that a round of three small clients on `fused` is sequential's; return the notes of `fused`."""
    ends, limit = [], 1e-4 if dtype == torch.float32 else 1e-9
    for engine in ("sequential", "fused"):
        fed, model = toy.toy(engine, network=network, count=3, dtype=dtype)
        for client in fed.members:
            prepare and prepare(client)
        ends.append(dict(fed.round(range(3), model, step, **received)))
        fed.close()
    torch.testing.assert_close(*ends, rtol=limit / 10, atol=limit)
    return fed.notes


@pytest.mark.parametrize("loss", [kept_cross_entropy, soft_cross_entropy, partial(soft_cross_entropy, kept=True)])
@pytest.mark.parametrize("mixup", [0.0, 1.0])
def test_compiled_targets_and_weights_train_alike(mixup, loss):

    def add_targets(client):
        rng = np.random.default_rng(client.id)
        client.rows["keep"] = torch.from_numpy(rng.random(len(client))).float()
        client.rows["inferred"] = torch.from_numpy(rng.dirichlet(np.ones(client.classes), len(client))).float()

    assert not fused_as_sequential(replace(FIT, loss=loss, mixup=mixup), prepare=add_targets)


def test_features_of_another_width_without_a_head():
    assert not equals_sequential("fused", "akd", "fedavg", "uniform", embedding=5)


# ---- one local training, with everything that Fit can say
class Normed(toy.Net):
    """Batch norm, which looks across a batch, dropout, and the two halves that losses on features ask for."""

    width = 8

    def __init__(self):
        nn.Module.__init__(self)
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.dropout, self.output = Dropout2d(0.3, 1), nn.Linear(8, 4)

    def features(self, x):
        return self.dropout(self.norm(self.conv(x)).relu()).mean((-2, -1))


def federation(engine, sizes, network=Normed, dtype=torch.float64, side=6, classes=4, device="cpu", **options):
    """Return (federation, model) of image clients of given sizes; client 1 has no sample of class 0."""
    rng, inputs = np.random.default_rng(1), Inputs(True, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25), dtype, device)
    clients = []
    for i, n in enumerate(sizes):
        x = torch.from_numpy(rng.integers(0, 256, (n, side, side, 3), dtype=np.uint8))
        y = torch.from_numpy(rng.integers(i == 1, classes, n))
        clients.append(Client(i, x, y.clone(), y, classes, inputs, rows={"marks": torch.zeros(n, 2, dtype=dtype)}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Network(network(), dtype=dtype, device=device)
    return engines.make(engine, clients, net, inputs, min_replies=0.01, **options), Model(net, net.flat.clone())


def everything(logits, batch, *, weight):
    """A loss that reads all that a Batch has and writes a row."""
    away = (logits.softmax(-1) - batch.teacher.softmax(-1)).square().sum(-1) + batch.features.square().mean(-1)
    value = -logits.log_softmax(-1).gather(-1, batch.y[..., None])[..., 0] * (1 + batch.uniform.to(logits.dtype))
    if batch.unmixed is not None:
        mates = batch.unmixed.softmax(-1).gather(-2, batch.partner[..., None].expand_as(batch.unmixed))
        value = value + batch.share[..., None].to(logits.dtype) * (logits.softmax(-1) * mates).sum(-1)
        value = value + batch.unmixed_features.square().mean(-1) * logits.softmax(-1).square().sum(-1)
    marks = batch.rows["marks"] + torch.stack([batch.uniform.to(logits.dtype), away.detach()], -1)
    return value + weight * batch.received["level"][..., None] * away + 0.1 * marks[..., 1], {"marks": marks}


def pull(w, w_start, batch):
    return batch.received["level"][..., None] * (w - w_start) * ~batch.first[..., None] + batch.received["drift"]


FITS = {
    "plain": Fit(epochs=2, batch_size=4, lr=0.1),
    "no momentum": Fit(epochs=2, batch_size=4, lr=0.1, momentum=0.0, weight_decay=0.01, clip=0.3),
    "adam": Fit(epochs=2, batch_size=4, lr=0.01, optimizer="adam", weight_decay=0.01),
    "augmented": Fit(epochs=2, batch_size=4, lr=0.1, augment=Augment(2, True, 3), mixup=1.0),
    "everything": Fit(
        partial(everything, weight=0.5), (pull,), 3, 4, 0.05, 0.9, 0.01, clip=5.0, augment=Augment(1, True), mixup=0.5,
        teacher=True, features=True, uniform=True,
    ),
    "unmixed": Fit(
        partial(everything, weight=0.5), (), 2, 4, 0.05, augment=Augment(1, True), mixup=0.5, teacher=True, features=True,
        uniform=True, unmixed=True,
    ),
    "views": Fit(
        partial(everything, weight=0.5), (), 2, 4, 0.05, augment=Augment(1, True), mixup=0.5, teacher=True, features=True,
        uniform=True, unmixed=True, mixes=True, views=2,
    ),
}  # fmt: skip


EXTRA = {"broadcast": {"drift": torch.tensor(1e-3)}, "scatter": {"level": torch.linspace(0.1, 1, 3)}}


def one_round(fed, model, fit, ids):
    level = torch.linspace(0.1, 1, len(ids)).double()
    replies = fed.round(ids, model, fit, broadcast={"drift": torch.full((), 1e-3)}, scatter={"level": level})
    return replies, [c.rows["marks"] for c in fed.members], [c.rng.random() for c in fed.members if c.rng]


@cache
def sequential_round(fit, sizes, **about):
    return one_round(*federation("sequential", sizes, **about), fit, range(len(sizes)))


def same_round(engine, fit, sizes, limit=1e-9, about=(), **options):
    """Assert that an engine's round is sequential's; return the federation.  `about` has the network and its images."""
    expected = sequential_round(fit, tuple(sizes), **dict(about))
    fed, model = federation(engine, sizes, **dict(about), **options)
    replies, marks, draws = one_round(fed, model, fit, range(len(sizes)))
    assert replies.ids.tolist() == expected[0].ids.tolist() and draws == expected[2]
    torch.testing.assert_close([replies["weights"], *marks], [expected[0]["weights"], *expected[1]], rtol=0, atol=limit)
    return fed


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_a_cohort_of_odd_sizes_equals_its_clients_one_by_one(fit, monkeypatch):
    """One sample, fewer than a batch, whole batches only, one over, none at all; no step mixes devices."""
    taken = check_steps(monkeypatch)
    assert not same_round("stacked", fit, [9, 1, 4, 3, 13, 8, 0]).notes and taken


def test_a_batch_larger_than_all_clients_is_the_whole_client():
    same_round("stacked", FITS["plain"].changed(batch_size=10**12), [9, 2, 4])


def test_chunks_change_nothing():
    same_round("stacked", FITS["everything"], [9, 2, 4, 3, 13], at_once=2)


@pytest.mark.parametrize("mixes, evaluations", [(False, 4), (True, 2)])
def test_a_loss_that_mixes_the_targets_itself_is_evaluated_once_in_a_step(mixes, evaluations):
    seen = []

    def counted(logits, batch):
        seen.append(batch.y)
        return -logits.log_softmax(-1)[..., 0]

    fit = Fit(counted, epochs=1, batch_size=4, mixup=0.5, mixes=mixes)
    one_round(*federation("sequential", [8]), fit, [0])
    assert len(seen) == evaluations


def moody(logits, batch):
    """A loss that takes for granted to see one client."""
    samples, _ = logits.shape
    return (1 + samples) * -logits.log_softmax(-1)[torch.arange(samples), batch.y]


def test_losses_that_cannot_be_stacked_run_client_by_client_with_a_note():
    fed = same_round("stacked", FITS["plain"].changed(loss=moody), [9, 2, 4])
    assert len(fed.notes) == 1 and "moody cannot be stacked" in fed.notes[0]


class Recurrent(torch.nn.Module):
    """A GRU, which torch cannot stack."""

    def __init__(self):
        super().__init__()
        self.memory, self.output = torch.nn.GRU(2, 3, batch_first=True), torch.nn.Linear(3, toy.CLASSES)

    def forward(self, x):
        return self.output(self.memory(x.unflatten(1, (-1, 2)))[0][:, -1])


def test_a_network_that_cannot_be_stacked_is_named():
    fed, model = toy.toy("stacked", network=Recurrent, count=3)
    fed.round([0, 1], model, FITS["plain"])
    (note,) = fed.notes
    assert note.startswith("stacked: GRU of the network Recurrent cannot be stacked"), note


def transformer():
    """A layer of a transformer over four tokens of two features, with dropout in its attention."""
    layer = nn.TransformerEncoderLayer(2, 1, 4, dropout=0.3, batch_first=True)
    return replace_dropout(nn.Sequential(nn.Unflatten(1, (4, 2)), layer, nn.Flatten(), nn.Linear(toy.FEATURES, toy.CLASSES)))


@pytest.mark.parametrize("device", ["mps", "cuda", "cuda:9", "gpu"])
def test_a_device_that_is_not_here_is_refused_with_those_that_are(device, noisy, tmp_path):
    from fnlkit.models import devices

    if device in devices.available():
        pytest.skip("is available here")
    done = fnlkit(f"fnlkit train {noisy} --rounds 1 --device {device} -o run.pt", tmp_path)
    assert done.returncode == 2 and len(done.stderr) < 200, done.stderr
    assert f"--device {device}: not available here; write auto or one of: cpu" in done.stderr


# ---- a GPU's recordings, played by the CPU
@pytest.fixture
def recorded(monkeypatch):
    return stand_in(monkeypatch)


def equal_rounds(slow, fast, fits, cohorts):
    """Rounds of two federations, alike to 1e-9 in weights, rows and draws."""
    for fit, ids in zip(fits, cohorts, strict=True):
        (replies, marks, draws), wanted = (one_round(*each, fit, ids) for each in (fast, slow))
        torch.testing.assert_close(replies["weights"].cpu(), wanted[0]["weights"], rtol=0, atol=1e-9)
        for found, right in zip(marks, wanted[1], strict=True):
            if fit.views == 1:  # two views of a sample write one row, in no order
                torch.testing.assert_close(found.cpu(), right, rtol=0, atol=1e-9)
        assert draws == wanted[2]


# Forms are compared for a fit with all inputs of a loss; the other fits differ in all forms by the same operations.
RECORDINGS = [(name, "stack") for name in ("plain", "adam", "views")] + [("everything", form) for form in FORMS]
RECORDINGS += [
    pytest.param(name, form, marks=pytest.mark.slow) for name in FITS for form in FORMS if (name, form) not in RECORDINGS
]


@pytest.mark.parametrize(("fit", "form"), RECORDINGS)
def test_recordings_stay_right_when_other_clients_move_in(recorded, fit, form, monkeypatch):
    fit = FITS[fit]
    monkeypatch.setattr("fnlkit.federated.engines.graphs.ways", lambda training: (form,))
    sizes = [9, 1, 4, 3, 6, 8]
    slow, fast = (federation(engine, sizes) for engine in ("sequential", "stacked"))
    equal_rounds(slow, fast, [fit.changed(lr=rate) for rate in (0.1, 0.05)], ([0, 1, 4], [2, 5, 3]))
    assert set(recorded) == {form} and not fast[0].notes and len(fast[0].engine.graphs.recorded) == 1


@pytest.mark.parametrize("name", ["plain", "adam"])
def test_copies_in_bfloat16_follow_the_weights(recorded, name, monkeypatch):
    """Products read a copy of the weights: other clients, recorded steps and later rounds must not read an old copy."""
    monkeypatch.setattr("fnlkit.federated.engines.graphs.ways", lambda training: ("products",))
    ends = []
    for engine in ("sequential", "stacked"):
        fed, model = federation(engine, [9, 1, 4, 3, 13, 8], dtype=torch.float32)
        fed.network.precision = "bf16"
        for ids in ([0, 1, 4], [2, 5, 3], [0, 4, 5]):
            model = model.with_weights(fed.round(ids, model, FITS[name])["weights"].mean(0))
        ends.append(model.weights)
        assert not fed.notes
    assert set(recorded) == {"products"}
    start = federation("sequential", [1], dtype=torch.float32)[1].weights
    assert (ends[1] - ends[0]).norm() < 0.05 * (ends[0] - start).norm()


def test_the_network_selects_the_form_of_the_cuda_graph(recorded, monkeypatch):
    for wide, form in ((1e6, "stack"), (1, "branches")):
        monkeypatch.setattr("fnlkit.federated.engines.graphs.WIDE", wide)
        assert not same_round("stacked", FITS["plain"], [9, 2, 4]).notes
        assert set(recorded) == {form}
        recorded.clear()
    fed, model = federation("stacked", [9, 2, 4], dtype=torch.float32)
    fed.network.precision = "bf16"
    fed.round(range(3), model, FITS["plain"])
    assert set(recorded) == {"products"} and not fed.notes


def test_a_failed_recording_falls_back_to_the_other_form_with_a_note(recorded, monkeypatch):
    record = Graphs._record

    def fails(self, training, plain, before):
        if training.forward.form == "stack":
            plain()  # what it did is undone
            raise RuntimeError("no kernel for it")
        return record(self, training, plain, before)

    monkeypatch.setattr(Graphs, "_record", fails)
    fed = same_round("stacked", FITS["plain"], [9, 2, 4])
    assert fed.notes == ["stacked: recorded as branches, not as stack (no kernel for it)"]
    assert set(recorded) == {"branches"}


def test_a_recording_that_differs_is_not_trusted(recorded, monkeypatch):
    monkeypatch.setattr(Graphs, "_capture", lambda self, warm, plain: Tape())
    fed = same_round("stacked", FITS["everything"], [9, 2, 4])
    assert "from the plain step" in fed.notes[-1] and "launched one by one" in fed.notes[-1]
    assert not fed.engine.graphs.recorded


def weighed(logits, batch, weight=None, by=1.0):
    """Cross entropy times a number that is bound to it, and a weight for each class."""
    values = by * cross_entropy(logits, batch)
    return values if weight is None else values * weight[batch.y]


def test_a_loss_with_other_constants_is_another_recording(recorded):
    heavy = [torch.full((5,), 1.0 + 1e-6 * k, dtype=torch.float64) for k in (0, 5e5)]
    fits = [FITS["plain"].changed(loss=loss) for loss in (partial(weighed, by=5.0), partial(weighed, weight=heavy[0]),
                                                          partial(weighed, weight=heavy[1]), weighed)]  # fmt: skip
    slow, fast = (federation(engine, [9, 4, 4]) for engine in ("sequential", "stacked"))
    equal_rounds(slow, fast, fits, [[0, 1, 2]] * 4)
    assert len(fast[0].engine.graphs.recorded) == 4 and not fast[0].notes


def test_a_step_that_is_wrong_in_itself_does_not_end_recordings(recorded):
    def wrong(logits, batch):
        raise ValueError(f"labels {batch.y.shape}")

    fed, model = federation("stacked", [9, 4, 4])
    refuse_call("", fed.round, [0, 1, 2], model, FITS["plain"].changed(loss=wrong), error=TooManyLost)
    assert not fed.engine.graphs.broken and not fed.engine.graphs.recorded and not any("labels" in note for note in fed.notes)
    recorded.clear()
    fed.round([0, 1, 2], model, FITS["plain"])
    assert recorded and fed.engine.graphs.recorded


def test_a_cohort_that_does_not_fit_is_let_go_before_halves_are_tried(recorded, monkeypatch):
    alive, train = weakref.WeakSet(), StackedTraining.train

    def short(self, step=None):
        assert not alive, "what did not fit is still there"
        if len(self.clients) > 1:
            alive.add(self)
            raise torch.OutOfMemoryError("no memory")
        return train(self, step)

    monkeypatch.setattr(StackedTraining, "train", short)
    fed = same_round("stacked", FITS["plain"], [9, 2, 4])
    assert not fed.engine.graphs.broken and "2 clients at once do not fit" in " ".join(fed.notes)


# ---- the compiled engine
IMAGES = pytest.mark.parametrize(("name", "dtype"), [
    ("lenet5", torch.float32), ("mlp", torch.float32),
    *(pytest.param(name, torch.float64, marks=pytest.mark.slow) for name in ("lenet5", "mlp")),
])  # fmt: skip


@IMAGES
@pytest.mark.parametrize("fit", [FITS["plain"], FITS["augmented"], FITS["adam"]], ids=["plain", "augmented", "adam"])
def test_fused_images(name, fit, dtype):
    network = partial(build, name, input_shape=(3, 32, 32), classes=10)
    both = [federation(e, [9, 1, 13], network, dtype, side=32, classes=10) for e in ("sequential", "fused")]
    fit = fit.changed(batch_size=5)
    expected, found = (fed.round(range(3), model, fit)["weights"] for fed, model in both)
    # Adam divides a gradient by its own size, so that one which is nothing but rounding still moves its weight by the rate.
    away = (~((found - expected).abs() <= (1e-4 if dtype == torch.float32 else 1e-9))).double().mean()
    assert away <= (1e-4 if dtype == torch.float32 and fit.optimizer == "adam" else 0)
    (slow, model), (fast, _) = both
    x = torch.cat([c.x for c in slow.members])
    torch.testing.assert_close(fast.predict(found[0], x), slow.predict(found[0], x), rtol=1e-5, atol=1e-5)
    assert not fast.notes
    fast.close()


@IMAGES
@pytest.mark.parametrize("drift", ["fedprox(mu=0.3)", "feddyn(alpha=0.1)", "scaffold", "ditto", adaptive_proximal_norm])
def test_fused_drift_terms(drift, name, dtype):
    """Two rounds, so that dual variables and control variates are not zero."""
    fit = Fit(epochs=1, batch_size=5, lr=0.02, momentum=0.5, weight_decay=0.01, augment=Augment(2, True, 3), mixup=1.0)
    network, ends = partial(build, name, input_shape=(3, 32, 32), classes=10), []
    more = {"corrections": (drift,), "scatter": {"proximal": np.array([0.1, 0.5, 0.0])}} if callable(drift) else {}
    for engine in ("sequential", "fused"):
        fed, model = federation(engine, [9, 1, 13], network, dtype, side=32, classes=10)
        opt = registry.optimizer("fedavg" if more else drift, fit)
        for _ in range(2):
            model, _ = opt.round(fed, range(3), model, **more)
        assert not fed.notes
        fed.close()
        ends.append(model.weights)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-4 if dtype == torch.float32 else 1e-9)


def test_the_distance_of_a_pair_is_that_of_both_networks():
    fit = Fit(epochs=2, lr=0.1, batch_size=8, corrections=(adaptive_proximal_norm,))
    strengths = {"proximal": torch.tensor([0.1, 0.5, 0.0])}
    assert not fused_as_sequential(fit, lambda: Pair(mlp(), mlp()), torch.float64, scatter=strengths)


def jittered(logits, batch):
    """A loss that draws from torch's generator."""
    return cross_entropy(logits, batch) * (1 + torch.rand(batch.y.shape))


@pytest.mark.parametrize("engine", ["sequential", "stacked", "fused"])
def test_a_loss_that_draws_from_torch_is_repeated_by_the_same_run(engine):
    ends = []
    for _ in range(2):
        fed, model = toy.toy(engine, network=mlp, count=3)
        ends.append(fed.round(range(3), model, FIT.changed(loss=jittered))["weights"])
        fed.close()
    assert torch.equal(*ends)


@pytest.mark.parametrize("kind", [torch.int16, torch.bool])
def test_whole_numbers_train_alike(kind):
    def convert(client):
        client.samples = client.samples.to(kind)

    assert not fused_as_sequential(FIT, dtype=torch.float64, prepare=convert)


def test_fused_refuses_unknown_networks():
    refuse_call("fused knows lenet5 and mlp", federation, "fused", [3])


def test_a_loss_of_a_single_client_trains_in_the_plain_loop_on_fused():
    (note,) = fused_as_sequential(FIT.changed(loss=moody))
    assert "moody cannot be stacked" in note


@pytest.mark.parametrize("name", ["no momentum", "everything", "unmixed", "views"])
@pytest.mark.parametrize(
    ("network", "dtype"), [("mlp", torch.float32), pytest.param("lenet5", torch.float64, marks=pytest.mark.slow)]
)
def test_a_compiled_network_serves_all_that_a_loss_reads(network, dtype, name):
    """A loss, a correction and clipping of a user: nothing but the passes through the network is compiled."""
    about = {"network": partial(build, network, input_shape=(3, 28, 28), classes=4), "dtype": dtype, "side": 28}
    limit = 2e-4 if dtype == torch.float32 else 1e-9
    fed = same_round("fused", FITS[name], [9, 1, 4, 3, 13, 8], limit, about)
    assert not fed.notes
    fed.close()


def _looks(client, model, received):
    return {"features": model.features(client.x).sum(0), "logits": model(client.x).sum(0)}


def test_a_users_step_on_fused_may_use_features():
    assert not fused_as_sequential(_looks)


def test_sigterm_ends_a_users_step_that_hangs_on_fused():
    class Ended(BaseException):
        pass

    def end(*_):
        raise Ended

    released = threading.Event()
    fed, model = toy.toy("fused", network=mlp, count=4)
    before, timer = signal.signal(signal.SIGTERM, end), threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        refuse_call("", fed.round, range(4), model, lambda client, model, received: released.wait(), error=Ended)
        fed.rollback()
        fed.close()
        assert not released.is_set()
    finally:
        timer.join()
        released.set()
        signal.signal(signal.SIGTERM, before)


dropping = partial(build, "tests.models.test_models:dropping", input_shape=(toy.FEATURES,), classes=toy.CLASSES)


@pytest.mark.parametrize("network", [transformer, dropping], ids=["transformer", "user"])
@pytest.mark.parametrize("engine", ["stacked", pytest.param("workers", marks=pytest.mark.slow)])
def test_dropout_draws_alike_on_every_engine_and_otherwise_for_each_client_and_round(engine, network):
    ends = []
    for name in ("sequential", "sequential", engine):
        fed, model = toy.toy(name, network=network, count=3, **({"workers": 1} if name == "workers" else {}))
        ends.append([fed.round(range(3), model, FIT)["weights"] for _ in range(2)])
        fed.close()
    (first, second), again, found = ends
    assert torch.equal(first, again[0]) and not torch.equal(first[0], first[1]) and not torch.equal(first, second)
    torch.testing.assert_close(found, [first, second], rtol=1e-9, atol=1e-9)


# ---- the choice
def test_auto_prints_the_chosen_engine():
    fed, _ = toy.toy("auto", network=mlp)
    assert fed.engine.name == "fused" and fed.notes == ["engine fused: mlp on the CPU has compiled training"]
    fed, _ = toy.toy("auto")
    assert fed.engine.name == "sequential" and "212 weights" in fed.notes[0]
    fed, _ = toy.toy("auto", network=lambda: Pair(mlp(), mlp()))
    assert fed.engine.name == "fused" and fed.notes == ["engine fused: a pair of mlp on the CPU has compiled training"]
    refuse_call("did you mean 'stacked'", toy.toy, "staked")


def test_auto_starts_processes_where_they_pay(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    about = {"device": torch.device("cpu"), "precision": "", "module": torch.nn.Identity()}
    network = SimpleNamespace(**about, parameters_count=200_000)
    assert engines.choose(network, []) == ("workers", "one process on each of 3 cores")
    assert engines.choose(network, [], workers=2) == ("workers", "2 processes")
    assert engines.choose(network, [], workers=1) == ("sequential", "one worker is this process")
    network.parameters_count -= 1
    assert engines.choose(network, []) == ("sequential", "199,999 weights on 3 cores")


def test_options_of_another_engine_are_ignored_with_a_note_if_the_engine_was_named():
    assert "`at_once` is for the engine stacked; sequential ignores it" in toy.toy("sequential", at_once=3)[0].notes
    automatic = toy.toy("auto", at_once=3)[0]
    assert automatic.engine.name == "sequential" and not any("at_once" in note for note in automatic.notes)


# ---- precision
@pytest.mark.parametrize("engine", ["sequential", "stacked", pytest.param("workers", marks=pytest.mark.slow)])
def test_bf16_computes_coarsely_on_float32_weights(engine):
    """Masters stay float32, and what is lost is the third digit; layouts and processes change nothing more."""
    exact, model = federation("sequential", [9, 4, 6], dtype=torch.float32)
    right = exact.round(range(3), model, FITS["everything"], **EXTRA)["weights"]
    fed, model = federation(engine, [9, 4, 6], dtype=torch.float32, **({"workers": 1} if engine == "workers" else {}))
    fed.network.precision = "bf16"
    found = fed.round(range(3), model, FITS["everything"], **EXTRA)["weights"]
    fed.close()
    away = (found - right).norm() / (right - model.weights).norm()
    assert found.dtype == torch.float32 and 1e-5 < away < 0.1


def test_auto_takes_an_engine_that_computes_in_bf16(tmp_path):
    runs = {}
    for precision in ("fp32", "bf16"):
        line = f"fnlkit train noisy.npz --rounds 1 --precision {precision} -o {precision}.pt"
        done = succeed(f"fnlkit partition --clients 10 -o noisy.npz && {line}", tmp_path)
        runs[precision] = Run.read(str(tmp_path / f"{precision}.pt"))
    assert "engine stacked" in done.stderr
    away = (runs["bf16"].weights - runs["fp32"].weights).norm() / runs["fp32"].weights.norm()
    assert 1e-5 < away < 0.1 and runs["bf16"].settings["precision"] == "bf16"
    refuse(f"{line} --engine fused", tmp_path, "--precision", "--engine")
