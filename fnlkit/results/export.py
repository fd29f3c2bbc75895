"""Predictions of a trained model for new samples, and model files for other programs."""

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fnlkit import datasets
from fnlkit.artifacts import saving
from fnlkit.client.client_list import in_blocks
from fnlkit.client.inputs import Inputs, intake
from fnlkit.client.network import predict
from fnlkit.datasets.features import open_embeddings
from fnlkit.errors import InputError
from fnlkit.experiment.network import network_of

if TYPE_CHECKING:
    from fnlkit.artifacts.run import Run


FORMATS = (".onnx", ".pt2", ".pt")


def probabilities(
    run: "Run", path: str | None = None, *, unlabeled: bool = False, say: Callable[[str], object] | None = None
) -> tuple[list[str], np.ndarray]:
    """Return (names, probabilities float64 (n, C)) of a run's model for samples in a file or folder.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    path : str
        npy, or npz with one array or ``x``, ``x_new`` or ``x_test``; a folder of images; a table with a row per sample; for a
        run on features, the new samples of a file of `fnlkit embed`, or the test samples if there are no new samples.
    unlabeled : bool
        `path` is a data set (default: the run's data set), and its samples without a label are predicted.
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
    about = describe_samples(run)
    if run.meta.get("features"):
        if path is None or unlabeled:
            raise InputError(
                "the run was trained on features; name a file of `fnlkit embed --new` with the features of new samples"
            )
        arrays = open_embeddings(path, "DATA").arrays
        x = arrays.get("new", arrays.get("test"))
        if x is None or list(x.shape[1:]) != about["shape"]:
            found = "no vectors of new samples" if x is None else f"vectors of {x.shape[1:]}"
            raise InputError(f"{path}: {found}; the run was trained on {about['shape']}; make it with `fnlkit embed --new`")
        names = list(map(str, range(len(x))))
    else:
        like = SimpleNamespace(
            x_train=np.empty((1, *about["shape"]), np.uint8),
            kind=about["kind"],
            sample_rate=about["sample_rate"],
            name=f"{run.meta['dataset']}",
            table=about.get("columns"),
        )
        names, x = datasets.new_samples(like, path or run.meta["dataset"], unlabeled=unlabeled, say=say)
    network = network_of(run)
    part = SimpleNamespace(x_train=x[:1], x_test=x, kind=about["kind"], sample_rate=about["sample_rate"])
    x = intake(part)[1]
    inputs = Inputs(about["kind"] == "image", tuple(about["mean"]), tuple(about["std"]), network.dtype)
    logits = in_blocks(lambda part: predict(network, None, part, inputs), x)
    return names, torch.softmax(logits.double(), -1).numpy()


def describe_samples(run: "Run") -> dict[str, Any]:
    """Return the metadata of a run's samples: kind, shape, mean, std, sample_rate, class_names."""
    if "samples" not in run.meta:
        raise InputError("the run was made by an old version of fnlkit without metadata of its samples; train it again")
    return run.meta["samples"]


class Deployed(nn.Module):
    """A network with its normalization.

    It maps images (n, C, H, W) of values in [0, 1], or vectors (n, d), to logits (n, C).
    """

    def __init__(self, module, about):
        super().__init__()
        self.module, self.scaled = module, bool(about["mean"])
        if self.scaled:
            sides = (slice(None), None, None) if about["kind"] == "image" else slice(None)
            for name in ("mean", "std"):
                self.register_buffer(name, torch.tensor(about[name], dtype=torch.float32)[sides])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module((x - self.mean) / self.std if self.scaled else x)  # type: ignore[operator]


def export(run: "Run", target: str) -> float | None:
    """Write a run's model as ONNX, as a torch.export program or as a state dictionary, by the file extension.

    The first two include the normalization and accept any number of images (n, C, H, W) of values in [0, 1], or vectors.
    An ONNX file is run once with onnxruntime, if installed, and compared with the network.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    target : str
        ``.onnx``, ``.pt2`` or ``.pt``.

    Returns
    -------
    float or None
        The largest difference of two logits between the file and the network; None for a state dictionary, and for ONNX
        without onnxruntime.

    Raises
    ------
    InputError
        If the extension is unknown, or packages are missing (extra `export`).
    """
    ending = Path(target).suffix
    if ending not in FORMATS:
        raise InputError(f"`output` {target}: the extension selects the format; write {', '.join(FORMATS)}")
    if not Path(target).resolve().parent.is_dir():
        raise InputError(f"`output` {target}: the folder does not exist; create it first")
    module = network_of(run).module.float().eval()
    module = getattr(module, "module", module) if run.meta.get("head") else module
    for parameter in module.parameters():
        parameter.grad = None
    if ending == ".pt":
        written = io.BytesIO()
        torch.save({name: value.detach().clone() for name, value in module.state_dict().items()}, written)
        saving.write_bytes([written.getbuffer()], target)
        return None
    deployed = Deployed(module, describe_samples(run)).eval().requires_grad_(False)
    # Three samples, because torch.export treats a size of 0 or 1 as a constant.
    x = torch.rand(3, *run.meta["input_shape"], generator=torch.Generator().manual_seed(0))
    expected, free = deployed(x), ({0: torch.export.Dim("n")},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporters emit warnings about torch internals
        if ending == ".onnx":
            return _onnx(deployed, x, free, expected, target)
        written = io.BytesIO()
        torch.export.save(torch.export.export(deployed, (x,), dynamic_shapes=free), written)
        written.seek(0)
        found = torch.export.load(written).module()(x)
    saving.write_bytes([written.getbuffer()], target)
    return float((found - expected).abs().max())


def _onnx(deployed, x, free, expected, target):
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"`output` {target}: {error.name} is not installed; run: pip install 'fnlkit[export]'") from None
    written = torch.onnx.export(deployed, (x,), dynamic_shapes=free, dynamo=True, verbose=False).model_proto.SerializeToString()
    difference = None
    with contextlib.suppress(ImportError):
        import onnxruntime

        session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
        found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
        difference = float(np.abs(found - expected.numpy()).max())
    saving.write_bytes([written], target)
    return difference
