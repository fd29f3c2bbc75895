"""Assembly of an experiment: samples, network, scale, clients, optimizer and method from the settings."""

import hashlib
import os
from collections.abc import Generator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from fnlkit.artifacts import key as keys
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.stored import Changed, Rows, blocks
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import arguments_of
from fnlkit.datasets.dataset import Dataset, must_be
from fnlkit.datasets.groups import assign_folds, of_federation
from fnlkit.encoders.embed import embed
from fnlkit.experiment.augmentation import augmentation
from fnlkit.experiment.network import build_network
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.references import arrange
from fnlkit.experiment.scale import Scale, scale_of, unscaled
from fnlkit.federated import engines
from fnlkit.federated.client.client import ClientList
from fnlkit.federated.client.inputs import Inputs, intake
from fnlkit.federated.client.losses.parts import suits
from fnlkit.federated.client.network import Model, Network, looks_up
from fnlkit.federated.client.scaling import statistics_bytes
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.aggregation import too_few
from fnlkit.federated.server.clients import Clients, Public
from fnlkit.federated.server.selection import average_for
from fnlkit.federated.types import FedOpt, Round
from fnlkit.kernels.streams import derive_key


# ---- samples
class TrainingData(NamedTuple):
    """A federation and the samples of a data set, in the form that a run trains on.

    Attributes
    ----------
    federation : fnlkit.artifacts.federation.Federation
        With a single client if the method pools all samples.
    dataset : fnlkit.datasets.Dataset
    train, test : array (n, ...)
        Samples in the format of the networks.
    shape : tuple of int
        Shape of a network's input.
    image : bool
    rows : dict of str to array (n, ...)
        Additional rows for clients: ``input/true``, ``input/embedding``, ``input/received``.
    embedding : str or None
        SHA-256 of the embeddings.
    notes : list of str
    """

    federation: Federation
    dataset: Dataset
    train: np.ndarray | Rows
    test: np.ndarray | Rows
    shape: tuple[int, ...]
    image: bool
    rows: dict[str, Any]
    embedding: str | None
    notes: list[str]


def training_data(
    federation: Federation, dataset: Dataset, plan: Plan, embeddings: np.ndarray | Rows | None = None
) -> TrainingData:
    """Prepare the samples of a federation and a data set for training.

    Raises
    ------
    InputError
        If they do not belong together, or the method or an option requires data that they lack.
    """
    if len(federation.client_offsets) < 2:
        raise InputError("the federation has no clients yet; pipe it through `fnlkit partition -` first")
    notes = [must_be(dataset, federation.meta, len(federation.given), what="the federation")]
    method, needs = plan.method, plan.needs
    digest = None
    federation, rows = arrange(federation, needs, str(method.spec))
    if plan.settings.memorization and federation.true is None:
        raise InputError(f"requires true labels, but {dataset.name} declares none; omit it", parameter="memorization")
    if "embedding" in needs:
        vectors, note = embedding_rows(embeddings, federation, dataset, str(method.spec))
        rows["input/embedding"] = vectors
        digest = digest_of_rows(vectors)
        notes.append(note)
        if (groups := of_federation(federation)) is not None:
            rows["input/group"] = groups
    if "received" in federation.extra:  # releases refer to the labels as received, which were corrected since then
        rows["input/received"] = np.asarray(federation.extra["received"], np.int64)
    if "samples" in needs:
        rows["input/sample"] = shared_samples(federation, str(method.spec))
    if "folds" in needs:
        rows["input/fold"] = assign_folds(federation, arguments_of(method.run)["folds"], plan.settings.seed)
    train, test, shape, image = intake(dataset)
    return TrainingData(federation, dataset, train, test, shape, image, rows, digest, [note for note in notes if note])


def shared_samples(federation: Federation, method: str) -> np.ndarray:
    """Number the sample of each row (n,) int64, without gaps over the clients.

    Raises
    ------
    InputError
        If no sample belongs to two clients.
    """
    indices, clients = np.asarray(federation.client_indices), len(federation)
    sample = np.asarray(federation.extra.get("sample_of", np.arange(len(federation.given))))[indices]
    names, number = np.unique(sample, return_inverse=True)
    owner = np.repeat(np.arange(clients), np.diff(federation.client_offsets))
    if len(np.unique(number * clients + owner)) == len(names):
        raise InputError(
            f"{method} combines labels of the same sample, but no sample belongs to several clients; make annotators clients "
            "with `fnlkit.partition(scheme='annotators')`, or omit `combine`"
        )
    sample_numbers = np.zeros(len(federation.given), np.int64)
    sample_numbers[indices] = number
    return sample_numbers


