"""Compare models on the same held-out labels if their runs were tested on different labels."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fnlkit.errors import InputError
from fnlkit.experiment.evaluation_set import held_out_positions
from fnlkit.experiment.network import load_trained
from fnlkit.results.evaluation import score_name
from fnlkit.results.scores import predictions

if TYPE_CHECKING:
    from fnlkit.artifacts.run import Run
    from fnlkit.datasets.dataset import Dataset


class Shared(NamedTuple):
    """Common held-out samples of several runs, with the labels before and after a review.

    Attributes
    ----------
    positions : int64 (m,)
        In the training set.
    received, reviewed : int64 (m,)
        The original labels, and the labels with every decision of the reviews.
    """

    positions: np.ndarray
    received: np.ndarray
    reviewed: np.ndarray

    @property
    def differ(self) -> int:
        """Number of samples whose two labels differ."""
        return int((self.received != self.reviewed).sum())


def differing(runs: "list[Run]") -> dict[str, Any]:
    """Return {dataset checksum: indices of its runs} for runs that measured agreement with different labels of a sample.

    Parameters
    ----------
    runs : list of fnlkit.artifacts.run.Run
    """
    groups: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        if score_name(run) == "agreement" and "held_out" in run.traffic.sent:
            groups.setdefault(run.meta["dataset_checksum"], []).append(place)
    return {data: places for data, places in groups.items() if _conflict([runs[place] for place in places])}


def _conflict(runs):
    label = np.full(len(runs[0].labels["given"]), -1)
    for run in runs:
        held = held_out_positions(run.federation())
        given = run.labels["given"][held]
        if ((label[held] >= 0) & (label[held] != given)).any():
            return True
        label[held] = given
    return False


def find_shared_samples(runs: "list[Run]", names: list[str]) -> Shared:
    """Return the Shared samples of runs whose held-out labels differ by a review.

    Parameters
    ----------
    runs : list of Run
        On one data set.
    names : list of str
        Names of the runs in messages.

    Raises
    ------
    InputError
        If the runs have no common held-out sample, received different labels, or were reviewed differently.
    """
    common = held_out_positions(runs[0].federation())
    for run in runs[1:]:
        common = np.intersect1d(common, held_out_positions(run.federation()))
    advice = "compare them on verified samples (`fnlkit.partition(gold=...)`), or evaluate them one by one"
    if not len(common):
        raise InputError(f"{_join_names(names)} measure agreement with different labels and have no common sample; {advice}")
    received = [np.asarray(run.labels.get("received", run.labels["given"]), np.int64)[common] for run in runs]
    reviewed, alike = received[0].copy(), all(np.array_equal(received[0], other) for other in received)
    for run in runs:
        given = np.asarray(run.labels["given"], np.int64)[common]
        changed = given != received[0]
        alike &= bool(((reviewed == received[0]) | (reviewed == given))[changed].all())
        reviewed[changed] = given[changed]
    if not alike:
        raise InputError(
            f"{_join_names(names)} measure agreement with held-out labels that differ by more than a review; {advice}"
        )
    return Shared(common, received[0], reviewed)


def agreements(run: "Run", dataset: "Dataset", samples: Shared) -> dict[str, float]:
    """Return {``agreement_received``, ``agreement_reviewed``}: the shares of both labels that the last model predicts.

    Parameters
    ----------
    run : Run
    dataset : fnlkit.datasets.Dataset
    samples : Shared
    """
    predicted = predictions(load_trained(run, dataset), samples.positions)
    labels = {"received": samples.received, "reviewed": samples.reviewed}
    return {f"agreement_{name}": float((predicted == values).mean()) for name, values in labels.items()}


def _join_names(names):
    return f"{names[0]} and {names[1]}" + (f" and {len(names) - 2} more" if len(names) > 2 else "")
