"""The samples on which a model is tested during training, and the name of the score."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.stored import Chosen, Rows, load_small
from fnlkit.core.errors import InputError
from fnlkit.core.spec import bind, find, parse
from fnlkit.datasets.dataset import Dataset

if TYPE_CHECKING:
    import torch


# Columns of a row of the history that a user's measure cannot replace.
RESERVED = {"round", "stage", "clients", "client_rounds", "bytes_up", "bytes_down", "rejected", "accuracy", "agreement", "loss",
            "label_accuracy"}  # fmt: skip


@dataclass
class EvaluationSet:
    """Samples and labels for testing a model.

    Attributes
    ----------
    x : array (n, ...)
    labels : dict of int64 Tensor (n,)
        ``accuracy``: true labels; ``agreement``: given labels, some of which can be wrong.
    clients : int
        Number of clients that hold the samples; 0 for a test set.
    measure : (probabilities (n, C), labels (n,)) -> number or dict of numbers, or None
        A measure of the user, with numpy arrays.
    measure_name : str
        Name of the score.
    """

    x: object
    labels: dict[str, Any]
    clients: int = 0
    measure: object = None
    measure_name: str = ""

    def __len__(self):
        return len(self.x)

    @property
    def name(self) -> str:
        """ "accuracy" or "agreement"; accuracy if both are known."""
        return next(iter(self.labels))

    def scores(self, logits: "torch.Tensor") -> dict[str, float]:
        """Measure the share of labels that logits (n, C) predict, by name, and the mean cross entropy.

        The cross entropy refers to the labels of `name`.
        """
        from fnlkit.federated.client.scoring import sample_losses

        shares = {name: (logits.argmax(-1) == y).double().mean().item() for name, y in self.labels.items()}
        shares |= {"loss": sample_losses(logits, self.labels[self.name]).double().mean().item()}
        return shares | (self._measured(logits) if self.measure else {})

    def _measured(self, logits):
        """Compute the numbers of the user's measure by name."""
        value = self.measure(logits.double().softmax(-1).numpy(), self.labels[self.name].numpy())
        numbers = value if isinstance(value, dict) else {self.measure_name: value}
        for name, number in numbers.items():
            if not isinstance(number, (int, float, np.number)) or not np.isfinite(number):
                raise InputError(
                    f"{self.measure_name}: returned {number!r:.60} for {name!r}; return finite numbers", parameter="measure"
                )
            if not str(name).isidentifier() or name in RESERVED:
                raise InputError(f"{self.measure_name}: {name!r} cannot be a column; choose another name", parameter="measure")
        return {name: float(number) for name, number in numbers.items()}


def evaluation_set(
    federation: Federation, dataset: Dataset, train: np.ndarray | Rows, test: np.ndarray | Rows, measure: str = "auto"
) -> EvaluationSet:
    """Choose the samples of an evaluation: the test samples of the data set, or the clients' held-out samples.

    Held-out samples are used if the data set has no test samples.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    train, test : array (n, ...)
        In the format of the networks.
    measure : "auto", "holdout" or a user's FILE.py:NAME
        ``holdout`` uses held-out samples and given labels only; no test sample and no true label is read.  A user's measure
        requires test samples.

    Raises
    ------
    InputError
        If ``holdout`` is given and no samples are held out, or a user's measure and there are no test samples.
    """
    if measure == "holdout":
        held_out = held_out_set(federation, train)
        if not len(held_out):
            raise InputError(
                "holdout requires held-out samples; make the federation with `fnlkit.partition(holdout=0.1)`",
                parameter="measure",
            )
        return EvaluationSet(held_out.x, {"agreement": held_out.labels["agreement"]}, held_out.clients)
    measures = _of_user(measure)
    if measures and not len(test):
        raise InputError(f"{measure}: a measure of yours requires test samples in the data set", parameter="measure")
    if len(test):
        name = "accuracy" if federation.true is not None or dataset.test_verified else "agreement"
        return _to_torch(test, {name: dataset.y_test}, 0, *measures)
    return held_out_set(federation, train)


def _of_user(measure):
    """Read a user's measure: (function, name), or () for ``auto``."""
    spec = parse(measure, "`measure`")
    if spec.name == "auto" and not spec.parameters:
        return ()
    if ":" not in spec.name:
        raise InputError(f"{measure}: write auto, holdout, or FILE.py:NAME of a measure of yours", parameter="measure")
    return bind(spec, find(spec, {}, "measure"), "measure"), spec.name.rpartition(":")[2]


def held_out_set(federation: Federation, train: np.ndarray | Rows) -> EvaluationSet:
    """Collect the clients' held-out samples; parameters as for `evaluation_set`."""
    positions = held_out_positions(federation)
    labels = {"agreement": federation.given[positions]}
    if federation.true is not None:
        labels = {"accuracy": federation.true[positions]} | labels
    return _to_torch(Chosen(train, positions), labels, len(federation))


def _to_torch(x, labels, *more):
    import torch

    return EvaluationSet(load_small(x), {name: torch.from_numpy(np.asarray(y, np.int64)) for name, y in labels.items()}, *more)


def tested_samples(
    federation: Federation, train: np.ndarray | Rows, test: np.ndarray | Rows | None = None
) -> dict[str, np.ndarray | Rows]:
    """Collect the samples that `evaluate` tests, by name; a name without samples is left out.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    train, test : array (n, ...)
        In the format of the networks.  Without `test`, only the clients' samples are returned.

    Returns
    -------
    dict
        ``test``; ``held_out`` at `held_out_positions`; ``gold`` at `gold_positions`.
    """
    positions = {"held_out": held_out_positions(federation), "gold": gold_positions(federation)}
    samples = {} if test is None or not len(test) else {"test": test}
    return samples | {name: Chosen(train, places) for name, places in positions.items() if len(places)}


def gold_positions(federation: Federation) -> np.ndarray:
    """Find the positions (g,) of samples with a verified label, in ascending order."""
    return np.flatnonzero(federation.extra.get("gold_label", np.full(0, -1)) >= 0)


def held_out_positions(federation: Federation) -> np.ndarray:
    """Find the positions (h,) of held-out samples without verified samples, client by client."""
    positions = np.concatenate([np.zeros(0, np.int64), *federation.held_out])
    gold = federation.extra.get("gold_label")
    return positions if gold is None else positions[gold[positions] < 0]
