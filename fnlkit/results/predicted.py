"""Predictions of a trained model for new samples."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from fnlkit import datasets
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.encoders.encoding import Encoding
from fnlkit.evidence.gaussian import softmax
from fnlkit.evidence.linear import Head, Scaling


def probabilities(
    run: Run,
    path: str | None = None,
    *,
    unlabeled: bool = False,
    skip_damaged: bool = False,
    say: Callable[[str], object] | None = None,
) -> tuple[list[str], np.ndarray]:
    """Predict (names, probabilities float64 (n, C)) of samples in a file or folder with a run's model.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    path : str
        npy, or npz with one array or ``x``, ``x_new`` or ``x_test``; a folder of images or sounds; a table with a row per
        sample.  Samples as in training: the backbone of the run encodes them.
    unlabeled : bool
        `path` is a data set (default: the run's data set), and samples without a label are predicted.
    skip_damaged : bool
        Leave out files that cannot be read.
    say : callable(str), optional
        Receives notes, such as the number of rows with a category that no training row has.

    Returns
    -------
    names : list of str
        Ids or rows of a table, files of a folder, or positions.

    Raises
    ------
    InputError
        If the samples do not match the samples that the run was trained on.
    """
    about, encoding = describe_samples(run), encoding_of(run)
    shape, kind, rate = about["shape"], about["kind"], about["sample_rate"]
    if encoding is not None:
        shape, kind, rate = encoding.shape, encoding.kind, encoding.sample_rate
    like = SimpleNamespace(
        x_train=np.empty((1, *shape), np.uint8),
        kind=kind,
        sample_rate=rate,
        name=f"{run.meta['dataset']}",
        table=about.get("columns"),
        mean=() if encoding is not None else about["mean"],
        std=about["std"],
        **_scale_of(run, about),
    )
    source = path or run.meta["dataset"]
    names, x = datasets.new_samples(like, source, unlabeled=unlabeled, skip_damaged=skip_damaged, say=say)
    if encoding is not None:
        x = encoding.encode(x)
    if "linear" in (run.meta.get("needs") or ()):
        scaling = Scaling(about["kind"] == "image", tuple(about["mean"]), tuple(about["std"]))
        head = Head.of(run.weights_array(), math.prod(run.meta["input_shape"]), run.meta["classes"])
        return names, softmax(head.of_samples(x, scaling).astype(np.float64))
    import torch

    from fnlkit.experiment.network import network_of
    from fnlkit.federated.client.client import in_blocks
    from fnlkit.federated.client.inputs import Inputs, intake
    from fnlkit.federated.client.network import predict

    network = network_of(run)
    part = SimpleNamespace(x_train=x[:1], x_test=x, kind=about["kind"], sample_rate=about["sample_rate"])
    x = intake(part)[1]
    inputs = Inputs(about["kind"] == "image", tuple(about["mean"]), tuple(about["std"]), network.dtype)
    logits = in_blocks(lambda part: predict(network, None, part, inputs), x)
    return names, torch.softmax(logits.double(), -1).numpy()


def _scale_of(run, about):
    """Read ``dtype`` and ``range`` of the images that a run was trained on; earlier versions stored only their mean."""
    stored = run.meta["features"] if encoding_of(run) is not None else about
    if "range" in stored:
        return {name: stored[name] for name in ("dtype", "range")}
    mean, std = stored.get("mean"), stored.get("std")
    of_bytes = about["kind"] == "image" and mean and 0.02 < min(mean) and max(mean) <= 1 and max(std) <= 0.5
    return {"dtype": "uint8", "range": [0.0, 1.0] if of_bytes else None}


def encoding_of(run: Run) -> Encoding | None:
    """Read the Encoding of a run whose images or sounds are encoded by a backbone, or None.

    Columns of text are encoded with the other columns of their table.
    """
    about = run.meta.get("features")
    return None if not about or "columns" in run.meta.get("samples", {}) else Encoding.of(about)


def describe_samples(run: Run) -> dict[str, Any]:
    """Read the metadata of a run's samples: kind, shape, mean, std, sample_rate, class_names."""
    if "samples" not in run.meta:
        raise InputError("the run was made by an old version of fnlkit without metadata of its samples; train it again")
    return run.meta["samples"]
