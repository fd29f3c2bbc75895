"""Predictions of a trained model for new samples, and model files for other programs."""

import contextlib
import io
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fnlkit.artifacts import saving
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.encoders.encoding import check_weights, open_encoder
from fnlkit.experiment.network import network_of
from fnlkit.results.predicted import describe_samples, encoding_of

FORMATS = (".onnx", ".pt2", ".pt")


class Deployed(nn.Module):
    """A network with backbone, if there is one, and normalization.

    It maps images (n, C, H, W) of values in [0, 1], or vectors (n, d), to logits (n, C).
    """

    def __init__(self, module, about, encoder=None):
        super().__init__()
        self.module, self.encoder, self.scaled = module, encoder or nn.Identity(), bool(about["mean"])
        if self.scaled:
            sides = (slice(None), None, None) if about["kind"] == "image" else slice(None)
            for name in ("mean", "std"):
                self.register_buffer(name, torch.tensor(about[name], dtype=torch.float32)[sides])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encoder(x)
        return self.module((x - self.mean) / self.std if self.scaled else x)


def export(run: Run, target: str) -> float | None:
    """Write a run's model as ONNX, as a torch.export program or as a state dictionary, by the file extension.

    The first two include the normalization, and the backbone of images.  They accept any number of images (n, C, H, W) of
    values in [0, 1], or vectors: the features of sounds, or the encoded columns of a table.
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
        raise InputError(f"{target}: the extension selects the format; write {', '.join(FORMATS)}", parameter="output")
    if not Path(target).resolve().parent.is_dir():
        raise InputError(f"{target}: the folder does not exist; create it first", parameter="output")
    encoding, encoder = encoding_of(run), None
    shape, about = tuple(run.meta["input_shape"]), describe_samples(run)
    whole: tuple[int, ...] = ()
    frozen = encoding is not None and encoding.spec.startswith("frozen-part(")
    if encoding is not None and encoding.kind == "image" and (frozen or ending != ".pt"):
        check_weights(encoding.spec, "image", encoding.weights, "the run")
        shape = (encoding.shape[-1], *encoding.shape[:-1])
        if frozen:
            whole, about = shape, about | {"mean": [], "std": []}
        else:
            encoder = open_encoder(encoding.spec)
    module = network_of(run, shape=whole).module.float().eval()
    module = getattr(module, "module", module) if run.meta.get("head") else module
    for parameter in module.parameters():
        parameter.grad = None
    if ending == ".pt":
        written = io.BytesIO()
        torch.save({name: value.detach().clone() for name, value in module.state_dict().items()}, written)
        saving.write_bytes([written.getbuffer()], target)
        return None
    deployed = Deployed(module, about, encoder).eval().requires_grad_(False)
    # Three samples, because torch.export treats a size of 0 or 1 as a constant.
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    expected, free = deployed(x), ({0: torch.export.Dim("n")},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporters emit warnings about torch internals
        if ending == ".onnx":
            return _onnx(deployed, x, free, expected, target)
        written = io.BytesIO()
        torch.export.save(torch.export.export(deployed, (x,), dynamic_shapes=free), written)
        written.seek(0)
        logits = torch.export.load(written).module()(x)
    saving.write_bytes([written.getbuffer()], target)
    return float((logits - expected).abs().max())


def _onnx(deployed, x, free, expected, target):
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"{target}: {error.name} is not installed; run: pip install 'fnlkit[export]'", parameter="output"
        ) from None
    written = torch.onnx.export(deployed, (x,), dynamic_shapes=free, dynamo=True, verbose=False).model_proto.SerializeToString()
    difference = None
    with contextlib.suppress(ImportError):
        import onnxruntime

        session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
        logits = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
        difference = float(np.abs(logits - expected.numpy()).max())
    saving.write_bytes([written], target)
    return difference
