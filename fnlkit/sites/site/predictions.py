"""Predictions of a run for the samples of a site, which need not have taken part; everything stays at the site."""

import os
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fnlkit.artifacts.run import Run
from fnlkit.artifacts.sheets import Sheet
from fnlkit.core.errors import InputError
from fnlkit.estimators.federated import table_of
from fnlkit.experiment.network import network_of
from fnlkit.federated.client.client import in_blocks
from fnlkit.federated.client.inputs import Inputs, intake
from fnlkit.federated.client.network import predict
from fnlkit.federated.client.private_counts import Ranges
from fnlkit.sites import project
from fnlkit.sites.samples import load_for_task
from fnlkit.sites.scores import scores


class Predicted(NamedTuple):
    """Predictions of a site.

    Attributes
    ----------
    sheet : fnlkit.artifacts.sheets.Sheet
        Columns sample, class, name and probability.
    scores : dict
        As a row of the task evaluate.
    """

    sheet: Sheet
    scores: dict[str, Any]


def predict_site(path: str | os.PathLike[str], source: str, site: dict[str, Any]) -> Predicted:
    """Predict the samples of a site with a run: the test samples if there are some, otherwise all.

    Parameters
    ----------
    path : path
        The run.
    source : str
        The data.
    site : dict
        As returned by `fnlkit.sites.folders.read_site`.

    Raises
    ------
    InputError
        If the samples do not fit the project, or if the run is of another project.
    """
    agreed, run = project.read(site["agreed"]), Run.read(path)
    about = run.meta.get("samples", {})
    if about.get("class_names") != agreed.classes or tuple(run.meta["input_shape"]) != agreed.input_shape:
        raise InputError(f"{path}: was trained on other classes or samples than those of this project; name a run of it")
    data = load_for_task(
        source, replace(agreed, columns=about.get("columns")), leave_out=site["leave_out"], memory=site["memory"]
    )
    train, test, _, image = intake(data)
    x, labels = (test, data.y_test) if len(test) else (train, data.y_train)
    network = network_of(run)
    inputs = Inputs(image, tuple(about["mean"]), tuple(about["std"]), network.dtype, "cpu")
    p = torch.softmax(in_blocks(lambda part: predict(network, None, part, inputs), x).double(), -1).numpy()
    guess = p.argmax(1)
    names = map(str, data.ids) if data.ids is not None and not len(test) else map(str, range(len(x)))
    rows = [
        [name, int(label), agreed.classes[label], float(p[i, label])]
        for i, (name, label) in enumerate(zip(names, guess, strict=True))
    ]
    table = table_of(guess, torch.from_numpy(np.asarray(labels, np.int64)), len(agreed.classes)).numpy()
    wrong = (table.sum(0) - table.diagonal())[None]
    sheet = Sheet(["sample", "class", "name", "probability"], rows)
    return Predicted(sheet, scores(Ranges(table.sum(0)[None], wrong, wrong), [site["name"]])["sites"][0])
