"""The client: its samples, labels and memory, local training, losses, drift terms; what runs where the data lies."""

from fnlkit.client.client import Batch, Client, LocalModel
from fnlkit.client.training import Fit

__all__ = ["Batch", "Client", "Fit", "LocalModel"]
