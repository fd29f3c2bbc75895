"""Federated optimizers, one per file: the communication round that turns local training into the next global model.

An optimizer is a function ``NAME(fit, *, parameters, **settings) -> FedOpt``.
"""

from fnlkit.federated.server.optimizers.optimizer import Additions, FedOpt, Request, Updates, gradient_weight, local_steps

__all__ = ["Additions", "FedOpt", "Request", "Updates", "gradient_weight", "local_steps"]
