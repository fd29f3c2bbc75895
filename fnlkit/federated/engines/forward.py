"""Forward passes of K clients: as a stack, or client by client in parallel GPU streams."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap

from fnlkit.federated.engines.products import Products, SideStream

FORMS = ("stack", "products", "branches")


class LogitsAndFeatures(nn.Module):
    """Call a network as a whole, or in two parts if the loss needs the features between them."""

    def __init__(self, net, features):
        super().__init__()
        self.net, self.halves = net, features

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if not self.halves:
            return self.net(x)
        features = self.net.features(x)
        return self.net.classify(features), features


class Forward:
    """Forward passes of K clients.

    Parameters
    ----------
    network : fnlkit.federated.client.network.Network
    twin : Network or None
        Contains the received model if the loss needs a teacher.
    features : bool
        Whether outputs are (logits, features) instead of logits.
    names : list of str
        Names of the parameter tensors in order, each with the prefix ``net.``.

    Attributes
    ----------
    form : str
        ``stack``: all clients as a batched network. ``products``: the same, with convolutions as matrix products.
        ``branches``: clients separately, in parallel on a GPU.
    beside : fnlkit.federated.engines.products.SideStream
        Second stream, on which products compute gradients of weights. The caller joins it after backpropagation.
    """

    def __init__(self, network, twin, features, names):
        self.network = network
        self.twin = twin
        self.features = features
        self.names = names
        self.module = LogitsAndFeatures(network.module, features)
        self.form = "stack"
        self._side = []
        self.beside = SideStream(network.device)

    def __call__(self, weights, buffers, x):
        """Compute the leaves of the autograd graph, and the outputs (g, B, ...).

        Parameters
        ----------
        weights : list of Tensor (g, ...)
            For ``products`` in the type of the layers.
        buffers : dict of Tensor (g, ...)
        x : Tensor (g, B, ...)
        """
        forms = {"stack": self._stack, "products": self._products, "branches": self._branches}
        return forms[self.form](weights, buffers, x)

    def evaluated(
        self, weights: Sequence[torch.Tensor], buffers: Mapping[str, torch.Tensor], x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Predict (logits (g, B, C), features or None) with the current models.

        The models run in evaluation mode and without gradients.
        """
        self.network.module.eval()
        try:
            with torch.no_grad():
                outputs = self(weights, buffers, x)[1]
        finally:
            self.network.module.train()
        return outputs if self.features else (outputs, None)

    def of_teacher(self, x: torch.Tensor, starts: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the output of the received model for samples (g, B, ...).

        Parameters
        ----------
        x : Tensor (g, B, ...)
        starts : Tensor (g, P + Q) or None
            Received model of each client if these differ. None means the model in the twin.
        """
        with torch.no_grad():
            if starts is None:
                return self.network.compute(self.twin.module, x.flatten(0, 1)).unflatten(0, x.shape[:2])
            tensors = {n: starts[:, a:b].reshape(len(x), *shape) for n, a, b, shape in self.network.slots}

            def teach(tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
                return self.network.compute(lambda v: functional_call(self.twin.module, tensors, (v,)), x)

            return vmap(teach)(tensors, x)

    def _stack(self, weights, buffers, x):
        # Batch norm under vmap raises an error for outputs of weights with channels last.
        leaves = [w.detach().contiguous().requires_grad_() for w in weights]
        tensors = dict(zip(self.names, leaves, strict=True))
        return leaves, vmap(self._call, randomness="different")(tensors, buffers, x)

    def _products(self, weights, buffers, x):
        leaves = [w.detach().requires_grad_() for w in weights]
        tensors = dict(zip(self.names, leaves, strict=True))
        with Products(self.beside):
            return leaves, vmap(self._call, randomness="different")(tensors, buffers, x)

    def _branches(self, weights, buffers, x):
        """Run the forward passes client by client, on separate CUDA streams if available."""
        leaves, outs = [], []
        weights = self.network.lower_precision(self.names, weights)
        x = self.network.lay_out(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        for k, stream in enumerate(self._streams(len(x))):
            with stream:
                per_client = [w[k].detach().requires_grad_() for w in weights]
                tensors = dict(zip(self.names, per_client, strict=True))
                outs.append(self._call(tensors, {n: b[k] for n, b in buffers.items()}, x[k]))
                leaves += per_client
        joined = [torch.stack(part) for part in zip(*outs, strict=True)] if self.features else torch.stack(outs)
        return leaves, joined

    def _streams(self, count):
        """Yield a context for each branch.

        The streams start after all work that is already queued, and the end waits for all streams.
        """
        if self.network.device.type != "cuda":
            yield from (contextlib.nullcontext() for _ in range(count))
            return
        main = torch.cuda.current_stream()
        self._side += [torch.cuda.Stream() for _ in range(count - len(self._side))]
        for stream in self._side[:count]:
            stream.wait_stream(main)
            yield torch.cuda.stream(stream)
        for stream in self._side[:count]:
            main.wait_stream(stream)

    def _call(self, parameters, buffers, x):
        def network(x: torch.Tensor) -> Any:
            return functional_call(self.module, {**parameters, **buffers}, (x,))

        return self.network.compute(network, x)
