"""Review of a site's test samples, ranked by a model that was not trained on the samples; later runs use the decisions.

The files have the names of `fnlkit.sites.labels` and are in the folder `test` of the site's folder `memory`.
"""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fnlkit.artifacts import saving
from fnlkit.errors import InputError
from fnlkit.estimators import run_estimator
from fnlkit.estimators.apply import add_judgment
from fnlkit.sites import labels

if TYPE_CHECKING:
    from fnlkit.datasets.dataset import Dataset


FOLDER = "test"


def folder_of(memory: str) -> str:
    """Return the path of the folder with the files of test samples."""
    return os.path.join(memory, FOLDER)


def held_out_part(data: "Dataset") -> "Dataset":
    """Return the Dataset whose training samples are the test samples of a site.

    Raises
    ------
    InputError
        If there are no test samples.
    """
    if not len(data.y_test):
        raise InputError(f"{data.name}: has no test samples to review; omit `test` to review the training samples")
    return replace(
        data,
        y_train=data.y_test,
        y_test=data.y_test[:0],
        samples=lambda: (data.x_test, data.x_test[:0]),
        ids=None,
        paths=None,
        fields={},
        groups=data.groups_test,
        groups_test=None,
        shown=None,
        votes=None,
        unlabeled=None,
        remember=lambda name, compute: data.checksum if name == "checksum" else compute(),
    )


def judge_held_out(memory: str, data: "Dataset", name: str, probabilities: np.ndarray) -> None:
    """Write the judgment of each test sample by confident learning.

    Parameters
    ----------
    memory : str
        The site's folder `memory`.
    data : fnlkit.datasets.Dataset
        From `held_out_part`.
    name : str
        Name of the site.
    probabilities : float (n, C)
        Predictions for all test samples.
    """
    folder = folder_of(memory)
    if not os.path.isdir(folder):
        saving.private_folder(folder)
    federation = labels.labels_of(folder, data, name)
    arrays, facts = run_estimator(federation, data, "confident", probabilities=probabilities)
    add_judgment(federation, arrays, facts=facts).write(os.path.join(folder, labels.JUDGED))


def held_out_labels(memory: str, data: "Dataset", name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (positions, labels) of the test samples that runs use.

    Parameters
    ----------
    memory, name : str
        As in `judge_held_out`.
    data : fnlkit.datasets.Dataset
        Samples of the site with test samples.

    Returns
    -------
    positions : int64 (k,)
        Without samples that a review left out.
    labels : int64 (n,)
        Reviewed labels of all test samples, or the labels as received.
    """
    if not len(data.y_test):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    federation = labels.labels_of(folder_of(memory), held_out_part(data), name)
    return np.asarray(federation.client_indices, np.int64), np.asarray(federation.given, np.int64)
