"""Everything that a process of a site imports to answer a message; `fnlkit.sites.site.processes` imports it before it forks."""

import sklearn.decomposition  # noqa: F401
import sklearn.discriminant_analysis  # noqa: F401
import sklearn.linear_model  # noqa: F401
import sklearn.model_selection  # noqa: F401
import torch._dynamo  # noqa: F401 - by the first step of training

from fnlkit.federated.engines.flower import api
from fnlkit.kernels import neighbors
from fnlkit.sites.site import flower
from fnlkit.sites.site.allowed import functions

__all__ = ["flower", "neighbors"]

functions()
api.prepare()