def embedding_rows(
    embeddings: np.ndarray | Rows | None, federation: Federation, dataset: Dataset | None, method: str
) -> tuple[np.ndarray | Rows, str | None]:
    """Prepare embeddings (float32 (n, D), note): the given ones, or principal components with a note."""
    note = None
    if embeddings is None:
        assert dataset is not None  # one of both is given
        dim = min(64, len(dataset.x_train), int(np.prod(np.shape(dataset.x_train)[1:])))
        embeddings = embed(dataset, f"pca(dim={dim})" if dataset.kind != "wave" else "pca")
        note = (
            f"{method} compares samples by an embedding; no `embeddings` were given, so it uses {embeddings.shape[1]} "
            "principal components of the samples, which are far worse than a pretrained network"
        )
    if not isinstance(embeddings, Rows):
        embeddings = np.ascontiguousarray(embeddings)
    if embeddings.ndim != 2 or len(embeddings) != len(federation.given) or embeddings.dtype.kind not in "fiub":
        form = f"{embeddings.shape} of type {embeddings.dtype}"
        raise InputError(f"the embeddings are {form}; expected one vector of numbers for {len(federation.given):,} samples")
    if embeddings.dtype != np.float32:
        embeddings = Changed(embeddings, _singles) if isinstance(embeddings, Rows) else _singles(embeddings)
    return embeddings, note


def _singles(rows):
    return rows.astype(np.float32)


def digest_of_rows(rows: np.ndarray | Rows) -> str:
    """Compute the SHA-256 of an array's bytes."""
    total = hashlib.sha256()
    for a, b in blocks(rows):
        total.update(np.ascontiguousarray(rows[a:b]).data)
    return total.hexdigest()


def labels_of_clients(federation: Federation) -> dict[str, Any]:
    """Collect the labels and clients of a release in the form of fnlkit.artifacts.ledger."""
    return {"given": federation.given, "offsets": federation.client_offsets, "indices": federation.client_indices}


# ---- network and inputs
def network_of(data: TrainingData, plan: Plan, device: str) -> tuple[Network, int]:
    """Build the network of a run, with initial weights, and the width of the second output that the method needs (or 0)."""
    settings = plan.settings
    build = partial(
        build_network,
        settings.model,
        input_shape=data.shape,
        classes=data.federation.classes,
        seed=settings.seed,
        kind=data.dataset.kind,
        pair="pair" in plan.needs,
        precision=settings.precision,
        device=device,
    )
    network = build()
    if settings.precision == "tf32" and str(network.device) == "cpu":
        raise InputError("tf32 requires a GPU; write fp32, fp64 or bf16", parameter="precision")
    head = _head_width(network, data.rows["input/embedding"].shape[1], settings) if "head" in plan.needs else 0
    return (build(head=head) if head else network), head


def _head_width(network, size, settings):
    """Width of the head for an embedding of `size`: 0 if the network's features already have it."""
    width = getattr(network.module, "width", None)
    if width is None:
        raise InputError(f"{settings.method} requires a network with features, classify and width; {settings.model} lacks them")
    return 0 if width == size else size


# ---- clients
def clients_of(
    data: TrainingData,
    network: Network,
    plan: Plan,
    engine: str,
    engine_options: dict[str, Any],
    scale: Scale | None = None,
) -> Clients:
    """Open a session with all clients of a run.

    Parameters
    ----------
    data : TrainingData
    network : fnlkit.federated.client.network.Network
    plan : fnlkit.experiment.plan.Plan
    engine : str
    engine_options : dict
    scale : Scale or None
        Scale of the samples. Default: published statistics, or statistics that the clients send.
    """
    federation, settings, sends = data.federation, plan.settings, plan.sends
    notes = [*data.notes, _single_client_rounds(plan, len(federation))]
    if scale is None and getattr(network.module, "raw_images", False):
        scale = unscaled(data.shape[0] if data.image else 0)
    if scale is None:
        tokens = data.dataset.kind == "vector" and looks_up(network.module)
        scale = scale_of(federation, data.dataset, data.train, settings.standardize, tokens=tokens)
    if scale.from_clients and data.dataset.kind == "vector":
        notes.append(
            "vectors are scaled by feature: each client sent count, sum and sum of squares of its samples once "
            "(`standardize='none'` does not scale)"
        )
    inputs = Inputs(data.image, scale.mean, scale.std, network.dtype, str(network.device))
    up, down = statistics_bytes(len(federation), len(scale.mean))
    members = ClientList(
        data.train,
        federation.client_offsets,
        federation.client_indices,
        federation.given,
        federation.classes,
        inputs,
        rows=data.rows,
        reviewed=federation.extra.get("reviewed"),
    )
    # Masked updates cannot be compared.
    ratio = 0.0 if plan.protection is not None else settings.max_update_ratio
    limits = {"seed": settings.seed, "min_replies": settings.min_replies, "max_update_ratio": ratio}
    clients = engines.make(engine, members, network, inputs, **limits, **engine_options)
    if "public" in plan.needs:
        clients.public = _public_set(data, settings.method)
    if "input/sample" in data.rows:
        clients.shared = int(data.rows["input/sample"].max()) + 1
    clients.sends = sends
    clients.protect = "" if plan.protection is None else settings.protect
    if scale.from_clients:
        clients.count_traffic("moments", up=up, down=down)
        clients.commit()
    for note in filter(None, notes):
        clients.note(note)
    return clients


