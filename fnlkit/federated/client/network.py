"""A network on one flat vector: parameters first, then the exchanged buffers."""

import copy
import hashlib
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fnlkit.core.errors import InputError
from fnlkit.federated.client.inputs import Inputs
from fnlkit.models import reseed
from fnlkit.models.dropout import Dropout
from fnlkit.models.exact import exactness

# End of an error message about a repeated round without weights.
UNKNOWN = (
    "of a round before the interruption, which a run does not store; use weights in `clients.once(work, ...)` and "
    'store the result in `clients.memory` (docs/extending.md, "State that a resumed run needs")'
)


class Network:
    """A torch module whose trainable parameters and float buffers are views into one flat vector.

    The vector (P + Q,) is exchanged and averaged.  It has P trainable parameters in the order of ``module.parameters()`` and Q
    entries of float buffers (batch norm's running mean and variance).  Parameters without ``requires_grad`` are frozen: they
    are neither trained nor sent, and every process builds them from the same spec and seed.  Integer buffers
    (``num_batches_tracked``) have no effect at a fixed momentum and are not exchanged.

    Parameters
    ----------
    module : torch.nn.Module
        Maps (B, ...) to logits (B, C).  The module is changed: parameters and buffers become views.
    dtype, device : torch.dtype, torch.device
    precision : str
        Precision of training: ``bf16`` computes layers in bfloat16 and ``tf32`` matrix products on a GPU in TensorFloat-32,
        with weights, gradients and momentum in `dtype`.  Any other value computes in `dtype`.  Evaluation on a GPU uses
        TensorFloat-32 with both.

    Attributes
    ----------
    frozen : str or None
        SHA-256 over the frozen parameters; None if there are none.

    Raises
    ------
    InputError
        If no parameter is trainable.
    """

    def __init__(self, module, *, dtype=None, device="cpu", precision=""):
        self.precision, dtype = precision, dtype or torch.float32
        self.module = module.to(device=device, dtype=dtype)
        self.dtype, self.device = dtype, torch.device(device)
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        if not parameters:
            raise InputError("the network has no trainable parameter; set requires_grad where it shall learn")
        self.frozen = _digest([p for p in self.module.parameters() if not p.requires_grad])
        buffers = [b for b in self.module.buffers() if b.is_floating_point()]
        self.parameters_count = sum(p.numel() for p in parameters)
        self.size = self.parameters_count + sum(b.numel() for b in buffers)
        self.flat = torch.cat([t.detach().reshape(-1) for t in (*parameters, *buffers)])
        self.gradient = torch.zeros(self.parameters_count, dtype=dtype, device=device)
        self.trainable = torch.nn.Parameter(self.flat[: self.parameters_count])
        self.trainable.grad = self.gradient
        self.slots: list[tuple[str, int, int, tuple[int, ...]]] = []  # (name, start, end, shape) of each exchanged tensor
        names = [n for n, p in self.module.named_parameters() if p.requires_grad]
        names += [n for n, b in self.module.named_buffers() if b.is_floating_point()]
        at = 0
        for name, tensor in zip(names, (*parameters, *buffers), strict=True):
            end = at + tensor.numel()
            tensor.data = self.flat[at:end].view(tensor.shape)
            if end <= self.parameters_count:
                tensor.grad = self.gradient[at:end].view(tensor.shape)
            self.slots.append((name, at, end, tensor.shape))
            at = end
        self._drops = any(isinstance(part, Dropout) for part in self.module.modules())

        # Channels-last memory makes small networks with batch norm a third to two thirds faster, but not wide networks.
        normed = any(isinstance(part, torch.nn.BatchNorm2d) for part in self.module.modules())
        self.channels_last = normed and (self.parameters_count < 1e6 or self.device.type == "cuda")

    def packed(self) -> bytes:
        """Pack the network as bytes for another process; `unpacked` reads them.

        Raises
        ------
        InputError
            If one of the classes cannot be imported.
        """
        file = io.BytesIO()
        try:
            torch.save((self.module, self.dtype, self.device.type, self.precision), file)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(
                f"the network cannot be sent to another process: {str(error).splitlines()[0]}; build it from classes "
                "at the top of an importable module, or use `engine='sequential'`"
            ) from error
        return file.getvalue()

    @classmethod
    def unpacked(cls, packed: bytes) -> "Network":
        """Unpack the bytes of `packed` of the same program, on the first device of the same type."""
        module, dtype, device, precision = torch.load(io.BytesIO(packed), weights_only=False)
        return cls(module, dtype=dtype, device=device, precision=precision)

    def lay_out(self, x: torch.Tensor) -> torch.Tensor:
        """Bring a batch (B, ...) into the memory format in which this network trains fastest."""
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x

    def lay_out_weights(self, weights: torch.Tensor) -> torch.Tensor:
        """Lay out the weights of K clients (K, ...), with channels-last convolutions if this is faster on a GPU."""
        if not (self.channels_last and self.device.type == "cuda" and weights.dim() == 5):
            return weights
        return weights.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)

    def lower_precision(self, names: list[str], weights: list[torch.Tensor]) -> list[Any]:
        """Convert the weights of K clients (K, ...) to the type of the layers, all layers at once.

        Parameters
        ----------
        names : list of str
            ``net.`` and the parameter's name.
        weights : list of Tensor (K, ...)
        """
        if self.precision != "bf16":
            return weights
        kinds = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d)
        plain = {f"net.{name}" for name, part in self.module.named_modules() if type(part) in kinds}
        ends = [name.rpartition(".") for name in names]  # other parameters of weight_norm do not belong to a layer
        low = [i for i, (layer, _, what) in enumerate(ends) if layer in plain and what in ("weight", "bias")]
        new = {i: torch.empty_like(weights[i], dtype=torch.bfloat16) for i in low}
        torch._foreach_copy_(list(new.values()), [weights[i] for i in low])
        return [new.get(i, w) for i, w in enumerate(weights)]

    def compute(self, call: Callable[..., Any], x: torch.Tensor) -> Any:
        """Run ``call(x)`` in this network's precision: one result or a tuple of results, in `dtype`.

        Parameters
        ----------
        call : callable
            The module, or a part of it.
        x : Tensor (B, ...)
        """
        self.switch()
        if self.precision != "bf16":
            return call(x)
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            result = call(x)
        return tuple(part.to(self.dtype) for part in result) if isinstance(result, tuple) else result.to(self.dtype)

    def switch(self) -> None:
        """Set the precision of a GPU's matrix products and convolutions to that of this network."""
        if self.device.type == "cuda":
            exactness(self.device, rounded=self.precision in ("tf32", "bf16"))

    def reseed(self, key: int) -> None:
        """Set the key of every dropout layer in place; see fnlkit.models.reseed."""
        if self._drops:
            reseed(self.module, key)

    def load(self, weights: torch.Tensor) -> None:
        """Copy a flat vector (P + Q,) into the module."""
        with torch.no_grad():
            self.flat.copy_(weights)

    def twin(self) -> "Network":
        """Make a second, independent network of the same shape, for example for a teacher."""
        module = copy.deepcopy(self.module)
        for p in module.parameters():
            p.grad = None
        return Network(module, dtype=self.dtype, device=self.device, precision=self.precision)


