"""Build a run's network for training, for evaluation and for estimators that start from a run."""

from typing import NamedTuple

import numpy as np
import torch

from fnlkit.artifacts.run import Run
from fnlkit.artifacts.stored import Rows
from fnlkit.core.errors import InputError
from fnlkit.core.spec import Spec
from fnlkit.datasets.dataset import Dataset
from fnlkit.encoders.encoding import Encoding
from fnlkit.encoders.features import with_backbone
from fnlkit.experiment.plan import BoundMethod
from fnlkit.federated.client.client import in_blocks
from fnlkit.federated.client.inputs import PRECISIONS, Inputs, intake, weight_type
from fnlkit.federated.client.network import Network, predict
from fnlkit.kernels.streams import stream
from fnlkit.models import build
from fnlkit.models.committee import Committee
from fnlkit.models.devices import device_of
from fnlkit.models.head import WithHead
from fnlkit.models.pair import Pair


def build_network(
    spec: str | Spec,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int = 0,
    kind: str | None = None,
    head: int = 0,
    pair: bool = False,
    committee: int = 0,
    precision: str = "fp32",
    device: str = "cpu",
) -> Network:
    """Build the network of a spec with initial weights.

    Parameters
    ----------
    spec : str or Spec
        As in fnlkit.models.build.
    input_shape : tuple of int
    classes, seed : int
    kind : str or None
        Kind of the samples, if known; ``auto`` depends on it.
    head : int
        Width of the second output that AKD trains (fnlkit.models.head); 0 for none.
    pair : bool
        Two such networks with different initial weights (fnlkit.models.pair).
    committee : int
        Number of networks that predict together (fnlkit.models.committee); 0 for a single network.
    precision : str
        A key of fnlkit.federated.client.inputs.PRECISIONS.
    device : str
        As for `fnlkit.models.devices.device_of`.

    Raises
    ------
    InputError
    """
    device = device_of(device)
    module = build(spec, input_shape=input_shape, classes=classes, seed=seed, kind=kind)
    if pair:
        other = int(stream(seed, "second-model").integers(2**31))
        module = Pair(module, build(spec, input_shape=input_shape, classes=classes, seed=other, kind=kind))
    if committee:
        more = [build(spec, input_shape=input_shape, classes=classes, seed=seed, kind=kind) for _ in range(committee - 1)]
        module = Committee([module, *more])
    if head:
        module = WithHead(module, head, seed)
    return Network(module, dtype=weight_type(precision), device=device, precision=precision)


class Trained(NamedTuple):
    """The network of a run with the weights, the scaling of the inputs and the samples.

    Attributes
    ----------
    network : Network
    inputs : Inputs
    x_train, x_test : array (n, ...)
        Raw samples of the data set.
    """

    network: Network
    inputs: Inputs
    x_train: np.ndarray | Rows
    x_test: np.ndarray | Rows

    def logits(self, x: np.ndarray | Rows | torch.Tensor) -> torch.Tensor:
        """Predict logits (n, C) of raw samples (n, ...), a Tensor or an array of rows."""
        return in_blocks(lambda part: predict(self.network, None, part, self.inputs), x)


def encode_as_trained(run: Run, dataset: Dataset, *, device: str = "cpu") -> Dataset:
    """Encode the data set by the backbone of a run, if there is one, as the network of the run gets it."""
    about = run.meta.get("features")
    if not about:
        return dataset
    Encoding.of(about)
    return with_backbone(dataset, about["backbone"], expected=about["weights"], device=device)


def load_trained(run: Run, dataset: Dataset, *, device: str = "cpu") -> Trained:
    """Load the network of a run for a data set's samples.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    dataset : fnlkit.datasets.Dataset
    device : str

    Raises
    ------
    InputError
        If the samples' shape or the network differ from the run's.
    """
    device = device_of(device)
    dataset = encode_as_trained(run, dataset, device=device)
    x_train, x_test, shape, image = intake(dataset)
    if list(shape) != list(run.meta["input_shape"]):
        raise InputError(f"{dataset.name} has samples of shape {shape}, but the run was trained on {run.meta['input_shape']}")
    network = network_of(run, device=device)
    samples = run.meta.get("samples", {})
    if dataset.kind == "vector" or "mean" in samples:  # the run contains the scale from the clients' statistics
        mean, std = (samples.get(name, ()) for name in ("mean", "std"))
    else:
        mean, std = dataset.mean, dataset.std
    inputs = Inputs(image, tuple(mean), tuple(std), network.dtype, device)
    return Trained(network, inputs, x_train, x_test)


def needs_of(run: Run) -> frozenset[str] | set[str]:
    """List the inputs that a run's method needs, as in `fnlkit.experiment.plan.BoundMethod`.

    The run records these inputs, so that a run of a user's method can be read without importing that method.
    """
    recorded = run.meta.get("needs")
    return BoundMethod.of(run.settings["method"]).needs if recorded is None else set(recorded)


def network_of(run: Run, *, device: str = "cpu", shape: tuple[int, ...] = ()) -> Network:
    """Build the network of a run and load its weights.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    device : str
    shape : tuple of int
        Shape (C, H, W) of images for a run that was trained on the output of `frozen-part`: the network contains this part,
        whose weights are not checked.  Default: the network that was trained.

    Raises
    ------
    InputError
        If the network differs from the run's.
    """
    if "own" in needs_of(run):
        raise InputError(f"the run is of {run.settings['method']}: each client has a separate model, there is no global model")
    if run.settings["precision"] not in PRECISIONS:
        raise InputError(f"the run was made with `precision` {run.settings['precision']}, which this fnlkit does not support")
    network = build_network(
        run.settings["model"],
        input_shape=shape or run.meta["input_shape"],
        classes=run.meta["classes"],
        seed=run.settings["seed"],
        kind=run.meta.get("samples", {}).get("kind"),
        head=int(run.meta.get("head") or 0),
        pair=bool(run.meta.get("pair")),
        committee=int(run.meta.get("committee") or 0),
        precision=run.settings["precision"],
        device=device,
    )
    if network.size != len(run.weights):
        raise InputError(f"the run has {len(run.weights):,} weights, but its network {network.size:,}; was the module changed?")
    if not shape and run.meta.get("frozen") != network.frozen:
        raise InputError(f"the frozen parameters of {run.settings['model']} differ from those that the run was made with")
    network.load(run.weights.to(device=device, dtype=network.dtype))
    return network


def without_head(network: Network) -> torch.Tensor:
    """Remove the second output that AKD trains from the weights (P + Q,) of a network, if it has one."""
    module = network.module
    return Network(module.module, dtype=network.dtype, device=network.device).flat if type(module) is WithHead else network.flat
