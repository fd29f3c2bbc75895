"""Inputs of an estimator: labels, embeddings, predicted probabilities, model; computed on first use."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts.exchange import Traffic
from fnlkit.artifacts.stored import Chosen, Rows, blocks
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset, must_be
from fnlkit.datasets.groups import of_federation
from fnlkit.encoders.embed import embed
from fnlkit.estimators.defaults import EstimateOptions
from fnlkit.estimators.folds import fold_of, heads_predict, predict_by_heads
from fnlkit.estimators.intervals import wilson
from fnlkit.experiment.scale import Scale, scale_of
from fnlkit.federated.client.scaling import statistics_bytes
from fnlkit.kernels.scores import effective_size

if TYPE_CHECKING:
    import torch


# With more values per sample than this, distances between pixels are expensive and carry little information.
MOST_PIXELS = 64
# Evidence is void only if it gains less than this share of the agreement that chance leaves to gain, by its 95 % interval.
USEFUL = 0.1


class EstimatorInputs:
    """The labels of a federation and the available evidence about its samples.

    Parameters
    ----------
    federation, dataset
        As in `fnlkit.estimators.estimate`.
    groups : int64 (n,), optional
        Of all training samples, if the caller has looked them up.
    apart : bool (m,), optional
        Held-out samples of the clients, which no cross-validated model trains on.
    **options
        Fields of `fnlkit.estimators.EstimateOptions`.

    Attributes
    ----------
    labels : int64 (m,)
        Given labels of the clients' samples, client by client.
    offsets : int64 (N + 1,)
    positions : int64 (m,)
        The samples' positions in the training set.
    groups : int64 (m,) or None
        Samples with equal numbers belong together (fnlkit.datasets.groups).
    classes, seed : int
    federated : bool
        Whether all evidence is computed at the clients (fnlkit.estimators.federated).
    chosen : bool
        Whether the user chose an option of a training, an engine or a device.
    training : dict of str to value
        Settings of the models of the estimate; empty if none was trained.
    traffic : fnlkit.artifacts.exchange.Traffic
        Data exchanged between clients and server so far.
    name : str
        Of the estimator.
    sends : dict of str to fnlkit.core.declarations.Sent, or None
        Replies that can leave clients; None allows all names until they are counted.
    replies : list of dict
        The clients' replies to the steps of `fnlkit.estimators.federated.ClientSession`, in order.
    """

    def __init__(self, federation, dataset, *, apart=None, groups=None, **options):
        options = EstimateOptions(**options)
        if len(federation) < 1:
            raise InputError("the federation has no clients yet; pipe it through `fnlkit partition -` first")
        self.federation = federation
        self.classes = int(federation.classes)
        self.seed = options.seed
        self.positions = np.asarray(federation.client_indices, np.int64)
        self.offsets = np.asarray(federation.client_offsets, np.int64)
        self.labels = np.asarray(federation.given, np.int64)[self.positions]
        groups = of_federation(federation) if groups is None else groups
        self.groups = None if groups is None else groups[self.positions]
        self.apart = np.zeros(len(self.labels), bool) if apart is None else np.asarray(apart, bool)
        self.run = options.run
        self.warm_up = options.warm_up
        self.chosen = bool(options.warm_up) or (options.engine, options.device) != ("auto", "auto")
        self.engine = options.engine
        self.device = options.device
        self.say = options.say or (lambda text: None)
        self.progress = options.progress or (lambda done, total, what: None)
        self._dataset = dataset
        self._embeddings = options.embeddings
        self._probabilities = options.probabilities
        self._checked, self._scale = False, None
        self.federated = options.form == "federated"
        self.training: dict[str, Any] = {}
        self.traffic = Traffic()
        self.replies = []
        self.sends = None
        self.name = ""

    @property
    def dataset(self) -> Dataset:
        """The data set, loaded on first use and checked against the federation."""
        if callable(self._dataset):
            self._dataset = self._dataset()
        if not self._checked:
            trust = must_be(self._dataset, self.federation.meta, len(self.federation.given), what="the federation")
            if trust:
                self.say(trust)
            self._checked = True
        return self._dataset

    @property
    def has_probabilities(self) -> bool:
        """Whether a file or a run provides predictions."""
        return self._probabilities is not None or self.run is not None

    @property
    def given_probabilities(self) -> bool:
        """Whether a file provides predictions."""
        return self._probabilities is not None

    @cached_property
    def independence(self) -> np.ndarray:
        """Number of independent observations per sample of each client (N,), above 0 to 1; below 1 with groups."""
        parts = np.split(np.arange(len(self.labels)) if self.groups is None else self.groups, self.offsets[1:-1])
        return np.array([effective_size(part) / max(1, len(part)) for part in parts])

    def interval(self, wrong: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute Wilson's interval of the shares of wrong labels of the clients, given their numbers (N,)."""
        return wilson(wrong * self.independence, np.diff(self.offsets) * self.independence)

    def add_traffic(self, traffic: Traffic) -> None:
        """Add the traffic of a training or of a round."""
        self.traffic.add(traffic)

    def image_scale(self) -> Scale | None:
        """Compute the Scale of all clients' images; None for other data, which each training scales.

        Clients send their image statistics once for all trainings.
        """
        if self.dataset.kind != "image":
            return None
        if self._scale is None:
            scale = scale_of(self.federation, self.dataset, self.dataset.x_train)
            self._scale = scale._replace(from_clients=False)
            if scale.from_clients:
                self.count_moments(len(self.federation), len(scale.mean))
        return self._scale

    def count_moments(self, clients: int, features: int) -> None:
        """Add the traffic of clients that send numbers, sums and sums of squares of features, and receive a scale."""
        up, down = statistics_bytes(clients, features)
        self.traffic.received("moments", up)
        self.traffic.broadcast(down)

    def refuse(self, estimator: str, **unused: Any) -> None:
        """Raise InputError if the user provided evidence that this estimator does not use."""
        inputs = {"embeddings": self._embeddings, "probabilities": self._probabilities, "run": self.run}
        for name, instead in unused.items():
            if inputs[name] is not None:
                raise InputError(f"`{name}`: {estimator} does not use it; {instead}")

    def weigh(self, guess: np.ndarray, what: str) -> None:
        """Warn if the guessed labels (m,) agree with the given labels only by chance; -1 marks a sample without a guess."""
        cells = (guess * self.classes + self.labels)[guess >= 0]
        self.weigh_counts(np.bincount(cells, minlength=self.classes**2), what)

    def weigh_counts(self, counts: "np.ndarray | torch.Tensor", what: str) -> None:
        """Warn as `weigh` does, from counts of samples by guessed and given label, (C, C) or flat."""
        counts = np.asarray(counts).reshape(self.classes, self.classes)
        total = int(counts.sum())
        if not total:
            self.say(
                f"unchecked: no sample or group could be left out, so nothing shows whether {what} agree with the given labels "
                "better than by chance; compare with another estimator"
            )
            return
        share = float(counts.trace() / total)
        chance = float((counts.sum(1) / total) @ (counts.sum(0) / total))
        if wilson(counts.trace(), total, 0.9973)[0] > chance:  # by three standard errors
            return
        shares = f"{what} agree with {100 * share:.0f} % of the given labels, and {100 * chance:.0f} % are expected by chance"
        useful = chance + USEFUL * (1 - chance)  # 1, as the share, if all labels and guesses are of one class
        if wilson(counts.trace(), total)[1] >= useful:
            self.say(
                f"unchecked: {shares}; {total:,} samples are too few or too alike to tell these apart; "
                "compare with another estimator"
            )
        else:
            self.say(f"void: {shares}; do not use these levels, flags and suggestions")

    def embed(self) -> Any:
        """Embed the clients' samples (m, d). Default: pixels or principal components.

        Rows of a large file are read in blocks (fnlkit.artifacts.stored).
        """
        if self._embeddings is None and self.dataset.features is not None:
            self._embeddings = self.dataset.x_train
        if self._embeddings is None:
            values = int(np.prod(self.dataset.x_train.shape[1:]))
            if self.federated and values > MOST_PIXELS:
                raise InputError(
                    f"`form='federated'`: principal components of {self.dataset.name} would need all clients' samples in one "
                    "place; write `backbone`, which each client can run"
                )
            backbone = "pixels" if values <= MOST_PIXELS else f"pca(dim={min(MOST_PIXELS, len(self.labels))})"
            if self.dataset.kind == "image":
                self.say(
                    f"neighbors are searched among {backbone} of {self.dataset.name}; a pretrained network (`backbone=SPEC`) "
                    "finds far more wrong labels on photographs"
                )
            self._embeddings = embed(self.dataset, backbone)
        rows = self._rows(self._embeddings, "embeddings", "the program that made them")
        if rows.shape[1] < 1:
            raise InputError("have no dimension", parameter="embeddings")
        if len(rows) > 1 and all((rows[a:b] == rows[0]).all() for a, b in blocks(rows)):
            raise InputError("the embedding is the same for every sample, so no sample has neighbors; check the embedded data")
        return rows

    def say_of_run(self) -> None:
        """Warn that a given run's predictions can be in-sample."""
        self.say("`run`: if this model was trained on the judged labels, the labels look better than they are")

    def predicted(self) -> np.ndarray:
        """Predict probabilities (m, C): of the given file, the given run's model, or a short warm-up on all clients."""
        if self._probabilities is None:
            from fnlkit.estimators.warmup import model_probabilities, train_warmup

            if self.run is not None:
                self.say_of_run()
                return model_probabilities(self.run, self.dataset, self.positions, self.classes, self.device)
            return train_warmup(self).probabilities(self.positions)
        rows = self._rows(self._probabilities, "probabilities", "the model that predicted them")
        if rows.shape[1] != self.classes:
            raise InputError(f"has {rows.shape[1]} columns; expected {self.classes}, one per class", parameter="probabilities")
        rows = np.asarray(rows, np.float64)
        if rows.size and (rows.min() < -1e-6 or np.abs(rows.sum(1) - 1).max() > 1e-3):
            worst = int(np.abs(rows.sum(1) - 1).argmax())
            raise InputError(
                f"must be >= 0 with rows that sum to 1; the row of sample {self.positions[worst]} has "
                f"minimum {rows[worst].min():.3g} and sum {rows[worst].sum():.6g}; are they logits?",
                parameter="probabilities",
            )
        if len(rows) > 1 and np.ptp(rows, 0).max() < 1e-9:
            raise InputError("are equal for all samples, so they judge no label; check the model", parameter="probabilities")
        rows = np.maximum(rows, 0)
        return rows / rows.sum(1, keepdims=True)

    def predicted_out_of_sample(self, folds: int, by: str) -> np.ndarray:
        """Predict probabilities (m, C): given ones, or by models that were trained without a sample's fold."""
        fold = self.folds(folds, by)
        if fold is None:
            return self.predicted()
        if heads_predict(self):
            return predict_by_heads(self, fold)
        from fnlkit.estimators.warmup import predict_by_networks  # all others need no torch

        return predict_by_networks(self, fold)

    def folds(self, folds: int, by: str) -> np.ndarray | None:
        """Divide the samples into cross-validation folds (m,); None if predictions are given."""
        if self.has_probabilities:
            return None
        fold = fold_of(self.offsets, folds, by, self.seed, self.groups)
        if fold.max(initial=0) < 1:
            raise InputError("cross-validation needs at least 2 samples or groups; give `probabilities`")
        return fold

    def _rows(self, values, name, maker):
        """Select the rows (m, ...) of the clients' samples, checked block by block; rows of a file stay on disk."""
        values = values if isinstance(values, Rows) else np.asarray(values)
        if values.ndim != 2 or values.dtype.kind not in "fiu":
            raise InputError(f"`{name}` is {values.dtype} of shape {values.shape}; expected numbers (n, d)")
        size = len(self.federation.given)
        if len(values) != size:
            raise InputError(
                f"`{name}` has {len(values):,} rows, the federation {size:,} samples; did {maker} read other data?"
            )
        rows = Chosen(values, self.positions) if isinstance(values, Rows) else values[self.positions]
        for a, b in blocks(rows):
            part = rows[a:b]
            if not np.isfinite(part.sum(dtype=np.float64)) and not np.isfinite(part).all():
                missing = int(self.positions[a + np.argmin(np.isfinite(part).all(1))])
                raise InputError(f"`{name}` has no finite row for sample {missing}, which a client holds")
        return rows
