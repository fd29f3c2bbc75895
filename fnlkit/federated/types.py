"""Types of the arguments of methods and client steps, for annotations."""

from fnlkit.federated.client.client import Batch, Client, LocalModel, Received
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.clients import Ask, Clients, Replies
from fnlkit.federated.server.optimizers.optimizer import FedOpt
from fnlkit.federated.server.rounds import Round

__all__ = (
    "Ask", "Batch", "Client", "Clients", "FedOpt", "Fit", "Inputs", "LocalModel", "Model", "Network", "Received", "Replies",
    "Round",
)  # fmt: skip
