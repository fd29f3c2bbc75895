"""Everything that a process of a site imports to answer a message; `fnlkit.deploy.answers` imports it before it forks."""

import sklearn.decomposition  # noqa: F401
import sklearn.discriminant_analysis  # noqa: F401
import sklearn.linear_model  # noqa: F401
import sklearn.model_selection  # noqa: F401
import torch._dynamo  # noqa: F401 - by the first step of training

from fnlkit.deploy import apps, opening
from fnlkit.deploy.allowed import functions
from fnlkit.deploy.flower import api
from fnlkit.kernels import neighbors

__all__ = ["apps", "neighbors", "opening"]

functions()
api.prepare()