def check_key(plan: Plan, given: str | os.PathLike[str] | bytes | None) -> None:
    """Raise InputError if `share_key` cannot use the bytes or the existing file; before clients send anything."""
    needed = "secret" in plan.needs
    if needed and isinstance(given, bytes) and len(given) != 32:
        raise InputError(f"has {len(given)} bytes; give 32, or the path of a file", parameter="privacy_key")
    if needed and isinstance(given, (str, os.PathLike)) and os.path.lexists(path := os.path.abspath(os.path.expanduser(given))):
        keys.read_or_draw(path)


def share_key(data: TrainingData, plan: Plan, clients: Clients, given: str | os.PathLike[str] | bytes | None) -> str:
    """Read the key of a run, or create the file if it is missing, and derive the secret of its clients.

    Only a run that draws for privacy has a key. It is the last part of a run, because a refused run must create no file.

    Parameters
    ----------
    data : TrainingData
    plan : fnlkit.experiment.plan.Plan
    clients : Clients
    given : str, os.PathLike, bytes or None
        A file, or 32 bytes. None: a simulation, whose draws follow from the seed.

    Returns
    -------
    str
        Fingerprint, which identifies the key without revealing it; "" in a simulation, and for a run without such draws.
    """
    if "secret" not in plan.needs:
        return ""
    if isinstance(given, bytes):
        secret = given
    elif given is None:
        secret = hashlib.sha256(f"simulation {plan.settings.seed}".encode()).digest()
        clients.note(
            "draws for privacy follow from the seed: this simulation protects nobody; write `privacy_key=FILE` to publish"
        )
    else:
        path = os.path.abspath(os.path.expanduser(given))
        secret = keys.read_or_draw(path)
        clients.note(
            f"draws for privacy depend on the secret key in {path}: keep it secret; without it the run cannot be repeated"
        )
    arrays = (np.asarray(values, np.int64) for values in labels_of_clients(data.federation).values())
    clients.members.secret = derive_key(secret, "labels", data.dataset.checksum, plan.settings.seed, *arrays)
    clients.members.forget()  # the engine can have made a client without the secret
    return "" if given is None else keys.fingerprint(secret)


def _single_client_rounds(plan, clients):
    """Note that a round selects only one of several clients; empty if it selects more."""
    if clients < 2 or plan.cohort_of(clients) > 1:
        return ""
    return (
        f"`fraction` {plan.settings.fraction:g} of {clients} clients is one client per round: its model becomes the next "
        f"global model without averaging; `fraction={min(1, 5 / clients):g}` selects {min(5, clients)} clients"
    )


def _public_set(data, method):
    """Collect the public set: the samples that belong to no client."""
    federation = data.federation
    positions = np.setdiff1d(np.arange(len(federation.given)), federation.client_indices)
    if "holdout_client" in federation.extra:  # held-out samples belong to a client
        positions = positions[np.asarray(federation.extra["holdout_client"])[positions] < 0]
    if not len(positions):
        raise InputError(
            f"{method} requires public samples, but every sample belongs to a client; make the federation with "
            "`fnlkit.partition(public=0.1)`, which assigns a tenth of the samples to no client"
        )
    labels = np.asarray(federation.given, np.int64)[positions]
    return Public(torch.from_numpy(np.ascontiguousarray(data.train[positions])), torch.from_numpy(labels))


# ---- optimizer and method
def optimizer_of(plan: Plan, data: TrainingData, select: Any, network: Network, cohort: int) -> FedOpt:
    """Make the federated optimizer of a run.

    Parameters
    ----------
    plan : fnlkit.experiment.plan.Plan
    data : TrainingData
    select : selector
    network : fnlkit.federated.client.network.Network
    cohort : int
        Clients of a round.

    Raises
    ------
    InputError
        If loss, optimizer or aggregator do not fit the classes, the network or the cohort.
    """
    settings = plan.settings
    fit = Fit(
        loss=plan.loss,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        optimizer=settings.client_optimizer,
        clip=settings.clip,
        augment=augmentation(settings.augment, data.dataset.kind, data.dataset.x_train.shape[1:]),
        mixup=settings.mixup,
    )
    protected = {"protect": plan.protection} if plan.protection else {}
    opt = plan.make_optimizer(fit, aggregate=plan.aggregator, schedule=plan.schedule_over(settings.rounds), **protected)
    average_for(select, opt)
    suits(plan.loss, data.federation.classes)
    if must_suit := getattr(opt, "suits", None):  # a user's optimizer does not have to define it
        must_suit(network)
    if refusal := too_few(plan.aggregator, cohort):
        raise InputError(refusal)
    return opt


def program_of(plan: Plan, clients: Clients, model: Model, opt: FedOpt, select: Any) -> Generator[Round, None, Model]:
    """Start the method: the generator of its rounds."""
    program = plan.method.run(clients, model, opt, select, rounds=plan.settings.rounds)
    if not isinstance(program, Generator):
        kind = type(program).__name__
        raise InputError(f"method {plan.method.spec}: returned {kind}; a method is a generator that yields Round")
    return program