def _digest(tensors):
    """Compute the SHA-256 over tensors as float32; None for an empty list."""
    if not tensors:
        return None
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def looks_up(module: torch.nn.Module) -> bool:
    """Whether a module has an embedding table and therefore reads token ids."""
    return any(isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) for part in module.modules())


class Model:
    """A network and one flat vector of weights on the server.

    Parameters
    ----------
    network : Network
    weights : Tensor (P + Q,) or None
        None if a resumed run repeats the round from the log, which contains no weights.
    """

    def __init__(self, network, weights):
        self.network, self._weights = network, weights

    @property
    def weights(self) -> torch.Tensor:
        """The vector (P + Q,); raises InputError if a resumed run repeats the round from the log."""
        if self._weights is None:
            raise InputError(f": a user component reads a model's weights {UNKNOWN}", parameter="resume")
        return self._weights

    @weights.setter
    def weights(self, weights: torch.Tensor) -> None:
        self._weights = weights

    def with_weights(self, weights: torch.Tensor | None) -> "Model":
        """Make a Model of the same network with other weights (P + Q,)."""
        return Model(self.network, weights)

    def empty(self) -> "Model":
        """Make a Model without weights, for steps that need no model."""
        return nothing()

    @property
    def cosines(self) -> int:
        """Number of random Fourier features of the network."""
        return getattr(self.network.module, "cosines", 0)

    def with_layers(self, *layers: np.ndarray) -> "Model":
        """Return a Model of the same network with the weights and biases of its layers."""
        flat = torch.from_numpy(np.concatenate([layer.ravel() for layer in layers]))
        return self.with_weights(flat.to(self.network.device, self.network.dtype))


def nothing() -> Model:
    """Make a Model without weights, for steps that need no model."""
    module = torch.nn.Module()
    module.none = torch.nn.Parameter(torch.zeros(0))
    network = Network(module)
    return Model(network, network.flat)


def predict(
    network: Network,
    weights: torch.Tensor | None,
    x: torch.Tensor,
    inputs: Inputs,
    *,
    batch_size: int = 512,
    features: bool = False,
) -> torch.Tensor:
    """Predict logits (n, C) of samples in evaluation mode, without gradients.

    Parameters
    ----------
    network : Network
    weights : Tensor (P + Q,) or None
        None uses the current weights of the network.
    x : Tensor (n, ...)
        Raw samples of a client.
    inputs : fnlkit.federated.client.inputs.Inputs
    features : bool
        Return the penultimate representation (n, width) instead.
    """
    if weights is not None:
        network.load(weights)
    network.switch()
    module = network.module
    forward = module.features if features else module
    was = module.training
    module.eval()
    try:
        with torch.no_grad():
            logits = [forward(inputs.plain(part)) for part in x.split(batch_size)]
    finally:
        module.train(was)
    if not logits:
        return torch.zeros((0, 0), dtype=network.dtype)
    return torch.cat(logits)
