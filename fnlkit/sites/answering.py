"""Everything that a process of a site imports to answer a message; `fnlkit.sites.answers` imports it before it forks."""

import sklearn.decomposition  # noqa: F401
import sklearn.discriminant_analysis  # noqa: F401
import sklearn.linear_model  # noqa: F401
import sklearn.model_selection  # noqa: F401
import torch._dynamo  # noqa: F401 - by the first step of training

from fnlkit.kernels import neighbors
from fnlkit.sites import apps, opening
from fnlkit.sites.allowed import functions
from fnlkit.sites.flower import api

__all__ = ["apps", "neighbors", "opening"]

functions()
api.prepare()
